"""One bad row concerns itself alone: no row ends or stalls a worker's loop.

Rows are planted over HTTP, or with the SQL that anyone who can open the database could type.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

import pytest

import perdure
from perdure import Runtime
from perdure.observe import Metrics
from perdure.testing import Clock
from perdure.types import Retry
from tests.support import raw
from tests.support.agent_server import AgentServer, refused, served
from tests.support.agents import gate
from tests.support.polling import auntil, until
from tests.support.wire_agents import Numbers, add, double, row, wire_runtime

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
HOURLY = "0 * * * *"


@contextmanager
def serving(url: str, **settings: Any) -> Iterator[tuple[Runtime, AgentServer, Clock]]:
    """A runtime behind HTTP, by default without a worker, and its clock."""
    clock = Clock(NOON)
    settings = {"worker": False, **settings}
    with (
        closing(wire_runtime(url, clock=clock, observe=Metrics())) as rt,
        served(rt, **settings) as server,
    ):
        yield rt, server, clock


def without_a_thread(client: Any) -> Any:
    """A cron whose runs each have a thread of their own."""
    return client.crons.create("one", schedule=HOURLY, input={"n": 1}, on_run_completed="keep")


def of_a_thread(client: Any) -> tuple[str, Any]:
    """A cron of a new thread."""
    thread_id = client.threads.create()["thread_id"]
    cron = client.crons.create_for_thread(thread_id, "one", schedule=HOURLY, input={"n": 1})
    return thread_id, cron


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING]


# -- schedules


async def test_a_cron_of_a_thread_that_is_gone_is_deleted_and_keeps_no_other_back(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(url) as (rt, server, clock):
        client = server.sync_client()
        thread_id, cron = of_a_thread(client)
        without_a_thread(client)
        for table in ("perdure_threads", "perdure_threads"):
            raw.execute(url, f"DELETE FROM {table} WHERE thread_id = ?", thread_id)
        clock.advance(HOUR)
        counts = await rt.tick()
        assert (counts.scheduled, counts.done) == (1, 1)
        refused(404, client.crons.delete, cron["cron_id"])
        assert client.crons.count() == 1
    assert [one for one in warnings(caplog) if cron["cron_id"] in one and thread_id in one]


@pytest.mark.parametrize(
    ("column", "value"),
    [("body", b"not a row"), ("cron", "whenever"), ("timezone", "Mars/Phobos")],
)
async def test_a_schedule_that_cannot_be_read_keeps_no_other_back_and_says_so_once(
    url: str, column: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(url) as (rt, server, clock):
        for name in ("bad", "good"):
            await rt.schedule(name, "one", cron=HOURLY, input={"n": 1})
        raw.execute(url, f"UPDATE perdure_schedules SET {column} = ? WHERE name = 'bad'", value)
        clock.advance(HOUR)
        for _ in range(3):
            await rt.tick()
        assert [run.key for run in await rt.runs()] == ["good@2030-01-01T13:00:00Z"]
        assert len([one for one in warnings(caplog) if "'bad'" in one]) == 1
        [found, _] = await rt.schedules()
        assert found.name == "bad"
        assert (await rt.schedules())[1].next_at == NOON + 2 * HOUR
        said = server.http().get("/metrics").text
        assert 'perdure_worker_failing{duty="Firing schedules"} 1' in said
        assert server.http().get("/ok").status_code == 200
        await rt.unschedule("bad")  # a person mends it
        clock.advance(HOUR)
        assert (await rt.tick()).scheduled == 1
        assert "perdure_worker_failing{" not in server.http().get("/metrics").text


# -- the loop itself


@pytest.mark.slow
async def test_ok_and_metrics_alarm_while_a_worker_cannot_work_and_recover(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(url, worker=True) as (rt, server, _):
        http = server.http()
        assert http.get("/ok").json() == {"ok": True}
        raw.execute(url, "ALTER TABLE perdure_outbox RENAME TO gone")
        until(lambda: http.get("/ok").status_code == 503, "an alarm")
        assert http.get("/ok").json()["detail"].startswith("The worker in this process")
        found = http.get("/metrics").text
        assert "perdure_worker_failures_total{" in found
        assert "perdure_worker_failing{" in found
        raw.execute(url, "ALTER TABLE gone RENAME TO perdure_outbox")
        until(lambda: http.get("/ok").status_code == 200, "the end of the alarm")
        run = await rt.start("one", {"n": 1})
        await auntil(lambda: _is_done(rt, run.id), "a run")
        assert "perdure_worker_failing{" not in http.get("/metrics").text
    assert any("GET /ok" in one and "Looking for work" in one for one in warnings(caplog))
    assert len([one for one in warnings(caplog) if one.startswith("Looking for work")]) == 1


async def _is_done(rt: Runtime, run_id: str) -> bool:
    return (await rt.get(run_id)).state == "done"


# -- rows of every kind, planted with SQL


def raising(url: str, table: str, condition: str, change: str = "UPDATE") -> None:
    """Make the database refuse a change of some rows, until `mend`."""
    if url.startswith("postgres"):
        given = "OLD" if change == "DELETE" else "NEW"
        body = f"BEGIN IF {condition} THEN RAISE EXCEPTION 'no'; END IF; RETURN {given}; END"
        made = "CREATE FUNCTION planted() RETURNS trigger LANGUAGE plpgsql AS"
        raw.execute(url, f"{made} $$ {body} $$")
        then = "FOR EACH ROW EXECUTE FUNCTION planted()"
    else:
        then = f"WHEN {condition} BEGIN SELECT RAISE(ABORT, 'no'); END"
    raw.execute(url, f"CREATE TRIGGER planted BEFORE {change} ON {table} {then}")


def mend(url: str) -> None:
    if url.startswith("postgres"):
        raw.execute(url, "DROP FUNCTION planted() CASCADE")
    else:
        raw.execute(url, "DROP TRIGGER planted")


@pytest.mark.parametrize("moment", ["claimed", "ended"])
async def test_a_run_that_raises_when_it_is_claimed_or_ended_keeps_no_other_back(
    url: str, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(url) as (rt, server, clock):
        bad = await rt.start("one", {"n": 1})
        state = "= 'running'" if moment == "claimed" else "IN ('done', 'failed', 'held')"
        raising(url, "perdure_runs", f"NEW.id = '{bad.id}' AND NEW.state {state}")
        others = [await rt.start("one", {"n": n}) for n in range(3)]
        await rt.tick()
        assert {(await rt.get(run.id)).state for run in others} == {"done"}
        shown = await rt.get(bad.id)
        assert "it cannot be driven" in str(shown.reason)
        assert 'perdure_worker_failing{duty="Driving runs"} 1' in server.http().get("/metrics").text
        assert server.http().get("/ok").status_code == 200
        mend(url)
        clock.advance(timedelta(minutes=2))
        await rt.tick()
        assert (await rt.get(bad.id)).state == "done"
        assert "perdure_worker_failing{" not in server.http().get("/metrics").text
    assert len([one for one in warnings(caplog) if one.startswith("Driving runs")]) == 1


async def test_a_run_that_cannot_be_read_or_has_no_thread_keeps_no_other_back(url: str) -> None:
    with serving(url) as (rt, _, _):
        unreadable, orphan, good = [await rt.start("one", {"n": n}) for n in range(3)]
        raw.execute(url, "UPDATE perdure_runs SET setup = ? WHERE id = ?", b"bad", unreadable.id)
        sql = "DELETE FROM perdure_threads WHERE thread_id = ?"
        raw.execute(url, sql, orphan.thread_id)
        await rt.tick()
        assert (await rt.get(good.id)).state == "done"
        held = await rt.get(unreadable.id)
        assert held.state == "held"
        assert "damaged" in str(held.reason)
        assert (await rt.get(orphan.id)).state in ("done", "held")


@pytest.mark.parametrize("durability", ["auto", "sync", "async", "exit"])
async def test_a_run_whose_step_the_database_refuses_is_not_done_and_ends_at_its_limit(
    url: str, durability: Any
) -> None:
    with serving(url) as (rt, _, clock):
        rt.register(row(Numbers, add, double), name="two", retry=Retry(attempts=3))
        raising(url, "perdure_checkpoints", "NEW.thread_id = 'bad' AND NEW.step > 0", "INSERT")
        bad = await rt.start("two", {"n": 1}, thread_id="bad", durability=durability)
        good = [await rt.start("two", {"n": 1}, durability=durability) for _ in range(3)]
        for _ in range(8):
            await rt.tick()
            clock.advance(HOUR)
        assert {(await rt.get(one.id)).state for one in good} == {"done"}
        assert (await rt.get(bad.id)).state == "failed"
        failures = [one for one in await rt.events(bad.id) if one.kind == "failed"]
        assert [one.data["attempts"] for one in failures][-1] <= 3
        assert len(failures) <= 3


async def test_no_effect_is_called_from_a_state_that_the_database_refused(url: str) -> None:
    called: list[int] = []
    pay = perdure.effect(name="pay")(called.append)

    def buy(state: Numbers) -> None:
        pay(state["n"])

    with serving(url) as (rt, _, clock):
        rt.register(row(Numbers, add, buy), name="buying", retry=Retry(attempts=2))
        raising(url, "perdure_checkpoints", "NEW.thread_id = 'bad'", "INSERT")
        bad = await rt.start("buying", {"n": 1}, thread_id="bad")
        for _ in range(3):
            await rt.tick()
            clock.advance(HOUR)
        assert (await rt.get(bad.id)).state == "failed"
        assert called == []
        mend(url)
        await rt.retry(bad.id)
        await rt.tick()
        assert ((await rt.get(bad.id)).state, called) == ("done", [2])


async def test_a_step_that_the_database_refuses_fails_no_call_of_others(url: str) -> None:
    with serving(url) as (rt, _, _), gate() as stands:

        async def wait(state: Numbers) -> None:
            await stands.wait()

        rt.register(row(Numbers, add, wait), name="waiting", retry=Retry(attempts=1))
        raising(url, "perdure_checkpoints", "NEW.thread_id = 'bad' AND NEW.step > 0", "INSERT")
        bad = await rt.start("waiting", {"n": 1}, thread_id="bad")
        ticking = asyncio.create_task(rt.tick())
        await auntil(lambda: stands.entered or ticking.done())
        for _ in range(3):
            await rt.start("one", {"n": 1})
        stands.open()
        await ticking
        assert (await rt.get(bad.id)).state == "failed"


async def test_a_call_whose_step_the_database_refuses_returns_no_value(url: str) -> None:
    with serving(url) as (rt, _, _):
        graph = rt.register(row(Numbers, add, double), name="two")
        raising(url, "perdure_checkpoints", "NEW.thread_id = 'bad' AND NEW.step > 0", "INSERT")
        config: Any = {"configurable": {"thread_id": "bad"}}
        with pytest.raises(perdure.errors.WriteLost, match="'bad' could not be stored"):
            await graph.ainvoke({"n": 1}, config)
        assert (await rt.runs(thread_id="bad"))[0].state != "done"
        mend(url)
        assert (await graph.ainvoke({"n": 1}, config))["n"] == 4


async def test_an_impossible_number_of_a_write_keeps_no_other_thread_back(url: str) -> None:
    with serving(url) as (rt, _, _):
        asking = [await rt.start("gate", {"said": []}, thread_id=f"t{n}") for n in range(2)]
        await rt.tick()
        raw.execute(url, "UPDATE perdure_writes SET stamp = ? WHERE thread_id = 't0'", 2**63 - 1)
        for run in asking:
            [wait] = await rt.waits(thread_id=run.thread_id)
            await rt.answer(wait.id, "yes")
        await rt.tick()
        assert (await rt.get(asking[1].id)).state == "done"
        assert (await rt.get((await rt.start("one", {"n": 1})).id)).state == "pending"
        await rt.tick()
        states = [run.state for run in await rt.runs() if run.thread_id != "t0"]
        assert set(states) == {"done"}


async def test_a_message_that_raises_or_cannot_be_read_keeps_no_other_back(url: str) -> None:
    with serving(url) as (rt, server, clock):
        got: list[Any] = []
        rt.deliver("news", lambda message: got.append(message.payload))
        rt.register(_telling(), name="telling")
        for n in range(4):
            await rt.start("telling", {"n": n}, thread_id=f"t{n}")
        await rt.work(until_idle=True, handle_signals=False, graphs=["telling"])
        raw.execute(url, "UPDATE perdure_outbox SET body = ? WHERE thread_id = 't0'", b"bad")
        raising(url, "perdure_outbox", "NEW.thread_id = 't1'")
        raw.execute(url, "DELETE FROM perdure_runs WHERE thread_id = 't2'")
        raw.execute(url, "DELETE FROM perdure_threads WHERE thread_id = 't2'")
        await rt.tick()
        assert sorted(got) == [2, 3]
        said = server.http().get("/metrics").text
        assert 'perdure_worker_failing{duty="Delivering messages"} 1' in said
        assert len(await rt.messages()) == 2
        mend(url)
        clock.advance(timedelta(minutes=2))
        await rt.tick()
        assert sorted(got) == [1, 2, 3]


def _telling() -> Any:
    def tell(state: Numbers) -> Numbers:
        perdure.outbox("news", state["n"])
        return {}

    return row(Numbers, tell)


async def test_a_worker_row_and_leases_of_impossible_workers_keep_no_run_back(url: str) -> None:
    with serving(url) as (rt, _, clock):
        lost, good = [await rt.start("one", {"n": n}) for n in range(2)]
        name = "x" * 5000 + ":1:" + "y" * 300
        far = int(clock.time.timestamp() * 1000) + 10**9
        raw.execute(
            url,
            "UPDATE perdure_runs SET state = 'running', worker = ?, lease_until = 1, due_at = ? "
            "WHERE id = ?",
            *(name, far, lost.id),
        )
        raw.execute(
            url,
            "INSERT INTO perdure_workers (id, host, pid, graphs, concurrency, started_at, seen_at, "
            "drain_at, drain_by) VALUES (?, 'h', 1, 'no list', 1, 1, 1, 1, 'nobody')",
            name,
        )
        await rt.tick()
        assert (await rt.get(good.id)).state == "done"
        assert len(await rt.workers()) >= 1


async def test_sweeps_go_on_past_rows_that_raise(url: str) -> None:
    with serving(url) as (rt, server, clock):
        http = server.http()
        for name in ("bad", "good"):
            body = {"thread_id": str(uuid5(NAMESPACE_URL, name)), "ttl": {"ttl": 1}}
            assert http.post("/threads", json=body).status_code == 200
        bad, good = (str(uuid5(NAMESPACE_URL, name)) for name in ("bad", "good"))
        raising(url, "perdure_threads", f"OLD.thread_id = '{bad}'", "DELETE")
        clock.advance(timedelta(minutes=2))
        await rt.tick()
        assert http.get(f"/threads/{good}").status_code == 404
        assert http.get(f"/threads/{bad}").status_code == 200
        said = http.get("/metrics").text
        assert 'perdure_worker_failing{duty="Erasing expired threads"} 1' in said


# -- lists


def test_an_assistant_that_cannot_be_read_is_listed_beside_the_others(sqlite_url: str) -> None:
    with serving(sqlite_url) as (_, server, _):
        http = server.http()
        for name in ("bad", "good"):
            http.post("/assistants", json={"graph_id": "one", "name": name}).raise_for_status()
        damage = "UPDATE perdure_assistants SET body = ? WHERE name = 'bad'"
        raw.execute(sqlite_url, damage, b"bad")
        found = http.post("/assistants/search", json={"graph_id": "one"}).json()
        said = {one["name"]: one["description"] for one in found}
        assert said.keys() == {"one", "good", "bad"}
        assert "damaged" in said["bad"]
