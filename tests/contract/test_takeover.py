"""Workers that die are replaced, and a live one keeps its runs."""

from __future__ import annotations

import asyncio
import operator
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
import perdure.testing
from perdure.errors import Error, ThreadBusy
from perdure.types import Run, State
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil, until
from tests.support.runtime_child import Ledger, worker_process, worker_runtime


def is_state(rt: perdure.Runtime, run: Run, *states: State) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await rt.get(run.id)).state in states

    return look


async def kinds(rt: perdure.Runtime, run: Run) -> list[str]:
    return [event.kind for event in await rt.events(run.id)]


async def until_recovered(rt: perdure.Runtime, run: Run) -> float:
    """Seconds until another worker has it."""
    begun = time.monotonic()

    async def look() -> bool:
        return "recovered" in await kinds(rt, run)

    await auntil(look, "another worker taking it over")
    return time.monotonic() - begun


class Place:
    """A folder with a ledger, as the nodes of `tests.support.runtime_child` use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ledger = Ledger(folder / "ledger")

    def input(self, name: str) -> dict[str, Any]:
        return {"folder": str(self.folder), "name": name, "log": []}

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def begun(self, name: str, pid: int) -> Callable[[], bool]:
        return lambda: f"{name} hold {pid}" in self.ledger.lines()

    def times(self, words: str) -> int:
        return sum(line.startswith(words) for line in self.ledger.lines())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("graph", ["hold", "spawn"])
async def test_a_worker_killed_on_this_host_is_replaced_at_once(
    url: str, fork_server: ForkServer, place: Place, graph: str
) -> None:
    """Whether or not it left children behind, which have all its files open."""
    options = {"lease": 30.0}  # long: it is not what brings the run back
    with (
        worker_runtime(url) as rt,
        ExitStack() as later,
        worker_process(fork_server, url, options=options, concurrency=1) as first,
    ):
        later.callback(place.touch, "over")  # children that were left behind end
        run = await rt.start(graph, place.input("it"), thread_id="t")
        until(place.begun("it", first.pid), "a node that began")
        with worker_process(fork_server, url, options=options) as second:
            other = await rt.start("steps", place.input("other"), thread_id="u")
            await auntil(is_state(rt, other, State.DONE), "a second worker that works")
            assert "recovered" not in await kinds(rt, run)
            first.send(signal.SIGKILL)
            took = await until_recovered(rt, run)
            print(f"\n{graph}: taken over {took * 1000:.0f} ms after the kill", file=sys.stderr)
            assert took < 15.0, "its lease would have brought it back"
            until(place.begun("it", second.pid), "the node to run again")
            place.touch("go")
            await auntil(is_state(rt, run, State.DONE), "the run to end")
        assert (await rt.get(run.id)).output["log"] == [f"hold {second.pid}", "last"]
        assert not (await rt.doctor()).findings


@pytest.mark.slow
async def test_a_worker_killed_on_another_host_is_replaced_after_its_lease(
    url: str, fork_server: ForkServer, place: Place, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with (
        worker_runtime(url) as rt,
        worker_process(fork_server, url) as first,
        ExitStack() as later,
    ):
        run = await rt.start("hold", place.input("it"), thread_id="t")
        until(place.begun("it", first.pid), "a node that began")
        second = later.enter_context(worker_process(fork_server, url, host=str(elsewhere)))
        until(lambda: any(elsewhere.glob("*/*.lock")), "a second worker")
        assert "recovered" not in await kinds(rt, run)
        first.send(signal.SIGKILL)
        took = await until_recovered(rt, run)
        print(f"\nelsewhere: taken over {took:.2f} s after the kill", file=sys.stderr)
        assert took > 3.0 / 2
        place.touch("go")
        await auntil(is_state(rt, run, State.DONE), "the run to end")
        assert (await rt.get(run.id)).output["log"] == [f"hold {second.pid}", "last"]


@pytest.mark.slow
@pytest.mark.parametrize("host", ["here", "elsewhere"])
async def test_a_second_worker_that_starts_never_disturbs_a_live_run(
    url: str, fork_server: ForkServer, place: Place, tmp_path: Path, host: str
) -> None:
    folder = tmp_path / host
    folder.mkdir()
    options = {"lease": 0.8}
    where = {} if host == "here" else {"host": str(folder)}
    with worker_runtime(url) as rt, worker_process(fork_server, url, options=options) as first:
        run = await rt.start("hold", place.input("it"), thread_id="t")
        until(place.begun("it", first.pid), "a node that began")
        leases: set[datetime | None] = set()

        async def renewed() -> bool:
            leases.add((await rt.get(run.id)).due_at)
            return len(leases) >= 6  # a lease and a half

        for _ in range(2):  # and once more, after the second one was killed
            leases.clear()
            with worker_process(fork_server, url, options=options, **where) as second:
                await auntil(renewed, "leases that are kept")
                second.send(signal.SIGKILL)
                second.wait()
        place.touch("go")
        await auntil(is_state(rt, run, State.DONE), "the run to end")
        assert "recovered" not in await kinds(rt, run)
        assert place.times("it hold") == place.times("it last") == 1
        assert (await rt.get(run.id)).output["log"] == [f"hold {first.pid}", "last"]


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 50])
async def test_a_run_that_kills_its_workers_is_held_and_the_others_finish(
    url: str, fork_server: ForkServer, place: Place, concurrency: int
) -> None:
    with worker_runtime(url, deaths=3) as rt:
        killer = await rt.start("kill", place.input("killer"), thread_id="killer")
        others = [
            await rt.start("steps", place.input(f"other-{n}"), thread_id=f"other-{n}")
            for n in range(4)
        ]
        deaths = 0
        held = False
        while not held:
            with worker_process(
                fork_server, url, options={"deaths": 3}, concurrency=concurrency
            ) as worker:
                deadline = time.monotonic() + 30.0
                while not worker.is_over() and not held:
                    held = (await rt.get(killer.id)).state is State.HELD
                    assert time.monotonic() < deadline
                if not held:
                    deaths += 1
                    assert deaths <= 9, "its first two checkpoints may each begin the count anew"
                else:
                    for other in others:
                        done = is_state(rt, other, State.DONE, State.HELD, State.FAILED)
                        await auntil(done, "the others to end")
                    worker.send(signal.SIGTERM)
                    assert worker.wait() == 0
        assert deaths >= 3
        assert place.times("killer kill") == deaths
        found = await rt.get(killer.id)
        assert "3 workers in a row died" in str(found.reason)
        assert [(await rt.get(other.id)).state for other in others] == [State.DONE] * 4
        assert not (await rt.doctor()).findings
        # The fix is deployed, and somebody has it tried again.
        place.touch("fixed")
        await rt.retry(killer.id)
        with worker_process(fork_server, url):
            await auntil(is_state(rt, killer, State.DONE), "the fixed run to end")
        assert (await rt.get(killer.id)).output["log"] == ["survived", "last"]


class Mine(TypedDict, total=False):
    name: str
    log: Annotated[list[str], operator.add]


def chain(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Mine)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0].__name__)
    return graph


async def test_of_a_worker_two_ticks_and_a_bound_graph_one_drives_a_run(url: str) -> None:
    ran: Counter[str] = Counter()

    def work(state: Mine) -> Mine:
        ran[state["name"]] += 1
        return {"log": ["work"]}

    def more(state: Mine) -> Mine:
        ran[state["name"]] += 1
        return {"log": ["more"]}

    names = [f"t{n}" for n in range(25)]
    first, second = perdure.Runtime(url), perdure.Runtime(url)
    bound = first.register(chain(work, more), name="g")
    other = second.register(chain(work, more), name="g")

    async def inline(graph: Any, name: str) -> str:
        try:
            await graph.ainvoke(None, {"configurable": {"thread_id": name}})
        except (ThreadBusy, Error):
            return "refused"
        return "driven"

    async with first, second:
        runs = [await first.start("g", {"name": name, "log": []}, thread_id=name) for name in names]
        counts: list[Any] = await asyncio.gather(
            first.work(until_idle=True),
            second.tick(limit=100),
            second.tick(limit=100, concurrency=1),
            *[inline(graph, name) for graph in (bound, other) for name in names[:10]],
        )
        # A bound graph that came too late has begun a run of its own, with nothing in it.
        await first.work(until_idle=True)
        for run in runs:
            found = await first.get(run.id)
            assert (found.state, found.output["log"]) == (State.DONE, ["work", "more"]), found
            seen = await kinds(first, run)
            assert seen.count("claimed") == seen.count("done") == 1
            assert "recovered" not in seen
        assert ran == dict.fromkeys(names, 2)
        driven = sum(one == "driven" for one in counts[3:])
        assert sum(one.claimed for one in counts[:3]) + driven >= 25
        assert not (await first.doctor()).findings


async def test_a_clock_that_is_set_fires_no_timer_early_or_twice(url: str) -> None:
    chance = random.Random(7)

    def nap(state: Mine) -> Mine:
        perdure.sleep(timedelta(minutes=chance.randint(1, 90)))
        return {"log": ["nap"]}

    def listen(state: Mine) -> Mine:
        heard = perdure.wait_for("never", timeout=timedelta(minutes=30), default="silence")
        return {"log": [heard]}

    rt = perdure.testing.runtime(url)
    rt.register(chain(nap, listen), name="g")
    async with rt:
        begun = rt.clock.time
        runs = [await rt.start("g", {"log": []}, thread_id=f"t{n}") for n in range(6)]
        for _ in range(30):
            rt.clock.move_to(begun + timedelta(minutes=chance.randint(-120, 100)))
            await rt.tick()
        rt.clock.move_to(begun + timedelta(hours=12))
        await rt.tick()
        rt.clock.advance(timedelta(hours=1))
        await rt.tick()
        rt.clock.advance(timedelta(days=-2))
        assert (await rt.tick()).claimed == 0
        for run in runs:
            assert (await rt.get(run.id)).output == {"log": ["nap", "silence"]}
            events = await rt.events(run.id)
            asked = {event.data["wait"]: event.data for event in events if event.kind == "wait"}
            fired = [event for event in events if event.kind in ("woke", "expired")]
            assert Counter(event.kind for event in fired) == {"woke": 1, "expired": 1}
            for event in fired:
                wait = asked[event.data["wait"]]
                assert event.at >= (wait.get("wake_at") or wait["expires_at"]), "early"
        assert not (await rt.doctor()).findings
