"""A new journal has the schema of `schema.sql`, and an older one the same once it is migrated. A
process that is killed at any statement leaves either nothing or everything."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import signal
from importlib.resources import files
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.errors import BadURL
from perdure.journal import connect, migrate, sqlite
from tests.fixtures.journals import FILES, load_rows
from tests.support.entries import add, stored
from tests.support.raw import execute


@pytest.fixture
def url(empty_url: str) -> str:
    """A database whose tables are still to be made."""
    return empty_url


WHOLE_JOURNAL = {
    "perdure_entries",
    "perdure_schedules",
    "perdure_fence",
    "perdure_tokens",
    "perdure_assistants",
    "perdure_workers",
}
"""Tables of what belongs to no thread."""
D1_TABLES = {"perdure_chunks", "perdure_revoked"}
"""Tables that a journal has on D1 only."""


def test_numbers_continue_version_0_1_without_gaps() -> None:
    folder = files("perdure.journal") / "migrations"
    names = [entry.name for entry in folder.iterdir() if not entry.name.startswith("__")]
    assert all(re.fullmatch(r"\d{4}_\w+\.sql", name) for name in names)
    numbers = list(migrate.migrations())
    assert len(names) == len(numbers)
    assert numbers == list(range(migrate.OLDEST + 1, numbers[-1] + 1))


def declared() -> dict[str, list[str]]:
    """The columns of each table, as the schema says."""
    found = {}
    for statement in migrate.script(0, sqlite.FRAGMENTS):
        if match := re.match(r"CREATE TABLE (\w+) \((.*)\)", statement, re.DOTALL):
            lines = [line.strip() for line in match[2].splitlines() if line.strip()]
            found[match[1]] = [line.split()[0] for line in lines if line.split()[0].islower()]
    return found


def made(url: str) -> list[str]:
    """The tables of a journal."""
    more = D1_TABLES if url.startswith("d1") else ()
    return sorted([*declared(), "perdure_schema", *more])


def tables(url: str) -> list[str]:
    if url.startswith("postgresql"):
        rows = execute(url, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    else:
        rows = execute(url, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    return sorted(row[0] for row in rows if not row[0].startswith("_cf_"))  # workerd's own


def columns(url: str, table: str) -> list[str]:
    if not url.startswith("postgresql"):
        return [row[1] for row in execute(url, f"PRAGMA table_info({table})")]
    rows = execute(
        url,
        "SELECT column_name FROM information_schema.columns "
        f"WHERE table_name = '{table}' ORDER BY ordinal_position",
    )
    return [row[0] for row in rows]


@pytest.mark.smoke
def test_a_new_journal_has_the_schema_of_its_file(url: str) -> None:
    connect(url).close()
    assert tables(url) == made(url)
    for table, names in declared().items():
        assert columns(url, table) == names
    assert execute(url, "SELECT version FROM perdure_schema") == [(max(migrate.migrations()),)]


def test_a_migrated_sqlite_journal_has_the_schema_of_a_new_one(
    empty_sqlite_url: str, tmp_path: Path
) -> None:
    old = shutil.copy(FILES["sqlite"], tmp_path)
    for url in (f"sqlite:///{old}", empty_sqlite_url):
        connect(url).close()
    assert sqlite_schema(f"sqlite:///{old}") == sqlite_schema(empty_sqlite_url)


def sqlite_schema(url: str) -> dict[str, Any]:
    """The columns of each table, in any order, and the indexes and triggers."""
    found: dict[str, Any] = {}
    rows = execute(url, "SELECT type, name, sql FROM sqlite_schema WHERE name LIKE 'perdure%'")
    for kind, name, sql in rows:
        found[name] = re.sub(r"\s+", " ", sql)
        if kind == "table":
            columns = execute(url, f"PRAGMA table_info({name})")
            found[name] = sorted(column[1:] for column in columns), "WITHOUT ROWID" in sql
    return found


def test_a_migrated_postgres_journal_has_the_schema_of_a_new_one(
    empty_postgres_url: str, postgres_url: str
) -> None:
    load_rows(empty_postgres_url)
    connect(empty_postgres_url).close()
    execute(empty_postgres_url, "DROP TABLE seats")
    assert postgres_schema(empty_postgres_url) == postgres_schema(postgres_url)


POSTGRES_SCHEMA = (
    """SELECT table_name, column_name, data_type, collation_name, is_nullable, column_default
       FROM information_schema.columns WHERE table_schema = 'public' ORDER BY 1, 2""",
    # A renamed table keeps the name of its primary key.
    """SELECT tablename, regexp_replace(indexdef, ' perdure_[a-z_]+_pkey ', ' ') FROM pg_indexes
       WHERE schemaname = 'public' ORDER BY 1, 2""",
    "SELECT tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    """SELECT relname, reloptions FROM pg_class
       WHERE relname LIKE 'perdure%' AND relkind = 'r' ORDER BY 1""",
)
"""Queries for the columns, indexes, triggers and settings of the tables."""


def postgres_schema(url: str) -> list[list[tuple[Any, ...]]]:
    return [execute(url, sql) for sql in POSTGRES_SCHEMA]


def test_a_journal_of_before_version_0_1_is_refused(empty_sqlite_url: str) -> None:
    execute(empty_sqlite_url, migrate.VERSION_TABLE)
    execute(empty_sqlite_url, "INSERT INTO perdure_schema VALUES (4)")
    with pytest.raises(BadURL, match=r"The schema is 4, of before perdure 0\.1"):
        connect(empty_sqlite_url)


def test_every_key_starts_with_the_thread(url: str) -> None:
    connect(url).close()
    for table in declared().keys() - WHOLE_JOURNAL:
        if not url.startswith("postgresql"):
            key = [row[1] for row in execute(url, f"PRAGMA table_info({table})") if row[5] == 1]
        else:
            key = [
                row[0]
                for row in execute(
                    url,
                    "SELECT a.attname FROM pg_index i JOIN pg_attribute a "
                    "ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0] "
                    f"WHERE i.indisprimary AND i.indrelid = '{table}'::regclass",
                )
            ]
        # The scope of an effect is its thread, or its business key, which is one for all threads.
        assert key == ["scope" if table == "perdure_effects" else "thread_id"]


def test_a_second_connect_changes_nothing(url: str) -> None:
    journal = connect(url)
    journal.do(add(1))
    journal.close()
    connect(url).close()
    assert tables(url) == made(url)
    assert stored(url) == [1]


def killed_around(url: str, number: int, moment: str) -> None:
    """Connect in a forked process that dies before or after its n-th request to D1."""
    if (pid := os.fork()) == 0:
        try:
            original, count = httpx.Client.request, itertools.count()

            def deadly(*args: Any, **options: Any) -> httpx.Response:
                here = next(count) == number
                if here and moment == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                reply = original(*args, **options)
                if here:
                    os.kill(os.getpid(), signal.SIGKILL)
                return reply

            httpx.Client.request = deadly  # type: ignore[method-assign]
            connect(url)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("number", [0, 1, 2])
def test_killed_around_a_request_to_d1_it_leaves_nothing_or_everything(
    empty_d1_url: str, number: int, moment: str
) -> None:
    killed_around(empty_d1_url, number, moment)
    done = (number, moment) == (2, "after")  # two requests ask for the version, one does it all
    assert tables(empty_d1_url) == (made(empty_d1_url) if done else [])
    journal = connect(empty_d1_url, deadline=10.0)
    assert journal.do(add(1)) == [1]
    journal.close()
    assert tables(empty_d1_url) == made(empty_d1_url)


def test_a_sqlite_journal_that_was_put_into_d1_gets_the_tables_of_d1(d1_url: str) -> None:
    triggers = execute(d1_url, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    for sql in [
        *(f"DROP TRIGGER {name}" for [name] in triggers if name != "perdure_events_stay"),
        *(f"DROP TABLE {name}" for name in D1_TABLES),
    ]:
        execute(d1_url, sql)
    journal = connect(d1_url, deadline=10.0)
    assert journal.do(add(1)) == [1]
    journal.close()
    assert tables(d1_url) == made(d1_url)
    found = execute(d1_url, "SELECT name FROM sqlite_master WHERE type = 'trigger'")
    assert sorted(found) == sorted(triggers)
