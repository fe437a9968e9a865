"""What an effect is called on is not recorded, so a call that was left open is never made again on
what may be another object."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.testing import TemporaryRuntime
from perdure.types import Retry, Run, State
from tests.support.agents import Log, chain, driven, opened
from tests.support.effects import Boom, Cut

AMOUNTS = {"a": 10, "b": 20}
SLOWLY = Retry(attempts=3, first=timedelta(hours=1))


class Bank:
    """A far side that notes what was paid, and fails once."""

    def __init__(self, error: type[BaseException] | None) -> None:
        self.paid: list[tuple[str, int]] = []
        self._error = error

    def pay(self, name: str, amount: int) -> str:
        error, self._error = self._error, None
        if error is not Boom:
            self.paid.append((name, amount))
        if error is not None:
            raise error
        return f"paid {name}"


def method(bank: Bank, **options: Any) -> Callable[[str, int], str]:
    class Account:
        def __init__(self, name: str) -> None:
            self.name = name

        @perdure.effect(retry=SLOWLY, **options)
        def pay(self, amount: int) -> str:
            return bank.pay(self.name, amount)

    return lambda name, amount: Account(name).pay(amount)


def with_secret(bank: Bank, **options: Any) -> Callable[[str, int], str]:
    @perdure.effect(retry=SLOWLY, **options)
    def pay(token: str, amount: int) -> str:
        return bank.pay(token, amount)

    return pay


def orders() -> Iterator[str]:
    return itertools.chain(["ab"], itertools.repeat("ba"))


KINDS = {"method": method, "secret": with_secret}


async def started(
    rt: TemporaryRuntime, pay: Callable[[str, int], str], orders: Iterator[str]
) -> Run:
    def node(state: Log) -> Log:
        return {"log": [pay(name, AMOUNTS[name]) for name in next(orders)]}

    run = await driven(rt, chain(node), {"log": []})
    return run


async def finished(rt: TemporaryRuntime, run: Run) -> Run:
    """The run after its pauses: it may be abandoned because of its order, and run again."""
    for _ in range(3):
        rt.clock.advance(timedelta(hours=2))
        await rt.tick()
    return await rt.get(run.id)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("decision", ["done", "retry"])
async def test_a_call_that_was_cut_off_is_not_made_on_another_object(
    sqlite_url: str, kind: str, decision: str
) -> None:
    bank = Bank(Cut)
    async with opened(sqlite_url) as rt:
        run = await started(rt, KINDS[kind](bank), orders())
        run = await finished(rt, run)
        assert run.state is State.HELD, run.error
        assert bank.paid == [("a", 10)]
        [unknown] = await rt.effects(state="unknown")
        if decision == "done":
            await rt.settle(unknown.key, "done", result="paid a")
        else:
            await rt.settle(unknown.key, "retry")
        run = await finished(rt, run)
        assert run.output["log"] == ["paid b", "paid a"], run.reason
        again = [] if decision == "done" else [("a", 10)]
        assert bank.paid == [("a", 10), ("b", 20), *again]


@pytest.mark.parametrize("kind", KINDS)
async def test_neither_is_one_that_failed(sqlite_url: str, kind: str) -> None:
    """What raises may have happened."""
    bank = Bank(Boom)
    async with opened(sqlite_url) as rt:
        run = await started(rt, KINDS[kind](bank), orders())
        assert (await rt.get(run.id)).state is State.WAITING
        run = await finished(rt, run)
        assert run.state is State.HELD
        assert bank.paid == []
        [unknown] = await rt.effects(state="unknown")
        await rt.settle(unknown.key, "retry")
        assert (await finished(rt, run)).output["log"] == ["paid b", "paid a"]
        assert bank.paid == [("b", 20), ("a", 10)]


async def test_a_call_never_has_the_key_of_one_on_another_object(sqlite_url: str) -> None:
    """A far side that knows the key would return the other's outcome, and do nothing."""
    paid: dict[str, str] = {}

    class Account:
        def __init__(self, name: str) -> None:
            self.name = name

        @perdure.effect(retry=SLOWLY)
        def pay(self, amount: int) -> str:
            is_first = not paid
            outcome = paid.setdefault(perdure.key(), f"paid {self.name}")
            if is_first:
                raise TimeoutError("the reply was lost")
            return outcome

    async with opened(sqlite_url) as rt:
        run = await started(rt, lambda name, amount: Account(name).pay(amount), orders())
        assert (await finished(rt, run)).state is State.HELD
        [unknown] = await rt.effects(state="unknown")
        await rt.settle(unknown.key, "retry")
        assert (await finished(rt, run)).output["log"] == ["paid b", "paid a"]
        assert sorted(paid.values()) == ["paid a", "paid b"]


async def test_a_method_whose_words_change_is_called_again_with_the_recorded_ones(
    sqlite_url: str,
) -> None:
    sent: list[tuple[str, str]] = []
    errors, texts = iter([Cut]), iter(["Hello", "Good day"])

    class Mailer:
        @perdure.effect
        def send(self, to: str, text: str) -> str:
            sent.append((to, text))
            for error in errors:
                raise error
            return "sent"

    mailer = Mailer()
    async with opened(sqlite_url) as rt:
        rt.register(chain(lambda state: {"log": [mailer.send("ada", next(texts))]}), name="g")
        run = await rt.start("g", {"log": []})
        await rt.tick()
        assert (await finished(rt, run)).state is State.DONE
        assert sent == [("ada", "Hello"), ("ada", "Hello")]


@pytest.mark.parametrize("decision", ["done", "retry"])
async def test_a_call_that_asks_is_not_begun_anew_with_other_arguments(
    sqlite_url: str, decision: str
) -> None:
    """What it called before it asked belongs to it, and would be called twice."""
    paid: list[int] = []
    times = itertools.count()

    class Shop:
        @perdure.effect
        def charge(self, amount: int) -> None:
            paid.append(amount)

        @perdure.effect
        def sell(self, time: int) -> str:
            self.charge(5)
            return str(perdure.ask("Send it?"))

    shop = Shop()
    async with opened(sqlite_url) as rt:
        run = await driven(rt, chain(lambda state: {"log": [shop.sell(next(times))]}), {"log": []})
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        run = await finished(rt, run)
        assert run.state is State.HELD
        assert paid == [5]
        [unknown] = await rt.effects(state="unknown")
        if decision == "done":
            await rt.settle(unknown.key, "done", result="yes")
        else:
            await rt.settle(unknown.key, "retry")
        assert (await finished(rt, run)).output["log"] == ["yes"]
        assert paid == ([5] if decision == "done" else [5, 5])
