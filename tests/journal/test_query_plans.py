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
    "threads": "a list of all threads",
    "graphs_in_use": "`perdure check` looks at every unfinished run",
    "effects_after": "a list of all effects, in an order without an index",
    "messages": "a list of what is not delivered yet, in an order without an index",
    "next_message": "messages without a handler here come before the first with one",
    "schedules": "a list of all schedules",
    "due_schedules": "schedules are a few rows",
}
"""Statements that read a whole table, or a whole partial index."""
RANGES = {
    "claim": "what is due",
    "suspect_due": "what is due",
    "strangers_due": "what is due",
    "late_graphs": "what is due",
    "is_due": "what is due, and what is driven",
    "take_messages": "what is due",
    "next_due": "the first row",
    "workers": "what is driven",
    "runs_before": "a page of a list, which filters may stretch",
    "unfinished_runs": "a page of a list, which filters may stretch",
    "runs_last_driven_with": "a page of a list, which filters may stretch",
    "old_runs": "a page of a list, which filters may stretch",
    "open_waits": "a page of a list, which filters may stretch",
    "unknown_effects": "a page of a list",
    "driven_graphs": "a page of a list",
    "runs_of_prefix": "six rows",
    "waits_of_prefix": "six rows",
    "effects_of_prefix": "ids that begin with a prefix",
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


def _is_by_key(access: str) -> bool:
    return access.startswith("SEARCH") and "=?" in access


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
