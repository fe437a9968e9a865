"""Threads and their states as clients get them, and the graph that reads a state."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.errors import GraphBubbleUp, InvalidUpdateError
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, PregelTask, StateSnapshot, StateUpdate

from perdure.commands import threads
from perdure.commands.threads import Thread
from perdure.errors import UNREADABLE, Error, NotFound
from perdure.server.agent_api.run_bodies import PLACE
from perdure.server.errors import ApiError
from perdure.server.routes import Api
from perdure.types import State
from perdure.views.wire_run import wire_error

if TYPE_CHECKING:
    from perdure.runtime import Runtime

Graph = Pregel[Any, Any, Any, Any]
FIELDS = (
    *("thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "status", "config"),
)
OF_STATE = frozenset({"values", "interrupts", "error"})
"""Fields that need the thread's state or its last run."""


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
    snapshot = await api.runtime.journal.in_thread(lambda: readable_snapshot(api, thread))
    exists = snapshot is not None and snapshot.created_at is not None
    item["values"] = snapshot.values if snapshot is not None and exists else None
    if thread.run_id is None:
        return item
    item["interrupts"] = {}
    if thread.status == "interrupted" and snapshot is not None:
        if questions is None:
            open = await api.run(threads.questions(api.engine, [thread.thread_id]))
            questions = {id for _, id in open}
        item["interrupts"] = interrupts_by_task(snapshot, {*questions})
    item["error"] = await _error(api, thread)
    return item


def readable_snapshot(api: Api, thread: Thread) -> StateSnapshot | None:
    """The state of a thread, or None if it cannot be read; it blocks."""
    try:
        return read_state(api.runtime, graph_of(api, thread), place(thread.thread_id))
    except UNREADABLE:  # one damaged thread must not break a list
        return None


async def _error(api: Api, thread: Thread) -> dict[str, Any] | None:
    """Why a thread failed, or was interrupted other than by a question."""
    if thread.run_id is None or thread.status not in ("error", "interrupted"):
        return None
    try:
        run = await api.runtime.get(thread.run_id, output=False)
    except NotFound:  # it was pruned since
        return None
    if run.state is State.CANCELLED:
        return {"error": "UserInterrupt", "message": run.reason or "The run was cancelled."}
    if run.error is not None and run.state in (State.FAILED, State.HELD):
        return wire_error(run.error.kind, run.error.message)
    return None if run.reason is None else {"error": run.state.value, "message": run.reason}


def wire_ttl(thread: Thread) -> dict[str, Any] | None:
    """How long a thread is kept."""
    if thread.ttl is None:
        return None
    return {"strategy": "delete", "ttl_minutes": thread.ttl, "expires_at": thread.expires_at}


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
    await api.do(threads.set_has_next(thread_id, has_next=bool(state.next)))


def _state_update(update: dict[str, Any]) -> StateUpdate:
    values = update.get("values")
    if command := update.get("command"):
        known = {"update", "goto", "resume"}
        values = Command(**{name: one for name, one in command.items() if name in known})
    return StateUpdate(values, update.get("as_node"))
