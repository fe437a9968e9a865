"""Reflections in the journal, for who looks after them: plans, without what works on them.

A reflection is a run of a graph that is named after its executor.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from perdure.errors import NotFound, WrongState
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.operations import runs
from perdure.operations.error_text import describe_error
from perdure.operations.events import change
from perdure.operations.run_payload import UNREADABLE, load_setup
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer, where_run
from perdure.types import Control, EventKind, RunError, State, maybe_moment, milliseconds, moment

PREFIX = "reflection:"
"""Before the name of an executor: the graph whose runs are its reflections."""
GRACE = 10_000
"""Milliseconds a reflection that is cancelled while it is worked on has, to come to its end."""


@dataclass(frozen=True)
class Pending:
    """A reflection that is not over, as it was when it was read."""

    id: str
    executor: str
    namespace: tuple[str, ...]
    thread_id: str | None
    """Of the conversation."""
    state: State
    """pending, running, waiting (for another one in its namespace) or held."""
    due_at: datetime | None
    submitted_at: datetime
    attempts: int
    error: RunError | None
    """What the last attempt raised."""
    reason: str | None
    """Why it is held."""


class Reflections:
    """The reflections of a journal."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    def pending(
        self, executor: str | None, after: Pending | None, count: int
    ) -> Plan[list[Pending]]:
        """Those that are not over, of one executor or of all, oldest first."""
        first = PREFIX if executor is None else PREFIX + executor
        last = f"{PREFIX}\U0010ffff" if executor is None else f"{first}\x01"
        position = (0, "") if after is None else (milliseconds(after.submitted_at), after.id)
        rows = yield runs.unfinished(first, last, position, count)
        return [self._show(row) for row in rows]

    def find(self, id: str, executor: str | None = None) -> Plan[RunRow]:
        row: RunRow | None = yield runs.find(id)
        name = None if row is None else row.graph.removeprefix(PREFIX)
        if row is None or name == row.graph or executor not in (None, name):
            raise NotFound("reflection", id)
        return row

    def retry(self, id: str, executor: str | None = None) -> Plan[None]:
        """Let one that is held be tried again."""
        row = yield from self.find(id, executor)
        made = change(row.thread_id, id, self._clock.now())
        if not (yield runs.resume(self._serializer, made, (State.HELD,), EventKind.RETRIED)):
            raise WrongState(id, row.state, "be retried", "only one that is held can.")

    def cancel(self, id: str, executor: str | None = None, by: str | None = None) -> Plan[None]:
        """Cancel one that is not over. If it is being worked on, it stops before it writes."""
        row = yield from self.find(id, executor)
        done = yield runs.stop(
            self._serializer,
            change(row.thread_id, id, self._clock.now()),
            control=Control.CANCEL,
            grace=GRACE,
            reason=None,
            by=by,
        )
        if not done:
            raise WrongState(id, row.state, "be cancelled", "it is over.")

    def _show(self, row: RunRow) -> Pending:
        error: RunError | None = None
        told: dict[str, Any] = {}
        try:
            told = load_setup(self._serializer, row).get("metadata") or {}
            if row.error is not None:
                kept = self._serializer.loads(row.error, where_run("error", row.id))
                error = RunError(*(kept[field.name] for field in fields(RunError)))
        except UNREADABLE as found:  # the others of a list can still be seen
            error = RunError(**describe_error(found))
        return Pending(
            id=row.id,
            executor=row.graph.removeprefix(PREFIX),
            namespace=tuple(told.get("namespace") or ()),
            thread_id=told.get("thread_id"),
            state=State(row.state),
            due_at=maybe_moment(row.due_at),
            submitted_at=moment(row.created_at),
            attempts=row.attempts,
            error=error,
            reason=row.reason,
        )
