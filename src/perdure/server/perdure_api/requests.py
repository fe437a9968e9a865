"""What routes share: parameters, pages and errors, and which threads a caller may see or change.

A list is `{"items": [...], "next": ...}`. Pass `next` as `after` to get the next page; it is null
on the last one. Changes between two pages neither repeat nor skip existing items.

The handlers of `langgraph_sdk.Auth` decide by thread, as for the Agent Server's routes. A thread
that they hide is 404. A route that is not about one thread needs the scope `admin`, which a user
has only with the permission `perdure:admin`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, Protocol, TypeVar

from fastapi import Path, Query
from pydantic import BaseModel, ConfigDict, Field

from perdure.commands import Plan, effects, runs, threads, waits
from perdure.errors import NotFound
from perdure.server.authorization import Filters
from perdure.server.routes import Api

T = TypeVar("T")
Position = tuple[int, str]

TEXT = r"^[^\x00]*$"  # PostgreSQL stores no NUL
Id = Annotated[str, Path(min_length=1, max_length=512, pattern=TEXT)]
Name = Annotated[str, Path(min_length=1, max_length=256, pattern=TEXT)]
Which = Annotated[str | None, Query(max_length=512, pattern=TEXT)]
Limit = Annotated[int, Query(ge=1, le=1000, description="Maximum number of items.")]
After = Annotated[
    str | None,
    Query(max_length=600, pattern=r"^[0-9]{1,15}\.[^\x00]+$", description="`next` of a page."),
]
Text = Annotated[str, Field(max_length=10_000, pattern=TEXT)]
Person = Annotated[
    str | None, Field(max_length=256, pattern=TEXT, description="Who does it, for the record.")
]


class Detail(BaseModel):
    """Why a request was refused."""

    detail: str


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of an operation, for OpenAPI."""
    return {status: {"model": Detail} for status in (401, 403, 422, 503, *statuses)}


class Body(BaseModel):
    """The body of a request. Unknown keys are refused, because they are probably misspelt."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some items of a list. Pass `next` as `after` for the next page."""

    items: list[T]
    next: str | None

    @classmethod
    def of(cls, items: list[T], last: Position | None) -> Page[T]:
        """Make a page. `last` is the position of the last item, if there may be more."""
        return cls(items, None if last is None else f"{last[0]}.{last[1]}")


def position(after: str | None) -> Position | None:
    """The position that `after` names."""
    if after is None:
        return None
    at, _, id = after.partition(".")
    return int(at), id


SCANNED = 200
"""Rows that are read at once, if handlers may hide some of them."""


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


FIND: dict[str, Callable[[str], Any]] = {
    "run": runs.find,
    "wait": waits.find,
    "effect": effects.find,
}


async def find_row(api: Api, kind: str, id: str, action: str = "read") -> Any:
    """The row of a run, a wait or an effect that the caller may read or change. Raises
    `NotFound`."""
    row = await api.journal.ado(FIND[kind](id))
    if row is None:
        raise NotFound(kind, id)
    await allow_thread(api, row.thread_id, action, NotFound(kind, id))
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
            chosen = threads.ThreadFilter(ids=tuple(new))
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
    thread = await api.journal.arun(threads.find(api.engine, thread_id))
    return {} if thread is None else dict(thread.metadata)
