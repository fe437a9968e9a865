"""A plan that searches threads, newest activity first, in a bounded number of rows.

Graph and position are in an index. The status of a thread is computed from its runs, and its
metadata is in a blob: a search by those reads at most `MOST_READ` threads and reports where it
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perdure.commands import threads
from perdure.commands.connection import Connection
from perdure.commands.run_search import Position, as_text, unnamed
from perdure.commands.threads import Thread, ThreadRow
from perdure.journal import Plan

MOST_READ = 1000
"""Maximum number of threads that one search reads."""

CHUNK = 200
"""Number of threads read at a time when filtering by status or text."""

OWN = ("graph_id", "assistant_id")
"""Metadata that every thread has."""

Allowed = Callable[[Mapping[str, Any]], bool]
"""Whether the caller may see a thread with this metadata."""


@dataclass(frozen=True)
class ThreadQuery:
    """A search for threads. Empty fields match everything."""

    graph: str = ""
    status: str = ""
    text: str = ""
    """Words that occur in the id, the graph or the metadata."""

    def __bool__(self) -> bool:
        return self != ThreadQuery()


@dataclass(frozen=True)
class ThreadPage:
    """Threads that were found, newest activity first."""

    threads: list[Thread]
    older: Position | None = None
    """Position of the next page. None if there are no more."""
    read: int = 0
    is_cut: bool = False
    """Whether the search stopped at its limit before the page was full."""


def search_threads(
    on: Connection,
    query: ThreadQuery,
    limit: int,
    *,
    before: Position | None = None,
    allowed: Allowed | None = None,
) -> Plan[ThreadPage]:
    """At most `limit` threads after a position. No position names a hidden thread."""
    is_exact = not (query.status or query.text or allowed)
    found: list[tuple[Position, Thread]] = []
    read, place = 0, before
    while True:
        size = limit + 1 if is_exact else min(CHUNK, MOST_READ - read)
        rows: list[ThreadRow] = yield threads.before(
            query.graph or None, place, size, on.clock.now()
        )
        read += len(rows)
        for row in rows:
            thread = threads.show(on, row)
            if _matches(thread, query) and (allowed is None or allowed(thread.metadata)):
                found.append((_position(row), thread))
        if len(found) > limit:
            return _page(found[:limit], found[limit - 1][0], read)
        if len(rows) < size:
            return _page(found, None, read)
        place = _position(rows[-1])
        if read >= MOST_READ:
            if allowed is not None:
                found = [one for one in found if one[0][0] != place[0]]
                place = unnamed(place[0], before)
            return _page(found, place, read, is_cut=True)


def _page(
    found: list[tuple[Position, Thread]],
    older: Position | None,
    read: int,
    *,
    is_cut: bool = False,
) -> ThreadPage:
    return ThreadPage([thread for _, thread in found], older, read, is_cut)


def _matches(thread: Thread, query: ThreadQuery) -> bool:
    if query.status not in ("", thread.status):
        return False
    if not query.text:
        return True
    labels = (f"{name}={as_text(one)}" for name, one in thread.metadata.items() if name not in OWN)
    whole = "\n".join((thread.thread_id, thread.graph or "", *labels)).casefold()
    return all(word in whole for word in query.text.casefold().split())


def _position(row: ThreadRow) -> Position:
    return row.updated_at, row.thread_id
