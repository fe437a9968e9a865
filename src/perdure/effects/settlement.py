"""One call of an effect, from wherever it was left: a plan that ends with its outcome.

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
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple, NoReturn, Protocol

from perdure.effects import recording
from perdure.effects.context import current
from perdure.effects.filing import PATIENCE, Filing
from perdure.effects.identity import task_hash
from perdure.errors import BadArgument, EffectHeld, NotDone, Postponed
from perdure.journal import Deed, Plan
from perdure.operations import effects, runs
from perdure.operations.effects import EffectRow
from perdure.operations.runs import RunRow
from perdure.types import ENDED, Done, EffectState, Retry, State, moment

log = logging.getLogger("perdure")

OTHERS = Retry(attempts=2**31, first=timedelta(seconds=0.1), longest=timedelta(minutes=1))
"""How long to wait for another run that is about to settle an effect with our key."""


class Returned(NamedTuple):
    """What a function gave."""

    value: Any
    keyed: bool = False
    """Whether it asked for the key of its effect."""


class Raised(NamedTuple):
    """What it raised."""

    error: BaseException


class Caller(Protocol):
    """Who makes the calls. Each gives something a plan can wait for, and then how it ended."""

    def call(self, key: str, arguments: Mapping[str, Any], timeout: float | None) -> Deed: ...

    def verify(self, key: str, arguments: Mapping[str, Any]) -> Deed: ...

    def transact(self, settling: Settling, arguments: Mapping[str, Any]) -> Deed: ...


@dataclass
class Settling(Filing):
    """One call on its way."""

    caller: Caller
    business: str | None = None
    """Its business key, if it has one."""
    mark: str | None = None
    """What tells it from other calls, in place of its arguments."""
    home: str = ""
    """Where its function is: another one may have the same name."""

    def run(self) -> Plan[Any]:
        """The outcome: returned or raised."""
        segment = self.desk.segment
        calls = contextlib.nullcontext() if segment is None else segment.calling(self.desk.nested)
        with calls:
            try:
                return (yield from self._run())
            except (EffectHeld, Postponed) as signal:
                if segment is not None:
                    segment.end_with(signal)  # whoever may swallow it
                raise

    def _run(self) -> Plan[Any]:
        self.kept = recording.keep(self.spec.record, self.arguments)
        if self.desk.segment is not None:
            self.desk.segment.secrets.update(self._secrets)
        data = recording.encode_arguments(self.desk.serializer, self.spec.name, self.kept)
        told = data + self.home.encode() if self.mark is None else self.mark.encode()
        digest = recording.digest(told)
        found = yield from self._find(digest)
        place = (self.row.scope, self.row.task, self.row.name, self.row.n)
        outer = current() if self.business is not None and self.desk.nested else None
        if outer is not None and outer.is_within(self.row.key):
            raise BadArgument(
                f"Effect {self.row.name!r} calls itself with the same business key, "
                f"{self.business!r}: it would wait for itself."
            )
        waited = False
        while not self.desk.begin(place):  # an attempt before ours, or one with our business key
            waited = True
            yield 0.01
        try:
            if waited:
                found = yield effects.at(*place)
            if found is None:
                found = yield from self._intend(data)
            if found is None:
                return (yield from self._attempts(self.arguments))
            self.row = found
            return (yield from self._go_on(digest))
        finally:
            self.desk.end(place)

    # -- which one it is

    def _find(self, digest: str) -> Plan[EffectRow | None]:
        """What is recorded for this call; `row` is what would be."""
        desk, spec, owner = self.desk, self.spec, self.desk.owner
        if self.business is not None:
            key = f"{spec.name}:{self.business}"
            scope, task, n = f"key {key}", "", 0
            found: EffectRow | None = yield effects.at(scope, task, spec.name, n)
        else:
            yield from desk.load()
            same, hold = self._has_same_arguments, spec.unknown == "hold"
            n, found = desk.claim(spec.name, digest, same, self.line, cautious=hold)
            scope, task = owner.thread_id, desk.task
            key = task_hash(scope, task, spec.name, str(n))
        self.row = EffectRow(
            scope=scope,
            task=task,
            name=spec.name,
            n=n,
            key=key,
            thread_id=owner.thread_id,
            run_id=owner.run_id,
            checkpoint_id=desk.checkpoint_id,
            state=EffectState.OPEN.value,
            intent=effects.new_intent(),
            attempts=1,
            digest=digest,
            undo=int(spec.compensate is not None),
            mark=int(spec.reads),
            settled=0,
            due_at=None,
            created_at=desk.now,
            updated_at=0,
            arguments=b"",
            outcome=None,
        )
        return found

    def _has_same_arguments(self, row: EffectRow) -> bool:
        if self.mark is not None:
            return False
        try:
            return bool(self._recorded(row) == self.kept)
        except Exception:  # it cannot be read or compared
            return False

    def _intend(self, data: bytes) -> Plan[EffectRow | None]:
        """Store the intent, after all that led to it. Gives what somebody else stored before."""
        desk, row = self.desk, self.row
        blob = recording.close_arguments(desk.serializer, row.key, row.name, data)
        self.row = row = row._replace(arguments=blob)
        yield from desk.wait_for_checkpoints()
        if self.spec.transactional:
            return None
        intent = desk.refusable(effects.intend(desk.owner, row))
        if self.spec.reads and not desk.is_sync:
            desk.journal.defer(intent)
            desk.know(row)
            return None
        if (yield intent):
            desk.know(row)
            return None
        stored: EffectRow = yield effects.at(row.scope, row.task, row.name, row.n)
        desk.know(stored)
        return stored

    # -- what is there already

    def _go_on(self, digest: str) -> Plan[Any]:
        withdrawn = self.row.state == EffectState.AGAIN and not self.spec.keeps_errors
        if self.row.digest != digest and not withdrawn and not self._has_same_arguments(self.row):
            self._tell("differs", {"name": self.row.name, "key": self.row.key})
        while True:
            state = EffectState(self.row.state)
            if state is EffectState.DONE:
                return self._result()
            if state is EffectState.FAILED:
                self._count_saved(0, 0)
                self.line.skip(self._open_outcome().get("asked", 0))
                raise recording.recorded(
                    recording.open_error(
                        self.desk.serializer, self.row.key, self.row.outcome or b""
                    )
                )
            if state is EffectState.UNKNOWN and self._is_of_another_run():
                yield from self._look_later()
                continue
            if state is EffectState.UNKNOWN:
                raise EffectHeld(self.row.key, self.row.name, "nobody settled it yet")
            if state is EffectState.AGAIN:
                if not (yield from self._take(self.row.attempts)):
                    continue
                return (yield from self._settle_unknown(True))
            if self._is_of_another_run():
                yield from self._wait_for_other()
                continue
            due = self.row.due_at
            if due is not None:  # it was between two attempts
                yield from self._pause_until(due)
            if (yield from self._take(self.row.attempts)):
                return (yield from self._settle_unknown(due is not None))

    def _result(self) -> Any:
        if self._is_of_another_run():
            told = {"name": self.row.name, "key": self.row.key, "state": self.row.state}
            self._tell("effect", {**told, "how": f"in run {self.row.run_id or 'of no runtime'}"})
        outcome = self._open_outcome()
        result, usage, asked = (*outcome, None, 0)[:3] if len(outcome) < 3 else outcome
        self._count_saved(*(usage or (0, 0)))
        self.line.skip(asked)
        return result

    def _wait_for_other(self) -> Plan[None]:
        """Another run has our business key, and has not settled it."""
        row, other = self.row, None
        if row.run_id:
            other_row: RunRow | None = yield runs.find(row.run_id)
            other = None if other_row is None else State(other_row.state)
        if other is None or other in ENDED or other is State.HELD:
            if (yield from self._take(row.attempts)):
                why = f"thread {row.thread_id!r} left it open"
                yield from self._hold(why, None)
            return
        yield from self._look_later()

    def _look_later(self) -> Plan[None]:
        """Another run, or a person, is about to settle it."""
        row = self.row
        self.line.waited += 1
        yield from self._pause(OTHERS.pause(self.line.waited))
        self.row = (yield effects.at(row.scope, row.task, row.name, row.n)) or row

    def _settle_unknown(self, failed: bool) -> Plan[Any]:
        """Its intent was there, and no outcome. `failed`: it was between two attempts."""
        arguments = self._arguments_again()
        if self.spec.verify is not None:
            answer = yield from self._verify(arguments, "it was left in the middle")
            if answer is not None:
                return (yield from self._done(answer.result, how="verified"))
        elif self.spec.unknown == "hold" and not failed and not self.spec.transactional:
            yield from self._hold("whoever called it died, or lost the run, meanwhile", None)
        self.row = self.row._replace(attempts=self.row.attempts + 1)
        return (yield from self._attempts(arguments, "called again"))

    # -- calling

    def _attempts(self, arguments: Mapping[str, Any], how: str = "") -> Plan[Any]:
        spec = self.spec
        while True:
            if spec.transactional:
                outcome = yield self.caller.transact(self, arguments)
                if isinstance(outcome, EffectRow):  # somebody else has the key
                    self.row = outcome
                    return (yield from self._go_on(self.row.digest))
            else:
                yield from self._check_lease()
                self._asked = self.line.asked()
                outcome = yield self.caller.call(self.row.key, arguments, spec.timeout)
            if isinstance(outcome, Returned):
                if spec.transactional:
                    return outcome.value
                return (yield from self._done(outcome.value, rides=outcome.keyed, how=how))
            error = outcome.error
            if not isinstance(error, Exception) or _bubbles(error):
                self._leave(error)
            if spec.transactional:  # nothing is stored yet
                yield self.desk.refusable(effects.intend(self.desk.owner, self.row))
            answer = yield from self._doubt(error, arguments)
            if answer is None and not spec.retry.is_over(self.row.attempts, error):
                answer = yield from self._again(error, arguments)
                arguments = self._arguments_again()  # whatever the function did to them
            elif answer is None and not spec.keeps_errors:
                self._withdraw(error)
            elif answer is None:
                yield from self._failed(error)
            if answer is not None:
                return (yield from self._done(answer.result, how="verified"))

    def _check_lease(self) -> Plan[None]:
        """A process that stood still behind its intent may have lost the run: then it does not
        call any more what another has called, or asked the far side about."""
        segment = self.desk.segment
        if segment is not None:
            segment.check()
            if segment.is_overdue:
                yield self.desk.refusable(segment.lease.fenced())

    def _leave(self, error: BaseException) -> NoReturn:
        """It was left from inside. Steering by LangGraph or by us says that it did not happen yet;
        of anything else nobody knows."""
        if isinstance(error, (EffectHeld, Postponed)) or _bubbles(error):
            self._write(EffectState.AGAIN, None, None)
        raise error

    def _withdraw(self, error: Exception) -> NoReturn:
        """Whoever asks again, in this attempt at the task or a later one, finds it to be called."""
        self._write(EffectState.AGAIN, None, {"error": self._words(error)})
        self.desk.give_back(self.row, self.line)
        raise error

    def _doubt(self, error: Exception, arguments: Mapping[str, Any]) -> Plan[Done | None]:
        """Whether it happened although it raised. None: no, or to try again does no harm."""
        if isinstance(error, NotDone) or self.spec.transactional:
            return None
        if self.spec.verify is not None:
            return (yield from self._verify(arguments, f"it raised {type(error).__name__}"))
        if self.spec.unknown == "hold":
            yield from self._hold(f"it raised {type(error).__name__}", error)
        return None

    def _verify(self, arguments: Mapping[str, Any], why: str) -> Plan[Done | None]:
        """Ask the far side, as often as it may be tried; if it does not say, hold."""
        attempt = 0
        while True:
            attempt += 1
            outcome = yield self.caller.verify(self.row.key, arguments)
            if isinstance(outcome, Returned):
                found = outcome.value
                return found if found is None or isinstance(found, Done) else Done(found)
            error = outcome.error
            if not isinstance(error, Exception) or _bubbles(error):
                raise error
            if self.spec.retry.is_over(attempt, error):
                yield from self._hold(f"{why}, and verify raised {type(error).__name__}", error)
            yield min(PATIENCE, self.spec.retry.pause(attempt).total_seconds())

    # -- waiting

    def _again(self, error: Exception, arguments: Mapping[str, Any]) -> Plan[Done | None]:
        """Pause before the next attempt; on disk first if it is long. Gives what verify found."""
        desk, row, retry = self.desk, self.row, self.spec.retry
        pause = retry.pause(row.attempts)
        due = desk.now + round(pause.total_seconds() * 1000)
        data = {"error": self._words(error), "retry_at": moment(due)}
        noted = self._write(EffectState.OPEN, self._close_error(error), data, due)
        if pause.total_seconds() > PATIENCE or self.spec.unknown == "hold":
            yield noted
        yield from self._pause_until(due)
        # What is on disk says that it is known to have failed: not while it is called again.
        if self.spec.unknown == "hold" and not (yield from self._take(row.attempts + 1)):
            raise EffectHeld(row.key, row.name, "somebody else took it meanwhile")
        self.row = self.row._replace(attempts=row.attempts + 1, due_at=None)
        if self.spec.verify is None or isinstance(error, NotDone):
            return None
        return (yield from self._verify(arguments, f"it raised {type(error).__name__}"))


def _bubbles(error: BaseException) -> bool:
    """Whether LangGraph steers by this exception: an interrupt, a command for the parent."""
    return any(base.__name__ == "GraphBubbleUp" for base in type(error).__mro__)
