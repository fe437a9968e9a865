"""Plans about the records of threads: create, change, find, list and search them.

A search reads a bounded number of rows, newest activity first. Graph and position are in an index.
The status of a thread is computed from its runs, and its metadata is in a blob: a search by those
reads at most `MOST_READ` threads and reports where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NamedTuple, NoReturn

from perdure.commands.assistants import default_id
from perdure.commands.connection import Connection
from perdure.commands.run_search import Page, Position, as_text, read_page
from perdure.commands.runs import LAST_ID, names_in_pieces
from perdure.errors import UNREADABLE, AlreadyExists, NotFound
from perdure.journal import (
    NO_PROOF,
    Op,
    Plan,
    Row,
    Statement,
    all_rows,
    first_as,
    read_op,
    rows_as,
    with_params,
    write_op,
)
from perdure.journal.names import check_text, maybe_text, random_number
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import LAST_MS, maybe_moment, moment

JUST_ENDED = 60_000
"""Minimum number of milliseconds that a thread is kept after its last run ends."""

INDEXED = (("created_at", True), ("updated_at", True))
"""Sort orders that have an index: the column, and whether it is descending."""

EXPIRED = 10
"""Maximum number of expired threads erased at a time, before a worker looks for due runs again."""


@dataclass(frozen=True)
class ThreadContent:
    """What callers have set on a thread."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    ttl: float | None = None
    """Minutes from its last change until it is erased."""


def _place(thread_id: str, created_at: int) -> Place:
    """What callers say about a thread. SQL decides its graph and its assistant."""
    return Place(f"record of thread {thread_id}", (created_at,))


class ThreadRow(NamedTuple):
    """The record of a thread, with its status and its last run."""

    thread_id: str
    graph: str | None
    assistant: str | None
    created_at: int
    updated_at: int
    expires_at: int | None
    change: int
    body: bytes | None
    status: str
    run_id: str | None
    run_graph: str | None
    run_version: str | None
    run_updated_at: int | None

    def load(self, serializer: Serializer) -> ThreadContent:
        """What callers have set on it. Its metadata names its graph and, once it has had a run, its
        assistant."""
        stored: dict[str, Any] = {}
        if self.body is not None:
            place = _place(self.thread_id, self.created_at)
            stored = serializer.loads(self.body, place, dict)
        own: dict[str, Any] = {}
        if self.graph is not None:
            own["graph_id"] = self.graph
            if self.assistant is None and self.run_id is not None:
                own["assistant_id"] = default_id(self.graph)
        if self.assistant is not None:
            own["assistant_id"] = self.assistant
        metadata = {**(stored.get("metadata") or {}), **own}
        return ThreadContent(metadata, stored.get("config") or {}, stored.get("ttl"))


@dataclass(frozen=True)
class ThreadFilter:
    """The conditions and the order of a list of threads, as far as SQL applies them."""

    status: str | None = None
    graph: str | None = None
    assistant: str | None = None
    ids: tuple[str, ...] | None = None
    sort: str = "created_at"
    descending: bool = True


def _params(
    serializer: Serializer, thread_id: str, created_at: int, content: ThreadContent, change: int
) -> dict[str, Any]:
    """The parameters that store what a caller sets. Graph and assistant have their own columns."""
    metadata = dict(content.metadata)
    graph, assistant = (
        check_text(name, metadata.pop(name)) if isinstance(metadata.get(name), str) else None
        for name in ("graph_id", "assistant_id")
    )
    stored = {
        "metadata": dict(serializer.redacted_entries(metadata)),
        "config": dict(serializer.redacted_entries(content.config)),
        "ttl": content.ttl,
    }
    place = _place(thread_id, created_at)
    return {
        "thread_id": thread_id,
        "graph": graph,
        "assistant": assistant,
        "change": change,
        "body": serializer.dumps(stored, place, own=True),
    }


def _expiry(content: ThreadContent, now: int) -> int | None:
    return None if content.ttl is None else now + round(content.ttl * 60_000)


def _store(statement: str, params: Mapping[str, Any]) -> Op[ThreadRow | None]:
    """Store what is set on a thread, and read its record: `change` says whether it was stored."""
    find = _by_id(params["thread_id"], params["now"])
    return Op(
        f"thread {params['thread_id']}",
        [Statement(statement, params), find],
        lambda rows: first_as(ThreadRow)(rows[-1:]),
        write=True,
        key=find,
        proof=NO_PROOF,
    )


def create_row(
    serializer: Serializer, thread_id: str, content: ThreadContent, change: int, now: int
) -> Op[ThreadRow | None]:
    """Create the record of a thread, or find the existing one: `change` says which."""
    params = _params(serializer, thread_id, now, content, change)
    return _store("insert_thread", {**params, "now": now, "expires_at": _expiry(content, now)})


def ensure(
    serializer: Serializer,
    thread_id: str,
    content: ThreadContent,
    now: int,
    *,
    graph: str,
    assistant: str,
) -> list[Statement]:
    """The statements that create a thread's record if it has none, and set the graph and assistant
    of its first run, for the batch that starts the run."""
    params = _params(serializer, thread_id, now, content, 0)
    params |= {"now": now, "expires_at": _expiry(content, now)}
    return [
        Statement("insert_thread", params),
        Statement("assign_thread", {**params, "graph": graph, "assistant": assistant}),
    ]


def require(thread_id: str, now: int, *, graph: str, assistant: str) -> list[Statement]:
    """Like `ensure`, but refuses the batch if the thread has no record."""
    params = {"thread_id": thread_id, "now": now, "graph": graph, "assistant": assistant}
    return with_params(params, "require_thread", "assign_thread")


def refuse_missing(thread_id: str) -> NoReturn:
    """Raise `NotFound`: the `otherwise` of an operation that requires a thread."""
    raise NotFound("thread", thread_id)


def set_has_next(thread_id: str, *, has_next: bool) -> Op[None]:
    """Note whether nodes are left to run after a caller changed the state of a thread."""
    params = {"thread_id": thread_id, "has_next": int(has_next)}
    return write_op(params, "set_has_next")


def find_row(thread_id: str, now: int) -> Op[ThreadRow | None]:
    find = _by_id(check_text("thread_id", thread_id), now)
    return Op("thread", [find], first_as(ThreadRow))


def _by_id(thread_id: str, now: int) -> Statement:
    params = {"names": json.dumps([thread_id]), "status": None, "now": now}
    return Statement("threads_by_ids", params)


def _filter_params(chosen: ThreadFilter, now: int) -> dict[str, Any]:
    return {
        "status": chosen.status,
        "graph": maybe_text("graph_id", chosen.graph),
        "assistant": maybe_text("assistant_id", chosen.assistant),
        "now": now,
    }


def page_of_rows(
    chosen: ThreadFilter, offset: int, count: int, now: int, before: Position | None = None
) -> Op[list[ThreadRow]]:
    """`count` threads from `offset` on, in order, behind a position. A filter by ids returns them
    all, unordered."""
    at, id = before or (LAST_MS, LAST_ID)
    params = _filter_params(chosen, now) | {"before": at, "before_id": id, "sort": chosen.sort}
    params |= {"direction": -1 if chosen.descending else 1, "count": count, "offset": offset}
    name, pieces = "threads_sorted", [params]
    order = (chosen.sort, chosen.descending)
    if chosen.ids is not None:
        for id in chosen.ids:
            check_text("thread_id", id)
        name, pieces = "threads_by_ids", [params | ids for ids in names_in_pieces(chosen.ids)]
    elif chosen.status not in (None, "idle"):
        name = "threads_not_idle"
    elif chosen.graph is not None and order == INDEXED[0]:
        name = "threads_of_graph"
    elif order in INDEXED:
        name = f"threads_by_{chosen.sort.removesuffix('_at')}"
    return Op(name, [Statement(name, piece) for piece in pieces], rows_as(ThreadRow))


def expired(now: int, count: int) -> Op[list[str]]:
    """Some expired threads without an unfinished run, oldest expiry first. A thread whose run has
    just ended is kept a little longer, because its callers may come back."""
    params = {"now": now, "recent": now - JUST_ENDED, "count": count}
    return read_op("expired_threads", params, lambda rows: [row[0] for row in rows[0]])


PAGE = 500
"""Threads read at a time when their metadata, which SQL cannot read, has to be compared."""

NEWEST = 200
"""Number of newest threads that are read first when threads of one status are listed."""


@dataclass(frozen=True)
class Thread:
    """A thread: what callers have set on it, and the status of its runs."""

    thread_id: str
    status: str
    """`idle`, `busy`, `interrupted` or `error`, as in LangGraph's Agent Server."""
    metadata: Mapping[str, Any]
    config: Mapping[str, Any]
    created_at: datetime
    updated_at: datetime
    state_updated_at: datetime
    expires_at: datetime | None
    ttl: float | None
    run_id: str | None
    """Its last run."""
    graph: str | None
    """The graph of its last run, or the one it was created for."""
    version: str | None
    is_assigned: bool
    """Whether it has a graph and an assistant, which its first run sets."""


Matches = Callable[[Thread], bool]


def show(on: Connection, row: ThreadRow) -> Thread:
    """A thread as its users see it. Metadata that cannot be read is left out."""
    try:
        content = row.load(on.serializer)
    except UNREADABLE as error:
        content = ThreadContent({"damaged": str(error)})
    return Thread(
        thread_id=row.thread_id,
        status=row.status,
        metadata=content.metadata,
        config=content.config,
        created_at=moment(row.created_at),
        updated_at=moment(row.updated_at),
        state_updated_at=moment(row.run_updated_at or row.updated_at),
        expires_at=maybe_moment(row.expires_at),
        ttl=content.ttl,
        run_id=row.run_id,
        graph=row.run_graph or row.graph,
        version=row.run_version,
        is_assigned=row.graph is not None and row.assistant is not None,
    )


def find(on: Connection, thread_id: str) -> Plan[Thread | None]:
    """A thread, or None."""
    row: ThreadRow | None = yield find_row(thread_id, on.clock.now())
    return None if row is None else show(on, row)


def get(on: Connection, thread_id: str) -> Plan[Thread]:
    """A thread. Raises `NotFound`."""
    found = yield from find(on, thread_id)
    if found is None:
        raise NotFound("thread", thread_id)
    return found


def create(
    on: Connection, thread_id: str, content: ThreadContent, *, accept_existing: bool = False
) -> Plan[Thread]:
    """Create the record of a thread. If it exists, raises `AlreadyExists` or returns it."""
    number = random_number()
    row: ThreadRow = yield create_row(on.serializer, thread_id, content, number, on.clock.now())
    if row.change != number and not accept_existing:
        raise AlreadyExists("thread", thread_id)
    return show(on, row)


def change(
    on: Connection, thread_id: str, metadata: Mapping[str, Any], *, ttl: float | None = None
) -> Plan[Thread]:
    """Merge metadata into a thread's, and set how many minutes it is kept from now on."""
    while True:
        seen: ThreadRow | None = yield find_row(thread_id, on.clock.now())
        if seen is None:
            raise NotFound("thread", thread_id)
        content, now = seen.load(on.serializer), on.clock.now()
        content = replace(content, metadata={**content.metadata, **metadata})
        expires_at = seen.expires_at
        if ttl is not None:
            content = replace(content, ttl=ttl)
            expires_at = _expiry(content, now)
        number = random_number()
        params = _params(on.serializer, thread_id, seen.created_at, content, number)
        params |= {"now": now, "seen": seen.change, "expires_at": expires_at}
        row: ThreadRow | None = yield _store("change_thread", params)
        if row is not None and row.change == number:
            return show(on, row)


def page(
    on: Connection, chosen: ThreadFilter, offset: int, limit: int, matches: Matches | None = None
) -> Plan[tuple[list[Thread], bool]]:
    """Threads from `offset` on, in order, and whether there are more. `matches` checks what SQL
    cannot; with it, all threads before the page are read too."""
    now = on.clock.now()
    if chosen.ids is not None:
        rows: list[ThreadRow] = yield page_of_rows(chosen, 0, 0, now)
        every = [one for one in (show(on, row) for row in rows) if matches is None or matches(one)]
        every.sort(
            key=lambda one: (getattr(one, chosen.sort), one.thread_id), reverse=chosen.descending
        )
        return every[offset : offset + limit], len(every) > offset + limit
    if chosen.status is not None and (chosen.sort, chosen.descending) in INDEXED:
        found = yield from _among_newest(on, chosen, matches)
        if len(found) > offset + limit:
            return found[offset : offset + limit], True
    if matches is None:
        rows = yield page_of_rows(chosen, offset, limit + 1, now)
        return [show(on, row) for row in rows[:limit]], len(rows) > limit
    found, read = [], 0
    while len(found) <= offset + limit:
        rows = yield page_of_rows(chosen, read, PAGE, now)
        found += [one for one in (show(on, row) for row in rows) if matches(one)]
        read += len(rows)
        if len(rows) < PAGE:
            break
    return found[offset : offset + limit], len(found) > offset + limit


def _among_newest(
    on: Connection, chosen: ThreadFilter, matches: Matches | None
) -> Plan[list[Thread]]:
    """The matching ones of the newest threads. If many threads have the status, these fill the
    page, and the others need not be sorted."""
    anything = replace(chosen, status=None)
    rows: list[ThreadRow] = yield page_of_rows(anything, 0, NEWEST, on.clock.now())
    found = [show(on, row) for row in rows if row.status == chosen.status]
    return [one for one in found if matches is None or matches(one)]


def count(on: Connection, chosen: ThreadFilter, matches: Matches | None = None) -> Plan[int]:
    """The number of matching threads."""
    now = on.clock.now()
    if matches is None and chosen.ids is None:
        params = _filter_params(chosen, now)
        return int((yield read_op("count_threads", params, lambda rows: rows[0][0][0])))
    matching, read = 0, 0
    while True:
        rows: list[ThreadRow] = yield page_of_rows(chosen, read, PAGE, now)
        matching += sum(1 for row in rows if matches is None or matches(show(on, row)))
        read += len(rows)
        if len(rows) < PAGE or chosen.ids is not None:
            return matching


def questions(on: Connection, thread_ids: list[str]) -> Plan[set[tuple[str, str]]]:
    """(thread, interrupt id) of the open questions to people in these threads."""
    if not thread_ids:
        return set()
    params = {"names": json.dumps(sorted(thread_ids))}
    rows: list[Row] = yield read_op("questions_of_threads", params, all_rows)
    return {(thread_id, interrupt_id) for thread_id, interrupt_id, *_ in rows}


# -- searching

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


def search_threads(
    on: Connection,
    query: ThreadQuery,
    limit: int,
    *,
    before: Position | None = None,
    allowed: Allowed | None = None,
) -> Plan[Page[Thread]]:
    """At most `limit` threads after a position. No position names a hidden thread."""
    of_graph = ThreadFilter(graph=query.graph or None, sort="updated_at")
    now = on.clock.now()

    def matching(rows: list[ThreadRow]) -> Plan[list[ThreadRow]]:
        yield from ()  # a plan, though it reads nothing
        return [row for row in rows if _matches(show(on, row), query, allowed)]

    found: Page[ThreadRow] = yield from read_page(
        lambda place, size: page_of_rows(of_graph, 0, size, now, place),
        matching if query.status or query.text or allowed else None,
        lambda row: (row.updated_at, row.thread_id),
        limit,
        before,
        hides=allowed is not None,
    )
    shown = [show(on, row) for row in found.rows]
    return Page(shown, found.older, read=found.read, is_cut=found.is_cut)


def _matches(thread: Thread, query: ThreadQuery, allowed: Allowed | None) -> bool:
    if query.status not in ("", thread.status):
        return False
    if allowed is not None and not allowed(thread.metadata):
        return False
    labels = (f"{name}={as_text(one)}" for name, one in thread.metadata.items() if name not in OWN)
    whole = "\n".join((thread.thread_id, thread.graph or "", *labels)).casefold()
    return all(word in whole for word in query.text.casefold().split())
