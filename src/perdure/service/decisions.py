"""Plans about comments and decisions: comment on a run, list the decisions about all runs.

Both are events in the history of their run and never change.
"""

from __future__ import annotations

from perdure.errors import BadArgument, NotFound
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_id, check_text
from perdure.operations import events, runs, waits
from perdure.operations.runs import RunRow
from perdure.operations.waits import WaitRow
from perdure.serde.serializer import Serializer
from perdure.types import Decision


class DecisionService:
    """Plans about comments and decisions."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    def comment(
        self,
        run_id: str,
        text: str,
        wait_id: str | None,
        by: str | None,
        *,
        number: int | None = None,
    ) -> Plan[None]:
        """Add a comment to the history of a run. The same `number` does so once."""
        if not check_text("comment", text).strip():
            raise BadArgument("A comment is a text that is not empty.")
        if by is not None:
            check_text("by", by)
        row: RunRow | None = yield runs.find(check_id("run", run_id))
        if row is None:
            raise NotFound("run", run_id)
        if (yield from events.was_made(row.thread_id, row.id, number)):
            return
        if wait_id is not None:
            wait: WaitRow | None = yield waits.find(check_id("wait", wait_id))
            if wait is None or wait.run_id != row.id:
                raise NotFound(f"wait of run {row.id}", wait_id)
        made = events.change(row.thread_id, row.id, self._clock.now(), number)
        if not (yield runs.comment(self._serializer, made, text, wait_id, by)):
            raise NotFound("run", run_id)

    def decisions(self, after: Decision | None, count: int) -> Plan[list[Decision]]:
        """Decisions about runs, newest first."""
        found: list[Decision] = yield events.decisions(self._serializer, after, count)
        return found
