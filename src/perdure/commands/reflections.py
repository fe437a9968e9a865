"""Plans about reflections: list, retry, cancel, drain.

A reflection is a run of a graph named after its executor. This module needs neither LangGraph nor
LangMem; `perdure.langmem` accepts and runs reflections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from perdure.commands import claims, run_control, runs, starting
from perdure.commands.connection import Connection
from perdure.commands.events import change, was_made
from perdure.commands.runs import RunRow, UnfinishedRun, load_error, load_setup, state_of
from perdure.commands.starting import make_setup
from perdure.errors import UNREADABLE, NotFound, WrongState
from perdure.journal import Op, Plan, read_op, write_op
from perdure.journal import Poll as Poll
from perdure.text import describe_error
from perdure.times import FIRST_MS, maybe_moment, moment, position_after
from perdure.types import Control, EventKind, RunError, State
from perdure.verbs import GRACE


def take_turn(scope: str, run_id: str) -> Plan[bool]:
    """Take the turn in a scope. False if a run that is driven now has it."""
    yield write_op({"name": f"turn {scope}", "run_id": run_id}, "take_turn")
    return run_id in (yield _turn_of(scope))


def has_turn(scope: str, run_id: str) -> Plan[bool]:
    """Whether this run still has the turn, after everybody who is taking it right now."""
    yield write_op({"name": f"turn {scope}"}, "lock_turn")
    return run_id in (yield _turn_of(scope))


def _turn_of(scope: str) -> Op[list[str]]:
    """The run that has the turn, if one has it."""
    return read_op("entry", {"name": f"turn {scope}"}, lambda rows: [row[0] for row in rows[0]])


PREFIX = "reflection:"
"""Prefix of graph names and thread ids that belong to reflections."""

DRAIN_PAUSE = 0.02
"""Seconds between the first two looks while `drain` waits."""


@dataclass(frozen=True)
class Pending:
    """A reflection that has not ended, as it was when it was read.

    Attributes:
        id: The id of the reflection, which is the id of its run.
        executor: The name of its executor.
        namespace: Where it writes.
        thread_id: The conversation, if it belongs to one.
        state: `pending`, `running`, `waiting` for another reflection in its namespace, or
            `held`.
        due_at: When it starts.
        submitted_at: When it was submitted.
        attempts: How many attempts were made.
        error: The error of the last attempt.
        reason: Why it is held.
    """

    id: str
    executor: str
    namespace: tuple[str, ...]
    thread_id: str | None
    state: State
    due_at: datetime | None
    submitted_at: datetime
    attempts: int
    error: RunError | None
    reason: str | None


def graph_name(executor: str) -> str:
    """The name of the graph whose runs are this executor's reflections."""
    return PREFIX + executor


def accept(
    on: Connection,
    executor: str,
    thread_id: str,
    input: Mapping[str, Any],
    *,
    metadata: Mapping[str, Any],
    key: str,
    after: timedelta,
) -> Plan[str]:
    """Accept a reflection and return its id. The same `key` returns the one it made before."""
    setup = make_setup(input=input, metadata=metadata, tags=(), context=None, config=None)
    row = yield from starting.accept(
        on, (graph_name(executor), ""), thread_id, setup, "replace", key=key, after=after
    )
    return row.id


def pending(
    on: Connection, executor: str | None, after: Pending | None, count: int
) -> Plan[list[Pending]]:
    """List reflections that have not ended, of one executor or of all, oldest first."""
    first = PREFIX if executor is None else graph_name(executor)
    last = f"{PREFIX}\U0010ffff" if executor is None else f"{first}\x01"
    position = (FIRST_MS, "") if after is None else (position_after(after.submitted_at), after.id)
    rows = yield runs.unfinished(first, last, position, count)
    return [_show(on, row) for row in rows]


def unfinished(
    on: Connection, after: tuple[str, int] | None, count: int
) -> Plan[list[UnfinishedRun]]:
    """The data for a list of unfinished reflections, by thread, so that those of one
    conversation are together. Ended ones are not read."""
    last = f"{PREFIX[:-1]}{chr(ord(PREFIX[-1]) + 1)}"
    rows: list[UnfinishedRun] = yield runs.unfinished_of_threads(PREFIX, last, after, count)
    return [row for row in rows if row.graph.startswith(PREFIX)]


def shown(on: Connection, ids: Iterable[str]) -> Plan[list[Pending]]:
    """These reflections, oldest first."""
    rows: list[RunRow] = yield runs.find_all(ids)
    return [_show(on, row) for row in sorted(rows, key=lambda one: (one.created_at, one.id))]


def find(on: Connection, id: str, executor: str | None = None) -> Plan[RunRow]:
    """Find a reflection. Raises `NotFound` for the run of another graph or executor."""
    row: RunRow | None = yield runs.find(id)
    name = None if row is None else row.graph.removeprefix(PREFIX)
    if row is None or name == row.graph or executor not in (None, name):
        raise NotFound("reflection", id)
    return row


def retry(
    on: Connection,
    id: str,
    executor: str | None = None,
    by: str | None = None,
    *,
    number: int | None = None,
) -> Plan[None]:
    """Make a held reflection due again. The same `number` does so once."""
    row = yield from find(on, id, executor)
    if (yield from was_made(row.thread_id, id, number)):
        return
    made = change(row.thread_id, id, on.clock.now(), number)
    if not (
        yield run_control.make_run_due(on.serializer, made, (State.HELD,), EventKind.RETRIED, by)
    ):
        raise WrongState(id, row.state, "be retried", "only a held reflection can.")


def cancel(
    on: Connection,
    id: str,
    executor: str | None = None,
    by: str | None = None,
    *,
    number: int | None = None,
) -> Plan[None]:
    """Cancel a reflection that has not ended. A running one stops before it writes. The same
    `number` does so once."""
    row = yield from find(on, id, executor)
    if (yield from was_made(row.thread_id, id, number)):
        return
    made = change(row.thread_id, id, on.clock.now(), number)
    grace = round(GRACE.total_seconds() * 1000)
    if not (yield run_control.request_stop(on.serializer, made, Control.CANCEL, grace, by=by)):
        raise WrongState(id, row.state, "be cancelled", "it has ended.")


def drain(
    on: Connection, executor: str, worker: str, soon: timedelta, is_alive: Callable[[], bool]
) -> Plan[None]:
    """Wait until every reflection that is due now has ended, or the worker stops. One that
    waits for its turn counts as due if it tries again within `soon`."""
    begun, margin = on.clock.now(), round(soon.total_seconds() * 1000)
    poll = Poll(DRAIN_PAUSE)
    while is_alive():
        now = on.clock.now()
        if not (yield claims.is_due(graph_name(executor), worker, begun, now, now + margin)):
            return
        yield poll


def _show(on: Connection, row: RunRow) -> Pending:
    error: RunError | None = None
    metadata: dict[str, Any] = {}
    try:
        metadata = load_setup(on.serializer, row).get("metadata") or {}
        error = load_error(on.serializer, row)
    except UNREADABLE as problem:  # the rest of the list is still shown
        error = RunError(**describe_error(problem))
    return Pending(
        id=row.id,
        executor=row.graph.removeprefix(PREFIX),
        namespace=tuple(metadata.get("namespace") or ()),
        thread_id=metadata.get("thread_id"),
        state=state_of(row),
        due_at=maybe_moment(row.due_at),
        submitted_at=moment(row.created_at),
        attempts=row.attempts,
        error=error,
        reason=row.reason,
    )
