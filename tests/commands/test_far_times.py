"""A time that no datetime can hold is refused; rows that have one all the same are listed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

import perdure
from perdure.errors import BadArgument
from perdure.times import LATEST, deadline, milliseconds, moment
from perdure.types import Retry, State
from tests.support.agents import NOON, Log, chain, driven, opened
from tests.support.raw import execute

WEST = timezone(timedelta(hours=-12))
FAR = [
    timedelta.max,
    timedelta(days=8000 * 366),
    timedelta.min,
    datetime.max.replace(tzinfo=UTC),
    datetime.max.replace(tzinfo=WEST),
    datetime.min.replace(tzinfo=timezone(timedelta(hours=12))),
]


def nothing(state: Log) -> Log:
    return {}


@pytest.mark.parametrize("after", [*FAR, datetime(2031, 1, 1), 5, "soon"], ids=str)  # noqa: DTZ001
async def test_a_run_cannot_be_started_after_the_last_year(sqlite_url: str, after: Any) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(nothing), name="agent")
        with pytest.raises(BadArgument, match="after"):
            await rt.start("agent", {}, after=after)
        assert await rt.runs() == []


@pytest.mark.parametrize("far", FAR, ids=str)
@pytest.mark.parametrize(
    "wait",
    [
        perdure.sleep,
        lambda far: perdure.ask("?", expires=far),
        lambda far: perdure.wait_for("word", timeout=far),
    ],
    ids=["sleep", "ask", "wait_for"],
)
async def test_a_run_cannot_wait_until_after_the_last_year(
    sqlite_url: str, wait: Any, far: Any
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(("wait", lambda state: wait(far))), name="agent", retry=Retry(attempts=1))
        run = await rt.start("agent", {"log": []})
        await rt.tick()
        found = await rt.get(run.id)
        assert found.state is State.FAILED
        assert "years 1 and 9999" in str(found.error)


@pytest.mark.parametrize("wake_at", ["9999-12-31T23:59:59", 253402300799, 1e300, "soon"], ids=str)
async def test_an_interrupt_with_a_far_time_is_listed(sqlite_url: str, wake_at: Any) -> None:
    from langgraph.types import interrupt

    async with opened(sqlite_url) as rt:
        asks = chain(("ask", lambda state: interrupt({"wake_at": wake_at})))
        run = await driven(rt, asks, {"log": []}, name="agent")
        assert (await rt.get(run.id)).state is State.WAITING
        [wait] = await rt.waits()
        assert wait.wake_at is None or wait.wake_at <= LATEST


@pytest.mark.parametrize("at", [2**62, 2**63 - 1, -(2**63), 253402300800000 + 1], ids=str)
async def test_rows_with_a_time_of_no_year_are_listed_with_the_others(
    sqlite_url: str, at: int
) -> None:
    async with opened(sqlite_url) as rt:
        rt.register(chain(nothing), name="agent")
        run = await rt.start("agent", {}, after=timedelta(hours=1))
        other = await rt.start("agent", {}, after=timedelta(hours=1))
        execute(sqlite_url, "UPDATE perdure_runs SET due_at = ?, ready_at = ?, updated_at = ?, "
                            "created_at = ? WHERE id = ?", at, at, at, at, run.id)  # fmt: skip
        found = {one.id: one for one in await rt.runs()}
        assert found.keys() >= {other.id}
        assert found[other.id].damaged is None
        if at > 0:
            assert found[run.id].due_at == LATEST
        assert (await rt.get(run.id)).damaged  # the time it was accepted is bound to its setup
        execute(sqlite_url, "DELETE FROM perdure_runs WHERE id = ?", run.id)
        execute(sqlite_url, "DELETE FROM perdure_events WHERE run_id = ?", run.id)


def test_a_deadline_keeps_what_a_datetime_can_hold() -> None:
    assert deadline("x", LATEST, lambda: NOON) == milliseconds(LATEST)
    assert deadline("x", timedelta(days=1), lambda: NOON) == milliseconds(NOON) + 86_400_000
    assert deadline("x", timedelta(days=-1), lambda: NOON) == milliseconds(NOON) - 86_400_000
    assert moment(milliseconds(LATEST)) == LATEST
    for ms in (2**63 - 1, -(2**63), 2**53):
        moment(ms).astimezone(WEST)
        moment(ms).astimezone(timezone(timedelta(hours=14)))


@pytest.mark.parametrize("factor", [1.0, 2.0, 1e10, 1e300])
def test_a_pause_is_never_longer_than_the_longest_however_many_attempts(factor: float) -> None:
    retry = Retry(attempts=2**31, factor=factor)
    for attempts in (1, 47, 48, 64, 1000, 2**31):
        assert timedelta(0) <= retry.pause(attempts) <= retry.longest
