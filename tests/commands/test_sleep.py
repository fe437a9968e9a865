"""A run sleeps until its time, in any zone, however often its node runs again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.graph import END
from langgraph.types import interrupt

import perdure
from perdure.types import Kind, State
from tests.support.waiters import (
    DAY,
    MS,
    Log,
    begin,
    chain,
    drive,
    healthy,
    kinds,
    log_of,
    named,
    only_wait,
    sleeping,
)


@pytest.mark.parametrize("until", [timedelta(0), -DAY, datetime(2000, 1, 1, tzinfo=UTC)], ids=str)
async def test_a_time_that_has_come_is_not_waited_for(until: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(sleeping(until)))
        assert await log_of(rt, run) == ["slept"]
        assert "wait" not in await kinds(rt, run)


@pytest.mark.parametrize("until", [datetime(2030, 1, 1), 5, "tomorrow"], ids=str)  # noqa: DTZ001
async def test_a_sleep_refuses_what_is_no_time(until: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(sleeping(until)))
        assert run.error is not None
        assert run.error.kind == "perdure.errors.BadArgument"


async def test_a_loop_that_sleeps_five_times_has_six_segments(url: str) -> None:
    def step(state: Log) -> Log:
        perdure.sleep(DAY)
        return {"log": [len(state["log"])]}

    builder = chain(step)
    builder.add_conditional_edges("step", lambda s: "step" if len(s["log"]) < 5 else END)
    async with healthy(url) as rt:
        run = await begin(rt, builder)
        for _ in range(5):
            rt.clock.advance(DAY)
            await drive(rt)
        assert await log_of(rt, run) == [0, 1, 2, 3, 4]
        assert await kinds(rt, run, "claimed", "woke") == ["claimed", *["claimed", "woke"] * 5]


@pytest.mark.parametrize("form", ["datetime", "iso", "seconds", "float", "zulu"])
async def test_an_interrupt_with_a_wake_at_is_a_clock_wait(form: str) -> None:
    async with healthy() as rt:
        at = datetime.fromtimestamp(int(rt.clock.time.timestamp()) + 3600, UTC)
        given: Any = {
            "datetime": at,
            "iso": at.isoformat(),
            "zulu": at.isoformat().replace("+00:00", "Z"),
            "seconds": int(at.timestamp()),
            "float": at.timestamp(),
        }[form]

        def node(state: Log) -> Log:
            return {"log": [interrupt({"wake_at": given, "why": "later"})]}

        run = await begin(rt, chain(node))
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.wake_at, wait.value["why"]) == (Kind.CLOCK, at, "later")
        rt.clock.move_to(at - MS)
        await drive(rt)
        assert (await rt.get(run.id)).state is State.WAITING
        rt.clock.move_to(at)
        await drive(rt)
        assert await log_of(rt, run) == [None]


@pytest.mark.parametrize(
    "value",
    [{"wake_at": "soon"}, {"wake_at": None}, {"wake_at": True}, {"wake_at": float("inf")},
     {"wake_at": 1e30}, ["wake_at"], "wake_at", {}],
    ids=str,
)  # fmt: skip
async def test_an_interrupt_whose_wake_at_is_no_time_is_for_a_person(value: Any) -> None:
    async with healthy() as rt:
        run = await begin(rt, chain(named("node", lambda state: {"log": [interrupt(value)]})))
        wait = await only_wait(rt, run)
        assert (wait.kind, wait.value, wait.wake_at) == (Kind.HUMAN, value, None)
        await rt.answer(wait.id, "now")
        await drive(rt)
        assert await log_of(rt, run) == ["now"]
