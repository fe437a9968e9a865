"""Statuses of runs and threads in the Agent Server API, derived from our run states.

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

A run that was stopped by `rollback` does not exist in the API (`is_gone`).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from perdure.operations.run_payload import state_of
from perdure.operations.runs import RunRow
from perdure.operations.waits import WaitRow
from perdure.types import ENDED, Kind, State, WaitState


class RunStatus(StrEnum):
    """Status of a run on the wire."""

    PENDING = "pending"
    RUNNING = "running"
    ERROR = "error"
    SUCCESS = "success"
    TIMEOUT = "timeout"
    """Never used here: a run that takes too long has failed."""
    INTERRUPTED = "interrupted"


class ThreadStatus(StrEnum):
    """Status of a thread on the wire."""

    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"
    ERROR = "error"


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


def thread_status(
    head: RunRow | None, last: RunRow | None, *, asks: bool, has_next: bool
) -> ThreadStatus:
    """The status of a thread.

    `head` is its first run that has not ended, and `asks` the result of `asks_person` for it;
    `last` is its newest run that is not `is_gone`; `has_next` says whether a node is next at its
    last checkpoint.
    """
    if head is not None:
        if asks or head.state == State.PAUSED:
            return ThreadStatus.INTERRUPTED
        return ThreadStatus.ERROR if head.state == State.HELD else ThreadStatus.BUSY
    if last is not None and last.state == State.FAILED:
        return ThreadStatus.ERROR
    return ThreadStatus.INTERRUPTED if has_next else ThreadStatus.IDLE


def is_over(row: RunRow, *, asks: bool) -> bool:
    """Whether clients of the Agent Server consider a run finished."""
    return asks or row.state in ENDED or row.state in (State.PAUSED, State.HELD)
