"""What a statement costs does not grow with the journal: it finds its rows by a key, or it is named
here with the reason why it reads more. SQLite says how it finds them."""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest

from perdure import sleep
from perdure.journal import Statement, sqlite
from perdure.journal.clock import HostTime
from perdure.journal.sql import positional, render
from perdure.operations.claims import LeaseTimes
from perdure.operations.look import look
from perdure.testing import runtime
from tests.support.agents import Log, chain

STATEMENTS = render(sqlite.FRAGMENTS)
DOCTOR = {name: "doctor looks at everything" for name in STATEMENTS if name.startswith("doctor_")}
SCANS = DOCTOR | {
    "list_all": "a list of all threads' checkpoints, in an order without an index",
    "threads_of_run": "all threads, or those of a saver's delete_for_runs",
    "tokens": "a list of all tokens; there are few",
    "rows_of_thread": "effects with a business key, whose runs may be pruned, have no other index",
    "erase_effects": "as rows_of_thread",
    "erase_thread": "as rows_of_thread",
    **dict.fromkeys(
        ("losses", "loss_of_run", "count_losses", "forget_losses"),
        "there are none, unless the database went back in time",
    ),
    "graphs_in_use": "`perdure check` looks at every unfinished run",
    "effects_after": "a list of all effects, in an order without an index",
    "messages": "a list of what is not delivered yet, in an order without an index",
    "redeliver_message": "a message by its id alone, for an operator; the outbox is short",
    "find_message": "as redeliver_message",
    "next_message": "messages without a handler here come before the first with one",
    "count_runs": "metrics count every unfinished run, for a hundredth of the time",
    "count_waits": "metrics count every open wait, for a hundredth of the time",
    "count_unknown": "metrics count every unknown effect, for a hundredth of the time",
    "count_unknown_first": "1,000 rows of a partial index",
    "count_messages": "metrics count what is not delivered, for a hundredth of the time",
    "due_schedules": "schedules are a few rows",
    "erase_schedules": "as due_schedules",
    "count_schedules": "as due_schedules",
    "failing_schedules": "as due_schedules",
    "assistants": "a list of all assistants",
    "threads_by_created": "a page of a list, in the order of its index",
    "threads_by_updated": "a page of a list, in the order of its index",
    "threads_sorted": "a list of all threads, in an order without an index",
    "threads_not_idle": "the unfinished runs, and those that ended badly",
    "count_threads": "all threads, or those of a graph",
    "newest_runs": "a page of a list, in the order of its index",
    "pending_runs": "the unfinished runs, in an index that has their state",
    "count_pending": "the unfinished runs, in an index that has their state",
    "count_done": "the newest runs, so many",
    "announced_workers": "a list of all workers; there are few",
    "forget_workers": "workers are a few rows",
}
"""Statements that read a whole table, or a whole partial index."""
RANGES = {
    "claim": "what is due",
    "claimable": "what is due",
    "due_messages": "what is due",
    "next_claimable": "what is due, and what is soon",
    "other_graphs_due": "what is due",
    "late_graphs": "what is due",
    "count_due": "what is due",
    "is_due": "what is due, and what is driven",
    "take_messages": "what is due",
    "next_due": "the first row",
    "workers": "what is driven",
    "running_runs": "what is driven",
    "count_running": "what is driven",
    "count_driven": "what is driven",
    "driven_runs": "what is driven",
    "runs_in_state": "a page of a list",
    "held_runs": "a page of a list",
    "open_waits": "a page of a list",
    "questions_by_expiry": "a page of a list",
    "newest_questions": "a page of a list",
    "newest_open_questions": "a page of a list",
    "count_in_state": "1,000 rows",
    "count_open_waits": "1,000 rows",
    "runs_before": "a page of a list, which filters may stretch",
    "runs_newer": "a page of a list",
    "threads_before": "a page of a list",
    "unfinished_runs": "a page of a list, which filters may stretch",
    "runs_last_driven_with": "a page of a list, which filters may stretch",
    "old_runs": "a page of a list, which filters may stretch",
    "oldest_runs": "a page of a list",
    "runs_with_streams": "a page of a list",
    "oldest_kept": "the first rows",
    "prompt_texts": "a page of a list",
    "prompt_versions": "the prompts of one name, or all",
    "prompt_outcomes": "the scores of the prompts of one name, or all",
    "unknown_effects": "a page of a list",
    "driven_graphs": "a page of a list",
    "expired_threads": "what is due",
    "runs_of_prefix": "six rows",
    "waits_of_prefix": "six rows",
    "effects_of_prefix": "ids that begin with a prefix",
    "newest_effects": "a page of a list",
    "newest_scores": "a page of a list",
    "unfinished_of_threads": "a page of a list",
    "last_runs_of_threads": "a page of a list",
    "messages_by_due": "a page of a list",
    "schedules_after": "a page of a list",
    "count_due_first": "1,000 rows of what is due",
    "count_late_messages": "1,000 rows",
    "count_given_up": "1,000 rows",
}
"""Statements that read a part of an index, from a place or up to one."""


@pytest.fixture
def database(sqlite_url: str) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    yield connection
    connection.close()


def _accesses(database: sqlite3.Connection, name: str) -> list[str]:
    """How a statement finds its rows in the tables of the journal, each line as SQLite says it."""
    sql, params = positional(STATEMENTS[name])
    plan = database.execute(f"EXPLAIN QUERY PLAN {sql}", [None] * len(params)).fetchall()
    aliases = {alias for _, alias in re.findall(r"\b(perdure_\w+) AS (\w+)", sql)}
    lines = [re.match(r"(SCAN|SEARCH) (\S+)(.*)", line) for *_, line in plan]
    return [
        line[0] for line in lines if line and (line[2] in aliases or line[2].startswith("perdure_"))
    ]


FEW_VALUES = {"kind", "state"}
"""Columns that many rows have the same value of: alone they are no key."""


def _is_by_key(access: str) -> bool:
    equal = {*re.findall(r"(\w+)=\?", access)}
    return access.startswith("SEARCH") and bool(equal - FEW_VALUES)


def test_a_statement_finds_its_rows_by_a_key(database: sqlite3.Connection) -> None:
    others = {
        name: [one for one in _accesses(database, name) if not _is_by_key(one)]
        for name in STATEMENTS
    }
    scans = {name for name, found in others.items() if any(one.startswith("SCAN") for one in found)}
    assert scans - SCANS.keys() == set()
    assert {name for name, found in others.items() if found} - {*SCANS, *RANGES} == set()
    unlisted = {*SCANS, *RANGES} - DOCTOR.keys() - {name for name, found in others.items() if found}
    assert unlisted == set(), "each of these finds its rows by a key now"


async def test_a_look_does_not_depend_on_how_many_runs_sleep(sqlite_url: str) -> None:
    """Counted in instructions of SQLite's virtual machine, so to the row."""
    async with runtime(sqlite_url) as rt:
        rt.register(chain(nap), name="nap")
        await rt.start("nap", {"log": []}, thread_id="asleep")
        await rt.tick()
        now = rt.clock.now()
    times = LeaseTimes(now, now + 3_000, HostTime("host", 1))
    found = look(times, ["nap@"], until=now + 200, suspects=True, slots=True, topics=["news"])
    with contextlib.closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as database:
        _work(database, found.render())  # which also reads the schema
        few = _work(database, found.render())
        columns = [row[1] for row in database.execute("PRAGMA table_info(perdure_runs)")]
        copied = ", ".join("id || i" if name == "id" else name for name in columns)
        copied = copied.replace("thread_id", "thread_id || i").replace("due_at", "due_at + i")
        database.execute(
            f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 2000) "
            f"INSERT INTO perdure_runs SELECT {copied} FROM n, perdure_runs"
        )
        assert _work(database, found.render()) == few


def _work(database: sqlite3.Connection, statements: Sequence[Statement]) -> int:
    """How many instructions it takes to run these."""
    done = 0

    def count() -> int:
        nonlocal done
        done += 1
        return 0

    database.set_progress_handler(count, 1)
    for name, params in statements:
        sql, names = positional(STATEMENTS[name])
        database.execute(sql, [params[one] for one in names]).fetchall()
    database.set_progress_handler(None, 0)
    return done


def nap(state: Log) -> Log:
    sleep(timedelta(days=30))
    return {}
