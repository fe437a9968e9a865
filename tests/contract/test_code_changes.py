"""Runs whose code changed under them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure import Runtime
from perdure.errors import WrongState
from perdure.testing import Clock
from perdure.types import Retry, Run, State
from tests.support.agents import NOON, Calls, Log, chain, checkpoints, history, opened
from tests.support.sqlite_only import url as url


def said(*texts: str) -> dict[str, Any]:
    return {"log": list(texts)}


def approve(state: Log) -> Any:
    return {"log": [f"approved {perdure.ask('go on?')}"]}


def one(state: Log) -> Any:
    return {"log": ["one"]}


def two(state: Log) -> Any:
    return {"log": ["two"]}


def three(state: Log) -> Any:
    return {"log": ["three"]}


async def start(url: str, graph: Any, input: Any = None) -> Run:
    """A run of this graph on thread "t", driven until it rests."""
    async with opened(url) as rt:
        rt.register(graph, name="g", retry=Retry(attempts=1))
        run = await rt.start("g", input or said("a"), thread_id="t")
        assert (await rt.tick()).waiting == 1
        return run


async def answer(rt: Runtime, run: Run, value: Any = "yes") -> Run:
    """Answer what the run asks, and drive it."""
    for wait in await rt.waits(run_id=run.id):
        await rt.answer(wait.id, value)
    await rt.tick()
    return await rt.get(run.id)


async def after(url: str, run: Run, graph: Any) -> Run:
    """The run, answered and driven with another graph of the same name."""
    async with opened(url) as rt:
        rt.register(graph, name="g", retry=Retry(attempts=1))
        return await answer(rt, run)


@pytest.mark.parametrize("way", ["renamed", "removed"])
async def test_a_run_is_held_when_the_node_it_waits_in_is_gone(url: str, way: str) -> None:
    run = await start(url, chain(one, approve, two))
    changed = chain(one, ("confirm", approve), two) if way == "renamed" else chain(one, two)
    async with opened(url) as rt:
        rt.register(changed, name="g")
        before = [found.checkpoint["id"] for found in await checkpoints(rt, "t")]
        held = await answer(rt, run)
        assert (held.state, held.output, held.due_at) == (State.HELD, None, None)
        reason = held.reason or ""
        assert "'g' changed" in reason
        assert "'approve'" in reason
        assert ("added: confirm" if way == "renamed" else "added: none") in reason
        last = (await rt.events(run.id))[-1]
        assert last.kind == "held"
        with pytest.raises(WrongState, match="is held"):  # which would hide why
            await rt.pause(run.id)
        assert last.data["lost"] == ["approve"]
        assert last.data["removed"] == ["approve"]
        assert last.data["added"] == (["confirm"] if way == "renamed" else [])
        assert (await rt.tick()).claimed == 0
        assert [found.checkpoint["id"] for found in await checkpoints(rt, "t")] == before


async def test_versions_side_by_side_let_old_runs_finish_as_they_began(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(approve, two), name="g", version="1")
        old = await rt.start("g", said("a"))
        await rt.tick()
    async with opened(url) as rt:
        rt.register(chain(approve, two), name="g", version="1")
        rt.register(chain(("confirm", approve), three), name="g", version="2")
        new = await rt.start("g", said("b"))
        await rt.tick()
        assert (await answer(rt, old)).output == said("a", "approved yes", "two")
        assert (await answer(rt, new)).output == said("b", "approved yes", "three")


async def test_a_run_whose_graph_is_not_registered_waits_for_a_worker_that_has_it(
    url: str,
) -> None:
    run = await start(url, chain(approve))
    async with opened(url) as rt:
        rt.register(chain(approve), name="other")
        waiting = await answer(rt, run)
        assert waiting.state == State.WAITING
    done = await after(url, run, chain(approve))
    assert done.output == said("a", "approved yes")


def ask(state: Log) -> Any:
    return {"log": [perdure.ask("?")]}


def last(state: Log) -> Any:
    return {"log": ["last"]}


async def begin(url: str, node: str = "nap", number: int = 1) -> list[str]:
    async with opened(url) as rt:
        rt.register(chain((node, ask), last), name="letter")
        rt.register(chain(ask), name="other")
        runs = [await rt.start("letter", {"log": []}, thread_id=f"{n}") for n in range(number)]
        await rt.start("other", {"log": []})
        await rt.tick(100)
        return [run.id for run in runs]


async def test_it_says_exactly_what_the_next_claim_does_and_changes_nothing(url: str) -> None:
    [run_id] = await begin(url)
    async with opened(url) as rt:
        rt.register(chain(("snooze", ask), last), name="letter")
        before = await rt.events(run_id)
        [found] = (await rt.check()).lost
        assert await rt.events(run_id) == before
        assert (await rt.get(run_id)).state == State.WAITING
        [wait] = await rt.waits(run_id=run_id)
        await rt.answer(wait.id, "yes")
        await rt.tick()
        held = await rt.get(run_id)
        assert (held.state, held.reason) == (State.HELD, found.reason)
        [again] = (await rt.check()).lost  # a retry would hold it again
        assert (again.state, again.reason) == (State.HELD, found.reason)


HOUR = timedelta(hours=1)


def nap(state: Log) -> Any:
    perdure.sleep(HOUR)
    return {"log": ["nap"]}


async def test_a_held_run_goes_on_where_it_was_when_it_is_retried_after_the_fix(url: str) -> None:
    calls = Calls()
    old = chain(calls.node("first"), approve, calls.node("last"))
    run = await start(url, old)
    held = await after(url, run, chain(calls.node("first"), ("confirm", approve)))
    assert held.state == State.HELD
    async with opened(url) as rt:
        rt.register(old, name="g")
        assert (await rt.tick()).claimed == 0  # a fix alone does not wake it
        again = await rt.retry(run.id)
        assert (again.state, again.reason) == (State.PENDING, None)
        await rt.tick()
        done = await rt.get(run.id)
        # The answer that was given meanwhile is used, and nothing runs twice.
        assert done.output == said("a", "first", "approved yes", "last")
        assert calls == ["first", "last"]
        assert (await history(rt, run)).count("held") == 1


async def test_a_sleeping_run_is_held_when_it_wakes_and_the_others_go_on(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock) as rt:
        rt.register(chain(one, nap), name="g")
        rt.register(chain(nap), name="other")
        run = await rt.start("g", said("a"))
        other = await rt.start("other", said("b"))
        await rt.tick()
    clock.advance(HOUR)
    async with opened(url, clock) as rt:
        rt.register(chain(one, ("rest", nap)), name="g")
        rt.register(chain(nap), name="other")
        counts = await rt.tick()
        assert (counts.held, counts.done) == (1, 1)
        assert (await rt.get(run.id)).state == State.HELD
        assert (await rt.get(other.id)).output == said("b", "nap")


async def test_a_failed_run_whose_node_is_gone_is_held_when_it_is_retried(url: str) -> None:
    def fail(state: Log) -> Any:
        raise ValueError("no luck")

    async with opened(url) as rt:
        rt.register(chain(one, fail), name="g", retry=Retry(attempts=1))
        run = await rt.start("g", said("a"), thread_id="t")
        await rt.tick()
        assert (await rt.get(run.id)).state == State.FAILED
    async with opened(url) as rt:
        rt.register(chain(one, two), name="g")
        await rt.retry(run.id)
        await rt.tick()
        held = await rt.get(run.id)
        assert held.state == State.HELD
        assert "'fail'" in (held.reason or "")


async def test_a_held_run_can_be_cancelled_and_lets_the_next_one_go(url: str) -> None:
    run = await start(url, chain(approve))
    async with opened(url) as rt:
        rt.register(chain(("confirm", two)), name="g")
        following = await rt.start("g", said("b"), thread_id="t")
        assert (await answer(rt, run)).state == State.HELD
        assert (await rt.get(following.id)).state == State.PENDING
        with pytest.raises(WrongState):
            await rt.resume(run.id)
        assert (await rt.cancel(run.id)).state == State.CANCELLED
        await rt.tick()
        assert (await rt.get(following.id)).output == said("a", "b", "two")


async def test_a_fork_brings_a_held_run_past_the_node_that_is_gone(url: str) -> None:
    run = await start(url, chain(one, approve, two))
    async with opened(url) as rt:
        rt.register(chain(one, ("confirm", approve), two), name="g")
        assert (await answer(rt, run)).state == State.HELD
        forked = await rt.fork(run.id, update=said("approved by hand"), as_node="confirm")
        await rt.tick()
        assert (await rt.get(forked.id)).output == said("a", "one", "approved by hand", "two")
        assert (await rt.get(run.id)).state == State.HELD


async def test_a_run_that_has_not_begun_is_driven_by_whatever_graph_there_is(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(one), name="g")
        run = await rt.start("g", said("a"))
    async with opened(url) as rt:
        rt.register(chain(two, three), name="g")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "two", "three")


def joined(*branches: str, last: str = "last") -> StateGraph[Any]:
    """Branches side by side, of which the first asks, and a node that waits for all of them."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name in branches:
        builder.add_node(name, approve if name == "ask" else one)
        builder.add_edge(START, name)
    builder.add_node(last, two)
    builder.add_edge(list(branches), last)
    builder.add_node("end", approve)
    builder.add_edge(last, "end")
    return builder


def branched(*asking: str, behind: str = "behind") -> StateGraph[Any]:
    """Branches that ask, and one that has finished and leads to a node."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name in (*asking, "work"):
        builder.add_node(name, one if name == "work" else approve)
        builder.add_edge(START, name)
    builder.add_node(behind, two)
    builder.add_edge("work", behind)
    return builder


def sending(name: str) -> StateGraph[Any]:
    """Two things sent to a node that asks."""

    def worker(state: Any) -> Any:
        return {"log": [f"{state['n']} {perdure.ask(state['n'])}"]}

    builder: StateGraph[Any] = StateGraph(Log)
    spread: Any = Command(goto=[Send("worker", {"n": n}) for n in range(2)])
    builder.add_node("spread", lambda state: spread, destinations=(name,))
    builder.add_node(name, worker)
    builder.add_edge(START, "spread")
    return builder


def outer(*inner: Any, name: str = "outer", deep: bool = False) -> StateGraph[Any]:
    """A graph with a graph of these nodes inside, or one more inside that."""
    child = chain(*inner)
    if deep:
        child = chain(one, ("middle", child.compile()))
    return chain(one, (name, child.compile()), two)


def flow(name: str, more: bool = False) -> Any:
    """An entrypoint of this name that asks."""

    @task
    def prepare(text: str) -> str:
        return f"prepared {text}"

    def body(state: Any) -> Any:
        said = [*state["log"], prepare("x").result(), f"approved {perdure.ask('go on?')}"]
        return {"log": [*said, prepare("again").result()] if more else said}

    body.__name__ = name
    return entrypoint()(body)


CONFIRM = ("confirm", approve)
HELD: dict[str, tuple[Any, Any, str]] = {
    "an open branch": (branched("left", "right"), branched("left", "other"), "'right'"),
    "the node behind a finished branch": (
        branched("ask"),
        branched("ask", behind="renamed"),
        "'behind'",
    ),
    "what a join waits for": (joined("ask", "work"), joined("ask", "work", "more"), "'last'"),
    "what was sent to": (sending("worker"), sending("labourer"), "'worker'"),
    "an inner node": (outer(three, approve), outer(three, CONFIRM), "'approve'"),
    "a deep one": (outer(approve, deep=True), outer(CONFIRM, deep=True), "subgraph 'outer'"),
    "a subgraph": (outer(three, approve), chain(one, ("outer", three), two), "'approve'"),
    "the node around one": (outer(approve), outer(approve, name="renamed"), "'outer'"),
    "an entrypoint": (flow("flow"), flow("renamed"), "'flow'"),
    "an entrypoint for a graph": (flow("flow"), chain(one), "'flow'"),
}


@pytest.mark.parametrize("what", HELD)
async def test_a_run_is_held_while_what_it_would_go_on_at_is_gone(url: str, what: str) -> None:
    old, new, reason = HELD[what]
    run = await start(url, old)
    held = await after(url, run, new)
    assert held.state == State.HELD
    assert reason in (held.reason or "")
    assert "'left'" not in (held.reason or "")
    async with opened(url) as rt:
        rt.register(new, name="g", retry=Retry(attempts=1))
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state == State.HELD, "without the fix"
    async with opened(url) as rt:
        rt.register(old, name="g")
        await rt.retry(run.id)
        while (found := await answer(rt, run)).state != State.DONE:
            assert found.state == State.WAITING
        assert any("yes" in line for line in found.output["log"])


BETTER = ("approve", lambda state: {"log": [f"better {interrupt('go on?')}"]})
GOES_ON: dict[str, tuple[Any, Any, list[str]]] = {
    "added": (
        chain(one, approve, two),
        chain(one, approve, three, two),
        ["one", "approved yes", "three", "two"],
    ),
    "removed": (chain(one, approve, two), chain(one, approve), ["one", "approved yes"]),
    "earlier removed": (
        chain(one, approve, two),
        chain(approve, two),
        ["one", "approved yes", "two"],
    ),
    "other edges": (
        chain(one, approve, two),
        chain(approve, one, two),
        ["one", "approved yes", "one", "two"],
    ),
    "the body": (chain(one, approve), chain(one, BETTER), ["one", "better yes"]),
    "a passed join": (
        joined("one", "work"),
        chain(("end", approve)),
        ["one", "one", "two", "approved yes"],
    ),
    "behind it in a subgraph": (
        outer(approve),
        outer(approve, three),
        ["one", "a", "one", "approved yes", "three", "two"],
    ),
    "the body of an entrypoint": (
        flow("flow"),
        flow("flow", more=True),
        ["prepared x", "approved yes", "prepared again"],
    ),
}


@pytest.mark.parametrize("what", GOES_ON)
async def test_a_run_goes_on_when_only_what_is_before_or_behind_it_changed(
    url: str, what: str
) -> None:
    old, new, log = GOES_ON[what]
    done = await after(url, await start(url, old), new)
    assert (done.state, done.reason) == (State.DONE, None)
    assert done.output == said("a", *log)


@pytest.mark.parametrize("after_join", [False, True])
async def test_a_join_that_is_half_reached_does_not_look_like_a_breakpoint(
    sqlite_url: str, after_join: bool
) -> None:
    builder = joined("ask", "work") if after_join else _half_joined()
    graph = builder.compile(interrupt_before=["end"])
    async with opened(sqlite_url) as rt:
        rt.register(graph, name="g")
        run = await rt.start("g", said("a"))
        await rt.tick()
        for _ in range(3):
            await answer(rt, run)
        assert (await rt.get(run.id)).state == State.DONE


def _half_joined() -> StateGraph[Any]:
    """A join of two, of which one is never taken."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name, node in (("ask", approve), ("never", one), ("last", two), ("end", three)):
        builder.add_node(name, node)
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", lambda state: "end", ["end", "never"])
    builder.add_edge(["ask", "never"], "last")
    return builder
