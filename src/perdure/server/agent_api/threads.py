"""`/threads`: create, read, change, list, copy and delete threads.

Every thread of the journal is listed, including those whose runs were not started over HTTP. The id
of a new thread must be a UUID.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Header, Response
from langgraph.types import StateSnapshot
from pydantic import BaseModel, Field

from perdure.checkpoint.config import Found
from perdure.commands.threads import Thread, ThreadContent
from perdure.journal.names import new_id
from perdure.server.agent_api import thread_views
from perdure.server.agent_api.search_pages import passes
from perdure.server.agent_api.thread_access import find_thread, read_thread
from perdure.server.agent_api.thread_views import wire_thread
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api, ApiDep
from perdure.types import State

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


@router.post("/threads")
async def create(body: NewThread, api: ApiDep) -> Json:
    """Create a thread."""
    api.require(Scope.START)
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
        graph = thread_views.graph_named(api, content.metadata.get("graph_id"))
    thread = await api.runtime.journal.arun(
        api.runtime.services.threads.create(
            id, content, accept_existing=body.if_exists == "do_nothing"
        )
    )
    if not passes(filters, thread.metadata):
        raise ApiError(409, f"Thread {id!r} already exists. Choose another id.")
    if graph is not None and body.supersteps and thread.run_id is None:
        await thread_views.apply_supersteps(
            api,
            graph,
            thread_views.place(id),
            [[one.model_dump() for one in step.updates] for step in body.supersteps],
        )
        thread = await api.runtime.journal.arun(api.runtime.services.threads.get(id))
    return await wire_thread(api, thread)


@router.post("/threads/prune")
async def prune(body: Pruning, api: ApiDep) -> Json:
    """Delete threads, or all their checkpoints but the latest. Missing threads, and threads with a
    run under way, are skipped."""
    api.require(Scope.START)
    pruned = 0
    for id in dict.fromkeys(body.thread_ids):
        try:
            found = await find_thread(api, id, "delete")
            if body.strategy == "delete":
                await erase_thread(api, found)
            elif found.status == "busy":
                continue
            else:
                await api.runtime.saver.aprune([found.thread_id], strategy="keep_latest")
        except ApiError as error:
            if error.status_code in (404, 409, 422):
                continue
            raise
        pruned += 1
    return {"pruned_count": pruned}


@router.get("/threads/{thread_id}")
async def get(thread_id: str, api: ApiDep, include: str = "") -> Json:
    """Get a thread with the values of its state; with `include=ttl` also how long it is kept."""
    api.require(Scope.READ)

    def read(thread: Thread, newest: Found) -> StateSnapshot | None:
        return thread_views.readable_snapshot(api, thread, newest)

    found, snapshot = await read_thread(api, thread_id, read)
    item = await thread_views.with_state(api, found, snapshot)
    if "ttl" in include.split(","):
        item["ttl"] = thread_views.wire_ttl(found)
    return item


@router.patch("/threads/{thread_id}")
async def update(
    thread_id: str,
    body: ThreadPatch,
    api: ApiDep,
    prefer: Annotated[str, Header()] = "",
) -> Any:
    """Merge metadata into a thread's, and set how long it is kept."""
    api.require(Scope.START)
    value: dict[str, Any] = {"metadata": body.metadata or {}}
    found = await find_thread(api, thread_id, "update", value)
    changed = await api.runtime.journal.arun(
        api.runtime.services.threads.change(
            found.thread_id, value.get("metadata") or {}, ttl=minutes(body.ttl)
        )
    )
    if "return=minimal" in prefer.replace(" ", "").lower():
        return Response(status_code=204)
    return await wire_thread(api, changed)


@router.delete("/threads/{thread_id}", status_code=204)
async def delete(thread_id: str, api: ApiDep) -> Response:
    """Delete a thread with its runs and its state. Returns 409 while a run is under way."""
    api.require(Scope.START)
    await erase_thread(api, await find_thread(api, thread_id, "delete"))
    return Response(status_code=204)


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


@router.post("/threads/{thread_id}/copy")
async def copy(thread_id: str, api: ApiDep) -> Json:
    """Copy a thread with its state and history, without its runs."""
    api.require(Scope.START)
    found = await find_thread(api, thread_id)
    id = new_id()
    value: dict[str, Any] = {"thread_id": uuid.UUID(id), "metadata": dict(found.metadata)}
    await api.authorize("threads", "create", value)
    await api.runtime.saver.acopy_thread(found.thread_id, id)
    content = ThreadContent(value.get("metadata") or {}, found.config)
    thread = await api.runtime.journal.arun(api.runtime.services.threads.create(id, content))
    return await wire_thread(api, thread)
