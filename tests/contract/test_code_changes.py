"""Runs whose code changed under them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send, interrupt

import perdure
from perdure import Runtime
from perdure.errors import WrongState
from perdure.testing import Clock
from perdure.types import Retry, Run, State
from tests.support.agents import NOON, Calls, Log, chain, checkpoints, history, opened


@pytest.fixture
def url(sqlite_url: str) -> str:
    """SQLite: nothing here depends on the database."""
    return sqlite_url


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


async def test_a_retry_without_the_fix_holds_the_run_again(sqlite_url: str) -> None:
    run = await start(sqlite_url, chain(one, approve))
    async with opened(sqlite_url) as rt:
        rt.register(chain(one, ("confirm", approve)), name="g")
        for _ in range(3):
            assert (await answer(rt, run)).state == State.HELD
            await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).state == State.HELD


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


@pytest.mark.parametrize(
    ("changed", "log"),
    [
        (lambda: chain(one, approve, three, two), ["one", "approved yes", "three", "two"]),
        (lambda: chain(one, approve), ["one", "approved yes"]),
        (lambda: chain(one, approve, three), ["one", "approved yes", "three"]),
        (lambda: chain(three, approve, two), ["one", "approved yes", "two"]),
        (lambda: chain(approve, two), ["one", "approved yes", "two"]),
        (lambda: chain(approve, one, two), ["one", "approved yes", "one", "two"]),
    ],
    ids=["added", "removed", "replaced", "earlier-renamed", "earlier-removed", "other-edges"],
)
async def test_a_run_goes_on_when_only_what_is_before_or_behind_it_changed(
    url: str, changed: Callable[[], StateGraph[Any]], log: list[str]
) -> None:
    run = await start(url, chain(one, approve, two))
    done = await after(url, run, changed())
    assert (done.state, done.reason) == (State.DONE, None)
    assert done.output == said("a", *log)


async def test_a_run_follows_a_condition_that_changed(sqlite_url: str) -> None:
    def routed(target: str) -> StateGraph[Any]:
        builder: StateGraph[Any] = StateGraph(Log)
        builder.add_node(approve)
        builder.add_node(two)
        builder.add_node(three)
        builder.add_edge(START, "approve")
        builder.add_conditional_edges("approve", lambda state: target, ["two", "three", END])
        return builder

    for target, more in (("three", ["three"]), (END, [])):
        run = await start(sqlite_url, routed("two"))
        done = await after(sqlite_url, run, routed(target))
        assert done.output["log"][-1 - len(more) :] == ["approved yes", *more]


async def test_the_body_of_a_node_may_change_while_a_run_waits_in_it(sqlite_url: str) -> None:
    def approve_better(state: Log) -> Any:
        return {"log": [f"better {interrupt('go on?')}"]}

    run = await start(sqlite_url, chain(one, approve))
    done = await after(sqlite_url, run, chain(one, ("approve", approve_better)))
    assert done.output == said("a", "one", "better yes")


async def test_a_run_that_has_not_begun_is_driven_by_whatever_graph_there_is(url: str) -> None:
    async with opened(url) as rt:
        rt.register(chain(one), name="g")
        run = await rt.start("g", said("a"))
    async with opened(url) as rt:
        rt.register(chain(two, three), name="g")
        await rt.tick()
        assert (await rt.get(run.id)).output == said("a", "two", "three")


async def test_a_change_may_follow_a_change(sqlite_url: str) -> None:
    run = await start(sqlite_url, chain(approve, ("again", approve), two))
    waiting = await after(sqlite_url, run, chain(approve, ("again", approve), three))
    assert waiting.state == State.WAITING
    held = await after(sqlite_url, run, chain(approve, ("once more", approve), three))
    assert held.state == State.HELD
    assert "'again'" in (held.reason or "")


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


async def test_a_run_is_held_when_one_of_its_open_branches_is_gone(url: str) -> None:
    def branches(*names: str) -> StateGraph[Any]:
        builder: StateGraph[Any] = StateGraph(Log)
        for name in names:
            builder.add_node(name, approve)
            builder.add_edge(START, name)
        return builder

    run = await start(url, branches("left", "right"))
    held = await after(url, run, branches("left", "other"))
    assert held.state == State.HELD
    assert "'right'" in (held.reason or "")
    assert "'left'" not in (held.reason or "")
    async with opened(url) as rt:
        rt.register(branches("left", "right"), name="g")
        await rt.retry(run.id)
        done = await answer(rt, run)
        assert done.output == said("a", "approved yes", "approved yes")


async def test_a_run_is_held_when_a_join_waits_for_others_than_before(url: str) -> None:
    # What the finished branch said to the old join would be lost, and the join never be reached.
    builder = joined("ask", "work")
    run = await start(url, builder)
    held = await after(url, run, joined("ask", "work", "more"))
    assert held.state == State.HELD
    assert "'last'" in (held.reason or "")
    async with opened(url) as rt:
        rt.register(builder, name="g")
        await rt.retry(run.id)
        await rt.tick()
        done = await answer(rt, run)
        assert done.output["log"][-2:] == ["two", "approved yes"]


async def test_a_join_that_is_passed_may_go(url: str) -> None:
    run = await start(url, joined("one", "work"))
    done = await after(url, run, chain(("end", approve)))
    assert (done.reason, done.state) == (None, State.DONE)


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


async def test_a_run_is_held_when_a_finished_branch_leads_to_a_node_that_is_gone(url: str) -> None:
    def branches(behind: str) -> StateGraph[Any]:
        builder: StateGraph[Any] = StateGraph(Log)
        for name, node in (("ask", approve), ("work", one), (behind, two)):
            builder.add_node(name, node)
        builder.add_edge(START, "ask")
        builder.add_edge(START, "work")
        builder.add_edge("work", behind)
        return builder

    run = await start(url, branches("behind"))
    held = await after(url, run, branches("renamed"))
    assert held.state == State.HELD
    assert "'behind'" in (held.reason or "")
    async with opened(url) as rt:
        rt.register(branches("behind"), name="g")
        await rt.retry(run.id)
        await rt.tick()
        assert sorted((await rt.get(run.id)).output["log"]) == ["a", "approved yes", "one", "two"]


async def test_a_run_is_held_when_what_was_sent_to_a_node_cannot_arrive(url: str) -> None:
    class Pile(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    def spread(state: Pile) -> Any:
        return Command(goto=[Send("worker", {"n": n}) for n in range(2)])

    def worker(state: Any) -> Any:
        return {"log": [f"{state['n']} {perdure.ask(state['n'])}"]}

    def graph(name: str) -> StateGraph[Any]:
        builder: StateGraph[Any] = StateGraph(Pile)
        builder.add_node("spread", spread, destinations=(name,))
        builder.add_node(name, worker)
        builder.add_edge(START, "spread")
        return builder

    run = await start(url, graph("worker"))
    held = await after(url, run, graph("labourer"))
    assert held.state == State.HELD
    assert "'worker'" in (held.reason or "")
    async with opened(url) as rt:
        rt.register(graph("worker"), name="g")
        await rt.retry(run.id)
        done = await answer(rt, run)
        assert sorted(done.output["log"]) == ["0 yes", "1 yes", "a"]


def outer(*inner: Any, name: str = "outer", deep: bool = False) -> StateGraph[Any]:
    """A graph with a graph of these nodes inside, or one more inside that."""
    child = chain(*inner)
    if deep:
        child = chain(one, ("middle", child.compile()))
    return chain(one, (name, child.compile()), two)


@pytest.mark.parametrize("deep", [False, True])
async def test_a_run_is_held_when_the_inner_node_it_waits_in_is_gone(url: str, deep: bool) -> None:
    run = await start(url, outer(three, approve, deep=deep))
    held = await after(url, run, outer(three, ("confirm", approve), deep=deep))
    assert held.state == State.HELD
    assert "'approve'" in (held.reason or "")
    assert "subgraph 'outer'" in (held.reason or "")
    async with opened(url) as rt:
        rt.register(outer(three, approve, deep=deep), name="g")
        await rt.retry(run.id)
        await rt.tick()
        done = await rt.get(run.id)
        assert done.state == State.DONE
        assert done.output["log"][-1] == "two"
        assert "approved yes" in done.output["log"]


async def test_a_run_is_held_when_the_graph_it_waits_in_is_a_plain_node_now(
    sqlite_url: str,
) -> None:
    run = await start(sqlite_url, outer(three, approve))
    held = await after(sqlite_url, run, chain(one, ("outer", three), two))
    assert held.state == State.HELD
    assert "'approve'" in (held.reason or "")


async def test_a_run_is_held_when_the_node_around_its_subgraph_is_gone(sqlite_url: str) -> None:
    run = await start(sqlite_url, outer(three, approve))
    held = await after(sqlite_url, run, outer(three, approve, name="renamed"))
    assert held.state == State.HELD
    assert "'outer'" in (held.reason or "")


async def test_a_run_goes_on_when_its_subgraph_changed_behind_it(url: str) -> None:
    run = await start(url, outer(one, approve))
    done = await after(url, run, outer(one, approve, three))
    assert done.state == State.DONE
    assert done.output["log"][-3:] == ["approved yes", "three", "two"]


def flow(name: str, more: bool = False) -> Any:
    """An entrypoint of this name that asks."""

    @task
    def prepare(text: str) -> str:
        return f"prepared {text}"

    def body(text: str) -> Any:
        prepared = prepare(text).result()
        said = [prepared, perdure.ask("go on?")]
        return [*said, prepare("again").result()] if more else said

    body.__name__ = name
    return entrypoint()(body)


async def test_an_entrypoint_that_waits_is_held_when_it_has_another_name(url: str) -> None:
    run = await start(url, flow("flow"), "x")
    held = await after(url, run, flow("renamed"))
    assert held.state == State.HELD
    assert "'flow'" in (held.reason or "")
    async with opened(url) as rt:
        rt.register(flow("flow"), name="g")
        await rt.retry(run.id)
        await rt.tick()
        assert (await rt.get(run.id)).output == ["prepared x", "yes"]


async def test_an_entrypoint_whose_body_changed_behind_its_wait_goes_on(url: str) -> None:
    run = await start(url, flow("flow"), "x")
    done = await after(url, run, flow("flow", more=True))
    assert done.output == ["prepared x", "yes", "prepared again"]


async def test_a_graph_in_place_of_an_entrypoint_holds_the_run(sqlite_url: str) -> None:
    run = await start(sqlite_url, flow("flow"), "x")
    held = await after(sqlite_url, run, chain(one))
    assert held.state == State.HELD
