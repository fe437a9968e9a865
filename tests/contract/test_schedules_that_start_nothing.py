"""A schedule that starts no runs says so: in its fields, on Health, in metrics and in the log."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import Runtime
from perdure.observe import Metrics
from perdure.testing import Clock
from tests.support.agents import Log, chain
from tests.support.http import client_of

NOON = datetime(2026, 6, 1, 12, 30, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def note(state: Log) -> Log:
    return {"log": ["noted"]}


@asynccontextmanager
async def opened(url: str, clock: Clock, graph: str) -> AsyncIterator[Runtime]:
    async with Runtime(url, clock=clock, observe=Metrics()) as rt:
        rt.register(chain(note), name=graph)
        yield rt


async def shown(rt: Runtime) -> tuple[str, str]:
    """The health page, and the metrics."""
    async with client_of(rt.asgi(worker=False, ui=True, insecure=True)) as http:
        page: Any = await http.get("/ui/health")
        return page.text, (await http.get("/metrics")).text


async def test_a_schedule_whose_graph_no_worker_registers_is_shown_until_it_starts_its_run(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, "mine") as rt, opened(url, clock, "other") as stranger:
        await rt.schedule("nightly", "mine", cron="0 * * * *", input={"log": []}, catch_up=True)
        assert (await rt.schedules())[0].problem is None
        clock.advance(32 * MINUTE)
        for _ in range(2):
            assert (await stranger.tick()).scheduled == 0
        [found] = await stranger.schedules()
        assert "'mine'" in str(found.problem)
        [said] = [one.getMessage() for one in caplog.records if "'nightly'" in one.getMessage()]
        assert "'mine'" in said
        [remark] = [one for one in (await stranger.doctor()).remarks if "nightly" in one]
        assert "starts no runs" in remark
        page, metrics = await shown(stranger)
        assert "started no run when last due: nightly" in page
        assert 'perdure_schedules_failing{graph="mine"} 1' in metrics
        assert (await rt.tick()).scheduled == 1
        assert (await stranger.schedules())[0].problem is None
        assert "started no run" not in (await shown(rt))[0]


async def test_times_that_were_skipped_are_counted_and_shown_until_one_is_started(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, "mine") as rt:
        await rt.schedule("often", "mine", cron="*/10 * * * *", input={"log": []})
        clock.advance(35 * MINUTE)  # nobody looks at 12:40, 12:50 and 13:00
        assert (await rt.tick()).scheduled == 0
        [found] = await rt.schedules()
        assert (found.missed, found.missed_at) == (3, clock.time)
        assert "3 slots from 2026-06-01T12:40:00Z on" in str(found.problem)
        said = [one for one in caplog.records if "'often'" in one.getMessage()]
        assert [one.levelno for one in said] == [logging.WARNING]
        page, metrics = await shown(rt)
        assert "started no run when last due: often" in page
        assert 'perdure_schedule_slots_missed{graph="mine"} 3' in metrics
        clock.advance(5 * MINUTE)
        assert (await rt.tick()).scheduled == 1
        [found] = await rt.schedules()
        assert (found.missed, found.problem) == (3, None)


async def test_a_time_whose_run_is_refused_counts_as_missed_and_says_why(url: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, "mine") as rt, client_of(rt.asgi(worker=False)) as http:
        thread = (await http.post("/threads", json={})).json()["thread_id"]
        cron = {"assistant_id": "mine", "schedule": "0 * * * *", "input": {"log": []}}
        cron["multitask_strategy"] = "reject"
        made = await http.post(f"/threads/{thread}/runs/crons", json=cron)
        assert made.status_code == 200
        await rt.start("mine", {"log": []}, thread_id=thread, after=timedelta(days=1))
        clock.advance(30 * MINUTE)
        await rt.tick()
        [found] = await rt.schedules()
        assert found.missed == 1
        assert thread in str(found.problem)


@pytest.mark.parametrize("way", ["http", "public", "expiry"])
async def test_erasing_a_thread_deletes_its_crons_and_no_other(url: str, way: str) -> None:
    clock = Clock(NOON)
    async with opened(url, clock, "mine") as rt, client_of(rt.asgi(worker=False)) as http:
        body: Any = {"ttl": {"ttl": 1}} if way == "expiry" else {}
        ids = []
        bodies: list[Any] = [body, {}]
        for one in bodies:
            thread = (await http.post("/threads", json=one)).json()["thread_id"]
            cron = {"assistant_id": "mine", "schedule": "0 0 1 1 *", "input": {"log": []}}
            made = await http.post(f"/threads/{thread}/runs/crons", json=cron)
            ids.append((thread, made.json()["cron_id"]))
        (erased, gone), (_, kept) = ids
        if way == "http":
            assert (await http.delete(f"/threads/{erased}")).status_code == 204
        elif way == "public":
            assert (await rt.erase(erased))["schedules"] == 1
        else:
            clock.advance(2 * MINUTE)
            await rt.tick()
        assert [one.name for one in await rt.schedules()] == [kept]
        assert gone != kept
