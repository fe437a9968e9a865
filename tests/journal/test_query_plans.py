"""What a statement costs does not grow with the journal: it finds its rows by a key, or it is named
here with the reason why it reads more. SQLite says how it finds them."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator

import pytest

from perdure.journal import sqlite
from perdure.journal.sql import positional, render

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
        ("losses", "delete_old_losses"),
        "there are none, unless the database went back in time",
    ),
    "graphs_in_use": "`perdure check` looks at every unfinished run",
    "effects_after": "a list of all effects, in an order without an index",
    "messages": "a list of what is not delivered yet, in an order without an index",
    "redeliver_message": "a message by its id alone, for an operator; the outbox is short",
    "find_message": "as redeliver_message",
    "next_message": "messages without a handler here come before the first with one",
    "count_runs": "metrics count every unfinished run, for a hundredth of the time",
    "count_unknown": "metrics count every unknown effect, for a hundredth of the time",
    "count_messages": "metrics count what is not delivered, and what was lost",
    "due_schedules": "schedules are a few rows",
    "erase_schedules": "as due_schedules",
    "schedule_health": "as due_schedules",
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
    "delete_workers": "workers are a few rows",
}
"""Statements that read a whole table, or a whole partial index."""
RANGES = {
    "claim": "what is due",
    "claimable": "what is due, and what is soon",
    "due_messages": "what is due",
    "other_graphs_due": "what is due",
    "late_graphs": "what is due",
    "count_due": "what is due",
    "is_due": "what is due, and what is driven",
    "take_messages": "what is due",
    "next_due": "the first row",
    "leased_workers": "what is driven",
    "running_runs": "what is driven",
    "count_running": "what is driven",
    "driven_runs": "what is driven",
    "runs_in_state": "a page of a list",
    "held_runs": "a page of a list",
    "open_waits": "a page of a list",
    "questions_by_expiry": "a page of a list",
    "newest_questions": "a page of a list",
    "count_in_state": "1,000 rows",
    "count_open_waits": "1,000 rows",
    "runs_before": "a page of a list, which filters may stretch",
    "runs_newer": "a page of a list",
    "unfinished_runs": "a page of a list, which filters may stretch",
    "runs_last_driven_with": "a page of a list, which filters may stretch",
    "oldest_runs": "a page of a list",
    "runs_with_streams": "a page of a list",
    "oldest_kept": "the first rows",
    "unknown_effects": "a page of a list",
    "driven_graphs": "a page of a list",
    "expired_threads": "what is due",
    "ids_of_prefix": "ids that begin with a prefix",
    "newest_effects": "a page of a list",
    "unfinished_of_threads": "a page of a list",
    "last_runs_of_threads": "a page of a list",
    "messages_by_due": "a page of a list",
    "schedules": "a page of a list",
    "count_late_messages": "1,000 rows",
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
