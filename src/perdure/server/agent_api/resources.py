"""What the resources of the Agent Server API share: pages of searches, conditions on metadata, and
which threads and assistants a caller may use, by the handlers of `langgraph_sdk.Auth`.

What they hide is reported as missing: 404, or 422 for a thread id that is not a UUID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import BaseModel, Field

from perdure.commands import assistants, threads
from perdure.commands.assistants import Assistant, default_id
from perdure.commands.threads import Thread
from perdure.errors import NotFound
from perdure.server.authorization import Filters
from perdure.server.errors import ApiError, WireResponse
from perdure.server.routes import Api

T = TypeVar("T")
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=2**31)]


class Page(BaseModel):
    """Which page of a search to return."""

    limit: Limit = 10
    offset: Offset = 0
    sort_order: Literal["asc", "desc"] | None = None
    select: list[str] | None = None
    """The fields to return, by default all."""


def has_metadata(metadata: Mapping[str, Any], wanted: Mapping[str, Any] | None) -> bool:
    """Whether metadata, or a state, contains `wanted`, including nested objects."""
    return all(
        key in metadata and _holds(metadata[key], one) for key, one in (wanted or {}).items()
    )


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(value, Mapping) and isinstance(wanted, Mapping):
        return has_metadata(value, wanted)
    return bool(value == wanted)


def passes(filters: Filters | None, metadata: Mapping[str, Any]) -> bool:
    """Whether metadata meets the conditions of an authorization handler, if there are any."""
    return filters is None or filters.match(dict(metadata))


def selected(item: Mapping[str, Any], select: Iterable[str] | None) -> dict[str, Any]:
    """The selected fields of an item, by default all; `values.name` is one key of its values."""
    if select is None:
        return dict(item)
    fields: dict[str, Any] = {}
    for name in select:
        field, _, key = name.partition(".")
        if not key and field in item:
            fields[field] = item[field]
        elif isinstance(values := item.get(field), Mapping) and key in values:
            fields.setdefault(field, {})[key] = values[key]
    return fields


def page_response(items: Sequence[Any], offset: int, *, has_more: bool) -> WireResponse:
    """A page of a search. Its total is a lower bound: items so far, plus one if there are more."""
    end = offset + len(items)
    headers = {"x-pagination-total": str(end + has_more)}
    if has_more:
        headers["x-pagination-next"] = str(end)
    return WireResponse(list(items), headers=headers)


def page_of(every: Sequence[T], page: Page, wire: Callable[[T], Mapping[str, Any]]) -> WireResponse:
    """A page of items that were all read; `wire` is how clients get each."""
    end = page.offset + page.limit
    items = [selected(wire(one), page.select) for one in every[page.offset : end]]
    return page_response(items, page.offset, has_more=len(every) > end)


# -- threads


def as_uuid(thread_id: str) -> UUID | str:
    """A thread id as authorization handlers get it: a UUID, if it is one."""
    try:
        return UUID(thread_id)
    except ValueError:
        return thread_id


def missing_thread(thread_id: str) -> ApiError:
    """What a request for a thread that does not exist raises."""
    if isinstance(id := as_uuid(thread_id), str):
        return ApiError(422, f"The thread id {id[:100]!a} is not a UUID.")
    return ApiError(404, f"There is no thread {str(id)!r}.")


async def known_thread(api: Api, thread_id: str) -> str:
    """A thread's id as it is stored. Raises 422 unless it is a UUID or an existing thread."""
    id = as_uuid(thread_id)
    if isinstance(id, str) and await api.journal.arun(threads.find(api.engine, id)) is None:
        raise missing_thread(id)
    return str(id)


async def find_thread(
    api: Api, thread_id: str, action: str = "read", value: dict[str, Any] | None = None
) -> Thread:
    """A thread on which the caller may do `action`. `value` is passed to the authorization
    handlers, which may change it."""
    value = {} if value is None else value
    value["thread_id"] = id = as_uuid(thread_id)
    filters = await api.authorize("threads", action, value)
    thread = await api.journal.arun(threads.find(api.engine, str(id)))
    if thread is None or not passes(filters, thread.metadata):
        raise missing_thread(thread_id)
    return thread


async def check_filters(
    api: Api,
    thread_id: str,
    filters: Filters | None,
    *,
    may_be_missing: bool = False,
    missing: Exception | None = None,
) -> None:
    """Raise `missing`, by default that there is no such thread, if its metadata does not match."""
    if filters is None:
        return
    thread = await api.journal.arun(threads.find(api.engine, thread_id))
    if thread is None and may_be_missing:
        return
    if thread is None or not passes(filters, thread.metadata):
        raise missing or missing_thread(thread_id)


# -- assistants


async def find_assistant(
    api: Api, name: str, action: str = "read", value: dict[str, Any] | None = None
) -> Assistant:
    """The assistant with an id, or the default one of the graph with that name, on which the caller
    may do `action`. The authorization handlers may change `value`. Everyone may `run` the default
    ones, which belong to no user; to run another, one must be allowed to read it. Raises 404 for an
    unknown id and 422 for an unknown name."""
    assistant = await api.journal.arun(assistants.find(api.engine, name), flush=False)
    if action == "run":
        if assistant.assistant_id == default_id(assistant.graph_id):
            return assistant
        action = "read"
    value = {} if value is None else value
    passed = {"assistant_id": UUID(assistant.assistant_id), "metadata": {}, **value}
    filters = await api.authorize("assistants", action, passed)
    value.update({key: passed.get(key, one) for key, one in value.items()})
    if not passes(filters, assistant.metadata):
        raise NotFound("assistant", name)
    return assistant
