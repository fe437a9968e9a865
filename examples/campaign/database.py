"""The application's tables, in the journal's database: SQLite, PostgreSQL or Cloudflare D1.

D1 has no interactive transactions. It takes a batch of statements, and commits all of them or none.
So that the same code serves all three databases, everything here is a batch, with the same rules
everywhere:

- SQL makes each decision, in one batch. The caller reads the result afterwards.
- A key that is taken fails the whole batch (`Conflict`).
- A batch that runs a second time, right away or late, changes nothing, or is a `Conflict`: over
  HTTP an answer can be lost, and then the batch is sent again.
- A transactional effect only writes (`Database.inside`). Its statements are there if and only if
  its outcome is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import perdure

Row = dict[str, Any]
SCHEMA = Path(__file__).with_name("schema.sql")
_TAKEN = ("SQLITE_CONSTRAINT_PRIMARYKEY", "SQLITE_CONSTRAINT_UNIQUE")
PATIENCE = 30.0
"""Seconds during which a batch is sent again while its answers are lost."""
PAUSE = 0.2
"""Seconds before that. A wrong secret or a full database answers at once, each time."""


class Statement(NamedTuple):
    """An SQL text for SQLite with `:name` parameters, and their values.

    PostgreSQL reads it the same way, except `json_each(:name)`, which is translated.
    """

    text: str
    params: dict[str, Any]


def sql(text: str, /, **params: Any) -> Statement:
    return Statement(text, params)


def json_list(values: Sequence[object]) -> str:
    """A list as one parameter. SQL reads each value of `json_each` as `value->>'is'`."""
    return json.dumps([{"is": value} for value in values])


class Conflict(Exception):
    """A row with this key already exists. The batch was not written, or was before, and its answer
    was lost: the caller reads and decides again."""


class Database:
    """Where the journal and the tables are.

    With `keep`, connections are kept for the next batch until `close`. Otherwise each batch has one
    of its own.
    """

    def __init__(self, url: str, *, keep: bool = False) -> None:
        self.url, self._keep = url, keep
        self.is_postgres, self.is_d1 = url.startswith("postgres"), url.startswith("d1:")
        self._idle: dict[int, list[Any]] = {}
        """By process: a child must not use its parent's connections."""

    def create(self) -> None:
        """Create the tables if they do not exist."""
        texts = re.sub(r"--.*", "", SCHEMA.read_text(encoding="utf-8")).split(";")
        statements = [sql(text) for text in texts if text.strip()]
        if self.is_postgres:  # two processes that start at once would both find no tables
            statements.insert(0, sql("SELECT pg_advisory_xact_lock(7265)"))
        self.write(*statements)

    def close(self) -> None:
        """Close the kept connections."""
        idle = self._idle.pop(os.getpid(), [])
        while idle:
            idle.pop().close()

    # -- batches

    def rows(self, text: str, /, **params: Any) -> list[Row]:
        """The rows of one statement that reads."""
        return self.read(sql(text, **params))[0]

    def one(self, text: str, /, **params: Any) -> Row | None:
        """The first of them, if there is one."""
        return next(iter(self.rows(text, **params)), None)

    def read(self, *statements: Statement) -> list[list[Row]]:
        """The rows of each statement, with everything committed before. On SQLite a reader does not
        wait for writers."""
        if self.is_d1:
            with self._connection() as client:
                found: list[list[Row]] = client.rows(statements, idempotent=True)
            return found
        with self._transaction("BEGIN", "ROLLBACK") as connection:
            return [self._run(connection, statement) for statement in statements]

    def write(self, *statements: Statement) -> list[list[Row]]:
        """Commit all of the statements, or none; the rows of each. Raises `Conflict`."""
        if self.is_d1:
            return self._send(statements)
        with self._transaction("BEGIN IMMEDIATE", "COMMIT") as connection:
            return [self._run(connection, statement) for statement in statements]

    def inside(self, *statements: Statement) -> None:
        """Write in the transaction of the effect this is called in."""
        for statement in statements:
            self._run(perdure.transaction(), statement)

    def _send(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Commit a batch on D1. If its answer is lost, it is sent again."""
        from perdure.d1 import D1Error

        give_up = time.monotonic() + PATIENCE
        while True:
            try:
                with self._connection() as client:
                    found: list[list[Row]] = client.rows(statements)
                return found
            except D1Error as error:
                if "UNIQUE constraint failed" in str(error):
                    raise Conflict(str(error)) from error
                raise
            except perdure.errors.Unavailable:
                if time.monotonic() > give_up:
                    raise
            time.sleep(PAUSE)

    def _run(self, connection: Any, statement: Statement) -> list[Row]:
        text, params = statement
        if self.is_postgres:
            text = re.sub(r"json_each\((:\w+)\)", r"json_array_elements(CAST(\1 AS json))", text)
            text = re.sub(r"(?<!:):(\w+)", r"%(\1)s", text.replace("%", "%%"))
        cursor = connection.execute(text, params)
        if cursor.description is None:
            return []
        names = [column[0] for column in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    # -- connections

    @contextlib.contextmanager
    def _transaction(self, begin: str, end: str) -> Iterator[Any]:
        with self._connection() as connection:
            if self.is_postgres:
                from psycopg.errors import UniqueViolation

                try:
                    with connection.transaction():
                        yield connection
                except UniqueViolation as error:
                    raise Conflict(str(error)) from error
                return
            connection.execute(begin)
            try:
                yield connection
                connection.execute(end)
            except BaseException as error:
                if connection.in_transaction:  # a full disk has ended it already
                    connection.execute("ROLLBACK")
                if isinstance(error, sqlite3.Error) and error.sqlite_errorname in _TAKEN:
                    raise Conflict(str(error)) from error
                raise

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Any]:
        """A connection for one user at a time. After an error it is not kept: the server may have
        restarted."""
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
        if self.is_d1:
            from perdure.d1 import Client

            return Client(self.url)
        if not self.is_postgres:
            path = unquote(self.url.removeprefix("sqlite:///").partition("?")[0])
            db = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            db.execute("PRAGMA wal_autocheckpoint=0")  # the journal's connection does that
            db.execute("PRAGMA synchronous=FULL")
            return db
        import psycopg

        return psycopg.connect(self.url)
