"""Runs whose worker died go on elsewhere: within a second on this host, after the lease on another.
Healthy workers never disturb each other, a run that kills its workers is held, and neither a
database that restarts nor a clock that is set loses or repeats anything."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
import perdure.testing
from perdure import connect
from perdure.journal.clock import JournalClock
from perdure.types import Run, State
from tests.contract.test_takeover import Mine, Place
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil
from tests.support.runtime_child import worker_process, worker_runtime


async def kinds(rt: perdure.Runtime, run: Run) -> list[str]:
    return [event.kind for event in await rt.events(run.id)]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# -- several at once


def chain(*nodes: Any) -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(Mine)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0].__name__)
    return graph


@pytest.mark.slow
@pytest.mark.parametrize("slow", ["look", "store_topology"])
async def test_a_slow_journal_shortens_no_lease_of_a_live_worker(
    url: str, slow: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither while a worker looks for runs, nor while it prepares one that it has claimed."""
    lease = 2.0
    first, second = [perdure.Runtime(url, lease=timedelta(seconds=lease)) for _ in range(2)]
    left: list[float] = []

    def work(state: Mine) -> Mine:
        return {"log": ["work"]}

    for rt in (first, second):
        rt.register(chain(work), name="g")
    async with first, second:
        run = await first.start("g", {"log": []}, thread_id="t")
        real = first.journal.ado
        looked = 0

        async def ado(op: Any) -> Any:
            nonlocal looked
            if op.name == "claim":
                ends = op.statements[0].params["lease_until"] / 1000
                left.append(ends - time.monotonic())
            if op.name == slow:
                answer, begun = await real(op), time.monotonic()
                while time.monotonic() - begun < 1.5 * lease:
                    if slow == "store_topology":
                        looked += (await second.tick()).claimed
                    await asyncio.sleep(0.05)
                return answer
            return await real(op)

        monkeypatch.setattr(first.journal, "ado", ado)
        await first.tick(limit=1)
        assert left[0] > lease / 2
        assert looked == 0
        assert (await first.get(run.id)).state is State.DONE
        assert "recovered" not in await kinds(first, run)


@pytest.mark.slow
async def test_a_database_restarted_under_load_loses_nothing(
    served_url: str, restart: Callable[[], None], fork_server: ForkServer, place: Place
) -> None:
    started: list[Run] = []
    options = {"lease": 2.0, "deaths": 10}
    with (
        worker_runtime(served_url) as rt,
        worker_process(fork_server, served_url, options=options, concurrency=10) as first,
        worker_process(fork_server, served_url, options=options, concurrency=10) as second,
    ):

        async def start(n: int) -> None:
            # As a client does: again with the same key until it is told that it was accepted.
            while len(started) <= n:
                try:
                    started.append(
                        await rt.start(
                            "steps", place.input(f"{n}"), thread_id=f"t{n}", key="the one"
                        )
                    )
                except perdure.errors.Unavailable:
                    await asyncio.sleep(0.05)

        # A worker that cannot reach its database when it starts says so and ends, rightly.
        folder = Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}"
        for worker in (first, second):
            there = f"*-{worker.pid}-*.lock"
            await auntil(lambda: _true(any(folder.glob(there))), "a worker to be there")  # noqa: B023
        for n in range(100):
            await start(n)
            if n in (30, 70):
                done = place.times("")
                await auntil(lambda: _true(place.times("") > done), "some work")  # noqa: B023
                await asyncio.to_thread(restart)

        async def over() -> bool:
            try:
                found = await rt.runs(state=State.DONE, limit=200)
            except perdure.errors.Unavailable:
                return False
            return len(found) == 100

        await auntil(over, "100 runs to end", 60.0)
        for run in started:
            found = await rt.get(run.id)
            assert found.output["log"] == ["step", "doze", "last"]
        assert len({run.id for run in started}) == 100
        assert {run.id for run in await rt.runs(limit=200)} == {run.id for run in started}
        assert not (await rt.doctor()).findings
        for worker in (first, second):
            worker.send(signal.SIGTERM)
            assert worker.wait() == 0


async def _true(value: bool) -> bool:
    return value


# -- clocks


async def test_the_wall_clock_of_the_process_does_not_matter(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = time.time

    def wrong() -> float:
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        if caller.startswith("perdure"):
            asked.append(caller)
        return real() + random.choice([-86400.0, 86400.0])

    def nap(state: Mine) -> Mine:
        perdure.sleep(timedelta(milliseconds=50))
        return {"log": [perdure.now().isoformat()]}

    rt = perdure.Runtime(url)
    rt.register(chain(nap), name="g")
    async with rt:
        begun = datetime.now(UTC)
        monkeypatch.setattr(time, "time", wrong)
        run = await rt.start("g", {"log": []}, thread_id="t")
        await rt.tick()

        async def done() -> bool:
            await rt.tick()
            return (await rt.get(run.id)).state is State.DONE

        await auntil(done, "its end")
        monkeypatch.undo()
        assert asked == []
        [said] = (await rt.get(run.id)).output["log"]
        times = [datetime.fromisoformat(said), *[e.at for e in await rt.events(run.id)]]
        assert all(abs(at - begun) < timedelta(minutes=1) for at in times)


def test_a_clock_follows_its_database_when_that_is_set(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = connect(sqlite_url)
    clock = JournalClock(journal)
    try:
        now = clock.now()
        monkeypatch.setattr(journal, "read_committed", lambda op: op.result([[(now + 3_600_000,)]]))
        assert clock.now() - now < 60_000, "it is asked once in a while only"
        clock.agree()
        assert 3_590_000 < clock.now() - now < 3_660_000
    finally:
        journal.close()


# -- who is alive


def test_files_of_processes_that_died_long_ago_are_removed_and_others_are_left(
    tmp_path: Path,
) -> None:
    from perdure.execution.lease import STALE, ProcessLock

    long_ago = time.time() - 2 * STALE
    alive, dead, fresh = ProcessLock(str(tmp_path)), tmp_path / "dead.lock", tmp_path / "fresh.lock"
    alive.acquire()
    dead.touch()
    fresh.touch()
    for path in tmp_path.iterdir():
        if path != fresh:
            os.utime(path, (long_ago, long_ago))
    newcomer = ProcessLock(str(tmp_path))
    newcomer.acquire()
    assert not dead.exists()
    assert fresh.exists(), "its owner may be about to lock it"
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "another").touch()
    (tmp_path / "nowhere.lock").symlink_to(tmp_path / "gone")
    os.utime(tmp_path / "another", (long_ago, long_ago))
    dead.touch()
    os.utime(dead, (long_ago, long_ago))
    third = ProcessLock(str(tmp_path))
    third.acquire()
    assert (tmp_path / "another").exists(), "it is none of ours"
    assert not dead.exists()
    for one in (third, newcomer, alive):
        one.release()


def test_a_process_that_lives_long_is_not_old_when_it_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.execution import lease

    monkeypatch.setattr(lease, "BEAT", -1.0)
    here = lease.ProcessLock(str(tmp_path))
    here.acquire()
    [file] = tmp_path.iterdir()
    os.utime(file, (0, 0))
    here.beat()
    assert file.stat().st_mtime > time.time() - lease.STALE
    here.release()
