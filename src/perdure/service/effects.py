"""Plans for people: list effects, and say what became of one that nobody knows."""

from __future__ import annotations

from typing import Any

from perdure.effects import recording
from perdure.errors import BadArgument, EffectFailed, NotFound, NotSettled
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_text
from perdure.operations import effects, runs
from perdure.operations.effects import EffectRow
from perdure.operations.events import change
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.types import EffectRecord, EffectState, EventKind, State, milliseconds

HOW = {"done": EffectState.DONE, "retry": EffectState.AGAIN, "fail": EffectState.FAILED}


class Book:
    """The effects of a journal, for whoever asks for them."""

    def __init__(self, serializer: Serializer, clock: Clock) -> None:
        self._serializer, self._clock = serializer, clock

    def effects(
        self,
        *,
        run_id: str | None,
        thread_id: str | None,
        state: str | None,
        after: EffectRecord | None,
        count: int,
    ) -> Plan[list[EffectRecord]]:
        """Effects, oldest first."""
        position = None if after is None else (milliseconds(after.created_at), after.key)
        if run_id is not None:
            found: list[EffectRow] = yield effects.of_run(run_id)
            rows = [
                row
                for row in found
                if state in (None, row.state)
                and thread_id in (None, row.thread_id)
                and (position is None or (row.created_at, row.key) > position)
            ][:count]
        else:
            rows = yield effects.page(thread_id=thread_id, state=state, after=position, count=count)
        return [effects.to_record(self._serializer, row) for row in rows]

    def settle(self, key: str, how: str, result: Any, by: str | None) -> Plan[None]:
        """Say what became of an effect, and let its run go on when it was the last."""
        if how not in HOW:
            raise BadArgument(f"An effect is settled as 'done', 'retry' or 'fail', not as {how!r}.")
        if how == "retry" and result is not None:
            raise BadArgument("An effect that is to be called again has no result yet.")
        if by is not None:
            check_text("by", by)
        row: EffectRow | None = yield effects.find(str(key))
        if row is None:
            raise NotFound("effect", str(key))
        outcome = None
        if how == "done":
            outcome = recording.close_result(self._serializer, row.key, row.name, result)
        elif how == "fail":
            error = EffectFailed(row.key, f"settled by {by or 'a person'}", str(result or "failed"))
            outcome = recording.close_error(self._serializer, row.key, error, {})
        state, now = HOW[how].value, self._clock.now()
        if not (yield effects.decide(self._serializer, row, state, outcome, by, now)):
            row = (yield effects.find(row.key)) or row
            why = "that is settled"
            if row.state == EffectState.AGAIN:
                why = "its run is about to call it"
            elif row.state != EffectState.DONE:
                why = "its run is being driven just now"
            raise NotSettled(row.key, f"it is {row.state}: {why}.")
        if row.run_id:
            yield from self._go_on(row.run_id)

    def _go_on(self, run_id: str) -> Plan[None]:
        run: RunRow | None = yield runs.find(run_id)
        found: list[EffectRow] = yield effects.of_run(run_id)
        left = any(row.state == EffectState.UNKNOWN for row in found)
        if run is not None and run.state == State.HELD and not left:
            made = change(run.thread_id, run.id, self._clock.now())
            # Not "retried": that would call again what a person just said failed.
            yield runs.resume(self._serializer, made, (State.HELD,), EventKind.RESUMED)
