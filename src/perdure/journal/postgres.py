"""The journal on PostgreSQL: a pool, a deadline on every call, one round trip per batch.

Only psycopg's blocking interface is used, from the threads of the journal; coroutines wait for
those. A batch goes out as one pipeline with its BEGIN and COMMIT, so a broken connection leaves
the outcome open, and the journal settles it by reading its own key.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Generator, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import errors
from psycopg_pool import ConnectionPool, PoolTimeout

from perdure.errors import BadURL, Error, Unavailable
from perdure.journal import probe
from perdure.journal.migrate import migrate
from perdure.journal.op import Ambiguous, Refused, Row, Statement
from perdure.journal.sql import render

T = TypeVar("T")

FRAGMENTS = {
    "text": 'TEXT COLLATE "C"',
    "blob": "BYTEA",
    "each_ref": "jsonb_array_elements(CAST(:refs AS jsonb)) AS r(value)",
    "each_own_ref": "jsonb_array_elements(CAST(held.refs AS jsonb)) AS r(value)",
    "keep": "FOR KEY SHARE",
}
MIGRATION_LOCK = 0x7065726475726500  # "perdure"
POLL = 0.25
"""Seconds between two looks at the clock while waiting for the server."""


class DeadlineConnection(psycopg.Connection[Any]):
    """A connection on which no call takes longer than its deadline."""

    deadline: float = 30.0

    def wait(
        self,
        gen: Generator[Any, Any, T],
        interval: float = POLL,
        timeout: float | None = None,
    ) -> T:
        return super().wait(gen, interval, self.deadline if timeout is None else timeout)


class Postgres:
    """A `Backend` on a PostgreSQL server that accepts writes."""

    def __init__(self, url: str, *, deadline: float = 30.0) -> None:
        self._url, self._deadline = url, deadline
        self._sql = {name: _placeholders(sql) for name, sql in render(FRAGMENTS).items()}
        self._open()
        try:
            self._prepare()
        except BaseException:
            self._pool.close()
            raise

    def _open(self) -> None:
        connection_class = type("Connection", (DeadlineConnection,), {"deadline": self._deadline})
        self._pool: ConnectionPool[DeadlineConnection] = ConnectionPool(
            self._url,
            min_size=1,
            max_size=8,
            open=False,
            timeout=self._deadline,
            connection_class=connection_class,
            kwargs={
                "autocommit": True,
                "prepare_threshold": 2,
                "connect_timeout": max(2, int(min(self._deadline, 10))),
                "application_name": "perdure",
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
            },
            reconnect_timeout=self._deadline,
        )
        self._pool.open()

    def _prepare(self) -> None:
        try:
            # Its own connection first: the pool would only say that it timed out.
            with psycopg.connect(
                self._url, autocommit=True, connect_timeout=max(2, int(min(self._deadline, 10)))
            ) as connection:
                row = connection.execute(
                    "SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on'"
                ).fetchone()
                if row is None or row[0] or row[1]:
                    raise BadURL(
                        f"{_without_password(self._url)} is a read replica or read-only; the "
                        "journal decides by writing. Use the primary's address."
                    )
                self._migrate(connection)
        except psycopg.OperationalError as error:
            raise Unavailable(
                f"{_without_password(self._url)} cannot be reached: {str(error).strip()}"
            ) from error
        except psycopg.Error as error:
            raise BadURL(
                f"{_without_password(self._url)} cannot be used as a journal: {error}"
            ) from error

    def _migrate(self, connection: psycopg.Connection[Any]) -> None:
        with connection.transaction():
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [MIGRATION_LOCK])

            def execute(sql: str) -> list[tuple[int]]:
                cursor = connection.execute(sql.encode())
                return cursor.fetchall() if cursor.description else []

            migrate(execute, FRAGMENTS)

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        with self._connection() as connection:
            try:
                return self._pipeline(connection, statements, "BEGIN")
            except errors.NotNullViolation as error:
                raise Refused(str(error)) from error
            except (errors.SerializationFailure, errors.DeadlockDetected) as error:
                raise Unavailable(f"The server undid the batch: {error}") from error
            except errors.ReadOnlySqlTransaction as error:
                raise Unavailable(f"The server no longer accepts writes: {error}") from error
            except psycopg.OperationalError as error:
                raise Ambiguous(str(error).strip()) from error

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        give_up = time.monotonic() + self._deadline
        while True:
            with self._connection() as connection:
                try:
                    return self._pipeline(
                        connection, statements, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY"
                    )
                except psycopg.OperationalError as error:
                    if time.monotonic() > give_up:
                        raise Unavailable(f"The server did not answer: {error}") from error
            # A server that restarted leaves dead connections in the pool.
            self._pool.check()

    def _pipeline(
        self, connection: DeadlineConnection, statements: Sequence[Statement], begin: str
    ) -> list[list[Row]]:
        try:
            with connection.pipeline():
                connection.execute(begin.encode())
                cursors = [self._execute(connection, *statement) for statement in statements]
                probe.at("commit.before")
                connection.execute("COMMIT")
            rows = [cursor.fetchall() if cursor.description else [] for cursor in cursors]
        except BaseException:
            self._roll_back(connection)
            raise
        probe.at("commit.after")
        return rows

    def _execute(
        self, connection: DeadlineConnection, name: str, params: Any
    ) -> psycopg.Cursor[Any]:
        probe.at(f"{name}.before")
        cursor = connection.execute(self._sql[name].encode(), params)
        probe.at(f"{name}.after")
        return cursor

    def _roll_back(self, connection: DeadlineConnection) -> None:
        try:
            connection.execute("ROLLBACK")
        except psycopg.Error:
            connection.close()

    @contextlib.contextmanager
    def _connection(self) -> Iterator[DeadlineConnection]:
        try:
            connection = self._pool.getconn(timeout=self._deadline)
        except PoolTimeout as error:
            raise Unavailable(
                f"No connection to {_without_password(self._url)} within {self._deadline:g} s. "
                "Nothing was written."
            ) from error
        try:
            yield connection
        finally:
            self._pool.putconn(connection)

    def reopen(self) -> None:
        # The parent's sockets must neither be used nor closed here.
        _ABANDONED.append(self._pool)
        self._open()

    def close(self) -> None:
        self._pool.close()


_ABANDONED: list[Any] = []


def _placeholders(sql: str) -> str:
    return re.sub(r":(\w+)", r"%(\1)s", sql.replace("%", "%%"))


def _without_password(url: str) -> str:
    try:
        info = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError as error:
        raise BadURL(f"The PostgreSQL URL is malformed: {error}") from Error()
    return f"postgresql://{info.get('host', '')}:{info.get('port', '')}/{info.get('dbname', '')}"
