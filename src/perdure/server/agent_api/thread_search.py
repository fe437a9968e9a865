"""`/threads/search` and `/threads/count`.

SQL filters by status, graph, assistant and id. Other metadata, and values, are compared after the
threads are read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from perdure.operations.assistants import default_id
from perdure.operations.threads import ThreadFilter
from perdure.server.agent_api.search_pages import (
    Page,
    has_metadata,
    page_response,
    passes,
    selected,
)
from perdure.server.agent_api.thread_views import OF_STATE, wire_thread
from perdure.server.auth_handlers import Filters
from perdure.server.caller import Scope
from perdure.server.context import Api, ApiDep
from perdure.server.json_errors import ApiError
from perdure.service.threads import Matches, Thread

router = APIRouter(tags=["threads"])

Json = dict[str, Any]
Sort = Literal["thread_id", "status", "created_at", "updated_at", "state_updated_at"]
SCANNED = 1000
"""Maximum number of threads whose values are compared."""


class ThreadQuery(BaseModel):
    """Conditions that threads must meet."""

    metadata: Json | None = None
    values: Json | None = None
    status: Literal["idle", "busy", "interrupted", "error"] | None = None
    ids: Annotated[list[uuid.UUID | str], Field(max_length=1000)] | None = None


class ThreadSearch(Page, ThreadQuery):
    """A page of threads."""

    sort_by: Sort | None = None
    select: list[str] | None = None
    extract: Annotated[dict[str, str], Field(max_length=10)] | None = None


@router.post("/threads/search")
async def search(body: ThreadSearch, api: ApiDep) -> Any:
    """List threads, each with its state values and open questions."""
    page = {"limit": body.limit, "offset": body.offset}
    chosen, matches = await _chosen(api, body, page)
    chosen = ThreadFilter(
        chosen.status,
        chosen.graph,
        chosen.assistant,
        chosen.ids,
        body.sort_by or "created_at",
        body.sort_order != "asc",
    )
    services, journal = api.runtime.services, api.runtime.journal
    if body.values:
        return await _by_values(api, body, chosen, matches)
    found, has_more = await journal.arun(
        services.threads.page(chosen, body.offset, body.limit, matches)
    )
    shown = await _wire(api, body, found)
    return page_response(shown, body.offset, has_more=has_more)


@router.post("/threads/count")
async def count(body: ThreadQuery, api: ApiDep) -> int:
    """Count threads."""
    chosen, matches = await _chosen(api, body, {})
    services, journal = api.runtime.services, api.runtime.journal
    if not body.values:
        return int(await journal.arun(services.threads.count(chosen, matches)))
    found, _ = await journal.arun(services.threads.page(chosen, 0, SCANNED, matches))
    shown = [await wire_thread(api, one) for one in found]
    return sum(1 for one in shown if has_metadata(one["values"] or {}, body.values))


async def _chosen(
    api: Api, body: ThreadQuery, page: Mapping[str, int]
) -> tuple[ThreadFilter, Matches | None]:
    """The conditions that SQL checks, and a function for the others."""
    api.require(Scope.READ)
    value: dict[str, Any] = {
        "metadata": body.metadata or {},
        "values": body.values or {},
        "status": body.status,
        "ids": body.ids,
        **page,
    }
    filters = await api.authorize("threads", "search", value)
    wanted = dict(value.get("metadata") or {})
    ids = None if body.ids is None else tuple(str(one) for one in body.ids)
    graph, assistant = (
        wanted.get(name) if isinstance(wanted.get(name), str) else None
        for name in ("graph_id", "assistant_id")
    )
    if assistant is not None and graph is None:
        own = {default_id(name): name for name in api.runtime.graphs}
        graph = own.get(assistant)
    if graph is not None:
        assistant = None
    rest = wanted.keys() - ({"graph_id"} if graph == wanted.get("graph_id") else set())
    matches = _matches(wanted, filters) if rest or filters is not None else None
    return ThreadFilter(body.status, graph, assistant, ids), matches


def _matches(wanted: Mapping[str, Any], filters: Filters | None) -> Callable[[Thread], bool]:
    return lambda one: has_metadata(one.metadata, wanted) and passes(filters, one.metadata)


async def _by_values(
    api: Api, body: ThreadSearch, chosen: ThreadFilter, matches: Matches | None
) -> Any:
    """A page of threads with certain state values. Each thread's state has to be read."""
    journal, threads = api.runtime.journal, api.runtime.services.threads
    found, _ = await journal.arun(threads.page(chosen, 0, SCANNED, matches))
    fitting = []
    for one in found:
        state = (await wire_thread(api, one))["values"]
        if isinstance(state, Mapping) and has_metadata(state, body.values):
            fitting.append(one)
        if len(fitting) > body.offset + body.limit:
            break
    page = fitting[body.offset : body.offset + body.limit]
    shown = await _wire(api, body, page)
    return page_response(shown, body.offset, has_more=len(fitting) > body.offset + body.limit)


async def _wire(api: Api, body: ThreadSearch, found: list[Thread]) -> list[Json]:
    needs_state = body.select is None or bool(OF_STATE & {*body.select}) or bool(body.extract)
    asking = [one.thread_id for one in found if one.status == "interrupted"]
    questions: set[tuple[str, str]] = set()
    if asking and needs_state:
        questions = await api.runtime.journal.arun(api.runtime.services.threads.questions(asking))
    shown = []
    for one in found:
        own = {id for thread_id, id in questions if thread_id == one.thread_id}
        whole = await wire_thread(api, one, questions=own, state=needs_state)
        item = selected(whole, body.select)
        if body.extract:
            item["extracted"] = {
                name: extracted(whole, path) for name, path in body.extract.items()
            }
        shown.append(item)
    return shown


def extracted(item: Any, path: str) -> Any:
    """The value at a path such as `values.messages[-1].content`, or None."""
    if not re.fullmatch(r"[\w-]+(\[-?\d+\]|\.[\w-]+)*", path):
        raise ApiError(422, f"extract: {path[:100]!a} is not a path such as values.messages[-1].")
    for part in re.findall(r"[\w-]+(?![\w-]*\])|\[-?\d+\]", path):
        if part.startswith("["):
            try:
                item = item[int(part[1:-1])]
            except (LookupError, TypeError, ValueError):  # an index of 5,000 digits, too
                return None
        elif isinstance(item, Mapping):
            item = item.get(part)
        else:
            item = getattr(item, part, None) if _is_data(item, part) else None
    return item


def _is_data(item: Any, name: str) -> bool:
    """Whether this is a field of a message or another model, not a method."""
    return name in getattr(type(item), "model_fields", {}) or name in getattr(
        type(item), "__dataclass_fields__", {}
    )
