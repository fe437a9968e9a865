"""Plans about the records of threads: create, change, find and list them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from perdure.errors import UNREADABLE, AlreadyExists, NotFound
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.names import random_number
from perdure.operations import threads
from perdure.operations.assistants import Assistant
from perdure.operations.threads import ThreadContent, ThreadFilter, ThreadRow
from perdure.serde.serializer import Serializer
from perdure.times import maybe_moment, moment

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


class ThreadService:
    """Plans about the threads of a journal."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    def show(self, row: ThreadRow) -> Thread:
        """A thread as its users see it. Metadata that cannot be read is left out."""
        try:
            content = row.load(self._serializer)
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

    def find(self, thread_id: str) -> Plan[Thread | None]:
        """A thread, or None."""
        row: ThreadRow | None = yield threads.find(thread_id, self._clock.now())
        return None if row is None else self.show(row)

    def get(self, thread_id: str) -> Plan[Thread]:
        """A thread. Raises `NotFound`."""
        found = yield from self.find(thread_id)
        if found is None:
            raise NotFound("thread", thread_id)
        return found

    def create(
        self, thread_id: str, content: ThreadContent, *, accept_existing: bool = False
    ) -> Plan[Thread]:
        """Create the record of a thread. If it exists, raises `AlreadyExists` or returns it."""
        number = random_number()
        row: ThreadRow = yield threads.create(
            self._serializer, thread_id, content, number, self._clock.now()
        )
        if row.change != number and not accept_existing:
            raise AlreadyExists("thread", thread_id)
        return self.show(row)

    def assign(self, thread_id: str, content: ThreadContent, assistant: Assistant) -> Plan[None]:
        """Create the record of a thread if it has none, and set the graph and assistant of its
        first run."""
        yield threads.assign(
            self._serializer,
            thread_id,
            content,
            self._clock.now(),
            graph=assistant.graph_id,
            assistant=assistant.assistant_id,
        )

    def change(
        self, thread_id: str, metadata: Mapping[str, Any], *, ttl: float | None = None
    ) -> Plan[Thread]:
        """Merge metadata into a thread's, and set how many minutes it is kept from now on."""
        while True:
            seen: ThreadRow | None = yield threads.find(thread_id, self._clock.now())
            if seen is None:
                raise NotFound("thread", thread_id)
            content = seen.load(self._serializer)
            content = replace(content, metadata={**content.metadata, **metadata})
            if ttl is not None:
                content = replace(content, ttl=ttl)
            number = random_number()
            row: ThreadRow | None = yield threads.change(
                self._serializer, seen, content, number, self._clock.now(), renew=ttl is not None
            )
            if row is not None and row.change == number:
                return self.show(row)

    def page(
        self, chosen: ThreadFilter, offset: int, limit: int, matches: Matches | None = None
    ) -> Plan[tuple[list[Thread], bool]]:
        """Threads from `offset` on, in order, and whether there are more. `matches` checks what SQL
        cannot; with it, all threads before the page are read too."""
        now = self._clock.now()
        if chosen.ids is not None:
            rows: list[ThreadRow] = yield threads.page(chosen, 0, 0, now)
            every = [one for one in map(self.show, rows) if matches is None or matches(one)]
            every.sort(key=_sort_key(chosen.sort), reverse=chosen.descending)
            return every[offset : offset + limit], len(every) > offset + limit
        if chosen.status is not None and (chosen.sort, chosen.descending) in threads.INDEXED:
            found = yield from self._among_newest(chosen, matches)
            if len(found) > offset + limit:
                return found[offset : offset + limit], True
        if matches is None:
            rows = yield threads.page(chosen, offset, limit + 1, now)
            return [self.show(row) for row in rows[:limit]], len(rows) > limit
        found, read = [], 0
        while len(found) <= offset + limit:
            rows = yield threads.page(chosen, read, PAGE, now)
            found += [one for one in map(self.show, rows) if matches(one)]
            read += len(rows)
            if len(rows) < PAGE:
                break
        return found[offset : offset + limit], len(found) > offset + limit

    def _among_newest(self, chosen: ThreadFilter, matches: Matches | None) -> Plan[list[Thread]]:
        """The matching ones of the newest threads. If many threads have the status, these fill the
        page, and the others need not be sorted."""
        anything = replace(chosen, status=None)
        rows: list[ThreadRow] = yield threads.page(anything, 0, NEWEST, self._clock.now())
        found = [self.show(row) for row in rows if row.status == chosen.status]
        return [one for one in found if matches is None or matches(one)]

    def count(self, chosen: ThreadFilter, matches: Matches | None = None) -> Plan[int]:
        """The number of matching threads."""
        if matches is None and chosen.ids is None:
            return int((yield threads.count(chosen, self._clock.now())))
        found, read = 0, 0
        while True:
            rows: list[ThreadRow] = yield threads.page(chosen, read, PAGE, self._clock.now())
            found += sum(1 for row in rows if matches is None or matches(self.show(row)))
            read += len(rows)
            if len(rows) < PAGE or chosen.ids is not None:
                return found

    def questions(self, thread_ids: list[str]) -> Plan[set[tuple[str, str]]]:
        """(thread, interrupt id) of the open questions to people in these threads."""
        return (yield threads.questions(thread_ids)) if thread_ids else set()


def _sort_key(sort: str) -> Callable[[Thread], Any]:
    return lambda thread: (getattr(thread, sort), thread.thread_id)
