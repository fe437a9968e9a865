"""Forward-only, numbered migrations.

Each runs in one transaction together with the row that records it, under a lock, so a crash at
any statement leaves the schema as it was before that migration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from importlib.resources import files

from perdure.errors import SchemaTooNew
from perdure.journal import failpoints
from perdure.journal.sql import fill, split

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS perdure_schema (version INTEGER PRIMARY KEY)"

Execute = Callable[[str], list[tuple[int]]]


@cache
def migrations() -> Mapping[int, str]:
    """Every migration by its number, as written."""
    found = {}
    for entry in (files("perdure.journal") / "migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name):
            found[int(match[1])] = entry.read_text()
    return dict(sorted(found.items()))


def migrate(execute: Execute, fragments: Mapping[str, str]) -> None:
    """Bring the schema up to date. Must be called inside a transaction that holds the lock."""
    execute(VERSION_TABLE)
    found = version(execute)
    for number, script in migrations().items():
        if number > found:
            for statement in split(fill(script, fragments)):
                failpoints.at("migrate.before")
                execute(statement)
                failpoints.at("migrate.after")
            execute(f"INSERT INTO perdure_schema VALUES ({number:d})")  # noqa: S608 (an int)


def version(execute: Execute) -> int:
    """The version of the schema in the database. Only reads; raises `SchemaTooNew`."""
    known = max(migrations())
    found = max((row[0] for row in execute("SELECT version FROM perdure_schema")), default=0)
    if found > known:
        raise SchemaTooNew(found, known)
    return found
