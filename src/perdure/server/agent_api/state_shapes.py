"""The state of a thread in the Agent Server API: `ThreadState`, and its interrupts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.types import Interrupt, PregelTask, StateSnapshot

from perdure.langgraph_port.call_config import OWN_KEYS


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
    found = (config or {}).get("configurable")
    if not found:
        return None
    place = {name: found[name] for name in OWN_KEYS if name in found}
    return {"checkpoint_ns": "", **place, "thread_id": found.get("thread_id")}


def interrupt(found: Interrupt) -> dict[str, Any]:
    """A question as clients get it."""
    schema = found.response_schema
    shown: dict[str, Any] = {"id": found.id, "value": found.value}
    return shown if schema is None else {**shown, "response_schema": _json_schema(schema)}


def interrupts_by_task(snapshot: StateSnapshot, open_ids: set[str]) -> dict[str, Any]:
    """The open questions, by the tasks that ask them."""
    found: dict[str, Any] = {}
    for task in snapshot.tasks:
        if asked := [interrupt(one) for one in task.interrupts if one.id in open_ids]:
            found[task.id] = asked
    return found


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
