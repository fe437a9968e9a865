"""The journal on SQLite: WAL, `synchronous=FULL`, one writer connection, readers beside it.

Other processes may use the same file at the same time: each has its own writer, and SQLite's
lock decides who commits next.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import quote

from perdure import failpoints
from perdure.errors import BadArgument, BadURL, Error, Unavailable
from perdure.journal.acknowledged import Acknowledged
from perdure.journal.migrate import version
from perdure.journal.operation import (
    ENDED_INSIDE,
    Ambiguous,
    Capabilities,
    Refused,
    Row,
    Statement,
    Transaction,
)
from perdure.journal.sql import positional, render
from perdure.journal.sqlite_file import (
    LENIENT,
    Connections,
    is_unavailable,
    not_opened,
    prepare_file,
    transaction,
)
from perdure.journal.sqlite_wal import FileHints

T = TypeVar("T")

OLDEST = (3, 39, 0)
FRAGMENTS = {
    "text": "TEXT",
    "blob": "BLOB",
    "one_tree": "WITHOUT ROWID",
    "roomy": "-- rows are changed in place",
    "utf8_body": "CAST(body AS BLOB)",
    "events_stay": (
        "CREATE TRIGGER perdure_events_stay BEFORE UPDATE ON perdure_events "
        "BEGIN SELECT RAISE(ABORT, 'perdure: an event is never changed'); END"
    ),
    "refuse": "NULL",
    "keep": "",
    "share": "",
    "lock": "",
    "skip": "",
    "identity": "SELECT file, '' FROM pragma_database_list WHERE name = 'main'",
    "standbys": "SELECT '', 0",
    "bytes": "page_count * page_size FROM pragma_page_count(), pragma_page_size()",
    "names": "SELECT value FROM json_each(:names)",
    "clock": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}
GUARD = "NOT NULL constraint failed: perdure_"
"""In the message of a guard that refuses; a table of the user's may have such columns, too."""


def schema_version(path: str) -> int | None:
    """The version of the schema in a file; None: there is none. Creates nothing."""
    if not os.path.exists(path):
        return None
    only_read = f"file:{quote(path)}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(only_read, uri=True)) as connection:
            return version(lambda sql: connection.execute(sql).fetchall())
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return None
        raise not_opened(path, error) from error


class SQLite:
    """A `Backend` on one file, or in memory."""

    capabilities = Capabilities()
    version = staticmethod(schema_version)

    def __init__(
        self,
        path: str,
        *,
        deadline: float = 30.0,
        synchronous: str = "full",
        has_listener: bool = False,
        acknowledged: Acknowledged | None = None,
    ) -> None:
        if sqlite3.sqlite_version_info < OLDEST:
            raise BadURL(
                f"SQLite {sqlite3.sqlite_version} is too old; perdure needs "
                f"{'.'.join(map(str, OLDEST))} or newer. Use a newer Python build."
            )
        if path != ":memory:":
            prepare_file(path)
        self._path, self._acknowledged = path, acknowledged or Acknowledged()
        self._sql = {
            name: _compiled(sql)
            for name, sql in render(FRAGMENTS, has_listener=has_listener).items()
        }
        self._connections = Connections(path, deadline, synchronous.upper(), FRAGMENTS)

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self._commit(lambda writer: self._run(writer, statements))

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return self._commit(lambda writer: self._work(writer, work))

    def _work(self, writer: sqlite3.Connection, work: Callable[[Transaction], T]) -> T:
        borrowed = _BorrowedConnection(writer)

        def run(statements: Sequence[Statement]) -> list[list[Row]]:
            if not writer.in_transaction:
                raise BadArgument(ENDED_INSIDE)
            return self._run(writer, statements)

        try:
            result = work(Transaction(borrowed, run))
            run([])
        finally:
            borrowed.expire()
        return result

    def _commit(self, run: Callable[[sqlite3.Connection], T]) -> T:
        with self._connections.writing:
            self._check_file()
            writer = self._connections.writer()
            if writer.in_transaction:
                _roll_back(writer)  # what Ctrl-C may have left
            try:
                self._connections.begin(writer)
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    f"{self._path} stayed locked by another process: {error}. Nothing was written."
                ) from error
            try:
                result = run(writer)
                if failpoints.hook is not None:
                    failpoints.hook("commit.before")
            except BaseException as error:
                _roll_back(writer)
                if isinstance(error, sqlite3.IntegrityError) and GUARD in str(error):
                    raise Refused(str(error)) from error
                if is_unavailable(error):
                    raise Unavailable(f"{self._path}: {error}. Nothing was written.") from error
                raise
            try:
                writer.execute("COMMIT")
            except sqlite3.Error as error:
                # A failed fsync says nothing about what reached the disk.
                _roll_back(writer)
                raise Ambiguous(f"{self._path}: {error}") from error
            if failpoints.hook is not None:
                failpoints.hook("commit.after")
            return result

    def _check_file(self) -> None:
        """Use the file that is at the path. Raises `WentBack` if it is another one, once, when it
        was compared. The caller holds `writing`."""
        if self._connections.file_now() != self._connections.file:
            writer = self._connections.use_new_file()
            self._acknowledged.compare(
                lambda statements: self._run(writer, statements),
                f"another file is at {self._path}",
                is_certain=True,
            )

    def _run(
        self, connection: sqlite3.Connection, statements: Sequence[Statement]
    ) -> list[list[Row]]:
        execute = connection.cursor().execute
        results: list[list[Row]] = []
        for name, params in statements:
            sql, values = self._sql[name]
            if failpoints.hook is not None:
                failpoints.hook(f"{name}.before")
            results.append(execute(sql, params if values is None else values(params)).fetchall())
            if failpoints.hook is not None:
                failpoints.hook(f"{name}.after")
        return results

    def hints(self) -> FileHints | None:
        is_linux = sys.platform == "linux"
        return FileHints(self._path) if is_linux and not self._connections.in_memory else None

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        connections = self._connections
        if connections.in_memory:
            with connections.writing:
                return self._run(connections.writer(), statements)
        try:
            if connections.file_now() != connections.file:
                with connections.writing:
                    self._check_file()
            with connections.reader() as connection:
                try:
                    return self._read(connection, statements)
                except sqlite3.OperationalError as error:
                    if "decode to UTF-8" not in str(error):
                        raise
                connection.text_factory = LENIENT
                return self._read(connection, statements)
        except (sqlite3.OperationalError, MemoryError) as error:
            if is_unavailable(error):
                raise Unavailable(f"{self._path} cannot be read: {error}.") from error
            raise Error(f"{self._path} cannot be read: {error}.") from error

    def _read(
        self, connection: sqlite3.Connection, statements: Sequence[Statement]
    ) -> list[list[Row]]:
        if len(statements) == 1:  # a snapshot of its own
            return self._run(connection, statements)
        with transaction(connection, "BEGIN"):
            return self._run(connection, statements)

    settle = read  # what can be read is as durable as what was acknowledged

    def reopen(self) -> None:
        self._connections.reopen()

    def close(self) -> None:
        self._connections.close()


class _BorrowedConnection:
    """The connection as the user's code gets it: until the transaction ends, and without commit."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection

    def expire(self) -> None:
        self._connection = None

    def __getattr__(self, name: str) -> Any:
        if name not in ("cursor", "execute", "executemany", "total_changes", "in_transaction"):
            raise AttributeError(
                f"The connection of a transactional effect has no {name!r}: it is committed, or "
                "rolled back, by perdure."
            )
        if self._connection is None:
            raise BadArgument("The transaction of this effect is over.")
        return getattr(self._connection, name)


def _roll_back(writer: sqlite3.Connection) -> None:
    if writer.in_transaction:
        with contextlib.suppress(sqlite3.Error):
            writer.execute("ROLLBACK")


def _compiled(sql: str) -> tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]] | None]:
    """A statement for `execute`, and the function that orders its parameters; None: it takes them
    by name. To order several is faster."""
    text, names = positional(sql)
    return (text, itemgetter(*names)) if len(names) > 1 else (sql, None)
