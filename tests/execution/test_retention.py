"""`Runtime(retention=…)`: workers delete what ended long enough ago, in small pieces."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure.errors import BadArgument
from perdure.execution import duties
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retention
from tests.contract.test_deleting import ended, left, register
from tests.support.agents import NOON, driving, opened
from tests.support.polling import auntil

DAY = timedelta(days=1)
POLICY = Retention(done=30 * DAY, failed=90 * DAY)


@pytest.fixture
def url(sqlite_url: str) -> str:
    """SQLite: the statements are those of `prune`, and one read."""
    return sqlite_url


async def test_runs_that_are_kept_do_not_stop_the_sweep(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(duties, "ROWS", 3)
    monkeypatch.setattr(duties, "DELETIONS", 2)
    monkeypatch.setattr(duties.RetentionSweep, "rest", 0.0)  # the clock jumps
    monkeypatch.setattr(duties, "PAUSE", 0.0)
    clock = Clock(NOON)
    async with opened(url, clock, retention=POLICY) as rt:
        register(rt)
        await ended(rt, "waiting", 5)
        await ended(rt, "done", 7)
        clock.advance(31 * DAY)
        async with driving(rt):
            await auntil(lambda: _has_left(rt, 5), "the end of the sweep")


async def _has_left(rt: TemporaryRuntime, count: int) -> bool:
    return len(await left(rt)) == count


async def test_two_processes_that_sweep_at_once_delete_each_run_once(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, retention=POLICY) as rt, opened(url, clock) as other:
        register(rt)
        await ended(rt, "done", 30)
        clock.advance(31 * DAY)
        now = rt.engine.clock.now()
        both = [duties.RetentionSweep(POLICY) for _ in range(2)]
        while await left(rt):
            await asyncio.gather(both[0].piece(rt.engine, now), both[1].piece(other.engine, now))


def test_a_retention_without_any_age_is_refused() -> None:
    with pytest.raises(BadArgument, match="keeps everything"):
        Retention()
    with pytest.raises(BadArgument, match=r"done=30.*give a timedelta"):
        Retention(done=30)  # type: ignore[arg-type]
