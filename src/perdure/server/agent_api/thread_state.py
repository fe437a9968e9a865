"""`/threads/{id}/state` and `/history`: read and change the state of a thread.

The graph that reads and changes it is that of the thread's last run, or the one that its metadata
names. A change is made under a lease: while a run is being driven, it gets 409.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.types import StateSnapshot
from pydantic import BaseModel

from perdure.commands.threads import Thread
from perdure.errors import Error
from perdure.server.agent_api.run_bodies import END, CheckpointBody
from perdure.server.agent_api.search import Limit, selected
from perdure.server.agent_api.thread_access import find_thread
from perdure.server.agent_api.thread_views import (
    apply_supersteps,
    finding_subgraph,
    graph_of,
    place,
    read_state,
    stored_state,
    thread_state,
)
from perdure.server.agent_api.thread_views import checkpoint as wire_checkpoint
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api, ApiDep

router = APIRouter(tags=["threads"])

Json = dict[str, Any]
Select = Annotated[list[str] | None, Query()]


class StateQuery(BaseModel):
    """Which state to return."""

    checkpoint: CheckpointBody
    subgraphs: bool = False
    select: list[str] | None = None


class StateChange(BaseModel):
    """A change of a state."""

    values: Json | list[Any] | None = None
    as_node: str | None = None
    checkpoint: CheckpointBody | None = None
    checkpoint_id: str | None = None


class HistoryQuery(BaseModel):
    """Which states of a thread to return. `before` is a checkpoint, its id, or a config."""

    limit: Limit = 10
    before: str | Json | None = None
    metadata: Json | None = None
    checkpoint: CheckpointBody | None = None
    select: list[str] | None = None


@router.get("/threads/{thread_id}/state")
async def get_state(
    thread_id: str, api: ApiDep, subgraphs: bool = False, select: Select = None
) -> Json:
    """Get the latest state of a thread."""
    return await _state(api, thread_id, None, subgraphs, select)


@router.get("/threads/{thread_id}/state/{checkpoint_id}")
async def get_state_at(
    thread_id: str, checkpoint_id: str, api: ApiDep, subgraphs: bool = False, select: Select = None
) -> Json:
    """Get a state of a thread by its checkpoint id."""
    return await _state(api, thread_id, {"checkpoint_id": checkpoint_id}, subgraphs, select)


@router.post("/threads/{thread_id}/state/checkpoint")
async def get_state_of(thread_id: str, body: StateQuery, api: ApiDep) -> Json:
    """Get a state of a thread by its checkpoint."""
    return await _state(api, thread_id, body.checkpoint.model_dump(), body.subgraphs, body.select)


async def _state(
    api: Api, thread_id: str, at: Json | None, subgraphs: bool, select: list[str] | None
) -> Json:
    api.require(Scope.READ)

    thread = await find_thread(api, thread_id)
    runtime, graph, config = api.runtime, graph_of(api, thread), place(thread.thread_id, at)
    snapshot = await runtime.journal.in_thread(
        lambda: read_state(runtime, graph, config, subgraphs=subgraphs)
    )
    return selected(thread_state(snapshot), select)


@router.post("/threads/{thread_id}/state")
async def update_state(thread_id: str, body: StateChange, api: ApiDep) -> Json:
    """Change the state of a thread as if a node had returned the values. Null values as the node
    `__end__` finish the graph: a run that waits on the thread ends."""
    api.require(Scope.START)
    value: dict[str, Any] = {"values": body.values, "as_node": body.as_node}
    thread = await find_thread(api, thread_id, "update", value)
    graph = graph_of(api, thread)
    if graph is None:
        raise ApiError(
            400,
            f"Thread {thread.thread_id!r} has no graph that is registered here. Start a run on it, "
            "or set metadata.graph_id.",
        )
    at = {} if body.checkpoint is None else body.checkpoint.model_dump()
    if body.checkpoint_id is not None:
        at["checkpoint_id"] = body.checkpoint_id
    change = {"values": body.values, "as_node": body.as_node}
    config = await apply_supersteps(api, graph, place(thread.thread_id, at), [[change]])
    if body.as_node == END:
        await _finish(api, thread)
    where = wire_checkpoint(config) or {}
    return {
        "checkpoint": where,
        "configurable": where,
        "checkpoint_id": where.get("checkpoint_id"),
    }


async def _finish(api: Api, thread: Thread) -> None:
    """End the run that waited on a thread now, instead of when a worker claims it."""
    graph = graph_of(api, thread)
    if graph is None or thread.status != "interrupted":
        return
    try:
        await graph.ainvoke(None, place(thread.thread_id))
    except Error:  # a worker was faster
        return


@router.post("/threads/{thread_id}/history")
async def search_history(thread_id: str, body: HistoryQuery, api: ApiDep) -> list[Json]:
    """List the states of a thread, newest first."""
    api.require(Scope.READ)
    thread = await find_thread(api, thread_id)
    at = None if body.checkpoint is None else body.checkpoint.model_dump()
    if at is not None:
        at.pop("checkpoint_id", None)  # the history goes back from `before`, or from the latest
    config = place(thread.thread_id, at)
    before = _before(thread.thread_id, config, body.before)
    graph = graph_of(api, thread)
    limits: Any = {"limit": body.limit, "filter": body.metadata}
    states: list[StateSnapshot] | None = None
    if graph is not None:
        history = graph.aget_state_history(config, before=before, **limits)
        with finding_subgraph(config):
            try:
                states = [one async for one in history]
            except (Error, GraphBubbleUp):
                raise
            except Exception:  # raised by the graph's own code at one of them
                if config["configurable"]["checkpoint_ns"]:
                    raise
    if states is None:
        every = api.runtime.saver.alist(config, before=before, **limits)
        states = [stored_state(one, config) async for one in every]
    return [selected(thread_state(one), body.select) for one in states]


@router.get("/threads/{thread_id}/history")
async def get_history(
    thread_id: str, api: ApiDep, limit: Limit = 10, before: str | None = None
) -> list[Json]:
    """List the states of a thread, newest first."""
    return await search_history(thread_id, HistoryQuery(limit=limit, before=before), api)


def _before(
    thread_id: str, config: RunnableConfig, before: str | Json | None
) -> RunnableConfig | None:
    if before is None:
        return None
    if isinstance(before, dict):
        inner = before.get("configurable")
        before = (inner if isinstance(inner, dict) else before).get("checkpoint_id")
    if not isinstance(before, str) or not before:
        raise ApiError(422, "before must be a checkpoint, its id, or a config with one.")
    ns = config["configurable"]["checkpoint_ns"]
    return place(thread_id, {"checkpoint_ns": ns, "checkpoint_id": before})
