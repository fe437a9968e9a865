"""Waits are rows: a run rests on the clock, a person or a signal, and comes back with the answer.

While it rests it holds nothing, and no clock ever answers for a person.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure import Saver
from perdure.errors import BadArgument, NotDurable, NotInRun
from perdure.types import Kind, State
from tests.support.polling import auntil
from tests.support.waiters import (
    DAY,
    HOUR,
    MINUTE,
    Log,
    asking,
    begin,
    chain,
    drive,
    healthy,
    listening,
    log_of,
    only_wait,
    side_by_side,
    sleeping,
)

# -- several at once


async def test_answering_one_of_several_leaves_the_others_as_they_are(url: str) -> None:
    nodes = [asking(f"q{n}", f"n{n}") for n in range(3)]
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(*nodes, sleeping(DAY), listening("s")))
        before = {wait.id: wait for wait in await rt.waits()}
        assert len(before) == 5
        chosen = next(wait for wait in before.values() if wait.value == "q1")
        await rt.answer(chosen.id, "one")
        await drive(rt)
        del before[chosen.id]
        assert {wait.id: wait for wait in await rt.waits()} == before
        await rt.signal("t", "s", "sig")
        await drive(rt)
        rt.clock.advance(DAY)
        await drive(rt)
        left = await rt.waits()
        assert sorted(wait.value for wait in left) == ["q0", "q2"]
        for wait in left:
            await rt.answer(wait.id, wait.value.upper())
        await drive(rt)
        log = await log_of(rt, run)
        assert sorted(map(str, log)) == sorted(
            map(str, [("q0", "Q0"), ("q1", "one"), ("q2", "Q2"), ("s", "sig"), "slept"])
        )


async def test_each_of_a_fan_out_gets_its_own_answer() -> None:
    builder = StateGraph(Log)
    builder.add_node("worker", lambda n: {"log": [(n, perdure.ask({"n": n}))]})
    builder.add_conditional_edges(
        START, lambda _: [Send("worker", n) for n in range(5)], ["worker"]
    )
    async with healthy() as rt:
        run = await begin(rt, builder)
        found = await rt.waits()
        assert sorted(wait.value["n"] for wait in found) == list(range(5))
        for wait in sorted(found, key=lambda wait: -wait.value["n"]):
            await rt.answer(wait.id, wait.value["n"] * 10)
            await drive(rt)
        assert sorted(await log_of(rt, run)) == [(n, n * 10) for n in range(5)]


async def test_an_answer_that_comes_while_the_run_is_driven_is_not_lost(url: str) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(state: Log) -> Log:
        answer = perdure.ask("slow")
        inside.set()
        assert go.wait(30)
        return {"log": [answer]}

    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(slow, asking("other")))
        by_value = {wait.value: wait for wait in await rt.waits()}
        await rt.answer(by_value["slow"].id, 1)
        driving = asyncio.create_task(rt.tick())
        await auntil(inside.is_set)
        # `other` has been asked again in this segment, or is about to be.
        await rt.answer(by_value["other"].id, 2)
        go.set()
        assert (await driving).claimed == 2
        assert sorted(map(str, await log_of(rt, run))) == ["('other', 2)", "1"]


# -- what answers may be


async def test_an_answer_may_be_big(url: str) -> None:
    answer = {"text": "long " * 200_000, "rows": list(range(10_000))}

    def node(state: Log) -> Log:
        given = perdure.ask("q")
        return {"log": [len(given["text"]), given["rows"][-1], perdure.ask("more?")]}

    async with healthy(url) as rt:
        run = await begin(rt, chain(node))
        await rt.answer((await only_wait(rt, run)).id, answer)
        await drive(rt)
        await rt.answer((await only_wait(rt, run)).id, answer)
        await drive(rt)
        assert await log_of(rt, run) == [1_000_000, 9_999, answer]


async def test_an_answer_may_be_an_array() -> None:
    numpy = pytest.importorskip("numpy")

    def node(state: Log) -> Log:
        return {"log": [int(perdure.ask("q").sum()), int(perdure.wait_for("s").sum())]}

    async with healthy() as rt:
        run = await begin(rt, chain(node))
        await rt.answer((await only_wait(rt, run)).id, numpy.arange(4))
        await rt.signal("t", "s", numpy.arange(5))
        await drive(rt)
        assert await log_of(rt, run) == [6, 10]


# -- listing


async def test_waits_are_listed_oldest_first_by_thread_run_and_kind(url: str) -> None:
    async with healthy(url) as rt:
        rt.register(side_by_side(asking("q"), sleeping(DAY), listening("s")), name="g")
        runs = []
        for n in range(4):
            runs.append(await rt.start("g", {"log": []}, thread_id=f"t{n}"))
            await drive(rt)
            rt.clock.advance(MINUTE)
        everything = await rt.waits()
        assert [wait.thread_id for wait in everything] == [f"t{n}" for n in range(4) for _ in "abc"]
        assert {wait.run_id for wait in everything} == {run.id for run in runs}
        for kind in (Kind.CLOCK, Kind.HUMAN, Kind.SIGNAL):
            found = await rt.waits(kind=kind)
            assert [(w.thread_id, w.kind) for w in found] == [(f"t{n}", kind) for n in range(4)]
            assert await rt.waits(kind=kind.value, thread_id="t2") == found[2:3]
            assert await rt.waits(kind=kind.value, run_id=runs[2].id) == found[2:3]
        assert await rt.waits(thread_id="t1") == everything[3:6]
        assert await rt.waits(run_id=runs[1].id) == everything[3:6]
        assert await rt.waits(thread_id="nobody") == await rt.waits(run_id="none") == []
        assert await rt.waits(thread_id="t0", run_id=runs[1].id) == []


async def test_a_listing_refuses_what_it_does_not_know() -> None:
    async with healthy() as rt:
        with pytest.raises(BadArgument, match="kind"):
            await rt.waits(kind="robot")
        for filters in ({}, {"run_id": "x"}):
            with pytest.raises(BadArgument, match="limit"):
                await rt.waits(limit=0, **filters)  # type: ignore[arg-type]


# -- without a runtime


@pytest.mark.parametrize(
    "call",
    [
        lambda: perdure.sleep(DAY),
        lambda: perdure.sleep(datetime(2200, 1, 1, tzinfo=UTC)),
        lambda: perdure.sleep(datetime(2000, 1, 1, tzinfo=UTC)),
        lambda: perdure.ask("q"),
        lambda: perdure.wait_for("s"),
    ],
    ids=["sleep", "sleep until", "sleep until then", "ask", "wait_for"],
)
def test_nothing_waits_outside_of_a_graph(call: Any) -> None:
    with pytest.raises(NotInRun):
        call()


def test_with_only_the_saver_waits_are_plain_interrupts(url: str) -> None:
    def node(state: Log) -> Log:
        perdure.sleep(DAY)
        asked = perdure.ask("q", expires=DAY, default="nobody")
        return {"log": [asked, perdure.wait_for("s", timeout=DAY)]}

    with Saver(url) as saver:
        graph = chain(node).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        [asked] = graph.invoke({"log": []}, config)["__interrupt__"]
        assert set(asked.value) == {"wake_at"}
        [asked] = graph.invoke(Command(resume="woken"), config)["__interrupt__"]
        assert asked.value == "q"
        [asked] = graph.invoke(Command(resume="answer"), config)["__interrupt__"]
        assert asked.value == {"signal": "s"}
        assert graph.invoke(Command(resume="heard"), config)["log"] == ["answer", "heard"]


def test_with_only_the_saver_a_sleep_whose_time_came_takes_no_answer_of_another() -> None:
    at = datetime.now(UTC) + timedelta(milliseconds=300)

    def node(state: Log) -> Log:
        perdure.sleep(at)
        return {"log": [perdure.ask("q")]}

    with Saver("sqlite:///:memory:") as saver:
        graph = chain(node).compile(checkpointer=saver)
        config: Any = {"configurable": {"thread_id": "t"}}
        graph.invoke({"log": []}, config)
        asyncio.run(auntil(lambda: datetime.now(UTC) > at))
        [asked] = graph.invoke(Command(resume="woken"), config)["__interrupt__"]
        assert asked.value == "q"
        assert graph.invoke(Command(resume="answer"), config)["log"] == ["answer"]


# -- where a wait could not be kept


@pytest.mark.parametrize(
    "wait",
    [lambda: perdure.sleep(HOUR), lambda: perdure.ask("ok?"), lambda: perdure.wait_for("s")],
    ids=["sleep", "ask", "wait_for"],
)
async def test_a_wait_in_a_graph_without_a_checkpointer_is_an_error(wait: Any) -> None:
    def node(state: Log) -> Any:
        return {"log": [wait()]}

    graph = chain(node).compile()
    with pytest.raises(NotDurable, match=r"checkpointer=perdure\.Saver"):
        graph.invoke({"log": []})
    with pytest.raises(NotDurable, match="Runtime"):
        await graph.ainvoke({"log": []})


@pytest.mark.parametrize("ask", [perdure.ask, interrupt], ids=["ask", "interrupt"])
async def test_a_wait_in_a_subgraph_that_stores_nothing_is_an_error(
    sqlite_url: str, ask: Callable[[str], Any]
) -> None:
    def node(state: Log) -> Any:
        return {"log": [ask("ok?")]}

    inner = chain(node).compile(checkpointer=False)
    builder = StateGraph(Log).add_node("outer", inner).add_edge(START, "outer")
    async with healthy(sqlite_url) as rt:
        run = await begin(rt, builder)
        assert run.state is State.FAILED
        assert "'outer'" in str(run.error)
        assert "checkpointer=False" in str(run.error)
