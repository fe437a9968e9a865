"""A segment that failed is driven again, and repeats no step that is on disk."""

from __future__ import annotations

import asyncio
import threading
import time
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from perdure import Runtime
from perdure.errors import WrongState
from perdure.testing import Clock
from perdure.types import Retry, Run, State
from tests.support.agents import (
    NOON,
    Calls,
    Log,
    chain,
    checkpoints,
    driving,
    gate,
    history,
    opened,
    reaches,
)
from tests.support.controls import COLORS, HOUR, ONCE, SECOND, echo, said, standing
from tests.support.polling import auntil
from tests.support.sqlite_only import url as url


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


SOON = timedelta(seconds=0.5)
"""A timeout of a step that is to be exceeded."""


AT_ONCE = Retry(attempts=3, first=timedelta(0))


async def test_a_step_that_was_made_but_not_stored_counts_as_an_attempt(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The door refuses this command. A journal of an earlier version may have it."""
    monkeypatch.setattr("perdure.commands.starting.check_command", lambda input: None)
    clock = Clock()
    async with Runtime(sqlite_url, clock=clock) as rt:
        rt.register(chain(echo), name="odd", retry=AT_ONCE)
        run = await rt.start("odd", Command(update={"__pregel_tasks": [1]}), thread_id="t")
        for _ in range(6):
            await rt.work(until_idle=True)
            clock.advance(HOUR)
        failures = [one for one in await rt.events(run.id) if one.kind == "failed"]
        assert [one.data["attempts"] for one in failures] == [1, 2, 3]
        assert (await rt.get(run.id)).state is State.FAILED


async def test_a_retried_run_has_all_its_attempts_again(sqlite_url: str) -> None:
    calls, clock = Calls(), Clock(NOON)
    async with opened(sqlite_url, clock) as rt:
        rt.register(chain(calls.node("one", Broken())), name="g", retry=AT_ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        assert len(calls) == 3
        await rt.retry(run.id)
        await rt.tick()
        assert len(calls) == 6
        assert (await rt.get(run.id)).state == State.FAILED


async def test_retry_is_refused_when_a_later_run_of_the_thread_has_begun(url: str) -> None:
    broken = Broken()
    async with opened(url) as rt:
        rt.register(chain(("one", broken)), name="g", retry=ONCE)
        failed = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        broken.repair()
        await rt.start("g", said("b"), thread_id="t")
        await rt.tick()
        with pytest.raises(WrongState, match="later run"):
            await rt.retry(failed.id)
        assert (await rt.get(failed.id)).state == State.FAILED


async def test_a_retried_run_goes_before_a_later_one_that_has_not_begun(url: str) -> None:
    calls, broken = Calls(), Broken()
    async with opened(url) as rt:
        rt.register(chain(calls.node("one", broken)), name="g", retry=ONCE)
        failed = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        later = await rt.start("g", said("b"), thread_id="t")
        broken.repair()
        await rt.retry(failed.id)
        assert (await rt.get(later.id)).due_at is None
        await rt.tick()
        assert (await rt.get(failed.id)).output == said("a", "one")
        assert (await rt.get(later.id)).output == said("a", "one", "b", "one")


class Boom(Exception):
    """An error of an agent's own."""


async def test_the_error_of_a_failed_run_says_what_happened_and_where(url: str) -> None:
    def explode(state: Log) -> Any:
        raise Boom("the boiler is dry")

    async with opened(url) as rt:
        rt.register(chain(explode), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        async with opened(url) as another:
            found = await another.get(run.id)
        assert found.state == State.FAILED
        assert found.output is None
        assert found.error is not None
        assert found.error.kind == f"{__name__}.Boom"
        assert found.error.message == "the boiler is dry"
        assert "in explode" in found.error.traceback
        assert str(found.error) == f"{__name__}.Boom: the boiler is dry"
        last = (await rt.events(run.id))[-1]
        assert (last.kind, last.data["message"]) == ("failed", "the boiler is dry")


class Mute(Exception):
    """An error that cannot be printed."""

    def __str__(self) -> str:
        raise RuntimeError("not even that")


@pytest.mark.parametrize(
    "error",
    [Mute(), ValueError("\ud800 \x00"), ValueError("x" * 1_000_000)],
    ids=["mute", "surrogate", "long"],
)
async def test_a_run_fails_cleanly_whatever_its_error_looks_like(
    url: str, error: Exception
) -> None:
    async with opened(url) as rt:
        rt.register(chain(("one", Broken(error))), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        assert (await rt.tick()).failed == 1
        found = await rt.get(run.id)
        assert found.state == State.FAILED
        assert found.error is not None
        assert len(found.error.traceback) <= 100_000


@pytest.mark.parametrize("way", ["exit", "cancel", "cancel in a coroutine"])
async def test_a_node_that_raises_what_is_no_exception_counts_as_failed(
    sqlite_url: str, way: str
) -> None:
    calls = Calls()
    error = SystemExit(3) if way == "exit" else asyncio.CancelledError()

    async def one(state: Any) -> None:
        raise error

    plain = calls.node("one", Broken(error))
    node = calls.coroutine("one", one) if "coroutine" in way else plain
    async with opened(sqlite_url) as rt:
        rt.register(chain(node), name="g", retry=AT_ONCE)
        run = await rt.start("g", said("a"))
        counts = await rt.tick(limit=10)
        assert (await rt.get(run.id)).state == State.FAILED
        assert counts.claimed == len(calls) == 3


async def test_an_error_that_would_only_come_again_fails_the_run_at_once(url: str) -> None:
    calls = Calls()

    def unstorable(state: Any) -> Any:
        return {"value": threading.Lock()}

    def of_nothing(state: Any) -> Any:
        return {"nobody": 1}

    def in_circles() -> StateGraph[Any]:
        builder = chain(calls.node("circle"))
        return builder.add_edge("circle", "circle")

    graphs: dict[str, tuple[StateGraph[Any], Any, str]] = {
        "unstorable": (chain(calls.node("one", unstorable)), said("a"), "Unserializable"),
        "circle": (in_circles(), said("a"), "GraphRecursionError"),
        "empty": (chain(calls.node("one")), None, "EmptyInputError"),
        "conflict": (_conflict(), said("a"), "InvalidUpdateError"),
    }
    async with opened(url) as rt:
        for name, (graph, input, kind) in graphs.items():
            rt.register(graph, name=name)
            run = await rt.start(name, input, config={"recursion_limit": 5})
            await rt.tick()
            found = await rt.get(run.id)
            assert (name, found.state) == (name, State.FAILED)
            assert found.error is not None
            assert found.error.kind.endswith(kind)
        assert calls.count("one") == 1


def _conflict() -> StateGraph[Any]:
    """Two branches that write the same."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name in ("left", "right"):
        builder.add_node(name, lambda state: {"value": 1})
        builder.add_edge(START, name)
    return builder


@COLORS
async def test_a_step_that_never_returns_fails_by_its_timeout_and_is_tried_again(
    url: str, color: str
) -> None:
    calls = Calls()
    with gate() as closed:
        async with opened(url) as rt:
            graph = standing(calls, closed, color)
            rt.register(graph, name="g", timeout=SOON, retry=AT_ONCE)
            run = await rt.start("g", said("a"), thread_id="t")
            await rt.tick()  # returns although the first node is still there
            found = await rt.get(run.id)
            assert (found.state, found.output) == (State.DONE, said("a", "one", "stand", "two"))
            assert calls == ["one", "stand", "stand", "two"]
            [told] = [event for event in await rt.events(run.id) if event.kind == "failed"]
            assert told.data["kind"] == "perdure.errors.StepTimeout"
            before = await history(rt, run), await checkpoints(rt, "t")
            closed.open()
            await auntil(lambda: closed.left)
            assert (await history(rt, run), await checkpoints(rt, "t")) == before


async def test_the_timeout_bounds_a_step_and_not_the_run(sqlite_url: str) -> None:
    async def take_a_while(state: Log) -> Any:
        await asyncio.sleep(0.3)
        return {"log": ["."]}

    async with opened(sqlite_url) as rt:
        nodes = [(f"n{n}", take_a_while) for n in range(4)]
        rt.register(chain(*nodes), name="g", timeout=2 * SOON, retry=ONCE)
        run = await rt.start("g", said("a"))
        await rt.tick()
        assert (await rt.get(run.id)).state == State.DONE


@pytest.mark.parametrize("bound", ["timeout", "lease"])
async def test_a_coroutine_that_blocks_its_event_loop_loses_its_run_to_another_worker(
    url: str, bound: str
) -> None:
    calls = Calls()

    def graph(node: Any) -> StateGraph[Any]:
        return chain(calls.coroutine("one"), calls.coroutine("two", node), calls.coroutine("three"))

    async def go(state: Any) -> None:
        return None

    timeout = SOON if bound == "timeout" else HOUR
    with gate() as closed, Runtime(url, lease=SOON) as stuck, Runtime(url, lease=SOON) as healthy:
        stuck.register(graph(closed.freeze), name="g", timeout=timeout, retry=AT_ONCE)
        healthy.register(graph(go), name="g", timeout=timeout, retry=AT_ONCE)
        run = await stuck.start("g", said("a"), thread_id="t")
        frozen = asyncio.create_task(asyncio.to_thread(stuck.blocking.tick))
        await closed.reached()
        async with driving(healthy):
            done = await reaches(healthy, run, State.DONE)
        assert done.output == said("a", "one", "two", "three")
        before = await history(healthy, run), await checkpoints(healthy, "t")
        assert ("failed" if bound == "timeout" else "recovered") in before[0]
        closed.open()
        await frozen
        assert (await history(healthy, run), await checkpoints(healthy, "t")) == before
        assert calls == ["one", "two", "two", "three"]


@pytest.mark.timeout(60)
async def test_an_error_that_is_its_own_cause_fails_its_run(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(Calls().node("one", circular)), name="g", retry=ONCE)
        run = await rt.start("g", said("a"))
        assert (await rt.tick()).failed == 1
        assert "round and round" in str((await rt.get(run.id)).error)


def circular(state: Any) -> None:
    error = ValueError("round and round")
    raise error from error
