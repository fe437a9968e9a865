"""Crons over HTTP with LangGraph's own clients: created, found, changed, deleted and fired."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

import perdure
from perdure.runtime import Runtime
from perdure.testing import Clock
from tests.support.agent_server import refused, served
from tests.support.wire_agents import wire_runtime

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
YEARLY = "0 0 1 1 *"


def test_a_cron_is_created_found_changed_and_deleted(client: Any) -> None:
    made = client.crons.create(
        "one", schedule=YEARLY, input={"n": 1}, metadata={"c": 1}, timezone="Europe/Berlin"
    )
    assert made["schedule"] == YEARLY
    assert (made["thread_id"], made["end_time"], made["user_id"]) == (None, None, "")
    assert (made["enabled"], made["on_run_completed"]) == (True, "delete")
    assert (made["timezone"], made["metadata"]) == ("Europe/Berlin", {"c": 1})
    assert made["next_run_date"].endswith("-12-31T23:00:00+00:00")
    assert made["payload"]["input"] == {"n": 1}
    assert client.crons.search() == [made]
    assert client.crons.count(assistant_id="one") == 1
    assert client.crons.count(assistant_id="numbers") == 0
    assert client.crons.search(metadata={"c": 2}) == []
    changed = client.crons.update(made["cron_id"], enabled=False, schedule="0 1 * * *")
    assert (changed["enabled"], changed["schedule"]) == (False, "0 1 * * *")
    assert changed["payload"]["input"] == {"n": 1}
    assert client.crons.search(enabled=True) == []
    assert client.crons.search(select=["cron_id"]) == [{"cron_id": made["cron_id"]}]
    client.crons.delete(made["cron_id"])
    assert client.crons.search() == []
    refused(404, client.crons.delete, made["cron_id"])
    refused(404, client.crons.update, made["cron_id"], enabled=True)


def test_the_end_of_a_cron_is_set_and_removed(client: Any) -> None:
    end = datetime(2040, 1, 1, tzinfo=UTC)
    made = client.crons.create("one", schedule=YEARLY, end_time=end)
    assert datetime.fromisoformat(made["end_time"]) == end
    kept = client.crons.update(made["cron_id"], input={"n": 2})
    assert kept["end_time"] == made["end_time"]
    assert client.crons.update(made["cron_id"], end_time=None)["end_time"] is None


def test_what_makes_no_sense_is_refused(client: Any) -> None:
    assert "not a schedule" in refused(422, client.crons.create, "one", schedule="not a schedule")
    refused(422, client.crons.create, "one", schedule=YEARLY, timezone="Nowhere/At_all")
    refused(422, client.crons.create, "nope", schedule=YEARLY)
    refused(404, client.crons.create_for_thread, str(uuid4()), "one", schedule=YEARLY)


async def test_a_schedule_of_the_runtime_is_shown_as_a_cron(url: str) -> None:
    with closing(wire_runtime(url)) as runtime, served(runtime) as server:
        made = await runtime.schedule("yearly", "one", cron=YEARLY, input={"n": 1})
        client = server.sync_client()
        [cron] = client.crons.search()
        assert (cron["schedule"], cron["payload"]["input"]) == (YEARLY, {"n": 1})
        assert datetime.fromisoformat(str(cron["next_run_date"])) == made.next_at
        client.crons.delete(cron["cron_id"])
        assert await runtime.schedules() == []


# -- firing


@pytest.fixture
def clock() -> Clock:
    return Clock(NOON)


async def fire(runtime: Runtime, clock: Clock) -> list[perdure.Run]:
    """The runs that one more hour brings."""
    clock.advance(timedelta(hours=1))
    await runtime.work(until_idle=True, handle_signals=False)
    return await runtime.runs()


async def test_a_slot_starts_a_run_on_a_thread_of_its_own(url: str, clock: Clock) -> None:
    with closing(wire_runtime(url, clock=clock)) as runtime, served(runtime, worker=False) as s:
        client = s.sync_client()
        cron: Any = client.crons.create(
            "one",
            schedule="0 * * * *",
            input={"n": 1},
            metadata={"owner": "ada"},
            on_run_completed="keep",
        )
        [run] = await fire(runtime, clock)
        assert (run.state, run.output) == ("done", {"n": 2, "log": ["add"]})
        assert client.threads.get(run.thread_id)["metadata"]["owner"] == "ada"  # type: ignore[index]
        [wire] = client.runs.list(run.thread_id)
        assert wire["assistant_id"] == cron["assistant_id"]
        configurable = wire["kwargs"]["config"]["configurable"]  # type: ignore[typeddict-item]
        assert configurable["cron_id"] == cron["cron_id"]
        assert client.crons.search()[0]["next_run_date"] == "2030-01-01T14:00:00+00:00"


async def test_a_cron_of_a_thread_starts_its_runs_there(url: str, clock: Clock) -> None:
    with closing(wire_runtime(url, clock=clock)) as runtime, served(runtime, worker=False) as s:
        client = s.sync_client()
        thread = client.threads.create()
        client.crons.create_for_thread(
            thread["thread_id"], "one", schedule="0 * * * *", input={"n": 1}
        )
        for hours in (1, 2):
            runs = await fire(runtime, clock)
            assert [run.thread_id for run in runs] == [thread["thread_id"]] * hours


async def test_a_disabled_or_ended_cron_starts_nothing(url: str, clock: Clock) -> None:
    with closing(wire_runtime(url, clock=clock)) as runtime, served(runtime, worker=False) as s:
        client = s.sync_client()
        hourly: Any = {"schedule": "0 * * * *", "input": {"n": 1}, "on_run_completed": "keep"}
        off: Any = client.crons.create("one", enabled=False, **hourly)
        client.crons.create("one", end_time=NOON + timedelta(minutes=90), **hourly)
        assert len(await fire(runtime, clock)) == 1
        assert len(await fire(runtime, clock)) == 1
        client.crons.update(off["cron_id"], enabled=True)
        assert len(await fire(runtime, clock)) == 2


async def test_the_thread_of_a_stateless_run_is_erased_after_it(url: str, clock: Clock) -> None:
    with closing(wire_runtime(url, clock=clock)) as runtime, served(runtime, worker=False) as s:
        client = s.sync_client()
        client.crons.create("one", schedule="0 * * * *", input={"n": 1})
        [run] = await fire(runtime, clock)
        assert run.state == "done"
        client.crons.delete(client.crons.search()[0]["cron_id"])
        assert await fire(runtime, clock) == []
        assert client.threads.search() == []
