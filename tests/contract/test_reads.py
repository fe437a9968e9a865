"""now, random and uuid are the same when a node runs again."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy, Send

import perdure
from tests.support.waiters import (
    DAY,
    HOUR,
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

Read = tuple[datetime, float, uuid.UUID]


def read() -> Read:
    return perdure.now(), perdure.random(), perdure.uuid()


class Reader:
    """A node that reads before and after it waits, and remembers what it got each time."""

    def __init__(self, *, failures: int = 0, waits: int = 0) -> None:
        self.__name__ = "reads"
        self.failures, self.waits = failures, waits
        self.got: list[list[Read]] = []

    def __call__(self, state: Log) -> Log:
        reads: list[Read] = []
        self.got.append(reads)
        reads.append(read())
        for n in range(self.waits):
            perdure.ask(n)
            reads.append(read())
        if self.failures:
            self.failures -= 1
            raise OSError("not yet")
        reads.append(read())
        return {"log": reads}

    def is_steady(self) -> bool:
        longest = max(self.got, key=len)
        return all(longest[: len(some)] == some for some in self.got)


async def test_reads_are_the_same_after_a_wait_in_the_node(url: str) -> None:
    async with healthy(url) as rt:
        node = Reader(waits=2)
        run = await begin(rt, chain(node))
        for _ in range(2):
            rt.clock.advance(DAY)
            await rt.answer((await only_wait(rt, run)).id, None)
            await drive(rt)
        assert len(node.got) == 3
        assert node.is_steady()
        times = [at for at, _, _ in await log_of(rt, run)]
        assert [at - times[0] for at in times] == [0 * DAY, DAY, 2 * DAY, 2 * DAY]


async def test_reads_are_the_same_for_another_process(url: str) -> None:
    """What another runtime read and then lost is what this one reads."""
    dead, alive = Reader(failures=99), Reader()
    async with healthy(url) as rt:
        await begin(rt, chain(named("before", lambda state: {}), dead))
        rt.clock.advance(HOUR)
        async with healthy(url, clock=rt.clock) as other:
            other.register(chain(named("before", lambda state: {}), alive), name="g")
            await drive(other)
            [run] = await other.runs()
            assert (await log_of(other, run))[0] == dead.got[0][0]


QUICK = RetryPolicy(initial_interval=0, jitter=False, max_attempts=5, retry_on=OSError)


async def test_reads_are_what_they_say_and_differ_from_each_other(url: str) -> None:
    async with healthy(url) as rt:
        node = Reader()
        run = await begin(rt, chain(node))
        [(at, number, id), (again, other, another)] = node.got[0]
        assert at == again == rt.clock.time
        assert at.tzinfo is not None
        assert 0 <= number < 1
        assert number != other
        assert isinstance(id, uuid.UUID)
        assert id != another
        assert await log_of(rt, run) == node.got[0]


async def test_reads_are_the_same_at_each_attempt_of_a_retry_policy(url: str) -> None:
    async with healthy(url) as rt:
        node = Reader(failures=3)
        builder = StateGraph(Log)
        builder.add_node("reads", node, retry_policy=QUICK)
        builder.add_edge(START, "reads")
        run = await begin(rt, builder)
        assert len(node.got) == 4
        assert node.is_steady()
        assert await log_of(rt, run) == node.got[-1]


async def test_reads_and_answers_are_the_same_when_an_attempt_fails_after_a_wait() -> None:
    async with healthy() as rt:
        node = Reader(failures=2, waits=2)
        builder = StateGraph(Log)
        builder.add_node("reads", node, retry_policy=QUICK)
        builder.add_edge(START, "reads")
        run = await begin(rt, builder)
        for _ in range(2):
            rt.clock.advance(DAY)
            await rt.answer((await only_wait(rt, run)).id, None)
            await drive(rt)
        assert await log_of(rt, run) == node.got[-1]
        assert len(node.got) == 5
        assert node.is_steady()


async def test_branches_have_their_own_reads(url: str) -> None:
    """Each keeps its own when one of them is answered and all run again."""
    nodes = [Reader(waits=1) for _ in range(3)]
    async with healthy(url) as rt:
        for n, node in enumerate(nodes):
            node.__name__ = f"n{n}"
        run = await begin(rt, side_by_side(*nodes))
        for wait in await rt.waits():
            rt.clock.advance(HOUR)
            await rt.answer(wait.id, None)
            await drive(rt)
        assert all(node.is_steady() for node in nodes)
        assert len({one[0] for node in nodes for one in [node.got[0]]}) == 3
        await log_of(rt, run)


async def test_each_of_a_fan_out_has_its_own_reads() -> None:
    got: dict[int, list[Read]] = {}

    def worker(n: Any) -> Log:
        got.setdefault(n, []).append(read())
        perdure.ask(n)
        return {"log": [n]}

    builder = StateGraph(Log)
    builder.add_node("worker", named("worker", worker))
    builder.add_conditional_edges(
        START, lambda _: [Send("worker", n) for n in range(4)], ["worker"]
    )
    async with healthy() as rt:
        run = await begin(rt, builder)
        for wait in await rt.waits():
            await rt.answer(wait.id, None)
            await drive(rt)
        assert sorted(await log_of(rt, run)) == [0, 1, 2, 3]
        assert [len(set(reads)) for reads in got.values()] == [1] * 4
        assert len({reads[0][2] for reads in got.values()}) == 4


async def test_a_subgraph_has_its_own_reads(url: str) -> None:
    inner, deep = Reader(waits=1), Reader(waits=1)
    middle = chain(inner)
    middle.add_node("deep", chain(deep).compile())
    middle.add_edge("reads", "deep")
    outer = chain(named("begins", lambda state: {"log": []}))
    outer.add_node("middle", middle.compile())
    outer.add_edge("begins", "middle")
    async with healthy(url) as rt:
        run = await begin(rt, outer)
        for _ in range(2):
            rt.clock.advance(DAY)
            await rt.answer((await only_wait(rt, run)).id, None)
            await drive(rt)
        await log_of(rt, run)
        assert inner.is_steady()
        assert deep.is_steady()
        assert len({*inner.got[-1], *deep.got[-1]}) == 6


@pytest.mark.parametrize("colour", ["plain", "async"])
async def test_an_entrypoint_and_its_tasks_have_their_own_reads(colour: str) -> None:
    got: dict[str, list[Any]] = {"flow": [], "a": [], "b": []}

    def tell(name: str) -> None:
        got[name].append(read())

    @task
    def plain(name: str) -> Any:
        tell(name)
        return perdure.ask(name)

    @task
    async def coroutine(name: str) -> Any:
        tell(name)
        return perdure.ask(name)

    @entrypoint()
    def flow(names: list[str]) -> Any:
        tell("flow")
        futures = [plain(name) for name in names]
        return [future.result() for future in futures]

    @entrypoint()
    async def async_flow(names: list[str]) -> Any:
        tell("flow")
        return await asyncio.gather(*[coroutine(name) for name in names])

    async with healthy() as rt:
        run = await begin(rt, flow if colour == "plain" else async_flow, input=["a", "b"])
        for wait in sorted(await rt.waits(), key=lambda wait: str(wait.value)):
            rt.clock.advance(DAY)
            await rt.answer(wait.id, wait.value)
            await drive(rt)
        assert (await rt.get(run.id)).output == ["a", "b"]
        assert len(got["flow"]) == 3
        assert [len(set(reads)) for reads in got.values()] == [1, 1, 1]
        assert len({reads[0] for reads in got.values()}) == 3


async def test_a_branch_that_reads_more_does_not_move_the_reads_of_another() -> None:
    """Not a count across the run: branch A's second value is never branch B's first."""
    left, right = Reader(waits=3), Reader(waits=1)
    left.__name__, right.__name__ = "left", "right"
    async with healthy() as rt:
        run = await begin(rt, side_by_side(left, right))
        while waits := await rt.waits():
            await rt.answer(waits[-1].id, None)
            await drive(rt)
        assert left.is_steady()
        assert right.is_steady()
        await log_of(rt, run)


def test_outside_of_a_run_reads_are_plain() -> None:
    before = datetime.now(UTC)
    assert before <= perdure.now() <= datetime.now(UTC)
    assert 0 <= perdure.random() < 1
    assert perdure.random() != perdure.random()
    assert perdure.uuid() != perdure.uuid()


async def test_a_bound_graph_records_its_reads_too() -> None:
    async with healthy() as rt:
        node = Reader(waits=1)
        bound = rt.register(chain(node, asking("q")), name="g")
        config: Any = {"configurable": {"thread_id": "t"}}
        await asyncio.to_thread(bound.invoke, {"log": []}, config)
        rt.clock.advance(DAY)
        [wait] = await rt.waits()
        await rt.answer(wait.id, None)
        await drive(rt)
        assert len(node.got) == 2
        assert node.is_steady()
