"""Workers announce themselves, and one that is asked to drain ends as on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.commands import workers
from perdure.commands.workers import WorkerRow
from perdure.errors import NotFound
from perdure.execution import lease
from perdure.types import Actor, State, WorkerInfo, WorkerState
from tests.support.agents import Calls, Log, chain, driving, opened, reaches
from tests.support.controls import echo, said
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil
from tests.support.raw import execute
from tests.support.ui_worker_child import NAME, graph


@pytest.fixture(autouse=True)
def _announced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "SOON", 0.0)
    monkeypatch.setattr("perdure.execution.worker.DRAINS", 0.0)


async def one_worker(rt: perdure.Runtime) -> WorkerInfo:
    found: list[WorkerInfo] = []

    async def look() -> bool:
        found[:] = await rt.workers()
        return bool(found)

    await auntil(look)
    [one] = found
    return one


def rows(url: str) -> int:
    [[number]] = execute(url, "SELECT COUNT(*) FROM perdure_workers")
    return int(number)


async def test_a_worker_is_listed_with_what_it_drives_until_it_stops(url: str) -> None:
    go = threading.Event()

    def hold(state: Log) -> Any:
        go.wait(60)
        return said("held")

    async with opened(url) as rt:
        rt.register(chain(hold), name="g")
        rt.register(chain(echo), name="h", version="2")
        async with driving(rt, concurrency=7):
            run = await rt.start("g", said(), thread_id="t")
            await reaches(rt, run, State.RUNNING)
            await auntil(lambda: rows(url) == 1)
            one = await one_worker(rt)
            assert one.id == rt.worker_id
            assert (one.state, one.concurrency, one.driven) == (WorkerState.ALIVE, 7, 1)
            assert (one.graphs, one.started_at) == (("g", "h@2"), one.seen_at)
            [driven] = one.runs
            assert (driven.run_id, driven.thread_id, driven.graph) == (run.id, "t", "g")
            assert f"{one.host}:{one.pid}:" in one.id
            go.set()
            await reaches(rt, run, State.DONE)
            assert (await one_worker(rt)).driven == 0
        assert await rt.workers() == []
        assert rows(url) == 0


async def test_two_workers_of_a_process_share_a_row(sqlite_url: str) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        rt.register(chain(echo), name="h")
        async with driving(rt, concurrency=2, graphs=["g"]):
            await auntil(lambda: rows(sqlite_url) == 1)
            async with driving(rt, concurrency=3, graphs=["h"]):

                async def both() -> bool:
                    return (await one_worker(rt)).graphs == ("g", "h")

                await auntil(both)
                assert (await one_worker(rt)).concurrency == 5
            assert rows(sqlite_url) == 1
        assert rows(sqlite_url) == 0


async def test_a_worker_that_stops_before_it_is_announced_leaves_the_row_of_another(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(echo), name="g")
        async with driving(rt):
            await auntil(lambda: rows(sqlite_url) == 1)
            monkeypatch.setattr(lease, "SOON", 3600.0)
            async with driving(rt):
                run = await rt.start("g", said(), thread_id="t")
                await reaches(rt, run, State.DONE)
            assert rows(sqlite_url) == 1
            await rt.drain(rt.worker_id)


async def test_a_worker_that_is_asked_to_drain_finishes_its_step_and_ends(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    go, calls = threading.Event(), Calls()

    def hold(state: Log) -> Any:
        go.wait(60)
        return said("held")

    caplog.set_level(logging.INFO, "perdure")
    async with opened(url) as rt:
        rt.register(chain(hold, calls.node("after")), name="g")
        work = asyncio.create_task(rt.work())
        run = await rt.start("g", said(), thread_id="t")
        await reaches(rt, run, State.RUNNING)
        one = await one_worker(rt)
        await auntil(lambda: rows(url) == 1)
        await rt.drain(one.id, by=Actor("ana", via="browser", address="10.0.0.7"))
        await rt.drain(one.id, by="bo")
        asked = await one_worker(rt)
        assert (asked.state, asked.drain_at) == (WorkerState.DRAINING, rt.clock.time)
        assert asked.drain_by == {"by": "ana", "via": "browser", "from": "10.0.0.7"}
        await auntil(lambda: "draining, asked by ana (browser, 10.0.0.7)" in caplog.text)
        go.set()
        counts = await work
        assert (counts.claimed, counts.released) == (1, 1)
        assert (await rt.get(run.id)).state is State.PENDING
        assert calls == []
        assert await rt.workers() == []
        with pytest.raises(NotFound, match="no worker"):
            await rt.drain(one.id)
        async with driving(rt):  # the same process may work again
            await reaches(rt, run, State.DONE)
        assert calls == ["after"]


async def test_a_request_to_drain_outlasts_an_announcement_whose_reply_was_lost(url: str) -> None:
    async with opened(url) as rt:
        now = rt.clock.now()
        row = WorkerRow("far:1:ab", "far", 1, '["g@"]', 50, now, now)
        await rt.journal.ado(workers.announce(row, is_new=True))
        await rt.drain(row.id, by="ana")
        again = row._replace(seen_at=now + 10_000)
        await rt.journal.ado(workers.announce(again, is_new=True))
        [one] = await rt.workers()
        assert (one.state, one.drain_by) == (WorkerState.DRAINING, {"by": "ana"})
        anew = row._replace(started_at=now + 20_000, seen_at=now + 20_000)
        await rt.journal.ado(workers.announce(anew, is_new=True))
        [one] = await rt.workers()
        assert (one.state, one.started_at) == (WorkerState.ALIVE, one.seen_at)


async def test_a_worker_without_heartbeats_is_silent_and_forgotten_after_an_hour(
    url: str,
) -> None:
    async with opened(url) as rt:
        rt.register(chain(echo), name="g")
        now = rt.clock.now()
        gone = WorkerRow("far:1:ab", "far", 1, '["g@"]', 50, now, now)
        await rt.journal.ado(workers.announce(gone, is_new=True))
        assert [one.state for one in await rt.workers()] == [WorkerState.ALIVE]
        rt.clock.advance(timedelta(minutes=5))
        [one] = await rt.workers()
        assert (one.state, one.host, one.pid) == (WorkerState.SILENT, "far", 1)
        rt.clock.advance(timedelta(hours=1))
        async with driving(rt):
            await auntil(lambda: rows(url) == 1)

            async def forgotten() -> bool:
                return [one.id for one in await rt.workers()] == [rt.worker_id]

            await auntil(forgotten)


@pytest.mark.slow
async def test_a_killed_worker_is_dead_at_once_and_gone_once_its_run_was_taken_over(
    url: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    async with perdure.Runtime(url) as rt:
        rt.register(graph(), name=NAME)
        with fork_server.child("ui_worker_child:work", url=url) as killed:
            run = await rt.start(NAME, {"folder": str(tmp_path)}, thread_id="t")
            await auntil((tmp_path / "loading").exists, "the middle of a step")
            await auntil(lambda: rows(url) == 1, "the announcement")
            killed.kill()
            [one] = await rt.workers()
            assert (one.pid, one.state, one.driven) == (killed.pid, WorkerState.DEAD, 1)
        (tmp_path / "go").touch()
        async with driving(rt):
            await reaches(rt, run, State.DONE)

            async def is_gone() -> bool:
                return [one.id for one in await rt.workers()] == [rt.worker_id]

            await auntil(is_gone, "the new worker alone")
