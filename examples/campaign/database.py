"""The application's tables: one way to run a statement, on SQLite and on PostgreSQL.

Inside a transactional effect the statements go through the journal's own transaction
(`Database.inside`), so that they are there if and only if the effect's outcome is. Everybody else,
who imports contacts or receives mail, has a short transaction of his own (`Database.transaction`).
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import perdure

Row = dict[str, Any]
SCHEMA = Path(__file__).with_name("schema.sql")


class Session:
    """Runs statements with `:name` parameters in a transaction that somebody else ends."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.is_postgres = not hasattr(connection, "executemany")

    def run(self, sql: str, **params: Any) -> list[Row]:
        """The rows of a statement, by the names of their columns."""
        if self.is_postgres:
            sql = re.sub(r"(?<!:):(\w+)", r"%(\1)s", sql.replace("%", "%%"))
        cursor = self._connection.execute(sql, params)
        if cursor.description is None:
            return []
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def one(self, sql: str, **params: Any) -> Row | None:
        """The first row of a statement, if there is one."""
        rows = self.run(sql, **params)
        return rows[0] if rows else None

    def lock(self, table: str) -> None:
        """Let nobody else write to a table until the end. On SQLite nobody does anyway."""
        if self.is_postgres:
            self._connection.execute(f"LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE")


class Database:
    """Where the journal and the tables are."""

    def __init__(self, url: str) -> None:
        self.url = url

    def create(self) -> None:
        """Make the tables, if they are not there."""
        statements = re.sub(r"--.*", "", SCHEMA.read_text(encoding="utf-8")).split(";")
        with self.transaction() as session:
            if session.is_postgres:  # two who begin at once would both find nothing there
                session.run("SELECT pg_advisory_xact_lock(7265)")
            for statement in filter(str.strip, statements):
                session.run(statement)

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction: all of it is there afterwards, or, if something is raised, nothing."""
        if self.url.startswith("sqlite"):
            path = unquote(self.url.removeprefix("sqlite:///").partition("?")[0])
            with contextlib.closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as db:
                db.execute("PRAGMA wal_autocheckpoint=0")  # the journal's connection does that
                db.execute("PRAGMA synchronous=FULL")
                db.execute("BEGIN IMMEDIATE")
                try:
                    yield Session(db)
                    db.execute("COMMIT")
                except BaseException:
                    if db.in_transaction:  # a full disk has ended it already
                        db.execute("ROLLBACK")
                    raise
            return
        import psycopg

        with psycopg.connect(self.url) as connection, connection.transaction():
            yield Session(connection)

    @staticmethod
    def inside() -> Session:
        """The transaction of the effect this is called in."""
        return Session(perdure.transaction())
