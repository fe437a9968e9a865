"""The application's tables: one way to run a statement, on SQLite and on PostgreSQL.

Inside a transactional effect the statements go through the journal's own transaction
(`Database.inside`), so that they are there if and only if the effect's outcome is. Everybody else,
who imports contacts or receives mail, has a short transaction of his own (`Database.transaction`).
"""

from __future__ import annotations

import contextlib
import os
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
    """Where the journal and the tables are.

    With `keep`, connections are kept for the next transaction until `close`. Otherwise each
    transaction has one of its own.
    """

    def __init__(self, url: str, *, keep: bool = False) -> None:
        self.url, self._keep = url, keep
        self._idle: dict[int, list[Any]] = {}
        """By process: a child has nothing to do with the connections of its parent."""

    def create(self) -> None:
        """Make the tables, if they are not there."""
        statements = re.sub(r"--.*", "", SCHEMA.read_text(encoding="utf-8")).split(";")
        with self.transaction() as session:
            if session.is_postgres:  # two who begin at once would both find nothing there
                session.run("SELECT pg_advisory_xact_lock(7265)")
            for statement in filter(str.strip, statements):
                session.run(statement)

    def close(self) -> None:
        """Let the connections go that were kept."""
        idle = self._idle.pop(os.getpid(), [])
        while idle:
            idle.pop().close()

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Session]:
        """A transaction that writes: all of it is there afterwards, or, if something is raised,
        nothing. On SQLite it waits for every other one; to read, use `reading`."""
        with self._connection() as connection:
            if not self._is_sqlite:
                with connection.transaction():
                    yield Session(connection)
                return
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield Session(connection)
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def reading(self) -> Iterator[Session]:
        """For who only reads: everything that was committed before. On SQLite he does not wait for
        those who write."""
        if not self._is_sqlite:
            with self.transaction() as session:
                yield session
            return
        with self._connection() as connection:
            connection.execute("BEGIN")
            try:
                yield Session(connection)
            finally:
                connection.execute("ROLLBACK")

    @property
    def _is_sqlite(self) -> bool:
        return self.url.startswith("sqlite")

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection that nobody else has. If something goes wrong, none is kept: the server may
        have been restarted."""
        idle = self._idle.setdefault(os.getpid(), [])
        try:
            connection = idle.pop()
        except IndexError:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            self.close()
            raise
        if self._keep and self._idle.get(os.getpid()) is idle:
            idle.append(connection)
        else:
            connection.close()

    def _connect(self) -> Any:
        if self._is_sqlite:
            path = unquote(self.url.removeprefix("sqlite:///").partition("?")[0])
            db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA wal_autocheckpoint=0")  # the journal's connection does that
            db.execute("PRAGMA synchronous=FULL")
            return db
        import psycopg

        return psycopg.connect(self.url)

    @staticmethod
    def inside() -> Session:
        """The transaction of the effect this is called in."""
        return Session(perdure.transaction())
