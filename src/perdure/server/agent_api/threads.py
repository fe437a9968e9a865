"""`/threads`: create, read, change, search, count, copy and delete threads.

Every thread of the journal is listed, including those whose runs were not started over HTTP. The id
of a new thread must be a UUID. SQL filters by status, graph, assistant and id. Other metadata, and
values, are compared after the threads are read.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import orjson
from fastapi import APIRouter, Header, Response
from pydantic import BaseModel, Field

from perdure.commands import threads
from perdure.commands.assistants import default_id
from perdure.commands.threads import Matches, Thread, ThreadContent, ThreadFilter
from perdure.server.agent_api.resources import (
    Page,
    find_thread,
    has_metadata,
    page_response,
    passes,
    selected,
)
from perdure.server.agent_api.thread_state import (
    OF_STATE,
    apply_supersteps,
    graph_named,
    place,
    wire_thread,
)
from perdure.server.errors import ApiError
from perdure.server.routes import READ, START, Api, ApiDep
from perdure.types import State
from perdure.verbs import new_id
from perdure.views.json_values import dump

router = APIRouter(tags=["threads"])

Json = dict[str, Any]
Minutes = Annotated[float, Field(gt=0, le=5_000_000)]


class Ttl(BaseModel):
    """How long a thread is kept."""

    ttl: Minutes
    strategy: str = "delete"


class Update(BaseModel):
    """One update of a superstep."""

    values: Any = None
    command: Json | None = None
    as_node: str | None = None


class Superstep(BaseModel):
    """Updates that are applied together."""

    updates: list[Update]


class NewThread(BaseModel):
    """A new thread."""

    thread_id: uuid.UUID | None = None
    metadata: Json | None = None
    if_exists: Literal["raise", "do_nothing"] | None = None
    ttl: Ttl | Minutes | None = None
    supersteps: list[Superstep] | None = None


class ThreadPatch(BaseModel):
    """A change of a thread."""

    metadata: Json | None = None
    ttl: Ttl | Minutes | None = None


class Pruning(BaseModel):
    """Which threads to delete, or to reduce to their latest state."""

    thread_ids: Annotated[list[str], Field(max_length=1000)]
    strategy: Literal["delete", "keep_latest"] = "delete"


def minutes(ttl: Ttl | float | None) -> float | None:
    """How many minutes to keep a thread."""
    if not isinstance(ttl, Ttl):
        return ttl
    if ttl.strategy != "delete":
        raise ApiError(501, f"The ttl strategy {ttl.strategy[:50]!a} is not supported.")
    return ttl.ttl


@router.post("/threads", dependencies=[START])
async def create(body: NewThread, api: ApiDep) -> Json:
    """Create a thread."""
    id = str(body.thread_id or new_id())
    value: dict[str, Any] = {
        "thread_id": uuid.UUID(id),
        "metadata": body.metadata or {},
        "if_exists": body.if_exists or "raise",
        "ttl": body.ttl.model_dump() if isinstance(body.ttl, Ttl) else body.ttl,
    }
    filters = await api.authorize("threads", "create", value)
    content = ThreadContent(value.get("metadata") or {}, ttl=minutes(body.ttl))
    graph = None
    if body.supersteps:
        graph = graph_named(api, content.metadata.get("graph_id"))
    thread = await api.journal.arun(
        threads.create(api.engine, id, content, accept_existing=body.if_exists == "do_nothing")
    )
    if not passes(filters, thread.metadata):
        raise ApiError(409, f"Thread {id!r} already exists. Choose another id.")
    if graph is not None and body.supersteps and thread.run_id is None:
        await apply_supersteps(
            api,
            graph,
            place(id),
            [[one.model_dump() for one in step.updates] for step in body.supersteps],
        )
        thread = await api.journal.arun(threads.get(api.engine, id))
    return await wire_thread(api, thread)


@router.post("/threads/prune", dependencies=[START])
async def prune(body: Pruning, api: ApiDep) -> Json:
    """Delete threads, or all their checkpoints but the latest. Missing threads, and threads with a
    run under way, are skipped."""
    pruned = 0
    for id in dict.fromkeys(body.thread_ids):
        try:
            thread = await find_thread(api, id, "delete")
            if body.strategy == "delete":
                await erase_thread(api, thread)
            elif thread.status == "busy":
                continue
            else:
                await api.runtime.saver.aprune([thread.thread_id], strategy="keep_latest")
        except ApiError as error:
            if error.status_code in (404, 409, 422):
                continue
            raise
        pruned += 1
    return {"pruned_count": pruned}


@router.get("/threads/{thread_id}", dependencies=[READ])
async def get(thread_id: str, api: ApiDep, include: str = "") -> Json:
    """Get a thread with the values of its state; with `include=ttl` also how long it is kept."""
    thread = await find_thread(api, thread_id)
    item = await wire_thread(api, thread)
    if "ttl" in include.split(","):
        kept = {"ttl_minutes": thread.ttl, "expires_at": thread.expires_at}
        item["ttl"] = None if thread.ttl is None else {"strategy": "delete", **kept}
    return item


@router.patch("/threads/{thread_id}", dependencies=[START])
async def update(
    thread_id: str,
    body: ThreadPatch,
    api: ApiDep,
    prefer: Annotated[str, Header()] = "",
) -> Any:
    """Merge metadata into a thread's, and set how long it is kept."""
    value: dict[str, Any] = {"metadata": body.metadata or {}}
    thread = await find_thread(api, thread_id, "update", value)
    changed = await api.journal.arun(
        threads.change(
            api.engine, thread.thread_id, value.get("metadata") or {}, ttl=minutes(body.ttl)
        )
    )
    if "return=minimal" in prefer.replace(" ", "").lower():
        return Response(status_code=204)
    return await wire_thread(api, changed)


@router.delete("/threads/{thread_id}", status_code=204, dependencies=[START])
async def delete(thread_id: str, api: ApiDep) -> None:
    """Delete a thread with its runs and its state. Returns 409 while a run is under way."""
    await erase_thread(api, await find_thread(api, thread_id, "delete"))


async def erase_thread(api: Api, thread: Thread) -> None:
    """Erase a thread. Its resting run is cancelled first. Raises 409 if a run is being driven."""
    if thread.status == "busy":
        raise ApiError(
            409,
            f"Thread {thread.thread_id!r} has a run under way. Cancel it, or wait until it ends.",
        )
    if thread.status in ("interrupted", "error"):
        states = (State.WAITING, State.PAUSED, State.HELD)
        for run in await api.runtime.runs(thread_id=thread.thread_id, state=states, output=False):
            await api.runtime.cancel(run.id, reason="its thread was deleted")
    await api.runtime.erase(thread.thread_id)


@router.post("/threads/{thread_id}/copy", dependencies=[START])
async def copy(thread_id: str, api: ApiDep) -> Json:
    """Copy a thread with its state and history, without its runs."""
    source = await find_thread(api, thread_id)
    id = new_id()
    value: dict[str, Any] = {"thread_id": uuid.UUID(id), "metadata": dict(source.metadata)}
    await api.authorize("threads", "create", value)
    await api.runtime.saver.acopy_thread(source.thread_id, id)
    content = ThreadContent(value.get("metadata") or {}, source.config)
    thread = await api.journal.arun(threads.create(api.engine, id, content))
    return await wire_thread(api, thread)


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


@router.post("/threads/search", dependencies=[READ])
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
        page = threads.page(api.engine, chosen, body.offset, body.limit, matches)
        found, has_more = await api.journal.arun(page)
    return page_response(await _wire(api, body, found), body.offset, has_more=has_more)


@router.post("/threads/count", dependencies=[READ])
async def count(body: ThreadQuery, api: ApiDep) -> int:
    """Count threads."""
    chosen, matches = await _conditions(api, body, {})
    if body.values:
        return len(await _with_values(api, chosen, matches, body.values, SCANNED))
    return await api.journal.arun(threads.count(api.engine, chosen, matches))


async def _conditions(
    api: Api, body: ThreadQuery, page: Mapping[str, int]
) -> tuple[ThreadFilter, Matches | None]:
    """The conditions that SQL checks, and a function for the others."""
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
    page = threads.page(api.engine, chosen, 0, SCANNED, matches)
    fitting: list[Thread] = []
    for one in (await api.journal.arun(page))[0]:
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
        questions = await api.journal.arun(threads.questions(api.engine, asking))
    items = []
    for one in found:
        own = {id for thread_id, id in questions if thread_id == one.thread_id}
        whole = await wire_thread(api, one, questions=own, state=needs_state)
        item = selected(whole, body.select)
        if body.extract:
            plain = orjson.loads(dump(whole))
            item["extracted"] = {name: extracted(plain, at) for name, at in body.extract.items()}
        items.append(item)
    return items


def extracted(item: Json, path: str) -> Any:
    """The value at a path such as `values.messages[-1].content`, or None. `item` is JSON."""
    if not re.fullmatch(r"[\w-]+(\[-?\d+\]|\.[\w-]+)*", path):
        raise ApiError(422, f"extract: {path[:100]!a} is not a path such as values.messages[-1].")
    value: Any = item
    for part in re.findall(r"[\w-]+(?![\w-]*\])|\[-?\d+\]", path):
        try:
            value = value[int(part[1:-1]) if part.startswith("[") else part]
        except (LookupError, TypeError, ValueError):  # an index of 5,000 digits, too
            return None
    return value
