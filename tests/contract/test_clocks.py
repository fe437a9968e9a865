"""Clocks that are set, and sleeps that end at their time."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.types import Kind, State
from tests.contract.test_takeover import Place, is_state, kinds, until_recovered
from tests.contract.test_takeover import place as place
from tests.support.fork_server import Child, ForkServer
from tests.support.polling import auntil, until
from tests.support.runtime_child import worker_process, worker_runtime
from tests.support.waiters import (
    DAY,
    MS,
    asking,
    begin,
    chain,
    drive,
    healthy,
    log_of,
    only_wait,
    side_by_side,
    sleeping,
)

LEASE = 0.8


class Wall:
    """The wall clock of one worker: a file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.set_by(timedelta())

    def set_by(self, step: timedelta) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(str(step.total_seconds()))
        new.replace(self.file)


@pytest.fixture
def walls(tmp_path: Path) -> tuple[Wall, Wall]:
    return Wall(tmp_path / "first wall"), Wall(tmp_path / "second wall")


def worker(server: ForkServer, url: str, wall: Wall, *host: str, **order: Any) -> Any:
    options = {"lease": LEASE}
    return worker_process(server, url, clock=[str(wall.file), *host], options=options, **order)


async def drive_both(rt: perdure.Runtime, place: Place, first: Child) -> Any:
    """A run that the first worker is in the middle of."""
    run = await rt.start("hold", place.input("it"), thread_id="t")
    until(place.begun("it", first.pid), "a node that began")
    return run


async def see_it_work(rt: perdure.Runtime, place: Place, name: str) -> None:
    """Another run comes to its end: a worker has claimed since."""
    other = await rt.start("steps", place.input(name), thread_id=name)
    await auntil(is_state(rt, other, State.DONE), "a worker that works")


@pytest.mark.slow
async def test_a_clock_that_is_set_forward_takes_no_run_from_a_live_worker_of_this_host(
    url: str, fork_server: ForkServer, place: Place, walls: tuple[Wall, Wall]
) -> None:
    """One worker sees the new time before the other does, and the other way round."""
    mine, other = walls
    with (
        worker_runtime(url) as rt,
        worker(fork_server, url, mine, concurrency=1) as first,
    ):
        run = await drive_both(rt, place, first)
        with worker(fork_server, url, other):
            await see_it_work(rt, place, "before")
            other.set_by(timedelta(seconds=10))
            await see_it_work(rt, place, "first")
            mine.set_by(timedelta(hours=2))
            await see_it_work(rt, place, "second")
            other.set_by(timedelta(hours=2))
            await see_it_work(rt, place, "third")
            place.touch("go")
            await auntil(is_state(rt, run, State.DONE), "the run to end")
        assert "recovered" not in await kinds(rt, run)
        assert (await rt.get(run.id)).output["log"] == [f"hold {first.pid}", "last"]
        assert place.times("it hold") == 1


@pytest.mark.slow
async def test_between_hosts_the_clock_of_the_journal_decides(
    url: str, fork_server: ForkServer, place: Place, walls: tuple[Wall, Wall]
) -> None:
    """A limit: they share no other clock, so a step beyond the lease looks like a death."""
    mine, other = walls
    with (
        worker_runtime(url) as rt,
        worker(fork_server, url, mine, "here", concurrency=1) as first,
    ):
        run = await drive_both(rt, place, first)
        with worker(fork_server, url, other, "there"):
            await see_it_work(rt, place, "before")
            other.set_by(timedelta(seconds=10))
            await until_recovered(rt, run)
            place.touch("go")
            await auntil(is_state(rt, run, State.DONE), "the run to end")


@pytest.mark.smoke
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
