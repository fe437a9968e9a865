"""A breakpoint is a wait for a person: in loops and subgraphs, and after a driver died at it."""

from __future__ import annotations

import asyncio
import threading

import pytest
from langgraph.graph import START, StateGraph

from perdure import failpoints
from perdure.types import Kind, State
from tests.support.polling import auntil
from tests.support.sqlite_only import url as url
from tests.support.waiters import (
    DAY,
    Log,
    asking,
    begin,
    chain,
    drive,
    healthy,
    log_of,
    named,
    only_wait,
    side_by_side,
)


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
async def test_a_breakpoint_is_a_human_wait(url: str, where: str) -> None:
    def first(state: Log) -> Log:
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        return {"log": ["second"]}

    stop = {where: ["second" if where == "interrupt_before" else "first"]}
    graph = chain(first, second, asking("last")).compile(**stop)  # type: ignore[arg-type]
    async with healthy(url) as rt:
        run = await begin(rt, graph)
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.value) == (Kind.HUMAN, {"breakpoint": ["second"]})
        rt.clock.advance(1000 * DAY)
        await drive(rt)
        assert await rt.waits() == [wait]
        await rt.answer(wait.id, None, by="ana")
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == "last"
        await rt.answer(wait.id, 1)
        await drive(rt)
        assert await log_of(rt, run) == ["first", "second", ("last", 1)]


@pytest.mark.parametrize("how", ["paused", "signalled"])
async def test_only_an_answer_lets_a_run_go_on_from_a_breakpoint(url: str, how: str) -> None:
    inside, go = threading.Event(), threading.Event()

    def first(state: Log) -> Log:
        inside.set()
        assert go.wait(30)
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        return {"log": ["second"]}

    async with healthy(url) as rt:
        rt.register(chain(first, second).compile(interrupt_before=["second"]), name="g")
        run = await rt.start("g", {"log": []}, thread_id="t")
        driving = asyncio.create_task(rt.tick())
        await auntil(inside.is_set)
        if how == "signalled":
            await rt.signal("t", "anything", 1)
        go.set()
        await driving
        if how == "paused":
            await rt.pause(run.id)
            await rt.resume(run.id)
            await drive(rt)
        assert (await rt.get(run.id)).state is State.WAITING
        wait = await only_wait(rt, run)
        await drive(rt)
        assert await rt.waits() == [wait]
        await rt.answer(wait.id, None)
        await drive(rt)
        assert await log_of(rt, run) == ["first", "second"]


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
async def test_a_driver_that_dies_at_a_breakpoint_does_not_pass_it(url: str, where: str) -> None:
    def first(state: Log) -> Log:
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        return {"log": ["second"]}

    def dies(point: str) -> None:
        if point == "insert_wait.before":
            raise OSError("the power is gone")

    stop = {where: ["second" if where == "interrupt_before" else "first"]}
    graph = chain(first, second).compile(**stop)  # type: ignore[arg-type]
    async with healthy(url) as rt:
        rt.register(graph, name="g")
        run = await rt.start("g", {"log": []}, thread_id="t", durability="sync")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(failpoints, "hook", dies)
            await drive(rt)
        assert (await rt.get(run.id)).state is State.RUNNING, "its driver is gone"
        rt.clock.advance(DAY)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == {"breakpoint": ["second"]}
        await rt.answer(wait.id, None)
        await drive(rt)
        assert await log_of(rt, run) == ["first", "second"]


@pytest.mark.parametrize("where", ["interrupt_before", "interrupt_after"])
async def test_a_breakpoint_of_a_subgraph_is_a_human_wait(where: str) -> None:
    def first(state: Log) -> Log:
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        return {"log": ["second"]}

    stop = {where: ["second" if where == "interrupt_before" else "first"]}
    outer = StateGraph(Log)
    outer.add_node("inner", chain(first, second).compile(**stop))  # type: ignore[arg-type]
    outer.add_edge(START, "inner")
    async with healthy() as rt:
        run = await begin(rt, outer)
        wait = await only_wait(rt, run)
        assert wait.kind is Kind.HUMAN
        await rt.answer(wait.id, None)
        await drive(rt)
        assert await log_of(rt, run) == ["first", "second"]


async def test_a_breakpoint_beside_a_question_waits_for_both() -> None:
    def told(state: Log) -> Log:
        return {"log": ["told"]}

    builder = side_by_side(asking("q"), named("first", lambda state: {"log": ["first"]}))
    builder.add_node("told", told)
    builder.add_edge("first", "told")
    builder.add_edge("asks", "told")
    async with healthy() as rt:
        run = await begin(rt, builder.compile(interrupt_before=["told"]))
        wait = await only_wait(rt, run)
        assert wait.value == "q"
        await rt.answer(wait.id, 1)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == {"breakpoint": ["told"]}
        await rt.answer(wait.id, None)
        await drive(rt)
        assert (await log_of(rt, run))[-1] == "told"
