"""Runs that wait hold nothing, and are answered by nobody but a person."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import d1, testing
from perdure.testing import Clock
from perdure.testing.postgres import Server
from perdure.types import State
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil
from tests.support.raw import execute
from tests.support.waiters import (
    ANSWER,
    DAY,
    MINUTE,
    asking,
    begin,
    drive,
    healthy,
    kinds,
    listening,
    log_of,
    registered,
    side_by_side,
    sleeping,
)


async def test_a_run_that_waits_holds_nothing(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(
            rt, side_by_side(sleeping(DAY), asking("q"), listening("s", timeout=2 * DAY))
        )
        assert run.state is State.WAITING
        rows = await asyncio.to_thread(execute, url, "SELECT worker, control FROM perdure_runs")
        assert rows == [(None, None)]
        await auntil(lambda: not [t for t in threading.enumerate() if run.id in t.name])
        assert [e.kind for e in await rt.events(run.id)][-1] == "waiting"


async def test_a_person_is_never_answered_for_by_any_clock(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(asking({"wake": 1}), sleeping(DAY)))
        wait = (await rt.waits(kind="human"))[0]
        for days in (1, 30, 36500):
            rt.clock.advance(days * DAY)
            await drive(rt)
            assert await rt.waits() == [wait]
        found = await rt.get(run.id)
        assert (found.state, found.due_at) == (State.WAITING, None)
        assert (await rt.tick()).claimed == 0


POINTS = [
    "claim.after",
    "apply_wait.before",
    "apply_wait.after",
    "take_signal.before",
    "take_signal.after",
    "progress.before",
    "progress.after",
    "insert_wait.before",
    "let_go.before",
    "let_go.after",
    *[f"commit.after#{n}" for n in range(1, 8)],
]


async def _ends_well(url: str) -> list[str]:
    """Whoever comes after a killed worker finds the answers."""
    rt = registered(url, Clock(datetime.now(UTC) + 2 * MINUTE))
    async with rt:
        [run] = await rt.runs()

        async def ended() -> bool:
            await drive(rt)
            return (await rt.get(run.id)).ended

        await auntil(ended)
        log = await log_of(rt, run)
        assert log[:2] == [ANSWER, "stop"]
        assert log[3:] == ["after"]
        assert await kinds(rt, run, "answer", "woke") == ["woke", "answer"]
        assert await kinds(rt, run, "signal") == ["signal"]
        return await kinds(rt, run, "recovered")


@pytest.mark.slow
async def test_an_answer_is_handed_over_again_after_a_worker_was_killed_with_it(
    fork_server: ForkServer, tmp_path: Path, postgres_server: Server
) -> None:
    places = [(f"sqlite:///{tmp_path}/{n}.db", point) for n, point in enumerate(POINTS)]
    postgres_server.start()
    some = ["apply_wait.after", "progress.before"]
    databases = [(postgres_server.database(), point) for point in some]
    for url, point in places + databases:
        assert fork_server.run("waiters:answer_and_die", url=url, point=point).status == -9
    recovered = [await _ends_well(url) for url, _ in places + databases]
    assert sum(map(bool, recovered)) > len(POINTS) / 2
    for url, _ in databases:
        postgres_server.drop(url)


async def test_a_look_does_not_depend_on_how_many_runs_sleep(d1_url: str) -> None:
    """Counted in rows that D1 reads, which is what it charges for."""

    def nap(state: Any) -> Any:
        perdure.sleep(30 * DAY)
        return {}

    async def look() -> int:
        before = d1.TOTAL.rows_read
        await rt.tick()
        return d1.TOTAL.rows_read - before

    async with testing.runtime(d1_url) as rt:
        rt.register(side_by_side(nap), name="nap")
        await rt.start("nap", {"log": []}, thread_id="asleep")
        await rt.tick()
        await look()
        few = await look()
        columns = [name for _, name, *_ in execute(d1_url, "PRAGMA table_info(perdure_runs)")]
        copied = ", ".join("id || i" if name == "id" else name for name in columns)
        copied = copied.replace("thread_id", "thread_id || i").replace("due_at", "due_at + i")
        execute(
            d1_url,
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) "
            f"INSERT INTO perdure_runs SELECT {copied} FROM n, perdure_runs",
        )
        assert await look() <= few + 2
