"""Migrations are numbered without gaps, make the same schema on both databases, and leave either
nothing or everything when the process is killed at any statement of them."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from perdure.journal import connect, migrate, postgres, sqlite, sqlite_connections
from perdure.journal.sql import fill, split
from tests.support.entries import add, stored


@pytest.fixture
def url(empty_url: str) -> str:
    """A database whose tables are still to be made."""
    return empty_url


WHOLE_JOURNAL = {"perdure_graphs", "perdure_schedules", "perdure_fence"}
"""Tables of what belongs to no thread."""


def test_numbers_start_at_one_and_have_no_gaps() -> None:
    numbers = list(migrate.migrations())
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_file_beside_them_is_a_migration() -> None:
    folder = files("perdure.journal") / "migrations"
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith("__")]
    assert len(names) == len(migrate.migrations())
    assert all(re.fullmatch(r"\d{4}_\w+\.sql", name) for name in names)


def declared() -> dict[str, list[str]]:
    """The columns of each table, as the migrations say."""
    script = fill("\n".join(migrate.migrations().values()), sqlite.FRAGMENTS)
    found = {}
    for statement in split(script):
        if match := re.match(r"CREATE TABLE (\w+) \((.*)\)", statement, re.DOTALL):
            lines = [line.strip() for line in match[2].splitlines() if line.strip()]
            found[match[1]] = [line.split()[0] for line in lines if line.split()[0].islower()]
        elif match := re.match(r"ALTER TABLE (\w+) ADD COLUMN (\w+)", statement):
            found[match[1]].append(match[2])
    return found


def query(url: str, statement: str) -> list[Any]:
    if url.startswith("sqlite"):
        database = sqlite3.connect(url.removeprefix("sqlite:///"))
        rows: list[Any] = database.execute(statement).fetchall()
        database.close()
        return rows
    with psycopg.connect(url) as connection:
        return connection.execute(statement.encode()).fetchall()


def tables(url: str) -> list[str]:
    if url.startswith("sqlite"):
        rows = query(url, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    else:
        rows = query(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return sorted(row[0] for row in rows)


def columns(url: str, table: str) -> list[str]:
    if url.startswith("sqlite"):
        return [row[1] for row in query(url, f"PRAGMA table_info({table})")]
    rows = query(
        url,
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_name = '{table}' ORDER BY ordinal_position",
    )
    return [row[0] for row in rows]


@pytest.mark.smoke
def test_the_schema_is_what_the_migrations_say(url: str) -> None:
    connect(url).close()
    assert tables(url) == sorted([*declared(), "perdure_schema"])
    for table, names in declared().items():
        assert columns(url, table) == names
    assert query(url, "SELECT version FROM perdure_schema") == [(n,) for n in migrate.migrations()]


def test_every_key_starts_with_the_thread(url: str) -> None:
    connect(url).close()
    for table in declared().keys() - WHOLE_JOURNAL:
        if url.startswith("sqlite"):
            key = [row[1] for row in query(url, f"PRAGMA table_info({table})") if row[5] == 1]
        else:
            key = [
                row[0]
                for row in query(
                    url,
                    "SELECT a.attname FROM pg_index i JOIN pg_attribute a "
                    "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
                    f"WHERE i.indisprimary AND i.indrelid = '{table}'::regclass",
                )
            ]
        # The scope of an effect is its thread, or its business key, which is one for all threads;
        # turns are between threads.
        scoped = table in ("perdure_effects", "perdure_turns")
        assert key == ["scope" if scoped else "thread_id"]


def test_a_second_connect_changes_nothing(url: str) -> None:
    journal = connect(url)
    journal.do(add(1))
    journal.close()
    connect(url).close()
    assert tables(url) == sorted([*declared(), "perdure_schema"])
    assert stored(url) == [1]


def statements() -> Sequence[str]:
    """Everything a migration of a fresh database executes under its lock."""
    seen: list[str] = []

    def execute(sql: str) -> list[tuple[int]]:
        seen.append(sql)
        return []

    migrate.migrate(execute, postgres.FRAGMENTS)
    return seen


def killed_at(url: str, number: int) -> None:
    """Connect in a forked process that dies before the n-th statement of the migration, or
    after the last one, before COMMIT."""
    if (pid := os.fork()) == 0:
        try:
            original = migrate.migrate

            def deadly(execute: migrate.Execute, fragments: Any) -> None:
                count = 0

                def counted(sql: str) -> list[tuple[int]]:
                    nonlocal count
                    if count == number:
                        os.kill(os.getpid(), signal.SIGKILL)
                    count += 1
                    return execute(sql)

                original(counted, fragments)
                os.kill(os.getpid(), signal.SIGKILL)

            sqlite_connections.migrate = deadly  # type: ignore[attr-defined]
            postgres.migrate = deadly  # type: ignore[attr-defined]
            connect(url)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("number", range(len(statements()) + 1))
def test_killed_at_any_statement_it_leaves_nothing_and_the_next_connect_finishes_it(
    url: str, number: int
) -> None:
    killed_at(url, number)
    assert tables(url) == []
    journal = connect(url, deadline=10.0)
    assert journal.do(add(1)) == [1]
    journal.close()
    assert tables(url) == sorted([*declared(), "perdure_schema"])
