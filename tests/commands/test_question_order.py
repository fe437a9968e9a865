"""An answer reaches the question it was given to, whatever order the node asks in when it runs
again. LangGraph by itself gives the n-th answer to the n-th question."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.types import Kind, State
from tests.support.agents import Log, chain, driven, opened

ORDERS = [*itertools.permutations("abc")]


async def answered(rt: perdure.Runtime, run_id: str) -> list[Any]:
    """Answer each question with what it asks, until the run has ended. Returns what was asked."""
    asked: list[Any] = []
    for _ in range(10):
        await rt.tick()
        for wait in await rt.waits(run_id=run_id):
            asked.append(wait.value)
            await rt.answer(wait.id, f"answer to {wait.value}")
        if (await rt.get(run_id)).ended:
            return asked
    raise AssertionError(f"it goes on asking: {asked}")


@pytest.mark.parametrize(
    ("url", "last"),
    [
        *[("sqlite", order) for order in ORDERS],
        pytest.param("postgres", ORDERS[-1], marks=pytest.mark.postgres),
        pytest.param("d1", ORDERS[-1], marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
async def test_each_of_a_set_is_asked_once_and_gets_its_own_answer(
    url: str, last: tuple[str, ...]
) -> None:
    orders = itertools.chain([tuple("abc"), tuple("cab")], itertools.repeat(last))

    def node(state: Log) -> Log:
        return {"log": [perdure.ask(name) for name in next(orders)]}

    async with opened(url) as rt:
        rt.register(chain(node), name="agent")
        run = await rt.start("agent", {"log": []})
        asked = await answered(rt, run.id)
        assert sorted(asked) == list("abc")
        assert (await rt.get(run.id)).output["log"] == [f"answer to {name}" for name in last]


async def test_a_question_that_was_not_shown_is_asked_though_there_is_an_answer(
    url: str,
) -> None:
    """What a person approved is not what the node would do now."""
    drafts = iter(["one", "two", "two"])

    def node(state: Log) -> Log:
        return {"log": [perdure.ask({"draft": next(drafts)})["ok"]]}

    async with opened(url) as rt:
        rt.register(chain(node), name="agent")
        run = await rt.start("agent", {"log": []})
        for draft, ok in (("one", "yes"), ("two", "no")):
            await rt.tick()
            [wait] = await rt.waits()
            assert wait.value == {"draft": draft}
            await rt.answer(wait.id, {"ok": ok})
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["no"]


async def test_an_answer_that_is_refused_is_followed_by_the_next_one(sqlite_url: str) -> None:
    """The same question twice: its answers come in their order."""

    def node(state: Log) -> Log:
        log = [perdure.ask("name?")]
        while log[-1] != "ann":
            log.append(perdure.ask("name?"))
        return {"log": log}

    async with opened(sqlite_url) as rt:
        rt.register(chain(node), name="agent")
        run = await rt.start("agent", {"log": []})
        for name in ("", "bo", "ann"):
            await rt.tick()
            [wait] = await rt.waits()
            await rt.answer(wait.id, name)
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["", "bo", "ann"]


async def test_a_signal_reaches_the_wait_of_its_name(url: str) -> None:
    orders = itertools.chain(["ab"], itertools.repeat("ba"))

    def node(state: Log) -> Log:
        return {"log": [f"{name}: {perdure.wait_for(name)}" for name in next(orders)]}

    async with opened(url) as rt:
        run = await driven(rt, chain(node), {"log": []}, thread_id="t", name="agent")
        await rt.signal("t", "a", 1)
        await rt.tick()
        await rt.signal("t", "b", 2)
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["b: 2", "a: 1"]


async def test_an_answer_ends_no_sleep(url: str) -> None:
    orders = itertools.chain(["question first"], itertools.repeat("sleep first"))

    def node(state: Log) -> Log:
        if next(orders) == "question first":
            return {"log": [perdure.ask("go on?")]}
        perdure.sleep(timedelta(days=1))
        return {"log": [perdure.ask("go on?")]}

    async with opened(url) as rt:
        run = await driven(rt, chain(node), {"log": []}, name="agent")
        [wait] = await rt.waits()
        await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(run.id)).state is State.WAITING
        assert [wait.kind for wait in await rt.waits()] == [Kind.CLOCK]
        rt.clock.advance(timedelta(days=1))
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["yes"]
