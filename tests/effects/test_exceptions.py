"""An exception is retried by policy, over restarts and without a process in long pauses.

The last one is an outcome: it is raised again, and nothing is called.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.testing import Clock
from perdure.types import Kind, Retry, State
from tests.support.agents import NOON, Log, chain, history, opened
from tests.support.effects import (
    AT_ONCE,
    HOUR,
    Boom,
    Pair,
    Times,
    colour,
    drive,
    every_way,
    one,
    started,
)
from tests.support.sqlite_only import url as url


@every_way
async def test_an_exception_is_retried_as_the_policy_says(sqlite_url: str, way: str) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(perdure.key())
        fails()
        return f"sent {to}"

    effect = Pair(way, send, retry=Retry(attempts=3, first=timedelta(milliseconds=1)))

    async def node(state: Log) -> Log:
        return {"log": [await effect("ana")]}

    output = await drive(sqlite_url, way, chain(colour(way, node)))
    assert output["log"] == ["sent ana"]
    assert len(calls) == 3
    assert len(set(calls)) == 1


class OfUser(Exception):
    """With arguments of its own."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


@every_way
@pytest.mark.parametrize(
    ("error", "args"),
    [(ValueError("wrong", 7), ("wrong", 7)), (OfUser(404, why="gone"), ("404: gone",))],
    ids=["builtin", "user"],
)
async def test_a_final_exception_is_raised_again_of_its_type_and_nothing_is_called(
    sqlite_url: str, way: str, error: Exception, args: tuple[Any, ...]
) -> None:
    calls: list[str] = []
    fails = Times(2)

    def send(to: str) -> str:
        calls.append(to)
        raise error

    effect = Pair(way, send, retry=None)

    async def node(state: Log) -> Log:
        with pytest.raises(type(error)) as raised:
            await effect("ana")
        assert raised.value.args == args
        fails()
        return {"log": ["caught"]}

    output = await drive(sqlite_url, way, chain(colour(way, node)))
    assert output["log"] == ["caught"]
    assert calls == ["ana"]


async def test_an_exception_whose_class_is_gone_becomes_one_of_ours(sqlite_url: str) -> None:
    calls: list[str] = []
    fails = Times(1)

    @perdure.effect(retry=None)
    async def send(to: str) -> str:
        class Gone(Exception):
            pass

        calls.append(to)
        raise Gone("who knows me?")

    async def node(state: Log) -> Log:
        try:
            await send("ana")
        except Exception as error:
            fails()
            return {"log": [type(error).__name__, str(error)]}
        raise AssertionError

    async with opened(sqlite_url) as rt:
        run = await started(rt, chain(node), retry=AT_ONCE)
        assert run.output["log"][0] == "EffectFailed"
        assert "Gone: who knows me?" in run.output["log"][1]
        assert calls == ["ana"]


async def test_a_careful_effect_between_two_attempts_is_known_to_have_failed(
    sqlite_url: str,
) -> None:
    calls: list[str] = []

    @perdure.effect(unknown="hold", retry=Retry(attempts=2, first=HOUR))
    async def send(to: str) -> str:
        calls.append(to)
        if len(calls) == 1:
            raise perdure.NotDone("busy")
        return f"sent {to}"

    clock = Clock(NOON)
    async with opened(sqlite_url, clock) as rt:
        run = await started(rt, one(send, "ana"))
        assert run.state is State.WAITING
        clock.advance(HOUR)
        await rt.tick()
        assert (await rt.get(run.id)).output["log"] == ["sent ana"]


async def test_a_pause_loses_no_answer_and_closes_no_question_of_other_branches(url: str) -> None:
    calls: list[str] = []

    @perdure.effect(retry=Retry(attempts=5, first=HOUR, factor=1))
    async def send(to: str) -> str:
        calls.append(to)
        if len(calls) < 3:
            raise Boom("busy")
        return f"sent {to}"

    async def sends(state: Log) -> Log:
        return {"log": [await send("ana")]}

    async def asks(state: Log) -> Log:
        first = perdure.ask("first?")
        return {"log": [f"{first} {perdure.ask('second?')}"]}

    builder: StateGraph[Any] = StateGraph(Log)
    for node in (sends, asks):
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        run = await started(rt, builder)
        assert run.state is State.WAITING
        kinds = {wait.kind for wait in await rt.waits(run_id=run.id)}
        assert Kind.CLOCK in kinds
        for n in (1, 2):
            found = await rt.waits(run_id=run.id, kind="human")
            if found:
                await rt.answer(found[0].id, f"answer {n}")
            await rt.tick()
            clock.advance(HOUR)
            await rt.tick()
        for _ in range(3):
            for wait in await rt.waits(run_id=run.id, kind="human"):
                await rt.answer(wait.id, "a last one")
            clock.advance(HOUR)
            await rt.tick()
        run = await rt.get(run.id)
        assert run.state is State.DONE
        assert len(calls) == 3
        assert any("answer 1" in text for text in run.output["log"]), run.output
        await history(rt, run)


async def test_for_a_caller_who_waits_the_pause_is_slept(sqlite_url: str) -> None:
    """A bound graph's own invoke: nothing is retried behind his back, and no wait is left."""
    fails = Times(1)

    @perdure.effect(retry=Retry(attempts=2, first=timedelta(milliseconds=5)))
    async def send(to: str) -> str:
        fails()
        return f"sent {to}"

    async with opened(sqlite_url) as rt:
        graph = rt.register(one(send, "ana"), name="agent")
        output = await graph.ainvoke({"log": []}, {"configurable": {"thread_id": "t"}})
        assert output["log"] == ["sent ana"]
        assert await rt.waits() == []
