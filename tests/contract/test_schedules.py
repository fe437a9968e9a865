"""A schedule starts each slot once, whoever ticks, and whatever the clocks do."""

from __future__ import annotations

import asyncio
import operator
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict
from zoneinfo import ZoneInfo

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as NodeRuntime

from perdure.testing import Clock, TemporaryRuntime, runtime
from perdure.types import State
from tests.support.fork_server import ForkServer
from tests.support.forked_python import start

NOON = datetime(2026, 6, 1, 12, 30, tzinfo=UTC)


HOUR = timedelta(hours=1)


@dataclass
class Desk:
    operator: str


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def builder(word: str = "done") -> Any:
    def note(state: Log, config: RunnableConfig, runtime: NodeRuntime[Desk]) -> Log:
        desk = getattr(runtime.context, "operator", None)
        return {"log": [word, desk, config["configurable"].get("user")]}

    found: Any = StateGraph(Log, context_schema=Desk)
    found.add_node("note", note)
    found.add_edge(START, "note")
    return found


@pytest.fixture
async def rt() -> AsyncIterator[TemporaryRuntime]:
    async with runtime(clock=Clock(NOON)) as found:
        found.register(builder(), name="agent")
        yield found


async def started(rt: TemporaryRuntime) -> list[str]:
    """The slots for which a run was started, oldest first."""
    return sorted(str(run.key) for run in await rt.runs())


async def local(cron: str, zone: str, after: datetime, count: int) -> list[str]:
    """The next times of a cron line on the wall clock of its zone."""
    found = []
    async with runtime(clock=Clock(after)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("daily", "agent", cron=cron, timezone=zone)
        for _ in range(count):
            [schedule] = await rt.schedules()
            found.append(f"{schedule.next_at.astimezone(ZoneInfo(zone)):%d %H:%M %z}")
            rt.clock.move_to(schedule.next_at)
            assert (await rt.tick()).scheduled == 1
    return found


@pytest.mark.parametrize(
    ("zone", "cron", "eve", "expected"),
    [
        (
            "Europe/Rome",
            "30 2 * * *",
            datetime(2026, 3, 28, 12, tzinfo=UTC),
            ["29 03:00 +0200", "30 02:30 +0200"],
        ),
        (
            "America/New_York",
            "30 2 * * *",
            datetime(2026, 3, 7, 12, tzinfo=UTC),
            ["08 03:00 -0400", "09 02:30 -0400"],
        ),
    ],
    ids=["rome", "new-york"],
)
async def test_a_daily_job_whose_hour_does_not_come_is_due_right_after_it(
    zone: str, cron: str, eve: datetime, expected: list[str]
) -> None:
    assert await local(cron, zone, eve, 2) == expected


async def test_a_nightly_job_runs_once_a_night_while_the_clocks_go_back(url: str) -> None:
    async with runtime(url, clock=Clock(datetime(2026, 10, 24, 12, tzinfo=UTC))) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("nightly", "agent", cron="30 2 * * *", timezone="Europe/Rome")
        for _ in range(2 * 48):
            rt.clock.advance(timedelta(minutes=30))
            await rt.tick()
        assert await started(rt) == ["nightly@2026-10-25T00:30:00Z", "nightly@2026-10-26T01:30:00Z"]


async def test_two_who_tick_at_once_start_a_slot_once(url: str) -> None:
    clock = Clock(NOON)
    async with runtime(url, clock=clock) as one, runtime(url, clock=clock) as other:
        for rt in (one, other):
            rt.register(builder(), name="agent")
            await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
        clock.advance(timedelta(minutes=30))
        for n in range(1, 6):
            await asyncio.gather(one.tick(), other.tick(), one.tick(), other.tick())
            found = await one.runs()
            assert len(found) == n
            assert {run.state for run in found} == {State.DONE}
            clock.advance(HOUR)


TICK = """
import asyncio, sys
from datetime import datetime
from tests.contract.test_schedules import builder
from perdure.testing import Clock, crash_at, runtime

async def tick(url, now, point):
    rt = runtime(url, clock=Clock(datetime.fromisoformat(now)))
    rt.register(builder(), name="agent")
    with crash_at(point):
        await rt.tick()

asyncio.run(tick(*sys.argv[1:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("point", ["insert_run.after", "move_schedule.before"])
async def test_a_crash_between_the_start_and_the_move_starts_no_second_run(
    fork_server: ForkServer, url: str, point: str
) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
        rt.clock.advance(timedelta(minutes=30))
        arguments = ["-c", TICK, url, rt.clock.time.isoformat(), point]
        child = start(fork_server, *arguments, cwd=Path(__file__).parents[2])
        assert await asyncio.to_thread(child.wait) == -signal.SIGKILL
        assert len(await rt.runs()) == (1 if point == "move_schedule.before" else 0)
        [schedule] = await rt.schedules()
        assert schedule.next_at == rt.clock.time
        assert (await rt.tick()).done == 1
        assert (await rt.tick()).claimed == 0
        [run] = await rt.runs()
        assert run.key == "hourly@2026-06-01T13:00:00Z"


MISSED = ["13", "14", "15", "16", "17", "18"]


@pytest.mark.parametrize(
    ("catch_up", "hours"),
    [
        (False, []),
        (True, MISSED),
        (timedelta(hours=2), MISSED[-2:]),
        (timedelta(days=2), MISSED),
    ],
    ids=["no", "yes", "two-hours", "two-days"],
)
async def test_missed_slots_are_passed_over_or_caught_up(
    url: str, catch_up: bool | timedelta, hours: list[str]
) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []}, catch_up=catch_up)
        rt.clock.advance(6 * HOUR)
        assert (await rt.tick()).scheduled == len(hours)
        assert await started(rt) == [f"hourly@2026-06-01T{hour}:00:00Z" for hour in hours]
        [schedule] = await rt.schedules()
        assert schedule.next_at == datetime(2026, 6, 1, 19, tzinfo=UTC)
        rt.clock.advance(timedelta(minutes=30))
        await rt.tick()
        assert len(await rt.runs()) == len(hours) + 1
