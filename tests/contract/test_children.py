"""Runs that a node starts, stops and waits for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import pytest

import perdure
from perdure.testing import TemporaryRuntime, watch_points
from perdure.types import Retry, Run, State
from tests.support.agents import Log, chain, driving, gate, history, opened, reaches
from tests.support.effects import AT_ONCE, Boom, Cut, Times

ONCE = Retry(attempts=1)


def nothing(state: Log) -> Log:
    return {"log": ["did nothing"]}


def asks(state: Log) -> Log:
    return {"log": [str(perdure.ask("ok?"))]}


def fails_once(state: Log) -> Log:
    raise Boom("no luck")


def naps(state: Log) -> Log:
    perdure.sleep(timedelta(hours=1))
    return {"log": ["slept"]}


@pytest.mark.parametrize("colour", ["blocking", "awaited"])
async def test_a_run_started_in_a_node_is_started_once(url: str, colour: str) -> None:
    fails = Times(1)

    def plain(state: Log) -> Log:
        child = rt.blocking.start("child", {"log": []})
        fails("after the start")
        return {"log": [child.id]}

    async def coroutine(state: Log) -> Log:
        child = await rt.start("child", {"log": []})
        fails("after the start")
        return {"log": [child.id]}

    async with opened(url) as rt:
        rt.register(chain(nothing), name="child")
        node = plain if colour == "blocking" else coroutine
        rt.register(chain(("node", node)), name="parent", retry=AT_ONCE)
        run = await rt.start("parent", {"log": []})
        await rt.tick()
        [child] = await rt.runs(graph="child")
        assert (child.state, child.parent_id) == (State.DONE, run.id)
        assert (await rt.get(run.id)).output["log"] == [child.id]


@contextmanager
def cut(name: str) -> Iterator[None]:
    """The first call of this effect is made and its outcome is lost, as if its process had died."""
    cuts = Times(1, Cut)

    def hook(point: str) -> None:
        if point == f"effect perdure.{name}.after":
            cuts()

    watch_points(hook)
    try:
        yield
    finally:
        watch_points(None)
    assert not cuts.n, "it was not called"


async def rest(rt: TemporaryRuntime, graph: str, state: State) -> Run:
    """A run that rests in this state."""
    run = await rt.start(graph, {"log": []})
    await rt.tick()
    if state is State.PAUSED:
        await rt.pause(run.id)
    found = await rt.get(run.id)
    assert found.state is state
    return found


Make = Callable[[TemporaryRuntime, Run], Awaitable[Any]]


CALLS: dict[str, tuple[str, State, Make, str]] = {
    "answer": ("asks", State.WAITING, lambda rt, run: _answer(rt, run), "answer"),
    "cancel": ("naps", State.WAITING, lambda rt, run: rt.cancel(run.id), "cancelled"),
    "pause": ("naps", State.WAITING, lambda rt, run: rt.pause(run.id), "paused"),
    "resume": ("naps", State.PAUSED, lambda rt, run: rt.resume(run.id), "resumed"),
    "retry": ("fails", State.FAILED, lambda rt, run: rt.retry(run.id), "retried"),
}
"""By the name of the effect: whom it is done to, in which state, how, and the event it leaves."""


async def _answer(rt: TemporaryRuntime, run: Run) -> None:
    [wait, *_] = await rt.wait_history(run.id)
    await rt.answer(wait.id, "yes", by="a node")


@pytest.mark.parametrize("is_cut", [False, True], ids=["known", "unknown"])
@pytest.mark.parametrize("name", CALLS)
async def test_what_a_node_does_to_another_run_is_done_once(
    sqlite_url: str, name: str, is_cut: bool
) -> None:
    graph, state, act, event = CALLS[name]
    raises = Times(0 if is_cut else 1)

    async def node(state: Log) -> Log:
        await act(rt, target)
        raises("afterwards")
        return {"log": ["acted"]}

    async with opened(sqlite_url) as rt:
        for one in (nothing, asks, naps, fails_once):
            rt.register(chain(one), name=one.__name__.removesuffix("_once"), retry=ONCE)
        rt.register(chain(node), name="agent", retry=AT_ONCE)
        target = await rest(rt, graph, state)
        run = await rt.start("agent", {"log": []})
        with cut(name) if is_cut else nullcontext():
            await rt.tick(limit=50)
        done = await rt.get(run.id)
        assert (done.state, done.error) == (State.DONE, None)
        assert (await history(rt, target)).count(event) == 1
        [effect] = await rt.effects(run.id)
        assert effect.name == f"perdure.{name}"


HOUR = timedelta(hours=1)


def work(state: Log) -> Log:
    return {"log": ["worked"], "value": f"result of {state.get('value')}"}


def nap(state: Log) -> Log:
    perdure.sleep(HOUR)
    return work(state)


def approve(state: Log) -> Log:
    return {"value": perdure.ask("ok?")}


def parent(rt: perdure.Runtime, *graphs: str, **options: Any) -> Any:
    """A graph that starts a child of each of these graphs, and joins them in its next node."""

    async def starts(state: Log) -> Log:
        children = [await rt.start(one, {"value": n}, **options) for n, one in enumerate(graphs)]
        return {"log": [child.id for child in children]}

    def joins(state: Log) -> Log:
        return {"value": [found["value"] for found in perdure.join(state["log"])]}

    return chain(starts, joins)


async def children(rt: perdure.Runtime, run: Run) -> list[Run]:
    """Oldest first."""
    return (await rt.runs(parent_id=run.id))[::-1]


async def test_the_end_of_a_child_and_the_wake_up_of_its_parent_are_one_commit(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(nap), name="slow")
        rt.register(parent(rt, "slow"), name="parent")
        run = await rt.start("parent", {"log": []})
        await rt.tick()
        rt.clock.advance(HOUR)
        await rt.tick(limit=1)
        [child] = await children(rt, run)
        assert child.state is State.DONE
        run = await rt.get(run.id)
        assert (run.state, run.due_at) == (State.WAITING, rt.clock.time)


@pytest.mark.parametrize("policy", ["cancel", "leave", "detached"])
async def test_children_are_cancelled_with_their_parent_by_policy(url: str, policy: str) -> None:
    options: dict[str, Any] = {"detached": True}
    if policy != "detached":
        options = {"on_parent_cancel": policy}
    async with opened(url) as rt:
        rt.register(chain(approve), name="asks")
        rt.register(parent(rt, "asks", **options), name="middle")
        rt.register(parent(rt, "middle", "asks", **options), name="top")
        run = await rt.start("top", {"log": []})
        await rt.tick()
        await rt.cancel(run.id, by="ana")
        await rt.tick()
        every = {one.id: one for one in await rt.runs()}
        assert len(every) == 4
        assert every.pop(run.id).state is State.CANCELLED
        wanted = State.CANCELLED if policy == "cancel" else State.WAITING
        assert {one.state for one in every.values()} == {wanted}
        assert {one.parent_id is None for one in every.values()} == {policy == "detached"}
        if policy == "cancel":
            assert await rt.waits() == []
            [middle] = await rt.runs(graph="middle")
            assert middle.reason == f"its parent, run {run.id}, was cancelled"
            assert (await history(rt, middle))[-3:] == ["cancelling", "claimed", "cancelled"]


async def test_a_child_started_by_a_run_that_is_being_cancelled_is_cancelled(url: str) -> None:
    with gate() as standing:

        async def late(state: Log) -> Log:
            await standing.wait()
            await rt.start("child", {})
            return {}

        async with opened(url) as rt:
            rt.register(chain(work), name="child")
            rt.register(chain(("late", late), work), name="parent")
            run = await rt.start("parent", {"log": []})
            async with driving(rt):
                await standing.reached()
                assert (await rt.cancel(run.id)).state is State.RUNNING
                standing.open()
                await reaches(rt, run, State.CANCELLED)
                [child] = await children(rt, run)
                await reaches(rt, child, State.CANCELLED)


@pytest.mark.parametrize("number", [1, 8])
async def test_no_wake_up_is_lost_when_children_end_as_their_parent_begins_to_wait(
    url: str, number: int
) -> None:
    async def starts_and_joins(state: Log) -> Log:
        started = [await rt.start("quick", {"value": n}) for n in range(number)]
        return {"value": [found["value"] for found in perdure.join(started)]}

    async with opened(url) as rt:
        rt.register(chain(work), name="quick")
        rt.register(chain(starts_and_joins), name="parent")
        async with perdure.Runtime(url, clock=rt.clock) as second:
            second.register(chain(work), name="quick")
            second.register(chain(starts_and_joins), name="parent")
            runs = [await rt.start("parent", {"log": []}) for _ in range(6)]
            async with driving(rt), driving(second):
                ends = [await reaches(rt, run, State.DONE) for run in runs]
        wanted = [f"result of {n}" for n in range(number)]
        assert [run.output["value"] for run in ends] == [wanted] * len(runs)
