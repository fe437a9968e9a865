"""Migrations are numbered without gaps, make the same schema on both databases, and leave either
nothing or everything when the process is killed at any statement of them."""

from __future__ import annotations

import itertools
import os
import re
import signal
from importlib.resources import files
from typing import Any

import httpx
import pytest

from perdure.journal import connect, migrate, sqlite
from perdure.journal.sql import fill, split
from tests.support.entries import add, stored
from tests.support.raw import execute


@pytest.fixture
def url(empty_url: str) -> str:
    """A database whose tables are still to be made."""
    return empty_url


WHOLE_JOURNAL = {
    "perdure_graphs",
    "perdure_schedules",
    "perdure_fence",
    "perdure_prompts",
    "perdure_tokens",
    "perdure_assistants",
    "perdure_assistant_versions",
    "perdure_server_secret",
    "perdure_workers",
    "perdure_sizes",
}
"""Tables of what belongs to no thread."""
D1_TABLES = {"perdure_chunks", "perdure_revoked"}
"""Tables that a journal has on D1 only."""


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
        elif match := re.match(r"ALTER TABLE (\w+) DROP COLUMN (\w+)", statement):
            found[match[1]].remove(match[2])
        elif match := re.match(r"DROP TABLE (\w+)", statement):
            del found[match[1]]
        elif match := re.match(r"ALTER TABLE (\w+) RENAME TO (\w+)", statement):
            found[match[2]] = found.pop(match[1])
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
def test_the_schema_is_what_the_migrations_say(url: str) -> None:
    connect(url).close()
    assert tables(url) == made(url)
    for table, names in declared().items():
        assert columns(url, table) == names
    assert execute(url, "SELECT version FROM perdure_schema") == [
        (n,) for n in migrate.migrations()
    ]


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
        # The scope of an effect is its thread, or its business key, which is one for all threads;
        # turns are between threads.
        scoped = table in ("perdure_effects", "perdure_turns")
        assert key == ["scope" if scoped else "thread_id"]


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
