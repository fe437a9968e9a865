"""The wall clock is set while workers drive. What decides is the SQL fragment {held}: a lease ends
by the journal's clock and, between processes of one host, by the host's monotonic clock too.

| what happens                        | another worker of this host  | one of another host         |
|-------------------------------------|------------------------------|-----------------------------|
| the clock is set forward            | leaves live workers alone    | takes what seems abandoned  |
| the clock is set back               | takes what a stopped one had | waits for the old time      |
| the host is suspended               | its clock stood still        | takes over: it was away     |
| a worker is stopped, or its loop is | takes over after the lease   | takes over after the lease  |
| a worker is killed                  | takes over at once           | takes over after the lease  |
| the host is rebooted                | another clock: another host  | takes over after the lease  |
| a container without our lock files  | as this host, if it has its  | as another host, if it has  |
|                                     | clock; sees no death at once | a clock of its own          |
| a copy of this machine, restored    | its leases end far too late  | as another host             |
| from a snapshot                     | by our clock: another host   |                             |
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.commands import claims
from perdure.commands.claims import LeaseTimes
from perdure.commands.runs import RunRow
from perdure.errors import NotSettled
from perdure.journal.clock import LONGEST_LEASE, HostTime, host_clock
from perdure.types import State
from tests.contract.test_clocks import Wall, drive_both, worker
from tests.contract.test_takeover import Place, is_state, until_recovered
from tests.contract.test_takeover import place as place
from tests.support.agents import Log, chain, driving, gate, reaches
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil, until
from tests.support.runtime_child import SteppedClock, worker_runtime

LEASE = 0.8


@pytest.fixture
def walls(tmp_path: Path) -> tuple[Wall, Wall]:
    return Wall(tmp_path / "first wall"), Wall(tmp_path / "second wall")


@pytest.mark.slow
@pytest.mark.parametrize("step", [timedelta(seconds=10), timedelta(hours=-1)], ids=str)
@pytest.mark.parametrize("how", ["stopped", "blocked"])
async def test_a_worker_that_stands_still_loses_its_runs_however_the_clock_is_set(
    url: str,
    fork_server: ForkServer,
    place: Place,
    walls: tuple[Wall, Wall],
    tmp_path: Path,
    step: timedelta,
    how: str,
) -> None:
    """It is alive, and its lock is held: that alone must not keep its runs."""
    mine, other = walls
    graph = "hold" if how == "stopped" else "block"
    with (
        worker_runtime(url) as rt,
        worker(fork_server, url, mine, concurrency=1, stops=str(tmp_path)) as first,
    ):
        run = await rt.start(graph, place.input("it"), thread_id="t")
        until(place.begun("it", first.pid), "a node that began")
        if how == "stopped":
            place.touch("stop")
            until(lambda: not (tmp_path / "stop").exists(), "a worker that is stopped")
        for wall in walls:
            wall.set_by(step)
        with worker(fork_server, url, other) as second:
            await until_recovered(rt, run)
            until(place.begun("it", second.pid), "the node to run again")
            place.touch("go")
            await auntil(is_state(rt, run, State.DONE), "the run to end")
            first.send(signal.SIGCONT)
        assert (await rt.get(run.id)).output["log"][-1] == "last"


@pytest.mark.slow
async def test_a_clock_that_is_set_forward_does_not_cut_the_grace_of_a_cancelled_run(
    url: str, fork_server: ForkServer, place: Place, walls: tuple[Wall, Wall]
) -> None:
    mine, _ = walls
    with worker_runtime(url) as rt, worker(fork_server, url, mine) as first:
        run = await drive_both(rt, place, first)
        await rt.cancel(run.id, grace=timedelta(hours=1))

        leases: set[Any] = set()

        async def renewed() -> bool:
            leases.add((await rt.get(run.id)).due_at)
            return len(leases) > 4

        await auntil(renewed, "a keeper that saw the request")
        mine.set_by(timedelta(hours=2))
        leases.clear()
        await auntil(renewed, "a keeper that saw the new time")
        assert (await rt.get(run.id)).state is State.RUNNING
        place.touch("go")
        await auntil(is_state(rt, run, State.CANCELLED), "its end")
        assert place.times("it held") == 1


# -- the statements


NO_CLOCK = HostTime()


class Claimer:
    """Claims a run of a journal as if it were some process at some time."""

    def __init__(self, rt: perdure.Runtime, run_id: str) -> None:
        self._rt, self._run_id = rt, run_id

    def claim(
        self,
        worker: str,
        now: int,
        host: HostTime = NO_CLOCK,
        *,
        by_id: bool = False,
        lease: int = 3000,
    ) -> RunRow | None:
        serializer, times = self._rt.saver.serializer, LeaseTimes(now, now + lease, host)
        if by_id:
            return self._rt.journal.do(
                claims.claim_run(serializer, worker, times, "t", self._run_id)
            )
        found = self._rt.journal.do(claims.claim(serializer, worker, times, ["hold@"], 1))
        return found[0] if found else None


@pytest.fixture
def claimer(url: str) -> Iterator[Claimer]:
    with worker_runtime(url) as rt:
        run = rt.blocking.start("hold", {}, thread_id="t")
        yield Claimer(rt, run.id)


LATER = 4_000_000_000_000
"""Long after the run was started: it is due."""


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(
    ("what", "worker", "now", "host", "taken"),
    [
        ("its lease holds by both", "a:2:x:k1", 0, HostTime("k1", 6000), False),
        ("the wall clock was set forward", "a:2:x:k1", 9000, HostTime("k1", 7999), False),
        ("its lease is over by both", "a:2:x:k1", 3000, HostTime("k1", 8000), True),
        ("another host", "b:2:x:k2", 3000, HostTime("k2", 6000), True),
        ("another host, too early", "b:2:x:k2", 2999, HostTime("k2", 99_000_000), False),
        ("a host without such a clock", "b:2:x", 3000, HostTime(), True),
        ("a copy of the machine", "a:2:x:k1", 3000, HostTime("k1", 7000 - LONGEST_LEASE), True),
        ("the worker itself", "a:1:x:k1", 9000, HostTime("k1", 7999), False),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)
def test_a_lease_is_over_by_the_clocks_that_both_know(
    claimer: Claimer, what: str, worker: str, now: int, host: HostTime, taken: bool, by_id: bool
) -> None:
    assert claimer.claim("a:1:x:k1", LATER, HostTime("k1", 5000), by_id=by_id) is not None
    found = claimer.claim(worker, LATER + now, host, by_id=by_id)
    assert (found is not None) is taken, what


@pytest.mark.parametrize("by_id", [False, True])
def test_a_long_lease_holds_when_the_clock_is_set_forward_too(
    claimer: Claimer, by_id: bool
) -> None:
    lease = 10 * LONGEST_LEASE
    first = claimer.claim("a:1:x:k1", LATER, HostTime("k1", 5000), by_id=by_id, lease=lease)
    assert first is not None
    for tick, taken in ((5001, False), (4999 + lease, False), (5000 + lease, True)):
        host, now = HostTime("k1", tick), LATER + 2 * lease
        found = claimer.claim("a:2:x:k1", now, host, by_id=by_id, lease=lease)
        assert (found is not None) is taken


def test_a_dead_worker_of_this_host_loses_its_leases_at_once(claimer: Claimer) -> None:
    assert claimer.claim("a:1:x:k1", LATER, HostTime("k1", 5000)) is not None
    claimer._rt.journal.do(claims.expire("a:1:x:k1", LATER))
    assert claimer.claim("a:2:x:k1", LATER, HostTime("k1", 5000)) is not None


def test_a_journal_from_before_host_clocks_is_claimed_by_its_own_clock(claimer: Claimer) -> None:
    assert claimer.claim("a:1:x", LATER) is not None
    assert claimer.claim("a:2:x:k1", LATER + 2999, HostTime("k1", 5000)) is None
    assert claimer.claim("a:2:x:k1", LATER + 3000, HostTime("k1", 5000)) is not None


def test_the_id_of_a_worker_ends_with_its_hosts_clock(sqlite_url: str) -> None:
    if not host_clock():
        pytest.skip("this system does not say when it was booted")
    with perdure.Runtime(sqlite_url) as rt:
        assert rt.worker_id.endswith(f":{host_clock()}")
    with perdure.testing.runtime() as rt:
        assert not rt.worker_id.endswith(f":{host_clock()}"), "its clock is moved by the test"


@pytest.mark.parametrize("lease", [LEASE, 300.0], ids=str)
async def test_a_call_under_way_is_not_settled_when_the_clock_is_set_forward(
    sqlite_url: str, walls: tuple[Wall, Wall], lease: float
) -> None:
    calls = []
    with gate() as stands:

        @perdure.effect
        async def slow() -> str:
            calls.append("call")
            await stands.wait()
            return "done"

        async def node(state: Log) -> Log:
            return {"log": [await slow()]}

        worker, person = (SteppedClock(str(wall.file)) for wall in walls)
        walls[1].set_by(timedelta(seconds=400))
        async with (
            perdure.Runtime(sqlite_url, lease=timedelta(seconds=lease), clock=worker) as rt,
            perdure.Runtime(sqlite_url, clock=person) as desk,
        ):
            rt.register(chain(node), name="agent")
            run = await rt.start("agent", {"log": []})
            async with driving(rt):
                await stands.reached()
                [effect] = await desk.effects(run.id)
                with pytest.raises(NotSettled, match="driven just now"):
                    await desk.settle(effect.key, "retry")
                stands.open()
                run = await reaches(rt, run, State.DONE)
            assert (run.output["log"], calls) == (["done"], ["call"])
