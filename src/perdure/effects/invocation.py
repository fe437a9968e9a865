"""The calls themselves, in either colour: of a function, of its `verify`, in a transaction."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

from perdure import failpoints
from perdure.commands import effect_payload, effects
from perdure.commands.effects import EffectRow
from perdure.effects import context
from perdure.effects.call import Bound, Call
from perdure.effects.context import EffectContext
from perdure.errors import EffectTimeout, StatementFailed, Unavailable, Unsupported
from perdure.journal import Refused, Statement
from perdure.journal.operation import Transaction
from perdure.types import EffectState


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
                return CallReturned(value, self.context.used_key)
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
