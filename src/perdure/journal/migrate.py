"""Makes the schema of a new journal, and brings that of an older one up to date.

`schema.sql` makes a new journal. `migrations/` are forward-only and numbered. Either runs in one
transaction with the rows that record it, under a lock, so a crash at any statement leaves the
schema as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.resources import files

from perdure import failpoints
from perdure.errors import BadURL, SchemaTooNew
from perdure.journal.sql import fill, split

VERSION_TABLE = "CREATE TABLE IF NOT EXISTS perdure_schema (version INTEGER PRIMARY KEY)"
OLDEST = 5
"""The schema of perdure 0.1, which the first migration continues."""

Execute = Callable[[str], list[tuple[int]]]


@cache
def migrations() -> Mapping[int, str]:
    """Every migration by its number, as written."""
    texts = {}
    for entry in (files("perdure.journal") / "migrations").iterdir():
        if match := re.fullmatch(r"(\d{4})_\w+\.sql", entry.name):
            texts[int(match[1])] = entry.read_text()
    return dict(sorted(texts.items()))


def migrate(execute: Execute, fragments: Mapping[str, str]) -> None:
    """Bring the schema up to date. Must be called inside a transaction that holds the lock."""
    execute(VERSION_TABLE)
    for statement in script(version(execute), fragments):
        failpoints.at("migrate.before")
        execute(statement)
        failpoints.at("migrate.after")


def script(current: int, fragments: Mapping[str, str]) -> Iterator[str]:
    """The statements that make the newest schema from that of a version; 0: from nothing."""
    if not current:
        steps = {max(migrations()): (files("perdure.journal") / "schema.sql").read_text()}
    elif current < OLDEST:
        raise BadURL(
            f"The schema is {current}, of before perdure 0.1. It cannot be brought up to date."
        )
    else:
        steps = {number: text for number, text in migrations().items() if number > current}
    for number, text in steps.items():
        yield f"INSERT INTO perdure_schema VALUES ({number:d})"  # noqa: S608 (an int)
        yield from split(fill(text, fragments))


def version(execute: Execute) -> int:
    """The version of the schema in the database. Only reads; raises `SchemaTooNew`."""
    known = max(migrations())
    current = max((row[0] for row in execute("SELECT version FROM perdure_schema")), default=0)
    if current > known:
        raise SchemaTooNew(current, known)
    return current
