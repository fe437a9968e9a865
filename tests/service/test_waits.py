"""Waits are rows: a run rests on the clock, a person or a signal, and comes back with the answer.

Wherever a graph may stop: in branches, subgraphs, loops and tasks, and several times in a node.
While it rests it holds nothing, and no clock ever answers for a person.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure.errors import BadArgument, Expired, NotInRun
from perdure.journal import probe
from perdure.saver import Saver
from perdure.testing import Clock
from perdure.testing.postgres import Server
from perdure.types import Kind, State
from tests.support.waiters import (
    ANSWER,
    DAY,
    HOUR,
    MINUTE,
    MS,
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
    registered,
    side_by_side,
    sleeping,
    until,
)

ROOT = Path(__file__).parents[2]


# -- the clock


async def test_a_sleep_ends_at_its_time_and_not_a_millisecond_before(url: str) -> None:
    async with healthy(url) as rt:
        begun = rt.clock.time
        run = await begin(rt, chain(sleeping(4 * DAY)))
        assert run.state is State.WAITING
        assert run.due_at == begun + 4 * DAY
        wait = await only_wait(rt, run, "clock")
        assert (wait.kind, wait.wake_at, wait.thread_id) == (Kind.CLOCK, begun + 4 * DAY, "t")
        rt.clock.advance(4 * DAY - MS)
        await drive(rt)
        assert (await rt.get(run.id)).state is State.WAITING
        rt.clock.advance(MS)
        await drive(rt)
        assert await log_of(rt, run) == ["slept"]
        assert await rt.waits() == []


async def test_a_sleep_may_be_until_a_time_in_any_zone() -> None:
    async with healthy() as rt:
        at = rt.clock.time.astimezone() + HOUR
        run = await begin(rt, chain(sleeping(at)))
        assert (await only_wait(rt, run)).wake_at == at
        rt.clock.move_to(at)
        await drive(rt)
        assert await log_of(rt, run) == ["slept"]


@pytest.mark.parametrize("until", [timedelta(0), -DAY, datetime(2000, 1, 1, tzinfo=UTC)], ids=str)
async def test_a_time_that_has_come_is_not_waited_for(until: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(sleeping(until)))
        assert await log_of(rt, run) == ["slept"]
        assert "wait" not in await kinds(rt, run)


@pytest.mark.parametrize("until", [datetime(2030, 1, 1), 5, "tomorrow"], ids=str)  # noqa: DTZ001
async def test_a_sleep_refuses_what_is_no_time(until: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(sleeping(until)))
        assert run.error is not None
        assert run.error.kind == "perdure.errors.BadArgument"


async def test_a_sleep_keeps_its_first_time_however_often_its_node_runs_again() -> None:
    async with healthy() as rt:
        end = rt.clock.time + 10 * DAY
        run = await begin(rt, side_by_side(sleeping(10 * DAY), asking("q")))
        clock, human = await rt.waits(kind="clock"), await rt.waits(kind="human")
        rt.clock.advance(3 * DAY)
        await rt.answer(human[0].id, "yes")
        await drive(rt)
        assert await rt.waits() == clock
        assert (await rt.get(run.id)).due_at == clock[0].wake_at == end
        rt.clock.move_to(end)
        await drive(rt)
        assert sorted(map(str, await log_of(rt, run))) == ["('q', 'yes')", "slept"]


async def test_a_loop_that_sleeps_five_times_has_six_segments(url: str) -> None:
    def step(state: Log) -> Log:
        perdure.sleep(DAY)
        return {"log": [len(state["log"])]}

    builder = chain(step)
    builder.add_conditional_edges("step", lambda s: "step" if len(s["log"]) < 5 else END)
    async with healthy(url) as rt:
        run = await begin(rt, builder)
        for _ in range(5):
            rt.clock.advance(DAY)
            await drive(rt)
        assert await log_of(rt, run) == [0, 1, 2, 3, 4]
        assert await kinds(rt, run, "claimed", "woke") == ["claimed", *["claimed", "woke"] * 5]


async def test_a_clock_that_goes_back_fires_nothing_early_and_nothing_twice() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(sleeping(DAY), asking("q")))
        rt.clock.advance(-DAY)
        await drive(rt)
        assert (await only_wait(rt, run)).kind is Kind.CLOCK
        rt.clock.advance(2 * DAY)
        await drive(rt)
        rt.clock.advance(-2 * DAY)
        await drive(rt)
        assert (await only_wait(rt, run)).kind is Kind.HUMAN
        assert await kinds(rt, run, "woke") == ["woke"]


@pytest.mark.parametrize("form", ["datetime", "iso", "seconds", "float", "zulu"])
async def test_an_interrupt_with_a_wake_at_is_a_clock_wait(form: str) -> None:
    async with healthy() as rt:
        at = datetime.fromtimestamp(int(rt.clock.time.timestamp()) + 3600, UTC)
        given: Any = {
            "datetime": at,
            "iso": at.isoformat(),
            "zulu": at.isoformat().replace("+00:00", "Z"),
            "seconds": int(at.timestamp()),
            "float": at.timestamp(),
        }[form]

        def node(state: Log) -> Log:
            return {"log": [interrupt({"wake_at": given, "why": "later"})]}

        run = await begin(rt, chain(node))
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.wake_at, wait.value["why"]) == (Kind.CLOCK, at, "later")
        rt.clock.move_to(at - MS)
        await drive(rt)
        assert (await rt.get(run.id)).state is State.WAITING
        rt.clock.move_to(at)
        await drive(rt)
        assert await log_of(rt, run) == [None]


@pytest.mark.parametrize(
    "value",
    [{"wake_at": "soon"}, {"wake_at": None}, {"wake_at": True}, {"wake_at": float("inf")},
     {"wake_at": 1e30}, ["wake_at"], "wake_at", {}],
    ids=str,
)  # fmt: skip
async def test_an_interrupt_whose_wake_at_is_no_time_is_for_a_person(value: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(named("node", lambda state: {"log": [interrupt(value)]})))
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.value, wait.wake_at) == (Kind.HUMAN, value, None)
        await rt.answer(wait.id, "now")
        await drive(rt)
        assert await log_of(rt, run) == ["now"]


# -- while it rests


async def test_a_run_that_waits_holds_nothing(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(
            rt, side_by_side(sleeping(DAY), asking("q"), listening("s", timeout=2 * DAY))
        )
        assert run.state is State.WAITING
        rows = await asyncio.to_thread(_raw, rt.url, "SELECT worker, control FROM perdure_runs")
        assert rows == [(None, None)]
        await until(lambda: not [t for t in threading.enumerate() if run.id in t.name])
        assert [e.kind for e in await rt.events(run.id)][-1] == "waiting"


def _raw(url: str, query: str) -> list[Any]:
    if url.startswith("sqlite"):
        import sqlite3

        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            found = connection.execute(query).fetchall()
        connection.close()
        return found
    import psycopg

    with psycopg.connect(url) as server:
        return [tuple(row) for row in server.execute(query.encode()).fetchall()]


async def test_a_person_is_never_answered_for_by_any_clock(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(asking({"wake": 1}), sleeping(DAY)))
        wait = (await rt.waits(kind="human"))[0]
        for days in (1, 30, 36500):
            rt.clock.advance(days * DAY)
            await drive(rt)
            assert await rt.waits() == [wait]
        found = await rt.get(run.id)
        assert (found.state, found.due_at) == (State.WAITING, None)
        assert (await rt.tick()).claimed == 0


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


async def test_several_answers_are_handed_over_in_one_segment() -> None:
    async with healthy() as rt:
        run = await begin(rt, side_by_side(*[asking(f"q{n}", f"n{n}") for n in range(4)]))
        for wait in await rt.waits():
            await rt.answer(wait.id, wait.value * 2)
        assert (await rt.tick()).claimed == 1
        assert sorted(await log_of(rt, run)) == [(f"q{n}", f"q{n}" * 2) for n in range(4)]


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
        await until(inside.is_set)
        # `other` has been asked again in this segment, or is about to be.
        await rt.answer(by_value["other"].id, 2)
        go.set()
        assert (await driving).claimed == 2
        assert sorted(map(str, await log_of(rt, run))) == ["('other', 2)", "1"]


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


async def test_the_same_question_twice_in_a_node_is_two_waits() -> None:
    def node(state: Log) -> Log:
        return {"log": [perdure.ask("again?"), perdure.ask("again?")]}

    async with healthy() as rt:
        run = await begin(rt, chain(node))
        first = await only_wait(rt, run)
        await rt.answer(first.id, 1)
        await drive(rt)
        second = await only_wait(rt, run)
        assert second.id != first.id
        await rt.answer(second.id, 2)
        await drive(rt)
        assert await log_of(rt, run) == [1, 2]


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


async def test_an_async_entrypoint_and_its_tasks_wait() -> None:
    @task
    async def clear(draft: str) -> Any:
        return perdure.ask(draft)

    @entrypoint()
    async def letters(drafts: list[str]) -> Any:
        answers = await asyncio.gather(*[clear(draft) for draft in drafts])
        perdure.sleep(DAY)
        return [*answers, perdure.ask("sure?")]

    async with healthy() as rt:
        run = await begin(rt, letters, input=["a", "b"])
        for wait in await rt.waits():
            await rt.answer(wait.id, wait.value.upper())
        await drive(rt)
        rt.clock.advance(DAY)
        await drive(rt)
        await rt.answer((await only_wait(rt, run)).id, "yes")
        await drive(rt)
        assert (await rt.get(run.id)).output == ["A", "B", "yes"]


# -- breakpoints


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
        await until(inside.is_set)
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
            patch.setattr(probe, "hook", dies)
            await drive(rt)
        assert (await rt.get(run.id)).state is State.RUNNING, "its driver is gone"
        rt.clock.advance(DAY)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == {"breakpoint": ["second"]}
        await rt.answer(wait.id, None)
        await drive(rt)
        assert await log_of(rt, run) == ["first", "second"]


async def test_a_breakpoint_in_a_loop_stops_each_time() -> None:
    def step(state: Log) -> Log:
        return {"log": ["step"]}

    builder = chain(step)
    builder.add_conditional_edges("step", lambda s: "step" if len(s["log"]) < 3 else END)
    async with healthy() as rt:
        run = await begin(rt, builder.compile(interrupt_before=["step"]))
        for _ in range(3):
            await rt.answer((await only_wait(rt, run)).id, True)
            await drive(rt)
        assert await log_of(rt, run) == ["step"] * 3


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


# -- time limits


async def test_a_question_nobody_answers_in_time_gives_its_default(url: str) -> None:
    async with healthy(url) as rt:
        begun = rt.clock.time
        run = await begin(rt, chain(asking("q", expires=DAY, default={"ok": False})))
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.expires_at, wait.wake_at) == (Kind.HUMAN, begun + DAY, None)
        rt.clock.advance(DAY - MS)
        await drive(rt)
        assert await rt.waits() == [wait]
        rt.clock.advance(MS)
        await drive(rt)
        assert await log_of(rt, run) == [("q", {"ok": False})]
        assert await kinds(rt, run, "expired", "woke", "answer") == ["expired"]


@pytest.mark.parametrize("default", [None, False, 0, ""], ids=repr)
async def test_a_default_may_be_nothing(default: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=DAY, default=default)))
        rt.clock.advance(DAY)
        await drive(rt)
        assert await log_of(rt, run) == [("q", default)]


async def test_without_a_default_expiry_raises_in_the_node_and_can_be_caught() -> None:
    def node(state: Log) -> Log:
        try:
            perdure.ask("q", expires=DAY)
        except Expired:
            return {"log": ["too late", perdure.ask("and now?")]}
        return {"log": ["in time"]}

    async with healthy() as rt:
        run = await begin(rt, chain(node))
        rt.clock.advance(DAY)
        await drive(rt)
        wait = await only_wait(rt, run)
        assert wait.value == "and now?"
        await rt.answer(wait.id, "yes")
        await drive(rt)
        assert await log_of(rt, run) == ["too late", "yes"]


async def test_an_expiry_nobody_catches_fails_the_run() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=DAY)))
        rt.clock.advance(DAY)
        for _ in range(5):
            await drive(rt)
            rt.clock.advance(HOUR)
        run = await rt.get(run.id)
        assert run.state is State.FAILED
        assert run.error is not None
        assert run.error.kind == "perdure.errors.Expired"


async def test_an_answer_in_time_stands_though_it_is_used_after_the_expiry() -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=DAY, default="nobody")))
        rt.clock.advance(DAY - MS)
        await rt.answer((await only_wait(rt, run)).id, "in time")
        rt.clock.advance(DAY)
        await drive(rt)
        assert await log_of(rt, run) == [("q", "in time")]


async def test_an_expiry_may_be_a_date_and_one_that_has_passed_is_over_at_once() -> None:
    past = datetime(2000, 1, 1, tzinfo=UTC)
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q", expires=past, default="nobody")))
        assert await log_of(rt, run) == [("q", "nobody")]


async def test_bad_time_limits_are_refused() -> None:
    with pytest.raises(BadArgument, match="expires"):
        perdure.ask("q", default=1)
    with pytest.raises(BadArgument, match="time zone"):
        perdure.ask("q", expires=datetime(2030, 1, 1))  # noqa: DTZ001
    with pytest.raises(BadArgument, match="timeout"):
        perdure.wait_for("s", timeout=5)  # type: ignore[arg-type]
    with pytest.raises(BadArgument, match="name"):
        perdure.wait_for("")


# -- a worker that dies


POINTS = [
    "claim.after",
    "apply_wait.before",
    "apply_wait.after",
    "take_signal.before",
    "take_signal.after",
    "progress.before",
    "progress.after",
    "insert_wait.before",
    "let_go.before",
    "let_go.after",
    *[f"commit.after#{n}" for n in range(1, 8)],
]


def _kill(places: list[tuple[str, str]]) -> None:
    """One worker for each place, killed with SIGKILL while it uses an answer."""
    lines = "".join(f"{url} {point}\n" for url, point in places)
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.support.waiters"],
        cwd=ROOT, input=lines, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    told = child.stdout.split("\n")[:-1]
    assert told == ["killed"] * len(places), (told, child.stderr)


async def _ends_well(url: str) -> list[str]:
    """Whoever comes after a killed worker finds the answers."""
    rt = registered(url, Clock(datetime.now(UTC) + 2 * MINUTE))
    async with rt:
        [run] = await rt.runs()

        async def ended() -> bool:
            await drive(rt)
            return (await rt.get(run.id)).ended

        await until(ended)
        log = await log_of(rt, run)
        assert log[:2] == [ANSWER, "stop"]
        assert log[3:] == ["after"]
        assert await kinds(rt, run, "answer", "woke") == ["woke", "answer"]
        assert await kinds(rt, run, "signal") == ["signal"]
        return await kinds(rt, run, "recovered")


@pytest.mark.slow
async def test_an_answer_is_handed_over_again_after_a_worker_was_killed_with_it(
    tmp_path: Path, postgres_server: Server
) -> None:
    places = [(f"sqlite:///{tmp_path}/{n}.db", point) for n, point in enumerate(POINTS)]
    postgres_server.start()
    some = ["apply_wait.after", "progress.before"]
    databases = [(postgres_server.database(), point) for point in some]
    await asyncio.to_thread(_kill, places + databases)
    recovered = [await _ends_well(url) for url, _ in places + databases]
    assert sum(map(bool, recovered)) > len(POINTS) / 2
    for url, _ in databases:
        postgres_server.drop(url)


async def test_whoever_takes_over_from_a_silent_worker_has_the_same_answers(url: str) -> None:
    """The first driver hangs with the answer in its hands until its lease has run out."""
    inside, go = threading.Event(), threading.Event()
    got: list[Any] = []

    def node(state: Log) -> Log:
        answers = [perdure.ask("q"), perdure.wait_for("s")]
        got.append(answers)
        if len(got) == 1:
            inside.set()
            assert go.wait(30)
        return {"log": answers}

    async with healthy(url) as rt, healthy(url, clock=rt.clock) as other:
        other.register(chain(node), name="g")
        run = await begin(rt, chain(node))
        await rt.signal("t", "s", [2])
        await rt.answer((await only_wait(rt, run)).id, {"n": 1})
        hanging = asyncio.create_task(rt.tick())
        await until(inside.is_set)
        rt.clock.advance(HOUR)
        await drive(other)
        log = await log_of(rt, run)
        go.set()
        assert (await hanging).lost == 1
        assert got == [log, log] == [[{"n": 1}, [2]]] * 2
        assert await kinds(rt, run, "answer", "signal", "recovered", "done") == [
            "answer", "signal", "recovered", "done",
        ]  # fmt: skip


# -- what answers may be


@pytest.mark.parametrize(
    "answer",
    [None, False, 0, "", [], {}, 0.0, (), b"", {"__perdure__": "no"}, [None], {"a": None}],
    ids=repr,
)
async def test_an_answer_may_be_nothing(answer: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(asking("q"), asking("r", "again")))
        for _ in range(2):
            await rt.answer((await only_wait(rt, run)).id, answer)
            await drive(rt)
        assert await log_of(rt, run) == [("q", answer), ("r", answer)]


async def test_an_answer_may_be_big(url: str) -> None:
    answer = {"text": "long " * 400_000, "rows": list(range(10_000))}

    def node(state: Log) -> Log:
        given = perdure.ask("q")
        return {"log": [len(given["text"]), given["rows"][-1], perdure.ask("more?")]}

    async with healthy(url) as rt:
        run = await begin(rt, chain(node))
        await rt.answer((await only_wait(rt, run)).id, answer)
        await drive(rt)
        await rt.answer((await only_wait(rt, run)).id, answer)
        await drive(rt)
        assert await log_of(rt, run) == [2_000_000, 9_999, answer]


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
        for kind in Kind:
            found = await rt.waits(kind=kind)
            assert [(w.thread_id, w.kind) for w in found] == [(f"t{n}", kind) for n in range(4)]
            assert await rt.waits(kind=kind.value, thread_id="t2") == found[2:3]
            assert await rt.waits(kind=kind.value, run_id=runs[2].id) == found[2:3]
        assert await rt.waits(thread_id="t1") == everything[3:6]
        assert await rt.waits(run_id=runs[1].id) == everything[3:6]
        assert await rt.waits(thread_id="nobody") == await rt.waits(run_id="none") == []
        assert await rt.waits(thread_id="t0", run_id=runs[1].id) == []


async def test_waits_are_listed_in_pages(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(*[asking(n, f"n{n}") for n in range(7)]))
        everything = await rt.waits()
        choices: list[Any] = [{}, {"thread_id": "t"}, {"run_id": run.id}, {"kind": "human"}]
        for filters in choices:
            paged: list[Any] = []
            while page := await rt.waits(
                limit=3,
                after=paged[-1] if paged else None,
                **filters,
            ):
                assert len(page) <= 3
                paged += page
            assert paged == everything, filters


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
        asyncio.run(until(lambda: datetime.now(UTC) > at))
        [asked] = graph.invoke(Command(resume="woken"), config)["__interrupt__"]
        assert asked.value == "q"
        assert graph.invoke(Command(resume="answer"), config)["log"] == ["answer"]
