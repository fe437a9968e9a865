"""The calls themselves, in either colour: of a function, of its verify, in a transaction."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from perdure.effects import context, recording
from perdure.effects.context import Inside
from perdure.effects.filing import Spec
from perdure.effects.settlement import Raised, Returned, Settling
from perdure.errors import EffectTimeout
from perdure.journal import Journal, Refused, Statement, failpoints
from perdure.journal.operation import Transaction
from perdure.operations import effects
from perdure.operations.effects import EffectRow, Owner
from perdure.types import EffectState

T = TypeVar("T")


@dataclass
class Calling:
    """One call of a function, in either colour. Gives how it ended."""

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inside: Inside
    timeout: float | None = None

    def run(self) -> Returned | Raised:
        try:
            return Returned(self._now(), self.inside.asked)
        except BaseException as error:
            return Raised(error)

    async def arun(self) -> Returned | Raised:
        try:
            if not inspect.iscoroutinefunction(self.function):
                return await asyncio.to_thread(self.run)
            with context.calling(self.inside):
                self._tell()
                limit = asyncio.timeout(self.timeout)
                try:
                    async with limit:
                        value = await self.function(*self.args, **self.kwargs)
                except TimeoutError as error:
                    if not limit.expired():
                        raise
                    raise EffectTimeout(self.inside.key, self.timeout or 0) from error
                failpoints.at(f"effect {self.name}.after")
                return Returned(value, self.inside.asked)
        except BaseException as error:
            return Raised(error)

    def _tell(self) -> None:
        failpoints.at(f"effect {self.name}.before")
        if failpoints.called is not None:
            failpoints.called(self.name, self.inside.key if self.inside.owner is not None else "")

    def _now(self) -> Any:
        if self.timeout is None:
            return self._call()
        return _within(self.timeout, self.inside.key, self._call)

    def _call(self) -> Any:
        with context.calling(self.inside):
            self._tell()
            value = self.function(*self.args, **self.kwargs)
            failpoints.at(f"effect {self.name}.after")
            return value


def _within(seconds: float, key: str, call: Callable[[], T]) -> T:
    """Call in a thread that is given up after a time: what it still does is not waited for."""
    ended: list[T | BaseException] = []
    context = contextvars.copy_context()

    def work() -> None:
        try:
            ended.append(context.run(call))
        except BaseException as error:
            ended.append(error)

    thread = threading.Thread(target=work, name="perdure-effect", daemon=True)
    thread.start()
    thread.join(seconds)
    if not ended:
        raise EffectTimeout(key, seconds)
    if isinstance(ended[0], BaseException):
        raise ended[0]
    return ended[0]


@dataclass
class Functions:
    """A `Caller`: calls the function of an effect, and what it was decorated with."""

    spec: Spec
    function: Callable[..., Any]
    signature: inspect.Signature | None
    """None: it takes its arguments by name."""
    owner: Owner
    journal: Journal
    execution: int = 0
    """Of the task that calls."""

    def call(self, key: str, arguments: Mapping[str, Any], timeout: float | None) -> Calling:
        args, kwargs = self._split(arguments)
        name = self.spec.name
        inside = Inside(key, self.owner, execution=self.execution)
        return Calling(name, self.function, args, kwargs, inside, timeout)

    def verify(self, key: str, arguments: Mapping[str, Any]) -> Asking:
        args, kwargs = self._split(arguments)
        if failpoints.asked is not None:
            failpoints.asked(key)  # the far side is: so it can tell
        ask = cast(Callable[..., Any], self.spec.verify)
        return Asking(ask, args, kwargs, Inside(key, self.owner, verifying=True))

    def transact(self, settling: Settling, arguments: Mapping[str, Any]) -> Transacting:
        args, kwargs = self._split(arguments)
        return Transacting(settling, self.function, args, kwargs, self.owner, self.journal)

    def _split(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        if self.signature is None:
            return (), dict(arguments)
        bound = inspect.BoundArguments(self.signature, cast(Any, dict(arguments)))
        return bound.args, bound.kwargs


@dataclass
class Asking:
    """A question to the far side, in either colour."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    inside: Inside

    def run(self) -> Returned | Raised:
        try:
            with context.calling(self.inside):
                return Returned(self.function(*self.args, **self.kwargs))
        except BaseException as error:
            return Raised(error)

    async def arun(self) -> Returned | Raised:
        if not inspect.iscoroutinefunction(self.function):
            return await asyncio.to_thread(self.run)
        try:
            with context.calling(self.inside):
                return Returned(await self.function(*self.args, **self.kwargs))
        except BaseException as error:
            return Raised(error)


class _Failed(Exception):
    """What the user's function raised, so that nobody takes it for the journal's own trouble."""


@dataclass
class Transacting:
    """One call of a transactional effect: its writes and its outcome are one commit."""

    settling: Settling
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    owner: Owner
    journal: Journal

    def run(self) -> Returned | Raised | EffectRow:
        row, desk = self.settling.row, self.settling.desk
        proof = Statement("find_intent", {**row.place, "intent": row.intent})
        now = desk.now
        try:
            return self.journal.transact(lambda transaction: self._work(transaction, now), proof)
        except _Failed as failed:
            return Raised(cast(BaseException, failed.__cause__))
        except Refused:
            if desk.segment is not None:
                desk.segment.refuse()
            raise

    async def arun(self) -> Returned | Raised | EffectRow:
        return await asyncio.to_thread(self.run)

    def _work(self, transaction: Transaction, now: int) -> Returned | EffectRow:
        desk, row, spec = self.settling.desk, self.settling.row, self.settling.spec
        [stored] = transaction.run([effects.insert(self.owner, row)])
        if not stored:
            there = EffectRow(*transaction.run([Statement("effect_at", row.place)])[0][0])
            if there.intent != row.intent:
                return there
        try:
            call = Calling(
                spec.name,
                self.function,
                self.args,
                self.kwargs,
                Inside(row.key, self.owner, transaction, now),
            )
            result = call._call()
            keep = spec.record.result
            result = keep(result) if keep is not None else result
            blob = recording.close_result(desk.serializer, row.key, row.name, result)
        except BaseException as error:
            raise _Failed from error
        settled = row._replace(state=EffectState.DONE.value, outcome=blob)
        data = {"attempt": row.attempts, "transactional": True}
        transaction.run(
            effects.write(self.owner, settled, now, event=(desk.serializer, data)).render()
        )
        desk.know(settled)
        return Returned(result)
