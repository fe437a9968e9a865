"""A run waits wherever a graph may stop: in subgraphs and tasks, and several times in a node."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.types import Kind
from tests.support.sqlite_only import url as url
from tests.support.waiters import (
    DAY,
    HOUR,
    Log,
    asking,
    begin,
    chain,
    drive,
    healthy,
    kinds,
    listening,
    log_of,
    named,
    only_wait,
    sleeping,
)

# -- in subgraphs


async def test_a_subgraph_waits_two_deep(url: str) -> None:
    async with healthy(url) as rt:
        inner = chain(asking("deep"), sleeping(DAY), listening("s"))
        middle = chain(asking("middle", "first"))
        middle.add_node("inner", inner.compile())
        middle.add_edge("first", "inner")
        outer = chain(named("begins", lambda state: {"log": ["begun"]}))
        outer.add_node("middle", middle.compile())
        outer.add_edge("begins", "middle")
        run = await begin(rt, outer)
        wait = await only_wait(rt, run)
        assert wait.value == "middle"
        await rt.answer(wait.id, 1)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == "deep"
        await rt.answer(wait.id, 2)
        await drive(rt)
        assert (await only_wait(rt, run)).kind is Kind.CLOCK
        rt.clock.advance(DAY)
        await drive(rt)
        assert (await only_wait(rt, run)).name == "s"
        await rt.signal("t", "s", 3)
        await drive(rt)
        told = await log_of(rt, run)
        assert [x for x in told if x != "begun"][-4:] == [
            ("middle", 1), ("deep", 2), "slept", ("s", 3),
        ]  # fmt: skip
        assert len(await kinds(rt, run, "wait")) == 4


async def test_subgraphs_side_by_side_wait_each_for_its_own() -> None:
    outer = StateGraph(Log)
    for name in ("left", "right"):
        outer.add_node(name, chain(asking(name), asking(f"{name} again", "again")).compile())
        outer.add_edge(START, name)
    async with healthy() as rt:
        run = await begin(rt, outer)
        assert sorted(wait.value for wait in await rt.waits()) == ["left", "right"]
        for value in ("right", "right again", "left", "left again"):
            [wait] = [wait for wait in await rt.waits() if wait.value == value]
            await rt.answer(wait.id, len(value))
            await drive(rt)
        assert sorted(await log_of(rt, run)) == [
            ("left", 4), ("left again", 10), ("right", 5), ("right again", 11),
        ]  # fmt: skip


async def test_a_subgraph_called_inside_a_node_waits_too() -> None:
    inner = chain(asking("in"), sleeping(DAY)).compile()

    def calls(state: Log) -> Log:
        before = perdure.ask("before")
        told = inner.invoke({"log": []})["log"]
        after = perdure.ask("after")
        return {"log": [before, told, after]}

    async with healthy() as rt:
        run = await begin(rt, chain(calls))
        for value in ("before", "in", None, "after"):
            wait = await only_wait(rt, run)
            if value is None:
                assert wait.kind is Kind.CLOCK
                rt.clock.advance(DAY)
            else:
                assert wait.value == value
                await rt.answer(wait.id, value.upper())
            await drive(rt)
        assert await log_of(rt, run) == ["BEFORE", [("in", "IN"), "slept"], "AFTER"]


async def test_a_subgraph_called_inside_an_async_node_waits_too() -> None:
    inner = chain(asking("in")).compile()

    async def calls(state: Log) -> Log:
        return {"log": (await inner.ainvoke({"log": []}))["log"]}

    async with healthy() as rt:
        run = await begin(rt, chain(calls))
        await rt.answer((await only_wait(rt, run)).id, "IN")
        await drive(rt)
        assert await log_of(rt, run) == [("in", "IN")]


# -- more than one in a node


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_one_node_sleeps_asks_listens_and_asks_again(url: str, colour: str) -> None:
    ran: list[int] = []

    def body() -> Log:
        ran.append(1)
        perdure.sleep(DAY)
        first = perdure.ask("first")
        heard = perdure.wait_for("s")
        perdure.sleep(HOUR)
        second = perdure.ask("second", expires=DAY, default="nobody")
        return {"log": [first, heard, second]}

    def plain(state: Log) -> Log:
        return body()

    async def coroutine(state: Log) -> Log:
        await asyncio.sleep(0)
        return body()

    async with healthy(url) as rt:
        run = await begin(rt, chain(named("node", plain if colour == "plain" else coroutine)))
        rt.clock.advance(DAY)
        await drive(rt)
        await rt.answer((await only_wait(rt, run, "human")).id, {"ok": 1})
        await drive(rt)
        await rt.signal("t", "s", ["heard"])
        await drive(rt)
        rt.clock.advance(HOUR)
        await drive(rt)
        await rt.answer((await only_wait(rt, run, "human")).id, None)
        await drive(rt)
        assert await log_of(rt, run) == [{"ok": 1}, ["heard"], None]
        assert len(ran) == 6
        assert await kinds(rt, run, "wait") == ["wait"] * 5


async def test_a_loop_that_asks_the_same_asks_anew_each_time() -> None:
    builder = chain(asking("more?"))
    builder.add_conditional_edges("asks", lambda s: "asks" if s["log"][-1][1] else END)
    async with healthy() as rt:
        run = await begin(rt, builder)
        ids = []
        for more in (True, True, False):
            wait = await only_wait(rt, run)
            ids.append(wait.id)
            await rt.answer(wait.id, more)
            await drive(rt)
        assert len(set(ids)) == 3
        assert [answer for _, answer in await log_of(rt, run)] == [True, True, False]


# -- the functional API


async def test_an_entrypoint_and_its_tasks_wait(url: str) -> None:
    ran: list[str] = []

    @task
    def clear(draft: str) -> Any:
        answer = perdure.ask(draft)
        ran.append(draft)
        return answer

    @entrypoint()
    def letters(drafts: list[str]) -> Any:
        answers = [future.result() for future in [clear(draft) for draft in drafts]]
        perdure.sleep(DAY)
        return [*answers, perdure.wait_for("s"), interrupt("sure?")]

    async with healthy(url) as rt:
        run = await begin(rt, letters, input=["a", "b", "c"])
        found = await rt.waits()
        assert sorted(wait.value for wait in found) == ["a", "b", "c"]
        for wait in found:
            await rt.answer(wait.id, wait.value.upper())
            await drive(rt)
        assert (await only_wait(rt, run)).kind is Kind.CLOCK
        rt.clock.advance(DAY)
        await drive(rt)
        await rt.signal("t", "s", "heard")
        await drive(rt)
        await rt.answer((await only_wait(rt, run)).id, "yes")
        await drive(rt)
        assert (await rt.get(run.id)).output == ["A", "B", "C", "heard", "yes"]
        assert sorted(ran) == ["a", "b", "c"]
