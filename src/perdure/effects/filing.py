"""What is on file of one call of an effect, and how far it is.

Everything a call writes of itself is here: its outcome, a pause before its next attempt, that
nobody knows what became of it. What is to be done is decided in `settle.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

from perdure.effects import recording
from perdure.effects.identity import Desk, Line
from perdure.errors import EffectHeld, Postponed
from perdure.journal import Plan
from perdure.operations import effects
from perdure.operations.effects import EffectRow
from perdure.serde.serializer import where_effect
from perdure.types import EffectState, Record, Retry, moment

log = logging.getLogger("perdure")

HAPPENED = 2
"""The mark of what failed and is not to be called again."""
PATIENCE = 5.0
"""Seconds a process waits for the next attempt; a longer pause is a wait of the run."""


@dataclass(frozen=True)
class Spec:
    """An effect: its name and its options."""

    name: str
    key: Callable[..., Any] | None = None
    verify: Callable[..., Any] | None = None
    unknown: Literal["retry", "hold"] = "retry"
    transactional: bool = False
    retry: Retry = Retry()  # noqa: RUF009 (it is frozen)
    timeout: float | None = None
    compensate: Callable[..., Any] | None = None
    record: Record = Record()  # noqa: RUF009
    reads: bool = False
    """It changes nothing on the far side: to call it again after a crash only costs. So its intent
    need not be on disk first, and its outcome is committed at once, but not waited for."""
    keeps_errors: bool = True
    """Whether an exception is an outcome. If not, it says that the call is still to be made."""


@dataclass
class Filing:
    """One call, as it is on file."""

    desk: Desk
    spec: Spec
    arguments: Mapping[str, Any]
    line: Line
    weigh: Callable[[Any], tuple[int, int]] | None = field(default=None, kw_only=True)
    """What a result cost: calls of a model, and tokens."""
    kept: dict[str, Any] = field(default_factory=dict, init=False)
    row: EffectRow = field(init=False)
    """As it is stored, or about to be."""
    _asked: int = field(default=0, init=False)
    """Interrupts of the task before the function was called."""

    # -- what is recorded

    def _recorded(self, row: EffectRow) -> dict[str, Any]:
        kept: dict[str, Any] = self.desk.serializer.loads(
            row.arguments, where_effect("arguments", row.key)
        )
        return kept

    def _arguments_again(self) -> dict[str, Any]:
        """The recorded arguments, with what was not kept of them from the present call."""
        return recording.complete(self._recorded(self.row), self.arguments)

    def _open_outcome(self) -> Any:
        return self.desk.serializer.loads(
            self.row.outcome or b"", where_effect("outcome", self.row.key)
        )

    def _is_of_another_run(self) -> bool:
        owner = self.desk.owner
        return (self.row.thread_id, self.row.run_id) != (owner.thread_id, owner.run_id)

    # -- what becomes of it

    def _take(self, attempts: int) -> Plan[bool]:
        """Be the one who goes on with it."""
        desk, intent = self.desk, effects.new_intent()
        op = effects.take(desk.owner, self.row, intent, attempts, desk.now)
        self.row = yield desk.refusable(op)
        desk.know(self.row)
        return self.row.intent == intent

    def _done(self, result: Any, *, rides: bool = False, how: str = "") -> Plan[Any]:
        """Record what it gave. `rides`: with whatever is committed next, as the far side has the
        key, and can tell if it should be called again. `how`: if it is not just called."""
        desk, row, keep = self.desk, self.row, self.spec.record.result
        try:
            result = keep(result) if keep is not None else result
            usage = None if self.weigh is None else self.weigh(result)
            asked = self.line.asked() - self._asked
            blob = recording.close_result(desk.serializer, row.key, row.name, result, usage, asked)
        except Exception as error:
            self.row = row._replace(mark=HAPPENED)  # and must not again
            return (yield from self._failed(error))
        yield from self._settle(EffectState.DONE, blob, {"how": how} if how else {}, rides=rides)
        return result

    def _failed(self, error: Exception) -> Plan[None]:
        """Record that it failed for good."""
        blob = self._close_error(error)
        yield from self._settle(EffectState.FAILED, blob, {"error": self._words(error)})
        raise recording.recorded(error)

    def _settle(
        self, state: EffectState, blob: bytes, data: dict[str, Any], *, rides: bool = False
    ) -> Plan[None]:
        op = self._write(state, blob, data)
        desk = self.desk
        if desk.segment is not None:
            desk.segment.progress.move()
        if self.spec.reads and not desk.is_sync:
            desk.journal.hurry()
        # What would cost most to lose is not left to the next commit.
        elif (not rides or self.spec.unknown == "hold" or desk.is_sync) and not (yield op):
            why = "another process took it meanwhile, and what this one did is not on record"
            raise EffectHeld(self.row.key, self.row.name, why)

    def _write(
        self,
        state: EffectState,
        blob: bytes | None,
        data: dict[str, Any] | None,
        due: int | None = None,
    ) -> Any:
        """Queue how far it is. Gives what to wait for, until that is on disk."""
        desk = self.desk
        self.row = self.row._replace(state=state.value, outcome=blob, due_at=due)
        desk.know(self.row)
        event = None
        if data is not None:
            told = {"attempt": self.row.attempts, "begun_at": moment(self.row.created_at), **data}
            event = (desk.serializer, told)
        op = desk.refusable(effects.write(desk.owner, self.row, desk.now, event=event))
        return Waiting(desk.journal, desk.journal.defer(op))

    def _hold(self, why: str, error: BaseException | None) -> Plan[None]:
        """A person has to say what became of it."""
        blob = None if error is None else self._close_error(error)
        yield self._write(EffectState.UNKNOWN, blob, {"why": why})
        raise EffectHeld(self.row.key, self.row.name, why)

    # -- until the next attempt

    def _pause_until(self, due: int) -> Plan[None]:
        yield from self._pause(timedelta(milliseconds=max(0, due - self.desk.now)), due)

    def _pause(self, pause: timedelta, due: int | None = None) -> Plan[None]:
        """Wait here, or give the process back and be woken."""
        seconds, segment = pause.total_seconds(), self.desk.segment
        closing = segment is not None and segment.closing
        if closing or (seconds > PATIENCE and self.desk.postpones):
            until = due or self.desk.now + round(seconds * 1000)
            raise Postponed(self.row.key, self.row.name, until, self.row.attempts)
        if seconds > 0:
            yield float(seconds)

    # -- in words

    @property
    def _secrets(self) -> dict[str, Any]:
        """Arguments that are not kept, and must not be in an error's text either."""
        return {name: self.arguments[name] for name in self.arguments if name not in self.kept}

    def _close_error(self, error: BaseException) -> bytes:
        asked = self.line.asked() - self._asked
        return recording.close_error(
            self.desk.serializer, self.row.key, error, self._secrets, asked
        )

    def _words(self, error: BaseException) -> str:
        told = recording.describe(error, self._secrets)
        return f"{type(error).__name__}: {told['message']}"

    def _count_saved(self, calls: int, tokens: int) -> None:
        if self.desk.owner.run_id:
            self.desk.journal.defer(effects.saved(self.desk.owner, calls, tokens))

    def _tell(self, kind: str, data: dict[str, Any]) -> None:
        desk = self.desk
        if desk.owner.run_id:
            op = effects.note(desk.owner, desk.serializer, desk.now, kind, data)
            desk.journal.defer(desk.refusable(op))
        else:
            log.info("effect %s: %s", kind, data)


@dataclass
class Waiting:
    """Something queued that a plan waits for."""

    journal: Any
    ticket: Any

    def run(self) -> Any:
        return self.journal.wait(self.ticket)

    def arun(self) -> Any:
        return self.journal.await_(self.ticket)
