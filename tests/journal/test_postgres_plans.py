"""The lists that people look at never read a whole table on PostgreSQL either, whether it plans for
these parameters or, as it does for a statement that is used often, for any."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest

from perdure.journal import postgres
from perdure.journal.sql import render
from tests.support.agents import chain, opened
from tests.support.controls import approve, said

COPIES = 5_000
STATEMENTS = render(postgres.FRAGMENTS)
STATE = """CASE WHEN i % 100 < 85 THEN 'done' WHEN i % 100 < 95 THEN 'waiting'
  WHEN i % 100 < 96 THEN 'held' WHEN i % 100 < 98 THEN 'failed' WHEN i % 100 < 99 THEN 'paused'
  ELSE 'pending' END"""
OF_RUN = {"thread_id": "thread_id || i", "run_id": "run_id || i"}
COLUMNS = {
    "perdure_runs": {
        "thread_id": "thread_id || i",
        "id": "id || i",
        "state": STATE,
        "created_at": "created_at - i * 1000",
        "graph": "CASE WHEN i % 200 = 0 THEN 'rare' ELSE 'g' END",
    },
    "perdure_waits": OF_RUN
    | {
        "id": "id || i",
        "state": "CASE WHEN i % 10 = 0 THEN 'open' ELSE 'consumed' END",
        "kind": "CASE WHEN i % 30 = 0 THEN 'clock' ELSE kind END",
        "created_at": "created_at - i * 1000",
        "expires_at": "CASE WHEN i % 20 = 0 THEN created_at + i * 1000 END",
        "assignee": "CASE WHEN i % 50 = 0 THEN 'ana' END",
        "graph": "CASE WHEN i % 200 = 0 THEN 'rare' ELSE 'g' END",
    },
    "perdure_events": OF_RUN | {"at": "at - i * 1000"},
}
"""How the copies of a row differ from it."""
END = 2**52
ANY = {"before": END, "before_id": "~", "since": 0, "graph": None, "names": None, "count": 50}
QUESTIONS = {"after": 0, "after_id": "", "count": 50, "graph": None, "assignee": "ana"}
LISTS: Mapping[str, Mapping[str, Any]] = {
    "runs_before": ANY,
    "runs_newer": {"after": 0, "after_id": "", "since": 0, "until": END, "count": 50},
    "runs_in_state": ANY | {"state": "held"},
    "running_runs": ANY,
    "pending_runs": ANY,
    "runs_of_thread": ANY | {"thread_id": "t7"},
    "runs_of_parent": ANY | {"parent_id": "none"},
    "newest_runs": {"count": 50},
    "driven_runs": {"count": 50},
    "leased_workers": {"count": 50},
    "open_waits": QUESTIONS | {"kind": "human"},
    "open_waits_of_thread": QUESTIONS | {"thread_id": "t7", "kind": None},
    "questions_of_graph": QUESTIONS | {"graph": "rare"},
    "questions_of_assignee": QUESTIONS,
    "unassigned_questions": QUESTIONS,
    "questions_by_expiry": QUESTIONS,
    "newest_questions": {"count": 50},
    "events_after": {"thread_id": "t7", "id": "x", "after": 0, "count": 50, "names": '["done"]'},
    "waits_of_runs": {"names": json.dumps(["x"]), "most": 3},
    "count_in_state": {"state": "held", "most": 1000},
    "count_running": {"most": 1000},
    "count_pending": {"most": 1000},
    "count_done": {"looked": 10_000, "most": 1000},
    "count_open_waits": {"kind": "human", "most": 1000},
}
"""The statements, each with the parameters of one use."""


def _copy(database: psycopg.Connection[Any], table: str, changes: Mapping[str, str]) -> None:
    found = database.execute(
        "SELECT column_name FROM information_schema.columns WHERE table_name = %s", [table]
    )
    columns = [row[0] for row in found]
    chosen = ", ".join(changes.get(name, name) for name in columns)
    database.execute(
        f"INSERT INTO {table} ({', '.join(columns)}) SELECT {chosen} "
        f"FROM {table}, generate_series(1, {COPIES}) AS i".encode()
    )


def _plan(database: psycopg.Connection[Any], name: str, params: Mapping[str, Any]) -> str:
    names: list[str] = []

    def numbered(match: re.Match[str]) -> str:
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    sql = re.sub(r"(?<!:):(\w+)", numbered, STATEMENTS[name])
    kinds = ", ".join("bigint" if isinstance(params[one], int) else "text" for one in names)
    values = ", ".join("NULL" if params[one] is None else f"'{params[one]}'" for one in names)
    database.execute("DEALLOCATE ALL")
    database.execute(f"PREPARE asked ({kinds}) AS {sql}".encode())
    plan = database.execute(f"EXPLAIN EXECUTE asked ({values})".encode()).fetchall()
    return "\n".join(row[0] for row in plan)


@pytest.mark.slow
async def test_a_list_reads_an_index_and_no_whole_table(postgres_url: str) -> None:
    async with opened(postgres_url) as rt:
        rt.register(chain(approve), name="g")
        await rt.start("g", said(), thread_id="t")
        await rt.tick()
    with psycopg.connect(postgres_url, autocommit=True, prepare_threshold=None) as database:
        for table, changes in COLUMNS.items():
            _copy(database, table, changes)
        database.execute("ANALYZE")
        whole: dict[tuple[str, str], str] = {}
        for mode in ("force_custom_plan", "force_generic_plan"):
            database.execute(f"SET plan_cache_mode = {mode}".encode())
            plans = {name: _plan(database, name, params) for name, params in LISTS.items()}
            scan = r"Seq Scan on perdure_(runs|waits|events)\b"
            whole |= {(mode, name): plan for name, plan in plans.items() if re.search(scan, plan)}
        assert whole == {}
