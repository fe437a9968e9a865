"""Thousands of pending reflections cost a submit, a look, a start and the memory nothing.

Without a clock: what is asked of the database is asked of its planner, on both databases, and what
a process keeps is counted.
"""

from __future__ import annotations

import gc
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from langgraph.store.memory import InMemoryStore

from perdure import failpoints
from perdure.journal import postgres, sqlite
from perdure.journal.sql import positional, render
from perdure.langmem import Reflection, ReflectionExecutor
from perdure.langmem.background_worker import BATCH
from tests.support.polling import until

MONTH = 30 * 86_400
MANY, CROWD = 2_000, 10_000
PAYLOAD = {"messages": [{"role": "user", "content": "I moved to Lisbon."}]}

SMALL = ("json_each", "pragma_database_list", "tree")
"""What may be read from one end to the other: a list of our own."""

SUBMIT = (
    "count_run",
    "stop_thread",
    "insert_stop_events",
    "trace_changed",
    "close_waits",
    "lock_joiners",
    "wake_joiners",
    "stop_descendants",
    "insert_descendant_events",
    "insert_run",
    "insert_event",
    "announce_state",
    "make_next_due",
    "find_run",
)
LOOK = ("next_due", "claimable", "claim", "insert_claim_events", "other_graphs_due")
TURN = ("take_turn", "entry")
WATCH = ("runs_by_ids", "run_by_id", "unfinished_runs")
END = ("end_segment", "stop_run", "insert_stop_events", "is_due")


@contextmanager
def opened(url: str, reflector: Callable[[Any], Any], **options: Any) -> Iterator[Any]:
    executor = ReflectionExecutor(
        reflector, ("memories", "{user_id}"), store=InMemoryStore(), journal=url, **options
    )
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)


def nothing(payload: Any) -> None:
    return None


def submit(executor: Any, n: int, *, after: float = MONTH, thread: str = "") -> Reflection:
    config = {"configurable": {"user_id": f"user-{n}", "thread_id": thread or f"thread-{n}"}}
    found: Reflection = executor.submit(PAYLOAD, config, after_seconds=after)
    return found


# -- what is asked of the database


@pytest.mark.parametrize("name", [*SUBMIT, *LOOK, *TURN, *WATCH, *END])
def test_no_statement_reads_a_table_of_sqlite_from_one_end_to_the_other(
    name: str, sqlite_url: str
) -> None:
    with opened(sqlite_url, nothing, name="scale"):
        plan = plan_in_sqlite(sqlite_url, name)
    assert [line for line in plan if line.startswith("SCAN ") and not is_small(line)] == []


def test_what_a_submit_reads_of_a_long_conversation_is_what_is_not_over(sqlite_url: str) -> None:
    """However many were replaced: their thread alone leads to none of them."""
    with opened(sqlite_url, nothing, name="scale"):
        for name in SUBMIT:
            for line in plan_in_sqlite(sqlite_url, name):
                assert not re.search(r"perdure_runs_id \(thread_id=\?\)$", line), (name, line)
                assert not re.search(r"autoindex_perdure_runs_1 \(thread_id=\?\)$", line), name


def test_the_statements_of_a_submit_are_those_that_are_looked_at_here(sqlite_url: str) -> None:
    with opened(sqlite_url, nothing, name="scale") as executor:
        submit(executor, 1)
        with statements() as seen:
            submit(executor, 1)
    assert set(SUBMIT) <= seen
    assert seen - {*SUBMIT, *LOOK, *WATCH, *IDLE, "commit", "effect reflect"} == set()


IDLE = ("leased_workers", "leases", "renew", "due_schedules", "next_message", "journal_time")
"""What the thread that drives may ask meanwhile."""


@pytest.mark.parametrize("name", [*SUBMIT, *LOOK, *TURN, *WATCH, *END])
def test_no_statement_reads_a_table_of_postgresql_from_one_end_to_the_other(
    name: str, crowded_postgres: str
) -> None:
    plan = plan_in_postgres(crowded_postgres, name)
    assert "Seq Scan on perdure_runs" not in plan, plan
    assert "Seq Scan on perdure_threads" not in plan, plan


@pytest.fixture(scope="module")
def crowded_postgres(postgres_server: Any) -> Iterator[str]:
    """A journal in which many are pending, and as many are over."""
    postgres_server.start()
    url = postgres_server.database()
    with opened(url, nothing, name="scale") as executor:
        submit(executor, 0)
    with psycopg.connect(url, autocommit=True) as server:
        rows = server.execute(COLUMNS).fetchall()
        columns = [row[0] for row in rows]
        for prefix, state in (("pending", "pending"), ("over", "done")):
            other = {
                "thread_id": f"'{prefix}-' || i",
                "id": f"'{prefix}-' || i",
                "key": f"'{prefix}-' || i",
                "state": f"'{state}'",
                "due_at": "due_at + i" if state == "pending" else "NULL",
                "created_at": "created_at + i",
            }
            picked = ", ".join(other.get(column, column) for column in columns)
            copy = (
                f"INSERT INTO perdure_runs ({', '.join(columns)}) SELECT {picked} FROM (SELECT * "
                f"FROM perdure_runs LIMIT 1) AS one, generate_series(1, {CROWD}) AS i"
            )
            server.execute(copy.encode())
        for into, values in (
            ("threads (thread_id, runs, created_at, updated_at, change)", "i, i, i, 0"),
            ("entries (name, run_id)", "i"),
        ):
            made = f"INSERT INTO perdure_{into} SELECT 'pending-' || i, {values}"
            server.execute(f"{made} FROM generate_series(1, {CROWD}) AS i".encode())
        server.execute("ANALYZE")
    yield url
    postgres_server.drop(url)


COLUMNS = """
SELECT attname FROM pg_attribute
WHERE attrelid = 'perdure_runs'::regclass AND attnum > 0 AND NOT attisdropped
"""


def plan_in_sqlite(url: str, name: str) -> list[str]:
    sql, names = positional(render(sqlite.FRAGMENTS)[name])
    file = sqlite3.connect(url.removeprefix("sqlite:///"))
    try:
        values = [value_of(parameter) for parameter in names]
        return [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {sql}", values)]
    finally:
        file.close()


def plan_in_postgres(url: str, name: str) -> str:
    sql = re.sub(r":(\w+)", r"%(\1)s", render(postgres.FRAGMENTS)[name].replace("%", "%%"))
    names = re.findall(r"%\((\w+)\)s", sql)
    with psycopg.connect(url) as server:
        values = {parameter: value_of(parameter) for parameter in names}
        rows = server.execute(f"EXPLAIN {sql}".encode(), values).fetchall()
        server.rollback()
    return "\n".join(row[0] for row in rows)


VALUES = {
    "names": '["scale@"]',
    "first": "reflection:",
    "last": "reflection:\U0010ffff",
    **dict.fromkeys(("thread_id", "id", "key", "worker", "name", "run_id"), "pending-7"),
    **dict.fromkeys(("after_id", "graph", "version", "kind", "asked", "reason"), "pending-7"),
    **dict.fromkeys(("only", "state", "control", "parent_id", "parent_reason"), "idle"),
    "clock": "%:clock",
    **dict.fromkeys(("body", "setup", "output", "error", "empty"), b""),
}


def value_of(parameter: str) -> Any:
    return VALUES.get(parameter, 1)


def is_small(line: str) -> bool:
    return any(name in line for name in SMALL)


@contextmanager
def statements() -> Iterator[set[str]]:
    seen: set[str] = set()
    before = failpoints.hook
    failpoints.hook = lambda point: seen.add(point.rpartition(".")[0])
    try:
        yield seen
    finally:
        failpoints.hook = before


# -- what a process keeps


@pytest.mark.slow
def test_a_process_that_submitted_thousands_keeps_none_of_them(sqlite_url: str) -> None:
    with opened(sqlite_url, nothing, name="scale") as executor:
        for n in range(MANY):
            submit(executor, n)
        gc.collect()
        worker = executor._worker
        assert [one for one in gc.get_objects() if isinstance(one, Reflection)] == []
        assert len(worker._futures) == len(worker._latest) == 0
        assert len(executor.pending(limit=MANY)) == MANY


def test_a_future_that_is_kept_is_told_among_many_that_are_not(url: str) -> None:
    """What clears away the others leaves it alone."""
    with opened(url, nothing, name="scale") as executor:
        kept = submit(executor, 0, after=0.3)
        for n in range(1, 2 * BATCH + 50):
            submit(executor, n)
        assert kept.result(30) is None


# -- start-up


def test_a_start_claims_no_more_than_it_works_on(url: str) -> None:
    """The others stay for whoever has time for them."""
    with opened(url, nothing, name="scale") as executor:
        for n in range(50):
            submit(executor, n, after=1)
        executor._worker.stop()
        begun: list[Any] = []
        gate = threading.Event()

    def stuck(payload: Any) -> None:
        begun.append(payload)
        gate.wait(30)

    with opened(url, stuck, name="scale", concurrency=3) as executor:
        try:
            until(lambda: len(begun) == 3)
            running = [one for one in executor.pending() if one.state == "running"]
            assert len(running) == 3
            assert len(begun) == 3
        finally:
            gate.set()


def test_a_worker_is_not_woken_for_what_is_due_later(sqlite_url: str) -> None:
    """It looks often enough by itself; to wake it for each would take turns with who submits."""
    with opened(sqlite_url, nothing, name="scale") as executor:
        woken: list[None] = []
        executor._runtime.look_now = lambda: woken.append(None)
        submit(executor, 1, after=timedelta(hours=1).total_seconds())
        assert woken == []
        submit(executor, 2, after=0)
        assert woken == [None]
