"""A schedule starts one run per slot of its cron line, whoever ticks, crashes or sleeps meanwhile.

Slots are times of a wall clock in a time zone: what is due at half past one is due once on the
night in which that comes twice, and is not forgotten on the night in which it does not come.
"""

from __future__ import annotations

import contextlib
import operator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from typing import Annotated, Any, TypedDict
from zoneinfo import ZoneInfo

import pytest

from perdure.commands import schedules
from perdure.commands.schedules import slots
from perdure.errors import BadArgument, NotFound, UnknownGraph
from perdure.execution.duties import fire_now, fire_schedules
from perdure.journal import Op
from perdure.testing import Clock, TemporaryRuntime, runtime
from perdure.times import milliseconds, moment
from tests.commands.plans import interrupted
from tests.contract.test_schedules import Desk, builder, started
from tests.contract.test_schedules import rt as rt

NOON = datetime(2026, 6, 1, 12, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


# -- slots


def local(cron: str, zone: str, after: datetime, count: int) -> list[str]:
    """The next times of a cron line on the wall clock of its zone."""
    found = islice(slots(cron, zone, milliseconds(after)), count)
    return [f"{moment(slot).astimezone(ZoneInfo(zone)):%d %H:%M %z}" for slot in found]


def test_a_job_of_every_half_hour_keeps_its_pace_through_both_nights() -> None:
    for eve in (datetime(2026, 10, 24, 22, tzinfo=UTC), datetime(2026, 3, 28, 22, tzinfo=UTC)):
        found = list(islice(slots("*/30 * * * *", "Europe/Rome", milliseconds(eve)), 12))
        assert {b - a for a, b in pairwise(found)} == {30 * 60 * 1000}


# -- what a slot starts


async def test_a_schedule_tells_its_next_slot_in_its_own_zone(rt: TemporaryRuntime) -> None:
    made = await rt.schedule("daily", "agent", cron="0 9 * * *", timezone="Europe/Rome")
    assert made.next_at == datetime(2026, 6, 2, 7, tzinfo=UTC)
    assert (made.name, made.graph, made.cron, made.timezone) == (
        "daily", "agent", "0 9 * * *", "Europe/Rome",
    )  # fmt: skip
    hourly = await rt.schedule("hourly", "agent", cron="0 * * * *")
    assert hourly.next_at == NOON + timedelta(minutes=30)
    assert await rt.schedules() == [made, hourly]


@pytest.mark.smoke
async def test_a_slot_starts_its_run_with_all_that_was_given(url: str) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule(
            "hourly",
            "agent",
            cron="0 * * * *",
            input={"log": ["in"]},
            metadata={"team": "night"},
            tags=["report"],
            context=Desk("ugo"),
            config={"configurable": {"user": "ana"}},
        )
        assert (await rt.tick()).scheduled == 0
        rt.clock.advance(timedelta(minutes=30))
        counts = await rt.tick()
        assert (counts.scheduled, counts.done) == (1, 1)
        [run] = await rt.runs()
        assert run.output == {"log": ["in", "done", "ugo", "ana"]}
        assert (run.metadata, run.tags) == ({"team": "night"}, ("report", "runtime:cron"))
        assert run.key == "hourly@2026-06-01T13:00:00Z"
        assert run.thread_id == "schedule:hourly@2026-06-01T13:00:00Z"
        [schedule] = await rt.schedules()
        assert schedule.next_at == NOON + timedelta(minutes=90)


async def test_a_schedule_starts_the_version_that_was_newest_when_it_was_made(
    rt: TemporaryRuntime,
) -> None:
    await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
    rt.register(builder("new"), name="agent", version="2")
    rt.clock.advance(timedelta(minutes=30))
    await rt.tick()
    await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
    rt.clock.advance(HOUR)
    await rt.tick()
    newer, older = await rt.runs()
    assert (older.version, older.output["log"][0]) == ("", "done")
    assert (newer.version, newer.output["log"][0]) == ("2", "new")


# -- one run per slot


async def test_a_clock_that_goes_back_starts_no_slot_again(rt: TemporaryRuntime) -> None:
    await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
    rt.clock.advance(timedelta(minutes=30))
    await rt.tick()
    rt.clock.advance(timedelta(minutes=-5))
    await rt.tick()
    rt.clock.advance(timedelta(minutes=5))
    await rt.tick()
    assert await started(rt) == ["hourly@2026-06-01T13:00:00Z"]


# -- after a time in which nobody was there


MISSED = ["13", "14", "15", "16", "17", "18"]


async def test_a_slot_that_is_a_little_late_is_not_missed(rt: TemporaryRuntime) -> None:
    await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
    rt.clock.advance(timedelta(minutes=30, seconds=50))
    assert (await rt.tick()).scheduled == 1


async def test_a_year_of_missed_minutes_is_passed_over_at_once(rt: TemporaryRuntime) -> None:
    await rt.schedule("often", "agent", cron="* * * * *", input={"log": []})
    rt.clock.advance(timedelta(days=365, seconds=30))
    assert (await rt.tick()).scheduled == 1
    [schedule] = await rt.schedules()
    assert schedule.next_at == NOON + timedelta(days=365, minutes=1)


# -- changing a schedule


async def test_a_changed_line_moves_the_next_slot(rt: TemporaryRuntime) -> None:
    await rt.schedule("mine", "agent", cron="0 * * * *", input={"log": []})
    changed = await rt.schedule("mine", "agent", cron="45 * * * *", input={"log": []})
    assert changed.next_at == NOON + timedelta(minutes=15)
    zoned = await rt.schedule(
        "mine", "agent", cron="45 13 * * *", timezone="Asia/Kolkata", input={"log": []}
    )
    assert zoned.next_at == datetime(2026, 6, 2, 8, 15, tzinfo=UTC)
    assert await rt.schedules() == [zoned]
    rt.clock.advance(2 * HOUR)
    assert (await rt.tick()).scheduled == 0


async def test_a_line_changed_while_its_slot_is_started_keeps_its_new_slot(url: str) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("mine", "agent", cron="0 * * * *", input={"log": []})
        rt.clock.advance(timedelta(minutes=30))
        due = await rt.journal.ado(schedules.due(rt.clock.now()))
        plan, answer = fire_schedules(rt.engine, due), None
        changed = None
        with contextlib.suppress(StopIteration):
            while isinstance(op := plan.send(answer), Op):
                if op.name == "move_schedule":  # between what was due and the next slot
                    changed = await rt.schedule(
                        "mine", "agent", cron="45 * * * *", input={"log": []}
                    )
                answer = await rt.journal.ado(op)
        assert await rt.schedules() == [changed]
        assert len(await rt.runs()) == 1


async def test_the_same_line_again_after_a_restart_keeps_the_slots_that_are_due(url: str) -> None:
    clock = Clock(NOON)
    for restart in range(2):
        async with runtime(url, clock=clock) as rt:
            rt.register(builder(), name="agent")
            made = await rt.schedule(
                "hourly", "agent", cron="0 * * * *", input={"log": [restart]}, catch_up=True
            )
            assert made.next_at == NOON + timedelta(minutes=30)
            if restart:
                await rt.tick()
                assert await started(rt) == [
                    f"hourly@2026-06-01T{hour}:00:00Z" for hour in MISSED[:3]
                ]
                assert {run.output["log"][0] for run in await rt.runs()} == {1}
        clock.advance(3 * HOUR)


async def test_what_is_not_scheduled_any_more_starts_nothing(url: str) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": []})
        rt.clock.advance(timedelta(minutes=30))
        await rt.tick()
        await rt.unschedule("hourly")
        assert await rt.schedules() == []
        rt.clock.advance(HOUR)
        assert (await rt.tick()).scheduled == 0
        assert len(await rt.runs()) == 1  # what it started stays
        with pytest.raises(NotFound, match="no schedule 'hourly'"):
            await rt.unschedule("hourly")


# -- wrong use


@pytest.mark.parametrize("cron", ["", "* * *", "60 * * * *", "every day", "* * * * * * *"])
async def test_a_bad_cron_line_is_refused(rt: TemporaryRuntime, cron: str) -> None:
    with pytest.raises(BadArgument, match="is not a cron line"):
        await rt.schedule("mine", "agent", cron=cron)
    assert await rt.schedules() == []


async def test_a_line_that_never_comes_is_refused(rt: TemporaryRuntime) -> None:
    with pytest.raises(BadArgument, match="30 2"):
        await rt.schedule("mine", "agent", cron="0 0 30 2 *")


@pytest.mark.parametrize("zone", ["Mars/Phobos", "", "../../etc/passwd", "europe rome", "CEST+2"])
async def test_a_bad_time_zone_is_refused(rt: TemporaryRuntime, zone: str) -> None:
    with pytest.raises(BadArgument, match="is not a time zone: use a name such as Europe/Rome"):
        await rt.schedule("mine", "agent", cron="0 * * * *", timezone=zone)
    assert await rt.schedules() == []


async def test_a_schedule_of_an_unknown_graph_is_refused(rt: TemporaryRuntime) -> None:
    with pytest.raises(UnknownGraph, match="'agnet'"):
        await rt.schedule("mine", "agnet", cron="0 * * * *")


# -- disabled by a person


async def test_a_disabled_schedule_starts_nothing_until_it_is_enabled(url: str) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("hourly", "agent", cron="0 * * * *", catch_up=True)
        assert not (await rt.enable_schedule("hourly", enabled=False)).enabled
        rt.clock.advance(3 * HOUR)
        assert (await rt.tick()).scheduled == 0
        enabled = await rt.enable_schedule("hourly")
        assert (enabled.enabled, enabled.next_at.hour) == (True, 16)
        assert (await rt.tick()).scheduled == 0  # what it did not start meanwhile is not caught up
        rt.clock.advance(HOUR)
        await rt.tick()
        assert await started(rt) == ["hourly@2026-06-01T16:00:00Z"]


async def test_an_application_that_starts_does_not_enable_what_a_person_disabled(url: str) -> None:
    async with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        await rt.schedule("hourly", "agent", cron="0 * * * *")
        await rt.enable_schedule("hourly", enabled=False)
        await rt.schedule("hourly", "agent", cron="30 * * * *")
        [one] = await rt.schedules()
        assert (one.cron, one.enabled) == ("30 * * * *", False)


async def test_enabling_an_enabled_schedule_skips_no_slot(rt: TemporaryRuntime) -> None:
    await rt.schedule("hourly", "agent", cron="0 * * * *", catch_up=True)
    rt.clock.advance(HOUR)
    await rt.enable_schedule("hourly")
    await rt.tick()
    assert await started(rt) == ["hourly@2026-06-01T13:00:00Z"]


def test_a_schedule_that_is_changed_while_it_is_enabled_keeps_the_slots_of_its_new_cron_line(
    url: str,
) -> None:
    with runtime(url, clock=Clock(NOON)) as rt:
        rt.register(builder(), name="agent")
        rt.blocking.schedule("digest", "agent", cron="0 0 1 1 *")
        rt.blocking.enable_schedule("digest", enabled=False)
        found = interrupted(
            rt.journal,
            schedules._enable_schedule.plan(rt.engine, "digest", True),
            "schedules",
            lambda: rt.blocking.schedule("digest", "agent", cron="*/5 * * * *"),
        )
        assert (found["enabled"], found["next_at"]) == (True, NOON + timedelta(minutes=5))


async def test_only_a_schedule_that_exists_is_enabled(rt: TemporaryRuntime) -> None:
    with pytest.raises(NotFound):
        await rt.enable_schedule("hourly")


async def test_a_schedule_started_now_starts_one_run_for_each_time_it_is_asked(
    rt: TemporaryRuntime,
) -> None:
    await rt.schedule("hourly", "agent", cron="0 * * * *", input={"log": ["in"]})
    for nonce in ("one", "one", "two"):
        fire = fire_now(rt.engine, "hourly", nonce, "ana")
        await rt.journal.arun(fire)
    await rt.tick()
    found = await rt.runs()
    assert sorted(str(run.key) for run in found) == ["hourly@one", "hourly@two"]
    assert [run.metadata for run in found] == [{"schedule": "hourly", "started_by": "ana"}] * 2
    assert [run.output["log"][0] for run in found] == ["in", "in"]
