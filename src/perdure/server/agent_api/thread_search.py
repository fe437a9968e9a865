"""`/threads/search` and `/threads/count`.

SQL filters by status, graph, assistant and id. Other metadata, and values, are compared after the
threads are read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter
from pydantic import BaseModel, Field

from perdure.commands.assistants import default_id
from perdure.commands.threads import Matches, Thread, ThreadFilter
from perdure.server.agent_api.search_pages import (
    Page,
    has_metadata,
    page_response,
    passes,
    selected,
)
from perdure.server.agent_api.thread_views import OF_STATE, wire_thread
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api, ApiDep

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
    extract: Annotated[dict[str, str], Field(max_length=10)] | None = None


@router.post("/threads/search")
async def search(body: ThreadSearch, api: ApiDep) -> Any:
    """List threads, each with its state values and open questions."""
    chosen, matches = await _conditions(api, body, {"limit": body.limit, "offset": body.offset})
    sort = body.sort_by or "created_at"
    chosen = replace(chosen, sort=sort, descending=body.sort_order != "asc")
    if body.values:
        end = body.offset + body.limit
        fitting = await _with_values(api, chosen, matches, body.values, end + 1)
        found, has_more = fitting[body.offset : end], len(fitting) > end
    else:
        page = api.runtime.services.threads.page(chosen, body.offset, body.limit, matches)
        found, has_more = await api.runtime.journal.arun(page)
    return page_response(await _wire(api, body, found), body.offset, has_more=has_more)


@router.post("/threads/count")
async def count(body: ThreadQuery, api: ApiDep) -> int:
    """Count threads."""
    chosen, matches = await _conditions(api, body, {})
    if body.values:
        return len(await _with_values(api, chosen, matches, body.values, SCANNED))
    return int(await api.runtime.journal.arun(api.runtime.services.threads.count(chosen, matches)))


async def _conditions(
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
    named = {name: wanted.get(name) for name in ("graph_id", "assistant_id")}
    graph, assistant = (one if isinstance(one, str) else None for one in named.values())
    if assistant is not None and graph is None:
        graph = {default_id(name): name for name in api.runtime.graphs}.get(assistant)
    if graph is not None:
        assistant = None
    rest = wanted.keys() - ({"graph_id"} if graph == wanted.get("graph_id") else set())

    def matches(one: Thread) -> bool:
        return has_metadata(one.metadata, wanted) and passes(filters, one.metadata)

    ids = None if body.ids is None else tuple(str(one) for one in body.ids)
    chosen = ThreadFilter(body.status, graph, assistant, ids)
    return chosen, matches if rest or filters is not None else None


async def _with_values(
    api: Api, chosen: ThreadFilter, matches: Matches | None, values: Json, count: int
) -> list[Thread]:
    """The first threads with certain state values. Each thread's state has to be read."""
    page = api.runtime.services.threads.page(chosen, 0, SCANNED, matches)
    fitting: list[Thread] = []
    for one in (await api.runtime.journal.arun(page))[0]:
        state = (await wire_thread(api, one))["values"]
        if isinstance(state, Mapping) and has_metadata(state, values):
            fitting.append(one)
        if len(fitting) == count:
            break
    return fitting


async def _wire(api: Api, body: ThreadSearch, found: list[Thread]) -> list[Json]:
    needs_state = body.select is None or bool(OF_STATE & {*body.select}) or bool(body.extract)
    asking = [one.thread_id for one in found if one.status == "interrupted"]
    questions: set[tuple[str, str]] = set()
    if asking and needs_state:
        questions = await api.runtime.journal.arun(api.runtime.services.threads.questions(asking))
    items = []
    for one in found:
        own = {id for thread_id, id in questions if thread_id == one.thread_id}
        whole = await wire_thread(api, one, questions=own, state=needs_state)
        item = selected(whole, body.select)
        if body.extract:
            item["extracted"] = {name: extracted(whole, at) for name, at in body.extract.items()}
        items.append(item)
    return items


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
            item = getattr(item, part, None) if _is_field(item, part) else None
    return item


def _is_field(item: Any, name: str) -> bool:
    """Whether this is a field of a message or another model, not a method."""
    kind = type(item)
    return any(name in getattr(kind, at, {}) for at in ("model_fields", "__dataclass_fields__"))
