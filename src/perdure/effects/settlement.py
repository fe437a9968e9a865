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

import asyncio
import contextlib
import contextvars
import inspect
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, NamedTuple, cast

from perdure import failpoints
from perdure.commands import effect_payload, effects, runs
from perdure.commands.effects import EffectRow, How
from perdure.commands.runs import RunRow
from perdure.effects import context
from perdure.effects.call import MAX_PAUSE, Bound, Call
from perdure.effects.context import EffectContext, current
from perdure.effects.simulation import simulate
from perdure.errors import (
    BadArgument,
    EffectHeld,
    EffectRefused,
    EffectTimeout,
    NotDone,
    OrderChanged,
    Postponed,
    StatementFailed,
    Unavailable,
    Unsupported,
)
from perdure.journal import Plan, Refused, Statement
from perdure.journal.operation import Transaction
from perdure.times import moment
from perdure.types import ENDED, Done, EffectState, Retry, State


class CallReturned(NamedTuple):
    value: Any
    used_key: bool = False
    """Whether the function asked for the key of its effect."""


class CallRaised(NamedTuple):
    error: BaseException


@dataclass
class FunctionCall:
    """One call of a function. Gives how it ended."""

    name: str | None
    """Of its effect, for the failpoints around the call; None: there are none."""
    function: Callable[..., Any]
    bound: Bound
    context: EffectContext
    timeout: float | None = None

    def run(self) -> CallReturned | CallRaised:
        if self.timeout is not None:
            return self._run_in_thread(self.timeout)
        try:
            return CallReturned(self.call(), self.context.used_key)
        except BaseException as error:
            return CallRaised(error)

    def _run_in_thread(self, timeout: float) -> CallReturned | CallRaised:
        """Call it in a thread, and stop waiting for it after a time. The thread itself goes on."""
        ended: list[CallReturned | CallRaised] = []
        run, copied = replace(self, timeout=None).run, contextvars.copy_context()
        thread = threading.Thread(
            target=lambda: ended.append(copied.run(run)), name="perdure-effect", daemon=True
        )
        thread.start()
        thread.join(timeout)
        return ended[0] if ended else CallRaised(EffectTimeout(self.context.key, timeout))

    async def arun(self) -> CallReturned | CallRaised:
        try:
            if not inspect.iscoroutinefunction(self.function):
                return await asyncio.to_thread(self.run)
            return CallReturned(await self.acall(), self.context.used_key)
        except BaseException as error:
            return CallRaised(error)

    def call(self) -> Any:
        """Call it in this thread. Raises what it raises."""
        args, kwargs = self.bound
        with context.entered(self.context):
            self._at("before")
            value = self.function(*args, **kwargs)
            self._at("after")
            return value

    async def acall(self) -> Any:
        """The same of a coroutine function."""
        args, kwargs = self.bound
        with context.entered(self.context):
            self._at("before")
            limit = asyncio.timeout(self.timeout)
            try:
                async with limit:
                    value = await self.function(*args, **kwargs)
            except TimeoutError as error:
                if not limit.expired():
                    raise
                raise EffectTimeout(self.context.key, self.timeout or 0) from error
            self._at("after")
            return value

    def _at(self, point: str) -> None:
        if self.name is None:
            return
        failpoints.at(f"effect {self.name}.{point}")
        if point == "before" and failpoints.called is not None:
            failpoints.called(self.name, self.context.key if self.context.owner is not None else "")


def plain_call(name: str, function: Callable[..., Any], bound: Bound) -> FunctionCall:
    """A call that is not recorded. Inside a recorded call it has that one's key."""
    outer = context.current()
    key = uuid.uuid4().hex if outer is None or outer.owner is None else outer.key
    return FunctionCall(name, function, bound, EffectContext(key))


class _FunctionRaised(Exception):
    """Wraps what the user's function raised, to tell it from an error of the journal."""


@dataclass
class TransactionalCall:
    """One call of a transactional effect: its writes and its outcome are one commit."""

    call: Call
    arguments: Mapping[str, Any]

    def run(self) -> CallReturned | CallRaised | EffectRow:
        """How it ended, or the row of another process that has the same business key."""
        task, now = self.call.task, self.call.task.now
        row = self.call.row._replace(state=EffectState.DONE.value)
        name = f"the transactional effect {row.name!r}"
        proof = Statement("find_intent", {**row.place, "intent": row.intent, "state": row.state})
        try:
            settled, result = task.journal.transact(name, partial(self._work, now=now), proof)
        except _FunctionRaised as raised:
            return CallRaised(cast(BaseException, raised.__cause__))
        except (StatementFailed, Unsupported) as error:
            return CallRaised(error)
        except Unavailable as error:
            inside = error.__cause__ and error.__cause__.__cause__
            if not isinstance(inside, _FunctionRaised):
                raise
            # The connection was lost inside the function each time, so the function causes it.
            return CallRaised(cast(BaseException, inside.__cause__))
        except Refused:
            there = task.journal.read_committed(effects.at(row.place))
            if there is not None and there.intent != row.intent:
                return there
            if task.segment is not None:
                task.segment.refuse()
            raise
        task.records.remember(settled)
        return CallReturned(result)

    async def arun(self) -> CallReturned | CallRaised | EffectRow:
        return await asyncio.to_thread(self.run)

    def _work(self, transaction: Transaction, now: int) -> tuple[EffectRow, Any]:
        """Write in a transaction: the intent, what the function writes, the outcome. Nothing is
        read, since the statements may be collected first."""
        call, task, row, spec = self.call, self.call.task, self.call.row, self.call.spec
        if task.segment is not None:
            task.segment.check()  # the connection may lead to a database that went back
        transaction.run(effects.claim_intent(task.owner, row))
        try:
            context = EffectContext(row.key, task.owner, transaction, now, attempt=row.attempts)
            context.prompts = self.call.prompts
            result = FunctionCall(
                spec.name, call.function, call.bind(self.arguments), context
            ).call()
            keep = spec.record.result
            result = keep(result) if keep is not None else result
            blob = effect_payload.dump_result(task.serializer, row, result)
        except BaseException as error:
            raise _FunctionRaised from error
        settled = row._replace(state=EffectState.DONE.value, outcome=blob)
        data = {"attempt": row.attempts, "transactional": True, **self.call.prompts_in_event()}
        op = effects.write_state(task.owner, settled, now, event=(task.serializer, data))
        transaction.run(op.render())
        return settled, task.serializer.redacted(result)


FINAL = (BadArgument, Unsupported)
"""A wrong use of perdure inside the function, such as a read on D1: it would be raised again."""
POLLING = Retry(attempts=2**31, first=timedelta(seconds=0.1), longest=timedelta(minutes=1))
"""How often to look whether another run, or a person, has settled an effect with our key."""


def settle(call: Call) -> Plan[Any]:
    """The outcome of a call: returned or raised."""
    segment, nested = call.task.segment, call.task.is_nested
    with contextlib.nullcontext() if segment is None else segment.calling(nested):
        try:
            if segment is not None and segment.evaluation is not None:
                simulate(call, segment.evaluation)
            return (yield from _settle(call))
        except (EffectHeld, EffectRefused, OrderChanged, Postponed) as signal:
            if segment is not None:
                segment.end_with(signal)  # the agent's code may swallow it
            raise


def _settle(call: Call) -> Plan[Any]:
    task = call.task
    row = yield from call.find()
    key = call.row.key
    _check_recursion(call)
    waited = False
    while not task.start_call(key):  # an earlier attempt, or a call with our business key
        waited = True
        yield 0.01
    try:
        if waited:
            row = yield effects.at(call.row.place)
        if row is None and call.other is not None:
            yield from call.hold_uncalled(call.other)
        if row is None:
            row = yield from call.store_intent()
        if row is None:
            return (yield from _attempts(call, call.arguments))
        call.row = row
        call.report_other_arguments()
        return (yield from _settle_found(call))
    finally:
        task.end_call(key)


def _check_recursion(call: Call) -> None:
    outer = current() if call.business_key is not None and call.task.is_nested else None
    while outer is not None:
        if outer.key == call.row.key:
            raise BadArgument(
                f"Effect {call.row.name!r} calls itself with the same business key, "
                f"{call.business_key!r}: it would wait for itself."
            )
        outer = outer.outer


# -- from the state that is stored


def _settle_found(call: Call) -> Plan[Any]:
    for looks in count(1):
        row, state = call.row, EffectState(call.row.state)
        if state is EffectState.DONE:
            return call.replay_result()
        if state is EffectState.FAILED:
            raise call.replay_error()
        if state is EffectState.UNKNOWN and not call.is_of_another_run:
            raise EffectHeld(row.key, row.name, "it is not settled yet")
        if state is EffectState.UNKNOWN:
            yield from _poll(call, looks)
        elif state is EffectState.AGAIN:
            if (yield from call.take_over(row.attempts)):
                return (yield from _settle_open(call, has_failed=True))
        elif call.is_of_another_run:
            yield from _wait_for_other_run(call, looks)
        else:
            if row.due_at is not None:  # it was between two attempts
                yield from call.pause_until(row.due_at)
            if (yield from call.take_over(row.attempts)):
                return (yield from _settle_open(call, has_failed=row.due_at is not None))


def _wait_for_other_run(call: Call, looks: int) -> Plan[None]:
    """Another run has our business key, and has not settled it."""
    row, state = call.row, None
    if row.run_id:
        other: RunRow | None = yield runs.find(row.run_id)
        state = None if other is None else State(other.state)
    if state is not None and state not in ENDED and state is not State.HELD:
        yield from _poll(call, looks)
    elif (yield from call.take_over(row.attempts)):
        yield from call.hold(f"thread {row.thread_id!r} left it open", None)


def _poll(call: Call, looks: int) -> Plan[None]:
    pause = round(POLLING.pause(looks).total_seconds() * 1000)
    yield from call.pause_until(call.task.now + pause)
    call.row = (yield effects.at(call.row.place)) or call.row


def _settle_open(call: Call, *, has_failed: bool) -> Plan[Any]:
    """An intent is stored, and no outcome. `has_failed`: its last attempt is known to have."""
    spec = call.spec
    if call.may_be_another:
        why = (
            "it failed, or waited for something"
            if has_failed
            else "its process died, or lost the run, during it"
        )
        yield from call.hold(
            f"{why}, and the node now makes a call with other arguments, which may be another "
            "one: the object or secret of a call is not recorded",
            None,
        )
    arguments = call.recorded_arguments()
    if spec.verify is not None:
        answer = yield from _verify(call, arguments, "it was interrupted")
        if answer is not None:
            return (yield from call.done(answer.result, how=How.VERIFIED))
    elif spec.unknown == "hold" and not has_failed and not spec.transactional:
        yield from call.hold("its process died, or lost the run, during the call", None)
    call.row = call.row._replace(attempts=call.row.attempts + 1)
    return (yield from _attempts(call, arguments, How.CALLED_AGAIN))


# -- calling


def _attempts(call: Call, arguments: Mapping[str, Any], how: How | None = None) -> Plan[Any]:
    spec = call.spec
    while True:
        if spec.transactional:
            outcome = yield TransactionalCall(call, arguments)
            if isinstance(outcome, EffectRow):  # another process has the key
                call.row = outcome
                return (yield from _settle_found(call))
            if isinstance(outcome, CallReturned):
                return outcome.value
        else:
            yield from _check_lease(call)
            call.interrupts_before = call.position.interrupts_so_far()
            outcome = yield _function_call(call, arguments)
            if isinstance(outcome, CallReturned):
                wait = not outcome.used_key
                how = How.SIMULATED if call.is_simulated else how
                return (yield from call.done(outcome.value, wait=wait, how=how))
        answer = yield from _after_error(call, outcome.error, arguments)
        if answer is not None:
            return (yield from call.done(answer.result, how=How.VERIFIED))
        arguments = call.recorded_arguments()  # the function may have changed its own


def _after_error(
    call: Call, error: BaseException, arguments: Mapping[str, Any]
) -> Plan[Done | None]:
    """What verify found, or None to call again, after a pause. Raises a final error."""
    spec = call.spec
    if not isinstance(error, Exception) or _bubbles(error):
        # LangGraph or perdure steers by the exception: the call is still to be made. After any
        # other one that comes from outside, its outcome is not known.
        signals = (EffectHeld, EffectRefused, OrderChanged, Postponed)
        if isinstance(error, signals) or _bubbles(error):
            # Due at once, unlike one that a person lets be called again: it may be half done.
            yield from call.write(EffectState.AGAIN, None, None, call.task.now)
        raise error
    if spec.transactional:  # nothing is stored yet
        yield call.task.guarded(effects.store_intent(call.task.owner, call.row))
    answer = yield from _check_outcome(call, error, arguments)
    if answer is not None:
        return answer
    if not (isinstance(error, FINAL) or spec.retry.is_over(call.row.attempts, error)):
        return (yield from _pause_before_retry(call, error, arguments))
    if not spec.keeps_errors or isinstance(error, Unavailable):
        # The next call, in this attempt at the task or a later one, is to be made.
        yield from call.write(EffectState.AGAIN, None, {"error": call.describe(error)})
        call.task.records.release(call.row, call.position)
        raise error
    yield from call.failed(error)
    return None


def _check_lease(call: Call) -> Plan[None]:
    """Stop if the run is lost: a process that was suspended after its intent must not call
    what another process has called, or verified, since."""
    task = call.task
    if task.segment is not None:
        task.segment.check()
        if task.segment.is_overdue:
            yield task.guarded(task.segment.owner.fenced())


def _check_outcome(call: Call, error: Exception, arguments: Mapping[str, Any]) -> Plan[Done | None]:
    """The result, if it happened although it raised. None: no, or a second call is harmless."""
    spec = call.spec
    if isinstance(error, NotDone) or spec.transactional:
        return None
    why = f"it raised {type(error).__name__}"
    if spec.verify is not None:
        return (yield from _verify(call, arguments, why))
    if spec.unknown == "hold" and not spec.trust_errors:
        yield from call.hold(why, error)
    return None


def _verify(call: Call, arguments: Mapping[str, Any], why: str) -> Plan[Done | None]:
    """Ask the far side, as often as `retry` allows; hold the run if it gives no answer."""
    retry, attempt = call.spec.retry, 0
    while True:
        attempt += 1
        outcome = yield _verify_call(call, arguments)
        if isinstance(outcome, CallReturned):
            answer = outcome.value
            return answer if answer is None or isinstance(answer, Done) else Done(answer)
        error = outcome.error
        if not isinstance(error, Exception) or _bubbles(error):
            raise error
        if retry.is_over(attempt, error):
            why = f"{why}, and verify raised {type(error).__name__}"
            yield from call.hold(why, error)
        yield min(MAX_PAUSE, retry.pause(attempt).total_seconds())


def _pause_before_retry(
    call: Call, error: Exception, arguments: Mapping[str, Any]
) -> Plan[Done | None]:
    """Pause before the next attempt; a long pause is on disk first. Returns what verify finds."""
    row, spec = call.row, call.spec
    pause = spec.retry.pause(row.attempts)
    due_at = call.task.now + round(pause.total_seconds() * 1000)
    data = {"error": call.describe(error), "retry_at": moment(due_at)}
    wait = pause.total_seconds() > MAX_PAUSE or spec.unknown == "hold"
    outcome = call.dump_error(EffectState.OPEN, error)
    yield from call.write(EffectState.OPEN, outcome, data, due_at, wait=wait)
    yield from call.pause_until(due_at)
    # The row says that it is known to have failed: that must not be so during the next call.
    if spec.unknown == "hold" and not (yield from call.take_over(row.attempts + 1)):
        raise EffectHeld(row.key, row.name, "another process took it over")
    call.row = call.row._replace(attempts=row.attempts + 1, due_at=None)
    if spec.verify is None or isinstance(error, NotDone):
        return None
    return (yield from _verify(call, arguments, f"it raised {type(error).__name__}"))


def _function_call(call: Call, arguments: Mapping[str, Any]) -> FunctionCall:
    context = EffectContext(
        call.row.key,
        call.task.owner,
        execution=call.task.execution,
        prompts=call.prompts,
        attempt=call.row.attempts,
        is_model=call.usage_of is not None,
    )
    name, timeout = call.spec.name, call.spec.timeout
    return FunctionCall(name, call.function, call.bind(arguments), context, timeout)


def _verify_call(call: Call, arguments: Mapping[str, Any]) -> FunctionCall:
    key, function = call.row.key, cast(Callable[..., Any], call.spec.verify)
    if failpoints.asked is not None:
        failpoints.asked(key)  # the far side is asked about it, so it has the key
    context = EffectContext(key, call.task.owner, is_verifying=True)
    return FunctionCall(None, function, call.bind(arguments), context)


def _bubbles(error: BaseException) -> bool:
    """Whether LangGraph steers by this exception: an interrupt, a command for the parent."""
    return any(base.__name__ == "GraphBubbleUp" for base in type(error).__mro__)
