"""A worker that lost its lease writes nothing more."""

from __future__ import annotations

import asyncio
import operator
import signal
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
import perdure.testing
from perdure.errors import LeaseLost, ThreadBusy
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Durability, State
from tests.support.agents import Gate, gate, opened
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil, until
from tests.support.raw import execute
from tests.support.runtime_child import Ledger, worker_process, worker_runtime

TABLES = {
    "perdure_runs": "n",
    "perdure_events": "run_id, n",
    "perdure_waits": "id",
    "perdure_reads": "run_id, task, n",
    "perdure_checkpoints": "ns, id",
    "perdure_values": "ns, channel, chain, seq, step",
    "perdure_writes": "ns, checkpoint_id, task_id, stamp",
}


DURABILITIES: list[Durability] = ["auto", "sync", "async", "exit"]


def rows_of(url: str, thread: str) -> dict[str, list[list[Any]]]:
    """All that the journal holds of a thread, byte by byte."""
    found = {}
    for table, order in TABLES.items():
        rows = execute(url, f"SELECT * FROM {table} WHERE thread_id = ? ORDER BY {order}", thread)
        found[table] = [
            [bytes(cell) if isinstance(cell, memoryview) else cell for cell in row] for row in rows
        ]
    return found


class Mine(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def chain(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Mine)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0].__name__)
    return graph


def steal(
    url: str, rt: TemporaryRuntime, thread: str, *, away: timedelta = timedelta(days=1)
) -> None:
    """Another worker takes what is driven on a thread, in one statement, and keeps it so long."""
    now = rt.clock.now()
    until = now + round(away.total_seconds() * 1000)
    # As a claim does it, at a time when our lease is over.
    sql = "UPDATE perdure_runs SET token = token + 1, worker = ?, due_at = ? WHERE thread_id = ?"
    execute(url, f"{sql} AND state = 'running'", "elsewhere:1:thief", until, thread)


@pytest.fixture
def rt(url: str) -> Iterator[TemporaryRuntime]:
    with perdure.testing.runtime(url) as rt:
        assert isinstance(rt, TemporaryRuntime)
        yield rt


@pytest.mark.parametrize("durability", DURABILITIES)
@pytest.mark.parametrize("colour", ["function", "coroutine"])
async def test_a_write_with_an_old_token_is_refused_in_each_durability_mode(
    url: str, rt: TemporaryRuntime, durability: Durability, colour: str
) -> None:
    left: list[Any] = []

    def work(state: Mine) -> Mine:
        steal(url, rt, "t")
        left.append(rows_of(url, "t"))
        return {"log": ["too late"]}

    async def awork(state: Mine) -> Mine:
        return await asyncio.to_thread(work, state)

    def then(state: Mine) -> Mine:
        left.append("the next node")
        return {}

    rt.register(chain(work if colour == "function" else awork, then), name="g")
    run = await rt.start("g", {"log": []}, thread_id="t", durability=durability)
    counts = await rt.tick()
    await auntil(lambda: left, "the look of the node that lost its lease")
    rt.journal.flush()
    assert (counts.claimed, counts.lost, counts.done) == (1, 1, 0)
    assert left[0]["perdure_runs"]
    assert rows_of(url, "t") == left[0], "a fenced driver wrote"
    if durability == "sync":  # else it may have been in the middle of the next step
        assert left[1:] == []
    assert (await rt.get(run.id)).state is State.RUNNING


async def test_a_driver_that_wakes_while_its_successor_drives_writes_nothing(url: str) -> None:
    clock = Clock()
    with gate() as first, gate() as second:

        def holding(held: Gate, name: str) -> Any:
            def work(state: Mine) -> Mine:
                held.block()
                return {"log": [name]}

            return chain(work)

        async with opened(url, clock) as one, opened(url, clock) as other:
            one.register(holding(first, "first"), name="g")
            other.register(holding(second, "second"), name="g")
            run = await one.start("g", {"log": []}, thread_id="t")
            driven = asyncio.create_task(one.tick())
            await first.reached()
            clock.advance(timedelta(hours=1))
            taken = asyncio.create_task(other.tick())
            while not second.entered:
                if taken.done():  # the first one renewed its lease at the new time
                    clock.advance(timedelta(hours=1))
                    taken = asyncio.create_task(other.tick())
                await asyncio.sleep(0.01)
            other.journal.flush()  # what it stored without waiting
            before = rows_of(url, "t")
            first.open()
            assert (await driven).lost == 1
            assert rows_of(url, "t") == before, "the first one wrote"
            second.open()
            assert (await taken).done == 1
            assert (await one.get(run.id)).output["log"] == ["second"]


@pytest.mark.slow
async def test_a_worker_stopped_past_its_lease_writes_nothing_when_it_wakes(
    url: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    options = {"lease": 0.8}
    given = {"folder": str(tmp_path), "name": "first", "log": []}
    with (
        worker_runtime(url) as rt,
        worker_process(
            fork_server, url, stops=str(tmp_path), options=options, concurrency=2
        ) as stopped,
    ):
        run = await rt.start("hold", given, thread_id="t")
        until(lambda: ledger.lines() == [f"first hold {stopped.pid}"], "a node that began")
        (tmp_path / "stop").touch()
        until(lambda: not (tmp_path / "stop").exists(), "a stopped process")
        with worker_process(fork_server, url, options=options) as other:
            until(lambda: f"first hold {other.pid}" in ledger.lines(), "a takeover")
            (tmp_path / "go").touch()
            done = rt_is(rt, run.id, State.DONE)
            await auntil(done, "the other worker to finish it")
            other.send(signal.SIGTERM)
            assert other.wait() == 0
        assert f"first held {stopped.pid}" not in ledger.lines()
        before = rows_of(url, "t")
        stopped.send(signal.SIGCONT)
        until(lambda: f"first held {stopped.pid}" in ledger.lines(), "the node to wake")
        # It goes on, with something else.
        second = await rt.start("steps", {**given, "name": "second"}, thread_id="u")
        await auntil(rt_is(rt, second.id, State.DONE), "the woken worker to drive another run")
        assert f"second last {stopped.pid}" in ledger.lines()
        stopped.send(signal.SIGTERM)
        assert stopped.wait() == 0
        assert rows_of(url, "t") == before, "the worker that woke wrote"
        found = await rt.get(run.id)
        assert found.output["log"] == [f"hold {other.pid}", "last"]
        kinds = [event.kind for event in await rt.events(run.id)]
        assert kinds.count("claimed") == kinds.count("recovered") == kinds.count("done") == 1
        assert not (await rt.doctor()).findings


def rt_is(rt: perdure.Runtime, run_id: str, state: State) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await rt.get(run_id)).state is state

    return look


Node = Callable[[Mine], Any]


async def test_a_wait_that_is_asked_with_an_old_token_is_not_stored(
    url: str, rt: TemporaryRuntime
) -> None:
    thefts = [1]

    def work(state: Mine) -> Mine:
        if thefts and thefts.pop():
            steal(url, rt, "t", away=timedelta(0))
        return {"log": [perdure.ask("may I?")]}

    rt.register(chain(work), name="g")
    await rt.start("g", {"log": []}, thread_id="t")
    counts = await rt.tick()
    assert (counts.lost, counts.waiting) == (1, 1), "lost, and claimed again as the thief is gone"
    [wait] = await rt.waits(thread_id="t")
    await rt.answer(wait.id, "yes")
    assert (await rt.tick()).done == 1
    kinds = [event.kind for event in await rt.events(wait.run_id)]
    assert kinds.count("wait") == kinds.count("answer") == kinds.count("done") == 1


async def test_recorded_reads_of_a_fenced_driver_are_not_kept(
    url: str, rt: TemporaryRuntime
) -> None:
    seen: list[object] = []

    def work(state: Mine) -> Mine:
        first = not seen
        if first:
            steal(url, rt, "t", away=timedelta(0))
        seen.append(perdure.uuid())
        if first:
            rt.journal.flush()
        seen.append(perdure.uuid())  # the first time it is known by now that the lease is lost
        return {"log": [str(seen[-1])]}

    rt.register(chain(work), name="g")
    run = await rt.start("g", {"log": []}, thread_id="t")
    await rt.tick()
    assert len(seen) == 3
    assert (await rt.get(run.id)).output == {"log": [str(seen[2])]}
    assert execute(url, "SELECT count(*) FROM perdure_reads") == [(2,)]


@pytest.mark.parametrize("where", ["function", "coroutine", "subgraph"])
async def test_an_agent_cannot_catch_that_its_lease_is_lost_by_mistake(
    url: str, rt: TemporaryRuntime, where: str
) -> None:
    swallowed: list[str] = []

    def careless(state: Mine) -> Mine:
        steal(url, rt, "t")
        for _ in range(2):
            try:
                perdure.now()
                rt.journal.flush()
            except Exception as error:
                swallowed.append(repr(error))
        swallowed.append("went on")
        return {"log": ["went on"]}

    async def acareless(state: Mine) -> Mine:
        await asyncio.to_thread(steal, url, rt, "t")
        for _ in range(2):
            try:
                perdure.now()
                await rt.journal.aflush()
            except Exception as error:
                swallowed.append(repr(error))
        swallowed.append("went on")
        return {"log": ["went on"]}

    nested = chain(careless).compile()

    def around(state: Mine) -> Mine:
        try:
            nested.invoke({"log": []})
        except Exception as error:
            swallowed.append(repr(error))
        swallowed.append("went on")
        return {"log": ["went on"]}

    node: Node = {"function": careless, "coroutine": acareless, "subgraph": around}[where]
    rt.register(chain(node), name="g")
    run = await rt.start("g", {"log": []}, thread_id="t")
    counts = await rt.tick()
    assert swallowed == []
    assert counts.lost == 1
    assert not issubclass(LeaseLost, Exception)
    kinds = [event.kind for event in await rt.events(run.id)]
    assert "failed" not in kinds, "losing a lease is nobody's failure"


async def test_other_runs_of_the_process_are_not_disturbed(url: str, rt: TemporaryRuntime) -> None:
    begun, stolen = asyncio.Event(), asyncio.Event()

    async def unlucky(state: Mine) -> Mine:
        await begun.wait()
        await asyncio.to_thread(steal, url, rt, "unlucky")
        stolen.set()
        return {"log": ["too late"]}

    async def lucky(state: Mine) -> Mine:
        begun.set()
        await stolen.wait()
        return {"log": ["lucky"]}

    def after(state: Mine) -> Mine:
        return {"log": ["after"]}

    rt.register(chain(unlucky), name="unlucky")
    rt.register(chain(lucky, after), name="lucky")
    await rt.start("unlucky", {"log": []}, thread_id="unlucky")
    others = [await rt.start("lucky", {"log": []}, thread_id=f"lucky-{n}") for n in range(5)]
    counts = await rt.tick()
    assert (counts.claimed, counts.done, counts.lost, counts.failed) == (6, 5, 1, 0)
    for other in others:
        found = await rt.get(other.id)
        assert found.output == {"log": ["lucky", "after"]}
        assert [e.kind for e in await rt.events(other.id)].count("claimed") == 1


async def test_a_bound_graph_that_lost_its_lease_says_so_and_writes_nothing(
    url: str,
    rt: TemporaryRuntime,
) -> None:
    left: list[Any] = []

    def work(state: Mine) -> Mine:
        steal(url, rt, "t")
        left.append(rows_of(url, "t"))
        return {"log": ["too late"]}

    bound: Any = rt.register(chain(work), name="g")
    with pytest.raises(ThreadBusy):
        await asyncio.to_thread(bound.invoke, {"log": []}, {"configurable": {"thread_id": "t"}})
    rt.journal.flush()
    assert rows_of(url, "t") == left[0]


async def test_a_function_that_takes_longer_than_its_lease_keeps_it(
    url: str, tmp_path: Path
) -> None:
    """Only the loop has to be alive: what runs in a thread may take its time."""
    rt = perdure.Runtime(url, lease=timedelta(seconds=0.5))
    ends: set[Any] = set()

    def slow(state: Mine) -> Mine:
        def renewed() -> bool:
            ends.update(execute(url, "SELECT due_at FROM perdure_runs"))
            return len(ends) >= 5

        until(renewed, "a lease that is kept")
        return {"log": ["slow"]}

    rt.register(chain(slow), name="g")
    async with rt:
        run = await rt.start("g", {"log": []}, thread_id="t")
        counts = await rt.tick()
        assert (counts.claimed, counts.done) == (1, 1)
        assert (await rt.get(run.id)).output == {"log": ["slow"]}
