"""Plans for people: list effects and outbox messages, settle an effect of unknown outcome."""

from __future__ import annotations

from typing import Any

from perdure.commands import effect_payload, effects, messages
from perdure.commands.effects import SETTLED_BY, EffectRow
from perdure.commands.events import actor_data
from perdure.errors import BadArgument, EffectFailed, NotFound, NotSettled
from perdure.journal import Plan
from perdure.journal.clock import Clock, host_time
from perdure.journal.names import check_id, check_text
from perdure.serde.serializer import Serializer
from perdure.times import position_after
from perdure.types import EffectRecord, EffectState, Message

STATES = {"done": EffectState.DONE, "retry": EffectState.AGAIN, "fail": EffectState.FAILED}
"""The state an effect gets, by how a person settles it."""


class EffectService:
    """The effects of a journal."""

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
        position = None if after is None else (position_after(after.created_at), after.key)
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

    def messages(self, after: Message | None, limit: int) -> Plan[list[Message]]:
        """Undelivered messages, oldest first."""
        # Read from the start: an outbox is short, and the messages of earlier pages may be gone.
        count = limit
        while True:
            found: list[Message] = yield messages.pending(self._serializer, count)
            later = [
                one
                for one in found
                if after is None or (one.sent_at, one.id) > (after.sent_at, after.id)
            ]
            if len(later) >= limit or len(found) < count:
                return later[:limit]
            count *= 2

    def settle(
        self, key: str, how: str, result: Any, by: str | None, reason: str | None
    ) -> Plan[None]:
        """Store a person's decision about an effect. The same commit makes its run due if that was
        the last one."""
        _check_decision(how, result, by, reason)
        row: EffectRow | None = yield effects.find(check_id("effect", key))
        if row is None:
            raise NotFound("effect", key)
        outcome = None
        if how == "done":
            outcome = effect_payload.dump_result(self._serializer, row, result)
        elif how == "fail":
            error = EffectFailed(row.key, f"{SETTLED_BY} {by or 'a person'}", reason or "failed")
            outcome = effect_payload.dump_error(self._serializer, row, STATES[how], error, ())
        said = {**actor_data(by), **({"reason": reason} if reason else {})}
        state, now = STATES[how].value, self._clock.now()
        made = effects.decide(
            self._serializer, row, state, outcome, said, now, host_time(self._clock)
        )
        if not (yield made):
            row = (yield effects.find(row.key)) or row
            raise NotSettled(row.key, f"it is {row.state}: {_why_not(row)}.")


def _check_decision(how: str, result: Any, by: str | None, reason: str | None) -> None:
    if how not in STATES:
        raise BadArgument(f"An effect is settled as 'done', 'retry' or 'fail', not as {how!r}.")
    if how == "retry" and result is not None:
        raise BadArgument("An effect that is to be called again has no result yet.")
    if how == "fail" and result is not None:
        raise BadArgument("An effect that failed has no result. Say why it failed with reason=.")
    if by is not None:
        check_text("by", by)
    if reason is not None and not isinstance(reason, str):
        raise BadArgument(f"reason must be a str, not {type(reason).__name__}.")


def _why_not(row: EffectRow) -> str:
    if row.state == EffectState.AGAIN:
        return "its run is about to call it"
    return (
        "that is settled" if row.state == EffectState.DONE else "its run is being driven just now"
    )
