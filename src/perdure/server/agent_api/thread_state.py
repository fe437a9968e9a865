"""Threads and their states as clients get them; `/threads/{id}/state` and `/history`.

The graph that reads and changes a state is that of the thread's last run, or the one that its
metadata names. A change is made under a lease: while a run is being driven, it gets 409.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphBubbleUp, InvalidUpdateError
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, PregelTask, StateSnapshot, StateUpdate
from pydantic import BaseModel

from perdure.commands import runs, threads
from perdure.commands.runs import RunRow
from perdure.commands.threads import Thread
from perdure.errors import UNREADABLE, Error
from perdure.server.agent_api.resources import Limit, find_thread, selected
from perdure.server.agent_api.run_bodies import END, PLACE, CheckpointBody, Json
from perdure.server.errors import ApiError
from perdure.server.routes import READ, START, Api, ApiDep
from perdure.types import State
from perdure.views.wire_run import run_failure, wire_error

if TYPE_CHECKING:
    from perdure.runtime import Runtime

router = APIRouter(tags=["threads"])

Select = Annotated[list[str] | None, Query()]
Graph = Pregel[Any, Any, Any, Any]
FIELDS = (
    *("thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "status", "config"),
)
OF_STATE = frozenset({"values", "interrupts", "error"})
"""Fields that need the thread's state or its last run."""


# -- reading and changing a state


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


@router.get("/threads/{thread_id}/state", dependencies=[READ])
@router.get("/threads/{thread_id}/state/{checkpoint_id}", dependencies=[READ])
async def get_state(
    thread_id: str,
    api: ApiDep,
    checkpoint_id: str | None = None,
    subgraphs: bool = False,
    select: Select = None,
) -> Json:
    """Get the latest state of a thread, or the one of a checkpoint."""
    return await _state(api, thread_id, {"checkpoint_id": checkpoint_id}, subgraphs, select)


@router.post("/threads/{thread_id}/state/checkpoint", dependencies=[READ])
async def get_state_of(thread_id: str, body: StateQuery, api: ApiDep) -> Json:
    """Get a state of a thread by its checkpoint."""
    return await _state(api, thread_id, body.checkpoint.model_dump(), body.subgraphs, body.select)


async def _state(
    api: Api, thread_id: str, at: Json, subgraphs: bool, select: list[str] | None
) -> Json:
    thread = await find_thread(api, thread_id)
    runtime, graph, config = api.runtime, graph_of(api, thread), place(thread.thread_id, at)
    snapshot = await runtime.journal.in_thread(
        lambda: read_state(runtime, graph, config, subgraphs=subgraphs)
    )
    return selected(thread_state(snapshot), select)


@router.post("/threads/{thread_id}/state", dependencies=[START])
async def update_state(thread_id: str, body: StateChange, api: ApiDep) -> Json:
    """Change the state of a thread as if a node had returned the values. Null values as the node
    `__end__` finish the graph: a run that waits on the thread ends."""
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
    where = checkpoint(config) or {}
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


@router.post("/threads/{thread_id}/history", dependencies=[READ])
async def search_history(thread_id: str, body: HistoryQuery, api: ApiDep) -> list[Json]:
    """List the states of a thread, newest first."""
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


@router.get("/threads/{thread_id}/history", dependencies=[READ])
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


# -- as clients get them


def thread_state(snapshot: StateSnapshot) -> dict[str, Any]:
    """A state as clients get it. Without a checkpoint it is empty."""
    here, parent = checkpoint(snapshot.config), checkpoint(snapshot.parent_config)
    exists = snapshot.created_at is not None
    return {
        "values": snapshot.values if exists else {},
        "next": list(snapshot.next),
        "tasks": [_task(task) for task in snapshot.tasks],
        "metadata": snapshot.metadata if exists else None,
        "created_at": snapshot.created_at,
        "checkpoint": here if exists else None,
        "parent_checkpoint": parent,
        "interrupts": [interrupt(one) for one in snapshot.interrupts],
        "checkpoint_id": here["checkpoint_id"] if here and exists else None,
        "parent_checkpoint_id": parent.get("checkpoint_id") if parent else None,
    }


def checkpoint(config: RunnableConfig | Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The checkpoint that a config names."""
    configurable = (config or {}).get("configurable")
    if not configurable:
        return None
    place = {name: configurable[name] for name in PLACE if name in configurable}
    return {"checkpoint_ns": "", **place, "thread_id": configurable.get("thread_id")}


def interrupt(question: Interrupt) -> dict[str, Any]:
    """A question as clients get it."""
    schema = question.response_schema
    item: dict[str, Any] = {"id": question.id, "value": question.value}
    return item if schema is None else {**item, "response_schema": _json_schema(schema)}


def interrupts_by_task(snapshot: StateSnapshot, open_ids: set[str]) -> dict[str, Any]:
    """The open questions, by the tasks that ask them."""
    by_task: dict[str, Any] = {}
    for task in snapshot.tasks:
        if questions := [interrupt(one) for one in task.interrupts if one.id in open_ids]:
            by_task[task.id] = questions
    return by_task


def _task(task: PregelTask) -> dict[str, Any]:
    inner = task.state
    state = thread_state(inner) if isinstance(inner, StateSnapshot) else None
    place = inner.config if isinstance(inner, StateSnapshot) else inner
    return {
        "id": task.id,
        "name": task.name,
        "path": task.path,
        "error": repr(task.error) if isinstance(task.error, BaseException) else task.error,
        "interrupts": [interrupt(one) for one in task.interrupts],
        "checkpoint": checkpoint(place),
        "state": state,
        "result": task.result,
    }


def _json_schema(schema: Any) -> Any:
    if isinstance(schema, Mapping):
        return schema
    from pydantic import TypeAdapter

    try:
        return TypeAdapter(schema).json_schema()
    except Exception:  # raised by pydantic, or by a user's type
        return None


async def wire_thread(
    api: Api, thread: Thread, *, questions: Iterable[str] | None = None, state: bool = True
) -> dict[str, Any]:
    """A thread as clients get it, with its state, if that can be read. `questions` are its open
    interrupt ids, if known. With `state=False` it has no values."""
    item = {name: getattr(thread, name) for name in FIELDS}
    if not state:
        return item
    runtime, graph, snapshot = api.runtime, graph_of(api, thread), None
    with suppress(*UNREADABLE):  # one damaged thread must not break a list
        snapshot = await runtime.journal.in_thread(
            lambda: read_state(runtime, graph, place(thread.thread_id))
        )
    exists = snapshot is not None and snapshot.created_at is not None
    item["values"] = snapshot.values if snapshot is not None and exists else None
    if thread.run_id is None:
        return item
    item["interrupts"] = {}
    if thread.status == "interrupted" and snapshot is not None:
        if questions is None:
            open = await api.journal.arun(threads.questions(api.engine, [thread.thread_id]))
            questions = {id for _, id in open}
        item["interrupts"] = interrupts_by_task(snapshot, {*questions})
    item["error"] = await _error(api, thread)
    return item


async def _error(api: Api, thread: Thread) -> dict[str, Any] | None:
    """Why a thread failed, or was interrupted other than by a question."""
    if thread.run_id is None or thread.status not in ("error", "interrupted"):
        return None
    row: RunRow | None = await api.journal.ado(runs.find(thread.run_id))
    if row is None:  # it was pruned since
        return None
    if row.state == State.CANCELLED:
        return wire_error("UserInterrupt", row.reason or "The run was cancelled.")
    paused = None if row.reason is None else wire_error(row.state, row.reason)
    return run_failure(api.serializer, row) or paused


# -- the state of a thread


def place(thread_id: str, checkpoint: dict[str, Any] | None = None) -> RunnableConfig:
    """The config of a state of a thread: by default the latest of its root graph."""
    every = (checkpoint or {}).items()
    named = {name: one for name, one in every if one is not None and name in PLACE}
    return {"configurable": {"checkpoint_ns": "", **named, "thread_id": thread_id}}


def graph_of(api: Api, thread: Thread) -> Graph | None:
    """The graph of a thread's last run, or the one named in its metadata, bound to the journal."""
    if thread.graph is None:
        return None
    runtime = api.runtime
    return runtime.bound(thread.graph, thread.version or "") or runtime.bound(thread.graph)


def graph_named(api: Api, name: Any) -> Graph:
    """The graph with this name. Raises 422."""
    graph = api.runtime.bound(name) if isinstance(name, str) else None
    if graph is None:
        raise ApiError(422, f"metadata.graph_id must name a registered graph, not {name!a:.100}.")
    return graph


def read_state(
    runtime: Runtime, graph: Graph | None, config: RunnableConfig, *, subgraphs: bool = False
) -> StateSnapshot:
    """The state of a thread at a place. Blocks. The graph computes it with its reducers and edges,
    which raise again what they raised in the run: then it is the state before their last step, or
    only what is stored, as without a graph. Raises 404 if the graph has no such subgraph."""
    if graph is None:
        return stored_state(runtime.saver.get_tuple(config), config)
    with finding_subgraph(config):
        try:
            return graph.get_state(config, subgraphs=subgraphs)
        except (Error, GraphBubbleUp):
            raise
        except Exception:
            if (stored := runtime.saver.get_tuple(config)) is None:
                raise
        try:  # at a checkpoint that is named, LangGraph applies no writes
            return graph.get_state(stored.config, subgraphs=subgraphs)
        except (Error, GraphBubbleUp):
            raise
        except Exception:
            return stored_state(stored, config)


@contextmanager
def finding_subgraph(config: RunnableConfig) -> Iterator[None]:
    """Turn LangGraph's error for a missing subgraph into a 404."""
    try:
        yield
    except ValueError as error:
        if namespace := config["configurable"]["checkpoint_ns"]:
            raise ApiError(404, f"The graph has no subgraph at {namespace!a:.100}.") from error
        raise


def stored_state(stored: CheckpointTuple | None, config: RunnableConfig) -> StateSnapshot:
    """A checkpoint as a state, without tasks, which need the graph."""
    if stored is None:
        return StateSnapshot({}, (), config, None, None, None, (), ())
    values = stored.checkpoint["channel_values"]
    visible = {name: values[name] for name in values if not name.startswith(("__", "branch:"))}
    metadata, at, parent = stored.metadata, stored.checkpoint["ts"], stored.parent_config
    return StateSnapshot(visible, (), stored.config, metadata, at, parent, (), ())


async def apply_supersteps(
    api: Api,
    graph: Graph,
    config: RunnableConfig,
    supersteps: Sequence[Sequence[dict[str, Any]]],
) -> RunnableConfig:
    """Change the state of a thread under a lease. Raises 400 for an update that the graph refuses,
    such as one as an unknown node."""
    steps = [[_state_update(one) for one in step] for step in supersteps]
    try:
        changed = await graph.abulk_update_state(config, steps)
    except (Error, ApiError):
        raise
    except Exception as error:
        await _note_next(api, graph, config)  # nodes may still be left from before
        raise update_error(error) from error
    await _note_next(api, graph, config)
    return changed


def update_error(error: Exception) -> ApiError:
    """The response to an update of a state that the graph refused."""
    if isinstance(error, InvalidUpdateError | ValueError):
        return ApiError(400, f"The state was not updated: {error!s:.300}")
    kind = type(error).__name__  # raised by a user's reducer or condition
    return ApiError(422, f"The state was not updated: the graph raised {kind}.")


async def _note_next(api: Api, graph: Graph, config: RunnableConfig) -> None:
    """Store whether nodes are left to run. If so, the thread is `interrupted`."""
    thread_id = config["configurable"]["thread_id"]
    runtime = api.runtime
    state = await runtime.journal.in_thread(lambda: read_state(runtime, graph, place(thread_id)))
    await api.journal.ado(threads.set_has_next(thread_id, has_next=bool(state.next)))


def _state_update(update: dict[str, Any]) -> StateUpdate:
    values = update.get("values")
    if command := update.get("command"):
        known = {"update", "goto", "resume"}
        values = Command(**{name: one for name, one in command.items() if name in known})
    return StateUpdate(values, update.get("as_node"))
