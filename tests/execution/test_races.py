"""Races that take two transactions, and cases that the state machine reaches too seldom."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest

import perdure
from perdure.commands import claims, health, starting
from perdure.commands.claims import LeaseTimes
from perdure.commands.runs import RunRow
from perdure.types import Run
from tests.execution.runtime_model import BROKEN, DEATHS, LEASE, Part, Side, build


@pytest.fixture
def side(url: str) -> Iterator[Side]:
    side = Side(url)
    yield side
    side.close()


def script(*parts: Part) -> dict[str, Any]:
    return {"run": "r", "script": [list(part) for part in parts], "at": 0, "log": []}


def claim(side: Side, run: Run, worker: str) -> RunRow:
    now = side.clock.now()
    times = LeaseTimes(now, now + LEASE)
    op = claims.claim_run(side.driver.serializer, worker, times, run.thread_id, run.id)
    row = side.journal.do(op)
    assert row is not None
    return row


def test_a_driver_that_lost_its_lease_cannot_use_up_an_answer(side: Side) -> None:
    rt = side.rt.blocking
    run = rt.start("script", script(("ask",)), thread_id="t")
    rt.tick()
    [wait] = rt.waits()
    late = claim(side, run, "late")
    side.clock.advance(timedelta(seconds=10))
    row = claim(side, run, "next")
    driven = side.drive(row)  # it saw no answer
    rt.answer(wait.id, "yes")
    side.drive(late)  # this one sees it, and hands it over to nobody
    assert side.finish(row, *driven) == "waiting"
    rt.tick()
    assert rt.get(run.id).output["log"] == ["r 0 ask yes"]


def test_a_signal_that_comes_while_its_wait_is_being_stored_wakes_the_run(
    postgres_url: str,
) -> None:
    side = Side(postgres_url)
    rt = side.rt.blocking
    run = rt.start("script", script(("wait", "x")), thread_id="t")
    rt.tick()
    with (
        psycopg.connect(postgres_url, autocommit=True) as db,
        ThreadPoolExecutor(1) as pool,
    ):
        # The transaction that stores the wait and lets the run go, in slow motion.
        db.execute("CREATE TEMP TABLE kept AS SELECT * FROM perdure_waits")
        db.execute("DELETE FROM perdure_waits")
        db.execute("UPDATE perdure_runs SET state = 'running', due_at = 0")
        with db.transaction():
            db.execute("UPDATE perdure_runs SET state = 'waiting', due_at = NULL")
            sent = pool.submit(rt.signal, "t", "x", "hello")
            deadline = time.monotonic() + 20
            while not db.execute(
                "SELECT 1 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            ).fetchall():
                assert time.monotonic() < deadline
            db.execute("INSERT INTO perdure_waits SELECT * FROM kept")
        assert sent.result(20)
    rt.tick()
    assert rt.get(run.id).output["log"] == ["r 0 wait hello"]
    side.close()


def test_a_run_behind_one_that_was_superseded_while_it_waited_is_next(side: Side) -> None:
    rt = side.rt.blocking
    first = rt.start("script", script(("ask",)), thread_id="t")
    rt.tick()
    second = rt.start("script", script(), thread_id="t")
    setup = {"input": script()}
    plan = starting.accept(side.rt.engine, ("script", ""), "t", setup, "interrupt", only="waiting")
    third = side.journal.run(plan)
    assert side.journal.do(health.examine()) == []
    rt.tick()
    states = [rt.get(id).state for id in (first.id, second.id, third.id)]
    assert states == ["cancelled", "done", "done"]


def test_a_run_that_fails_more_often_than_workers_may_die_is_not_held(side: Side) -> None:
    BROKEN.add("r")
    patient = perdure.Retry(attempts=DEATHS + 3, first=timedelta(seconds=1))
    side.rt.register(build(), name="patient", retry=patient, deaths=DEATHS)
    rt = side.rt.blocking
    run = rt.start("patient", script(("fail",)), thread_id="t")
    for attempt in range(1, patient.attempts + 1):
        assert rt.get(run.id).state == "pending", attempt
        rt.tick()
        side.clock.advance(timedelta(hours=1))
    assert rt.get(run.id).state == "failed"
    BROKEN.clear()


def test_a_pause_that_is_taken_back_after_a_takeover_does_not_pause(side: Side) -> None:
    rt = side.rt.blocking
    run = rt.start("script", script(("step",)), thread_id="t")
    claim(side, run, "dead")
    rt.pause(run.id)
    side.clock.advance(timedelta(seconds=10))
    row = claim(side, run, "next")  # it is told to pause
    rt.resume(run.id)
    side.finish(row, *side.drive(row))
    rt.tick()
    assert rt.get(run.id).state == "done"
