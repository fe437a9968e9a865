"""A segment that failed is driven again, and repeats no step that is on disk."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from perdure.testing import Clock
from perdure.types import Retry, Run, State
from tests.support.agents import NOON, Calls, Log, chain, history, opened
from tests.support.controls import HOUR, ONCE, SECOND, said


@pytest.fixture
def url(sqlite_url: str) -> str:
    """SQLite: nothing here depends on the database."""
    return sqlite_url


class Broken:
    """A node that raises until it is repaired."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error: BaseException | None = error or ValueError("no luck")

    def repair(self) -> None:
        self.error = None

    def __call__(self, state: Any) -> None:
        if self.error is not None:
            raise self.error


async def test_a_failed_run_that_is_retried_goes_on_behind_its_last_step(url: str) -> None:
    calls, broken = Calls(), Broken()
    async with opened(url) as rt:
        nodes = calls.node("one"), calls.node("two", broken), calls.node("three")
        rt.register(chain(*nodes), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        assert (await rt.tick()).failed == 1
        assert (await rt.get(run.id)).state == State.FAILED
        assert (await rt.tick()).claimed == 0
        broken.repair()
        again = await rt.retry(run.id)
        assert (again.state, again.error) == (State.PENDING, None)
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "one", "two", "three")
        assert calls == ["one", "two", "two", "three"]
        assert (await history(rt, run))[-6:-3] == ["failed", "retried", "claimed"]


async def test_a_step_on_disk_begins_the_count_of_attempts_anew(url: str) -> None:
    """Each of three nodes fails twice: six times in all, of three attempts at a step."""
    left = dict.fromkeys(("one", "two", "three"), 2)

    def fails(name: str) -> Any:
        def node(state: Log) -> Log:
            left[name] -= 1
            if left[name] >= 0:
                raise ValueError(name)
            return {"log": [name]}

        return name, node

    async with opened(url) as rt:
        retry = Retry(attempts=3, first=timedelta(0))
        rt.register(chain(*map(fails, left)), name="g", retry=retry)
        run = await rt.start("g", said("a"))
        for _ in range(7):
            await rt.tick()
        found = await rt.get(run.id)
        assert (found.state, found.output) == (State.DONE, said("a", "one", "two", "three"))


async def test_only_the_branch_that_failed_runs_again(url: str) -> None:
    calls, broken = Calls(), Broken()
    place: Any = {"configurable": {"thread_id": "t"}}

    def fail_after_good(state: Log) -> None:
        deadline = time.monotonic() + 30.0
        written: list[Any] = []  # or else LangGraph stops the good one with it
        while ["good"] not in written:
            assert time.monotonic() < deadline
            at: Any = rt.saver.get_tuple(place)
            written = [value for _, _, value in at.pending_writes]
        broken(state)

    builder: StateGraph[Any] = StateGraph(Log)
    for name, node in (calls.node("good"), calls.node("bad", fail_after_good)):
        builder.add_node(name, node)
        builder.add_edge(START, name)
    builder.add_node(*calls.node("last"))
    builder.add_edge(["good", "bad"], "last")
    async with opened(url) as rt:
        rt.register(builder, name="g", retry=ONCE)
        run = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        broken.repair()
        await rt.retry(run.id)
        await rt.tick()
        assert sorted(calls) == ["bad", "bad", "good", "last"]
        assert sorted((await rt.get(run.id)).output["log"]) == ["a", "bad", "good", "last"]


async def test_a_failed_segment_is_driven_again_after_a_pause_that_survives_the_process(
    url: str,
) -> None:
    calls, clock = Calls(), Clock(NOON)
    policy = Retry(attempts=4, first=timedelta(minutes=1), factor=3.0, longest=HOUR / 10)
    run: Run | None = None
    for minutes in (1, 3, 6):
        async with opened(url, clock) as rt:
            rt.register(chain(calls.node("one", Broken())), name="g", retry=policy)
            run = run or await rt.start("g", said("a"))
            await rt.tick()
            found = await rt.get(run.id)
            assert found.state == State.PENDING
            assert found.due_at == clock.time + timedelta(minutes=minutes)
            assert found.error is not None
            assert found.error.message == "no luck"
            clock.advance(timedelta(minutes=minutes) - SECOND)
            assert (await rt.tick()).claimed == 0
            clock.advance(SECOND)
    assert run is not None
    async with opened(url, clock) as rt:
        rt.register(chain(calls.node("one", Broken())), name="g", retry=policy)
        assert (await rt.tick()).failed == 1
        assert (await rt.get(run.id)).state == State.FAILED
        assert len(calls) == 4
        assert (await history(rt, run)).count("failed") == 4
