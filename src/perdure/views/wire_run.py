"""Runs as clients get them, with the Agent Server's statuses.

The Agent Server has no status for a waiting run: there, a run that asks a person has succeeded, and
its thread is `interrupted`. A run that waits for the clock, a signal or another run goes on by
itself, so it is `running`.

    run                              its status      its thread
    pending                          pending         busy
    running                          running         busy
    waiting for a person             success         interrupted
    waiting for anything else        running         busy
    paused                           interrupted     interrupted
    held                             error           error
    done                             success         idle, or interrupted if a node is next
    failed                           error           error
    cancelled                        interrupted     interrupted, or idle if no node is next

The journal's statement `thread_status` decides the status of a thread. A run that was stopped by
`rollback` does not exist in the API (`is_gone`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from perdure.commands.assistants import default_id
from perdure.commands.runs import RunRow, load_error, load_labels, load_setup, state_of
from perdure.commands.waits import WaitRow
from perdure.errors import UNREADABLE
from perdure.serde.serializer import Serializer
from perdure.times import moment
from perdure.types import Kind, State, WaitState


class RunStatus(StrEnum):
    """Status of a run on the wire."""

    PENDING = "pending"
    RUNNING = "running"
    ERROR = "error"
    SUCCESS = "success"
    TIMEOUT = "timeout"
    """Never used here: a run that takes too long has failed."""
    INTERRUPTED = "interrupted"


UNDER_WAY = frozenset({RunStatus.PENDING, RunStatus.RUNNING})
"""Statuses of a run that will still change by itself."""
_OF_RUN = {
    State.PENDING: RunStatus.PENDING,
    State.RUNNING: RunStatus.RUNNING,
    State.WAITING: RunStatus.RUNNING,
    State.PAUSED: RunStatus.INTERRUPTED,
    State.HELD: RunStatus.ERROR,
    State.DONE: RunStatus.SUCCESS,
    State.FAILED: RunStatus.ERROR,
    State.CANCELLED: RunStatus.INTERRUPTED,
}
STATES_OF: dict[RunStatus, tuple[State, ...]] = {
    RunStatus.PENDING: (State.PENDING,),
    RunStatus.RUNNING: (State.RUNNING, State.WAITING),
    RunStatus.ERROR: (State.FAILED, State.HELD),
    RunStatus.SUCCESS: (State.DONE, State.WAITING),
    RunStatus.TIMEOUT: (),
    RunStatus.INTERRUPTED: (State.CANCELLED, State.PAUSED),
}
"""The states that can have each status. For a waiting run, `asks_person` decides."""


def is_gone(row: RunRow) -> bool:
    """Whether a run was stopped by `rollback`, and so is not visible to clients."""
    return bool(row.undo)


def asks_person(row: RunRow, waits: Iterable[WaitRow], now: int) -> bool:
    """Whether a run rests until a person answers. A run that is due does not: it has an answer, or
    its question has expired. `waits` may include waits of other runs."""
    if row.state != State.WAITING or (row.due_at is not None and row.due_at <= now):
        return False
    return any(
        wait.run_id == row.id and wait.kind == Kind.HUMAN and wait.state == WaitState.OPEN
        for wait in waits
    )


def run_status(row: RunRow, *, asks: bool) -> RunStatus:
    """The status of a run; `asks` is the result of `asks_person`."""
    return RunStatus.SUCCESS if asks else _OF_RUN[state_of(row)]


WIRE = "wire"
"""The part of a run's setup that only the Agent Server API uses: assistant, strategy, command."""
UPDATE = {"source": "update_state"}
"""Metadata of a run that only updates the state of its thread. Clients do not see such runs."""
KWARGS = (
    *("input", "context", "config", "webhook", "interrupt_before", "interrupt_after"),
    *("durability", "place"),
)


def wire_time(at: int) -> str:
    """Format a time in milliseconds as the Agent Server does, always with microseconds."""
    return moment(at).isoformat(timespec="microseconds")


def wire_error(kind: str, message: str) -> dict[str, str]:
    """An error as clients get it: its class name, without the module, and its message."""
    return {"error": kind.rpartition(".")[2], "message": message}


def run_failure(serializer: Serializer, row: RunRow) -> dict[str, str] | None:
    """Why a run has failed or is held, as clients get it. None: it did not fail."""
    if row.state == State.HELD:
        return wire_error("Held", f"Run {row.id} is held until a person decides: {row.reason}")
    if row.state != State.FAILED:
        return None
    try:
        error = load_error(serializer, row)
    except UNREADABLE as unreadable:
        return wire_error(type(unreadable).__name__, str(unreadable))
    return (
        wire_error("Error", "The run failed.")
        if error is None
        else wire_error(error.kind, error.message)
    )


def is_update(setup: Mapping[str, Any]) -> bool:
    """Whether a run only updated the state of its thread."""
    return bool(setup.get("metadata") == UPDATE)


def wire_run(serializer: Serializer, row: RunRow, status: RunStatus) -> dict[str, Any]:
    """A run with its input and settings. Raises one of `UNREADABLE`."""
    setup = load_setup(serializer, row)
    wire: Mapping[str, Any] = setup.get(WIRE) or {}
    kwargs = {name: setup[name] for name in KWARGS if setup.get(name) is not None}
    kwargs["input"] = wire.get("input", setup.get("input"))
    if "place" in kwargs:
        kwargs["checkpoint"] = kwargs.pop("place")
    if stream := setup.get("stream"):
        kwargs |= {"stream_mode": stream["modes"], "subgraphs": stream["subgraphs"]}
    return {
        "run_id": row.id,
        "thread_id": row.thread_id,
        "assistant_id": wire.get("assistant_id") or default_id(row.graph),
        "created_at": wire_time(row.created_at),
        "updated_at": wire_time(row.updated_at),
        "status": status.value,
        "metadata": {**(setup.get("metadata") or {}), **load_labels(serializer, row)},
        "kwargs": {**kwargs, "command": wire.get("command")},
        "multitask_strategy": wire.get("multitask_strategy") or "enqueue",
    }
