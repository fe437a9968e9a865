"""A signal is kept until a wait takes it, and is taken once."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

import perdure
from perdure.types import Kind, State
from tests.support.waiters import (
    DAY,
    Log,
    begin,
    chain,
    drive,
    healthy,
    in_the_midst,
    listening,
    log_of,
    only_wait,
    side_by_side,
    sleeping,
)


def hearing(count: int, name: str = "s") -> Any:
    """A node that hears several signals."""

    def hears(state: Log) -> Log:
        return {"log": [perdure.wait_for(name) for _ in range(count)]}

    return hears


@pytest.mark.smoke
async def test_a_signal_that_comes_early_is_kept(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, chain(sleeping(DAY), listening("s")))
        await rt.signal("t", "s", "early")
        await drive(rt)
        assert (await only_wait(rt, run)).kind is Kind.CLOCK
        rt.clock.advance(DAY)
        await drive(rt)
        assert await log_of(rt, run) == ["slept", ("s", "early")]


async def test_of_signals_with_one_key_from_two_runtimes_exactly_one_is_kept(url: str) -> None:
    async with healthy(url) as rt, healthy(url, clock=rt.clock) as other:
        run = await begin(rt, chain(hearing(2)))
        sent = await asyncio.gather(
            *[(rt, other)[n % 2].signal("t", "s", n, key="k") for n in range(20)]
        )
        assert sum(sent) == 1
        await drive(rt)
        assert (await rt.get(run.id)).state is State.WAITING
        await rt.signal("t", "s", "end")
        await drive(rt)
        assert await log_of(rt, run) == [sent.index(True), "end"]


async def test_one_signal_goes_to_exactly_one_of_two_branches(url: str) -> None:
    async with healthy(url) as rt:
        run = await begin(rt, side_by_side(listening("s", "left"), listening("s", "right")))
        assert len(await rt.waits()) == 2
        await rt.signal("t", "s", 1)
        await drive(rt)
        assert len(await rt.waits()) == 1
        await drive(rt)
        assert len(await rt.waits()) == 1
        await rt.signal("t", "s", 2)
        await drive(rt)
        assert sorted(await log_of(rt, run)) == [("s", 1), ("s", 2)]


async def test_a_signal_sent_in_the_midst_of_letting_a_run_go_wakes_it(postgres_url: str) -> None:
    async with healthy(postgres_url) as rt, healthy(postgres_url, clock=rt.clock) as other:
        send = partial(other.blocking.signal, "t", "s", "just then")
        with in_the_midst("let_go.after", postgres_url, send):
            run = await begin(rt, chain(listening("s")))
        await drive(rt)
        assert await log_of(rt, run) == [("s", "just then")]
