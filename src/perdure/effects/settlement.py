"""Settle one effect call: from the state a crash or another call left it in, to its outcome.

found                           what happens
done, failed                    returned, raised; nothing is called
open, with verify               the far side is asked: its answer is the outcome, or it is called
open, unknown="retry"           called again, with the recorded arguments and the same key
open, unknown="hold"            unknown, and the run is held
open, of another run (its key)  waits for that one to settle it
again                           called
unknown                         the run is held
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from perdure.commands import effects, runs
from perdure.commands.effects import EffectRow, How
from perdure.commands.runs import RunRow
from perdure.effects.call_record import MAX_PAUSE, CallRecord
from perdure.effects.context import current
from perdure.effects.invocation import Caller, CallReturned
from perdure.effects.simulation import substitute
from perdure.errors import (
    BadArgument,
    EffectHeld,
    EffectRefused,
    NotDone,
    OrderChanged,
    Postponed,
    Unavailable,
    Unsupported,
)
from perdure.execution.evaluation_policy import EvaluationPolicy
from perdure.journal import Plan
from perdure.times import moment
from perdure.types import ENDED, Done, EffectState, Retry, State

FINAL = (BadArgument, Unsupported)
"""A wrong use of perdure inside the function, such as a read on D1: it would be raised again."""
POLLING = Retry(attempts=2**31, first=timedelta(seconds=0.1), longest=timedelta(minutes=1))
"""How often to look whether another run, or a person, has settled an effect with our key."""


@dataclass
class Settlement:
    """One call on its way to its outcome."""

    record: CallRecord
    caller: Caller
    _polls: int = field(default=0, init=False)
    _how: How | None = field(default=None, init=False)
    """How it is called, if that is not really."""

    def run(self) -> Plan[Any]:
        """The outcome: returned or raised."""
        segment, nested = self.record.task.segment, self.record.task.is_nested
        with contextlib.nullcontext() if segment is None else segment.calling(nested):
            try:
                if segment is not None and segment.evaluation is not None:
                    self._simulate(segment.evaluation)
                return (yield from self._run())
            except (EffectHeld, EffectRefused, OrderChanged, Postponed) as signal:
                if segment is not None:
                    segment.end_with(signal)  # the agent's code may swallow it
                raise

    def _simulate(self, policy: EvaluationPolicy) -> None:
        """Put what simulates the call in its place. Raises `EffectRefused`."""
        caller = substitute(self.record, self.caller, policy)
        if caller is not None:
            self.caller, self._how = caller, How.SIMULATED

    def _run(self) -> Plan[Any]:
        record, task = self.record, self.record.task
        found = yield from record.find()
        key = record.row.key
        self._check_recursion()
        waited = False
        while not task.start_call(key):  # an earlier attempt, or a call with our business key
            waited = True
            yield 0.01
        try:
            if waited:
                found = yield effects.at(record.row.place)
            if found is None and record.other is not None:
                yield from record.hold_uncalled(record.other)
            if found is None:
                found = yield from record.store_intent()
            if found is None:
                return (yield from self._attempts(record.arguments))
            record.row = found
            record.report_other_arguments()
            return (yield from self._settle_found())
        finally:
            task.end_call(key)

    def _check_recursion(self) -> None:
        record = self.record
        outer = current() if record.business_key is not None and record.task.is_nested else None
        while outer is not None:
            if outer.key == record.row.key:
                raise BadArgument(
                    f"Effect {record.row.name!r} calls itself with the same business key, "
                    f"{record.business_key!r}: it would wait for itself."
                )
            outer = outer.outer

    # -- from the state that is stored

    def _settle_found(self) -> Plan[Any]:
        record = self.record
        while True:
            row, state = record.row, EffectState(record.row.state)
            if state is EffectState.DONE:
                return record.replay_result()
            if state is EffectState.FAILED:
                raise record.replay_error()
            if state is EffectState.UNKNOWN and not record.is_of_another_run:
                raise EffectHeld(row.key, row.name, "it is not settled yet")
            if state is EffectState.UNKNOWN:
                yield from self._poll()
            elif state is EffectState.AGAIN:
                if (yield from record.take_over(row.attempts)):
                    return (yield from self._settle_open(has_failed=True))
            elif record.is_of_another_run:
                yield from self._wait_for_other_run()
            else:
                if row.due_at is not None:  # it was between two attempts
                    yield from record.pause_until(row.due_at)
                if (yield from record.take_over(row.attempts)):
                    return (yield from self._settle_open(has_failed=row.due_at is not None))

    def _wait_for_other_run(self) -> Plan[None]:
        """Another run has our business key, and has not settled it."""
        row, state = self.record.row, None
        if row.run_id:
            other: RunRow | None = yield runs.find(row.run_id)
            state = None if other is None else State(other.state)
        if state is not None and state not in ENDED and state is not State.HELD:
            yield from self._poll()
        elif (yield from self.record.take_over(row.attempts)):
            yield from self.record.hold(f"thread {row.thread_id!r} left it open", None)

    def _poll(self) -> Plan[None]:
        record = self.record
        self._polls += 1
        pause = round(POLLING.pause(self._polls).total_seconds() * 1000)
        yield from record.pause_until(record.task.now + pause)
        record.row = (yield effects.at(record.row.place)) or record.row

    def _settle_open(self, *, has_failed: bool) -> Plan[Any]:
        """An intent is stored, and no outcome. `has_failed`: its last attempt is known to have."""
        record, spec = self.record, self.record.spec
        if record.may_be_another:
            why = (
                "it failed, or waited for something"
                if has_failed
                else "its process died, or lost the run, during it"
            )
            yield from record.hold(
                f"{why}, and the node now makes a call with other arguments, which may be another "
                "one: the object or secret of a call is not recorded",
                None,
            )
        arguments = record.recorded_arguments()
        if spec.verify is not None:
            answer = yield from self._verify(arguments, "it was interrupted")
            if answer is not None:
                return (yield from record.done(answer.result, how=How.VERIFIED))
        elif spec.unknown == "hold" and not has_failed and not spec.transactional:
            yield from record.hold("its process died, or lost the run, during the call", None)
        record.row = record.row._replace(attempts=record.row.attempts + 1)
        return (yield from self._attempts(arguments, How.CALLED_AGAIN))

    # -- calling

    def _attempts(self, arguments: Mapping[str, Any], how: How | None = None) -> Plan[Any]:
        record, spec = self.record, self.record.spec
        while True:
            if spec.transactional:
                outcome = yield self.caller.transact(record, arguments)
                if isinstance(outcome, EffectRow):  # another process has the key
                    record.row = outcome
                    return (yield from self._settle_found())
                if isinstance(outcome, CallReturned):
                    return outcome.value
            else:
                yield from self._check_lease()
                record.count_interrupts()
                outcome = yield self.caller.call(record, arguments)
                if isinstance(outcome, CallReturned):
                    wait = not outcome.used_key
                    how = self._how or how
                    return (yield from record.done(outcome.value, wait=wait, how=how))
            answer = yield from self._after_error(outcome.error, arguments)
            if answer is not None:
                return (yield from record.done(answer.result, how=How.VERIFIED))
            arguments = record.recorded_arguments()  # the function may have changed its own

    def _after_error(self, error: BaseException, arguments: Mapping[str, Any]) -> Plan[Done | None]:
        """What verify found, or None to call again, after a pause. Raises a final error."""
        record, spec = self.record, self.record.spec
        if not isinstance(error, Exception) or _bubbles(error):
            # LangGraph or perdure steers by the exception: the call is still to be made. After any
            # other one that comes from outside, its outcome is not known.
            signals = (EffectHeld, EffectRefused, OrderChanged, Postponed)
            if isinstance(error, signals) or _bubbles(error):
                # Due at once, unlike one that a person lets be called again: it may be half done.
                yield from record.write(EffectState.AGAIN, None, None, record.task.now)
            raise error
        if spec.transactional:  # nothing is stored yet
            yield record.task.guarded(effects.store_intent(record.task.owner, record.row))
        answer = yield from self._check_outcome(error, arguments)
        if answer is not None:
            return answer
        if not (isinstance(error, FINAL) or spec.retry.is_over(record.row.attempts, error)):
            return (yield from self._pause_before_retry(error, arguments))
        if not spec.keeps_errors or isinstance(error, Unavailable):
            # The next call, in this attempt at the task or a later one, is to be made.
            yield from record.write(EffectState.AGAIN, None, {"error": record.describe(error)})
            record.task.records.release(record.row, record.position)
            raise error
        yield from record.failed(error)
        return None

    def _check_lease(self) -> Plan[None]:
        """Stop if the run is lost: a process that was suspended after its intent must not call
        what another process has called, or verified, since."""
        task = self.record.task
        if task.segment is not None:
            task.segment.check()
            if task.segment.is_overdue:
                yield task.guarded(task.segment.owner.fenced(()))

    def _check_outcome(self, error: Exception, arguments: Mapping[str, Any]) -> Plan[Done | None]:
        """The result, if it happened although it raised. None: no, or a second call is harmless."""
        spec = self.record.spec
        if isinstance(error, NotDone) or spec.transactional:
            return None
        why = f"it raised {type(error).__name__}"
        if spec.verify is not None:
            return (yield from self._verify(arguments, why))
        if spec.unknown == "hold" and not spec.trust_errors:
            yield from self.record.hold(why, error)
        return None

    def _verify(self, arguments: Mapping[str, Any], why: str) -> Plan[Done | None]:
        """Ask the far side, as often as `retry` allows; hold the run if it gives no answer."""
        retry, attempt = self.record.spec.retry, 0
        while True:
            attempt += 1
            outcome = yield self.caller.verify(self.record, arguments)
            if isinstance(outcome, CallReturned):
                found = outcome.value
                return found if found is None or isinstance(found, Done) else Done(found)
            error = outcome.error
            if not isinstance(error, Exception) or _bubbles(error):
                raise error
            if retry.is_over(attempt, error):
                why = f"{why}, and verify raised {type(error).__name__}"
                yield from self.record.hold(why, error)
            yield min(MAX_PAUSE, retry.pause(attempt).total_seconds())

    def _pause_before_retry(
        self, error: Exception, arguments: Mapping[str, Any]
    ) -> Plan[Done | None]:
        """Pause before the next attempt; a long pause is on disk first. Gives what verify finds."""
        record, row, spec = self.record, self.record.row, self.record.spec
        pause = spec.retry.pause(row.attempts)
        due_at = record.task.now + round(pause.total_seconds() * 1000)
        data = {"error": record.describe(error), "retry_at": moment(due_at)}
        wait = pause.total_seconds() > MAX_PAUSE or spec.unknown == "hold"
        outcome = record.dump_error(EffectState.OPEN, error)
        yield from record.write(EffectState.OPEN, outcome, data, due_at, wait=wait)
        yield from record.pause_until(due_at)
        # The row says that it is known to have failed: that must not be so during the next call.
        if spec.unknown == "hold" and not (yield from record.take_over(row.attempts + 1)):
            raise EffectHeld(row.key, row.name, "another process took it over")
        record.row = record.row._replace(attempts=row.attempts + 1, due_at=None)
        if spec.verify is None or isinstance(error, NotDone):
            return None
        return (yield from self._verify(arguments, f"it raised {type(error).__name__}"))


def _bubbles(error: BaseException) -> bool:
    """Whether LangGraph steers by this exception: an interrupt, a command for the parent."""
    return any(base.__name__ == "GraphBubbleUp" for base in type(error).__mro__)
