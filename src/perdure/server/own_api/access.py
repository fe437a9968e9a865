"""Which threads a caller may see or change, by `langgraph_sdk.Auth` handlers.

The handlers decide by thread, as for the Agent Server's routes. A thread that they hide is 404. A
route that is not about one thread needs the scope `admin`, which a user has only with the
permission `perdure:admin`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from perdure.commands import Plan, runs, threads
from perdure.commands import threads as operations_threads
from perdure.commands.runs import RunRow
from perdure.errors import NotFound
from perdure.server.authorization import Filters
from perdure.server.routes import Api

SCANNED = 200
"""Rows that are read at once, if handlers may hide some of them."""
Position = tuple[int, str]


class OfThread(Protocol):
    """A row of something that belongs to a thread."""

    @property
    def thread_id(self) -> str: ...


R = TypeVar("R", bound=OfThread)


async def allow_thread(
    api: Api, thread_id: str, action: str, missing: Exception | None = None
) -> None:
    """Raise 404, or `missing`, unless the caller may read or change this thread."""
    filters = await api.authorize("threads", action, {"thread_id": thread_id})
    if filters is not None and not filters.match(await _metadata(api, thread_id)):
        raise missing or NotFound("thread", thread_id)


async def find_run(api: Api, run_id: str, action: str = "read") -> RunRow:
    """The row of a run that the caller may read or change. Raises `NotFound`."""
    row: RunRow | None = await api.runtime.journal.ado(runs.find(run_id))
    if row is None:
        raise NotFound("run", run_id)
    await allow_thread(api, row.thread_id, action, NotFound("run", run_id))
    return row


class ThreadFilter:
    """The threads of a list that the caller may see."""

    def __init__(self, api: Api, filters: Filters | None) -> None:
        self._api, self._filters = api, filters
        self._known: dict[str, bool] = {}

    @classmethod
    async def of(cls, api: Api) -> ThreadFilter:
        return cls(api, await api.authorize("threads", "search", {}))

    async def sees(self, thread_id: str) -> bool:
        if self._filters is None:
            return True
        if thread_id not in self._known:
            metadata = await _metadata(self._api, thread_id)
            self._known[thread_id] = self._filters.match(metadata)
        return self._known[thread_id]

    @property
    def sees_all(self) -> bool:
        """Whether no thread is hidden from the caller."""
        return self._filters is None

    def allows(self, metadata: Mapping[str, Any]) -> bool:
        """Whether the caller may see a thread with this metadata."""
        return self._filters is None or self._filters.match(dict(metadata))

    def visible(self, thread_ids: Collection[str]) -> Plan[Collection[str]]:
        """The threads among these that the caller may see, in one read."""
        if self._filters is None:
            return thread_ids
        if new := {*thread_ids} - self._known.keys():
            chosen = operations_threads.ThreadFilter(ids=tuple(new))
            plan = threads.page(self._api.runtime.engine, chosen, 0, len(new))
            found, _ = yield from plan
            metadata = {one.thread_id: dict(one.metadata) for one in found}
            for id in new:
                self._known[id] = self._filters.match(metadata.get(id, {}))
        return {id for id in thread_ids if self._known[id]}

    async def page(
        self,
        read: Callable[[Position | None, int], Awaitable[Sequence[R]]],
        after: Position | None,
        limit: int,
        place: Callable[[R], Position],
    ) -> tuple[list[R], Position | None]:
        """The next rows of a list that the caller may see, and the position of the last of them if
        there may be more: a position never names what is hidden. `read` reads so many rows behind
        a position."""
        found: list[R] = []
        count = limit if self._filters is None else max(limit, SCANNED)
        while True:
            rows = await read(after, count)
            for row in rows:
                if await self.sees(row.thread_id):
                    found.append(row)
                if len(found) == limit:
                    return found, place(row)
            if len(rows) < count:
                return found, None
            after = place(rows[-1])


async def _metadata(api: Api, thread_id: str) -> dict[str, Any]:
    """The metadata of a thread. Without a record it is empty, so no filter matches."""
    plan = threads.find(api.runtime.engine, thread_id)
    thread = await api.runtime.journal.arun(plan)
    return {} if thread is None else dict(thread.metadata)
