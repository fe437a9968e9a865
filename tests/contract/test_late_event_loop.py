"""A worker whose event loop is late knows it first: it stops before another worker takes its runs,
says why in its log and in the history of the run, and never takes a run from itself."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import operator
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.errors import LeaseLost
from perdure.observe import Metrics
from perdure.types import Event, Run, State
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.polling import auntil, until


class Work(TypedDict, total=False):
    folder: str
    """Where what happened is noted, and the files that let it go on."""
    log: Annotated[list[str], operator.add]


def note(folder: str, word: str) -> None:
    with (Path(folder) / "notes").open("a") as file:
        file.write(f"{word} {os.getpid()}\n")


@perdure.effect
def pay(folder: str) -> str:
    note(folder, "paid")
    return "receipt"


def plain(state: Work) -> Work:
    """Ends, with a call, once there is a file `go`."""
    folder = state["folder"]
    note(folder, "begun")
    until((Path(folder) / "go").exists, "a file `go`")
    try:
        return {"log": [pay(folder)]}
    except LeaseLost:
        note(folder, "refused")
        raise


def last(state: Work) -> Work:
    note(state["folder"], "last")
    return {"log": ["last"]}


def runtime(url: str, lease: float, **options: Any) -> perdure.Runtime:
    rt = perdure.Runtime(url, lease=timedelta(seconds=lease), **options)
    rt.register(StateGraph(Work).add_sequence([plain, last]).add_edge(START, "plain"), name="work")
    return rt


async def work(order: dict[str, Any], tell: Tell) -> None:
    """A worker, beside a coroutine that blocks its event loop while there is a file `block`, or
    computes while there is a file `starve`, at a CPU that others keep busy."""
    logging.basicConfig(level=logging.INFO)
    folder = Path(order["folder"])
    metrics = Metrics(listen="127.0.0.1:0")
    async with runtime(order["url"], order["lease"], observe=metrics) as rt:
        (folder / f"port-{os.getpid()}").write_text(str(metrics.port))
        beside = asyncio.create_task(greedy(folder)) if order.get("greedy") else None
        await rt.work(grace=timedelta(seconds=1))
        if beside is not None:
            beside.cancel()


async def greedy(folder: Path) -> None:
    while True:
        await asyncio.sleep(0.01)
        if (folder / "block").exists():
            block(folder)
        if (folder / "starve").exists():
            with starved():
                compute(folder)


def block(folder: Path) -> None:
    while (folder / "block").exists():
        time.sleep(0.01)


def compute(folder: Path) -> None:
    while (folder / "starve").exists():
        hashlib.sha256(LOAD)


LOAD = bytes(1 << 20)
"""It is hashed without the interpreter's lock, which would keep all threads."""


@contextmanager
def starved() -> Iterator[None]:
    """This thread shares one CPU with busy processes, and is the least of them."""
    cpu = min(os.sched_getaffinity(0))
    os.sched_setaffinity(threading.get_native_id(), {cpu})
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
    busy = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile os.getppid() == {os.getpid()}: 0"
    others = [subprocess.Popen([sys.executable, "-S", "-c", busy]) for _ in range(2)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


LEASE = 2.0
SUSPENDED = "this process was suspended, or the machine is starved"


class Place:
    """The folder in which the workers of a test note what they do."""

    def __init__(self, folder: Path, server: ForkServer, url: str) -> None:
        self.folder, self._server, self._url = folder, server, url

    def worker(self, name: str, **order: Any) -> AbstractContextManager[Child]:
        order |= {"url": self._url, "lease": LEASE, "folder": str(self.folder)}
        return self._server.child(work, log=str(self.folder / name), **order)

    async def begun(self, rt: perdure.Runtime, worker: Child) -> Run:
        """A run of which this worker is in the middle."""
        run = await rt.start("work", {"folder": str(self.folder), "log": []})
        until(lambda: f"begun {worker.pid}" in self.notes, "a node that began")
        return run

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    @property
    def notes(self) -> list[str]:
        notes = self.folder / "notes"
        return notes.read_text().splitlines() if notes.exists() else []

    def log(self, name: str, word: str) -> list[str]:
        return [one for one in (self.folder / name).read_text().splitlines() if word in one]

    def lag(self, worker: Child) -> float:
        """The sum of how late the event loop of a worker was, as its metrics say."""
        port = (self.folder / f"port-{worker.pid}").read_text()
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            lines = page.read().decode().splitlines()
        [found] = [one for one in lines if one.startswith("perdure_event_loop_lag_seconds_sum")]
        return float(found.split()[1])

    def stop(self, worker: Child) -> None:
        """Suspend a process, but not inside a transaction, which would lock the file of SQLite."""

        def is_stopped() -> bool:
            worker.stop()
            if not self._url.startswith("sqlite") or _is_free(self._url):
                return True
            worker.send(signal.SIGCONT)
            return False

        until(is_stopped, "a process that stands still")


def _is_free(url: str) -> bool:
    path = url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


@pytest.fixture
def place(tmp_path: Path, fork_server: ForkServer, url: str) -> Place:
    return Place(tmp_path, fork_server, url)


def is_over(rt: perdure.Runtime, run: Run) -> Callable[[], Awaitable[bool]]:
    async def look() -> bool:
        return (await rt.get(run.id)).ended

    return look


async def found(rt: perdure.Runtime, run: Run, kind: str) -> Event | None:
    return next((one for one in await rt.events(run.id) if one.kind == kind), None)


@pytest.mark.slow
async def test_a_worker_whose_loop_is_blocked_gives_its_runs_up_before_another_takes_them(
    url: str, place: Place
) -> None:
    with (
        runtime(url, LEASE) as rt,
        place.worker("first", greedy=True) as first,
    ):
        run = await place.begun(rt, first)
        with place.worker("second") as second:
            until(lambda: (place.folder / f"port-{second.pid}").exists(), "a second worker")
            place.touch("block")
            recovered = await auntil(lambda: found(rt, run, "recovered"), "a takeover")
            released = await found(rt, run, "released")
            assert released is not None
            assert released.n == recovered.n - 1
            assert f":{second.pid}:" in recovered.data["worker"]
            for said in (released.data["reason"], *place.log("first", "is given up")):
                assert "event loop did not respond for" in said
                assert "blocked by block (" in said
            assert len(place.log("first", f"run {run.id} of 'work' is given up")) == 1
            assert (await rt.doctor()).findings == ()
            # What the first one still runs begins nothing, and its loop, when it is back, neither.
            until(lambda: f"begun {second.pid}" in place.notes, "the second worker")
            place.touch("go")
            until(lambda: f"refused {first.pid}" in place.notes, "the node of the first worker")
            await auntil(is_over(rt, run), "the run to end")
            (place.folder / "block").unlink()
            until(lambda: place.lag(first) > LEASE / 2, "a loop that responds")
            until(lambda: place.log("first", f"run {run.id} of work: released"), "its end there")
        assert (await rt.get(run.id)).output["log"] == ["receipt", "last"]
        assert [one for one in place.notes if one[:4] in ("paid", "last")] == [
            f"paid {second.pid}",
            f"last {second.pid}",
        ]
        kinds = [one.kind for one in await rt.events(run.id)]
        assert (kinds.count("recovered"), kinds.count("done")) == (1, 1)


@pytest.mark.slow
async def test_a_worker_that_was_suspended_goes_on_with_its_runs_if_no_other_has_them(
    url: str, place: Place
) -> None:
    """A loop that is back before the lease is renewed takes no run from its own process."""
    with runtime(url, LEASE) as rt, place.worker("first") as first:
        run = await place.begun(rt, first)
        for _ in range(3):
            said = len(place.log("first", SUSPENDED))
            # On a busy machine its lease may be over already: it would be suspended for no time.
            await auntil(lambda: is_fresh(rt, run), "a lease that was just renewed")
            place.stop(first)
            await auntil(lambda: is_past(rt, run), "the end of its lease")
            first.send(signal.SIGCONT)
            until(lambda: len(place.log("first", SUSPENDED)) > said, "a word about it")  # noqa: B023
            assert run.id in place.log("first", SUSPENDED)[-1]
        place.touch("go")
        await auntil(is_over(rt, run), "the run to end")
        assert place.notes == [f"{one} {first.pid}" for one in ("begun", "paid", "last")]
        kinds = {one.kind for one in await rt.events(run.id)}
        assert kinds.isdisjoint({"released", "recovered"})


async def is_fresh(rt: perdure.Runtime, run: Run) -> bool:
    due = (await rt.get(run.id)).due_at
    return due is not None and due - datetime.now(UTC) > timedelta(seconds=LEASE / 2)


async def is_past(rt: perdure.Runtime, run: Run) -> bool:
    due = (await rt.get(run.id)).due_at
    return due is not None and due < datetime.now(UTC)


@pytest.mark.slow
async def test_a_worker_that_was_suspended_continues_no_run_that_another_has_taken(
    url: str, place: Place
) -> None:
    with runtime(url, LEASE) as rt, place.worker("first") as first:
        run = await place.begun(rt, first)
        place.stop(first)
        with place.worker("second") as second:
            recovered = await auntil(lambda: found(rt, run, "recovered"), "a takeover")
            [silent] = recovered.data["silent"]
            assert f":{first.pid}:" in silent
            first.send(signal.SIGCONT)
            until(lambda: place.log("first", f"run {run.id} of work: lost"), "its end there")
            assert place.log("first", SUSPENDED)
            until(lambda: f"begun {second.pid}" in place.notes, "the second worker")
            place.touch("go")
            await auntil(is_over(rt, run), "the run to end")
            until(lambda: f"refused {first.pid}" in place.notes, "the node of the first worker")
        assert [one for one in place.notes if one[:4] in ("paid", "last")] == [
            f"paid {second.pid}",
            f"last {second.pid}",
        ]
        assert (await rt.get(run.id)).state is State.DONE


@pytest.mark.slow
async def test_a_loop_that_waits_for_a_cpu_is_called_starved(url: str, place: Place) -> None:
    """And not blocked by what it happens to do."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this system does not say how long a thread waited")
    with runtime(url, LEASE) as rt, place.worker("first", greedy=True) as first:
        run = await place.begun(rt, first)
        place.touch("starve")
        released = await auntil(lambda: found(rt, run, "released"), "a run that is given up")
        (place.folder / "starve").unlink()
        assert "the machine is starved" in released.data["reason"]
        assert "blocked" not in released.data["reason"]
        place.touch("go")
        await auntil(is_over(rt, run), "the run to end")
