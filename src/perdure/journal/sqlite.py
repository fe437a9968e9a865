"""The journal on SQLite: WAL, `synchronous=FULL`, one writer connection, readers beside it.

Other processes may use the same file at the same time: each has its own writer, and SQLite's
lock decides who commits next.

SQLite keeps its locks in the memory of the process, so a connection inherited by a forked process
is wrong about them: locks look taken that no process holds, and locks it needs look taken by
itself. So no connection is open while a process forks; parent and child open theirs again when they
next need one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar
from urllib.parse import quote

from perdure import failpoints
from perdure.errors import BadArgument, BadURL, Closed, Error, Unavailable
from perdure.journal.migrate import migrate, version
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
    LOCKED,
    FileHints,
    Wal,
    is_unavailable,
    not_opened,
    prepare_file,
)
from perdure.journal.went_back import Acknowledged

A = TypeVar("A")
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
LENIENT = partial(str, encoding="utf-8", errors="replace")
"""Reads a text that is not UTF-8: its bad bytes are replaced, and what is bound to it does not
open. It takes longer than SQLite's own way, and does not hide the other rows."""


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
        self._path, self._in_memory = path, path == ":memory:"
        # The working directory may change between two connections.
        self._absolute = path if self._in_memory else os.path.abspath(path)
        if not self._in_memory:
            prepare_file(path)
        self._acknowledged = acknowledged or Acknowledged()
        self._deadline, self._synchronous = deadline, synchronous.upper()
        sql = render(FRAGMENTS, has_listener=has_listener)
        self._sql = {name: _compiled(text) for name, text in sql.items()}
        self._wal = Wal(path)
        self._writing = threading.Lock()
        """Held while the writer is used."""
        self._closed = False
        self._idle: list[sqlite3.Connection] = []
        self._reading: set[object] = set()
        self._lock = threading.RLock()
        self._read_ended = threading.Condition(self._lock)
        self._open_writer()
        self._file = self._file_now()
        if not self._in_memory:
            _OPEN.add(self)

    # -- batches

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        return self._commit(self._run, statements)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        return self._commit(self._work, work)

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

    def _commit(self, run: Callable[[sqlite3.Connection, A], T], argument: A) -> T:
        with self._writing:
            self._check_file()
            if self._closed_for_fork:
                self._open_writer()
            writer = self._writer
            if writer.in_transaction:
                _roll_back(writer)  # what Ctrl-C may have left
            try:
                writer.execute("BEGIN IMMEDIATE")
                if not self._in_memory and self._wal.is_long():
                    with self._reader() as mover:
                        self._wal.move(mover)
                    writer.execute("ROLLBACK")
                    writer.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                raise Unavailable(
                    f"{self._path} stayed locked by another process: {error}. Nothing was written."
                ) from error
            try:
                result = run(writer, argument)
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
        return FileHints(self._path) if is_linux and not self._in_memory else None

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        if self._in_memory:
            with self._writing:
                return self._run(self._writer, statements)
        try:
            if self._file_now() != self._file:
                with self._writing:
                    self._check_file()
            with self._reader() as connection:
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

    # -- the file that is at the path

    def _file_now(self) -> tuple[int, int] | None:
        """The file that is at the path now. If it is not `_file`, such as a backup, a commit to the
        one that we have open would be lost."""
        if self._in_memory:
            return None
        try:
            status = os.stat(self._absolute)
        except OSError as error:
            raise Unavailable(
                f"{self._path} was moved or deleted while it was open: {error}. Nothing was "
                "written; put it back."
            ) from error
        return status.st_dev, status.st_ino

    def _check_file(self) -> None:
        """Use the file that is at the path. Raises `WentBack` if it is another one, once, when it
        was compared. The caller holds `_writing`."""
        if (file := self._file_now()) != self._file:
            self._file = file
            with self._lock:
                self._close_all()
            self._open_writer()
            self._acknowledged.compare(
                partial(self._run, self._writer),
                f"another file is at {self._path}",
                is_certain=True,
            )

    # -- connections

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        """A connection that only reads, for one caller at a time."""
        token = object()
        try:
            with self._lock:
                if self._closed:
                    raise Closed("This journal is closed.")
                self._reading.add(token)
            file = self._file
            connection = self._idle.pop() if self._idle else self._new_reader()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._keep(connection, file)
        finally:
            self._reading.discard(token)
            with self._lock:
                self._read_ended.notify_all()

    def _keep(self, connection: sqlite3.Connection, file: object) -> None:
        with self._lock:
            if not self._closed and file == self._file:
                self._idle.append(connection)
                return
        connection.close()

    def reopen(self) -> None:
        """Open a new database in memory: the parent's data is the parent's."""
        if self._in_memory:
            self._open_writer()

    def close(self) -> None:
        with self._writing, self._lock:
            self._closed = True
            _OPEN.discard(self)
            self._close_all()

    def _close_all(self) -> None:
        self._writer.close()
        while self._idle:
            self._idle.pop().close()

    def close_before_fork(self) -> None:
        """Wait for the connections in use, keep others from them, close them all."""
        self._writing.acquire()
        self._lock.acquire()
        while self._reading:
            self._read_ended.wait(0.1)  # a reader that was interrupted may not say that it ended
        if not self._closed:
            self._closed_for_fork = True
            self._close_all()

    def resume_after_fork(self) -> None:
        self._lock.release()
        self._writing.release()

    def _connect(self) -> sqlite3.Connection:
        try:
            return sqlite3.connect(
                self._absolute,
                timeout=self._deadline,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except (sqlite3.DatabaseError, MemoryError) as error:
            raise not_opened(self._path, error) from error

    def _new_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")  # when it moves the WAL
        return connection

    def _open_writer(self) -> None:
        self._closed_for_fork = False
        self._writer = self._connect()
        self._writer.text_factory = LENIENT
        try:
            self._prepare(self._writer)
        except BaseException:
            self._writer.close()
            raise

    def _prepare(self, writer: sqlite3.Connection) -> None:
        try:
            if not self._in_memory:
                Wal.keep(writer)
                self._use_wal(writer)
            writer.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Keeps the rollback of a statement out of a file (60 us measured).
            writer.execute("PRAGMA temp_store = MEMORY")
            # Also when nothing is to be migrated: a file that cannot be written is refused here.
            with transaction(writer, "BEGIN IMMEDIATE"):
                migrate(lambda sql: writer.execute(sql).fetchall(), FRAGMENTS)
                if writer.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = 'perdure_chunks'"
                ).fetchall():
                    from perdure.journal import d1_values

                    d1_values.put_back(writer)
        except (sqlite3.DatabaseError, MemoryError) as error:
            raise not_opened(self._path, error) from error

    def _use_wal(self, writer: sqlite3.Connection) -> None:
        """Switch to WAL. SQLite itself does not wait for others that open a new file with us."""
        give_up = time.monotonic() + self._deadline
        mode = ""
        while not mode:
            try:
                mode = writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode not in LOCKED or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise BadURL(f"{self._path} cannot use WAL (it stays {mode!r}); move the file.")


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, begin: str) -> Iterator[None]:
    connection.execute(begin)
    try:
        yield
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


_OPEN: weakref.WeakSet[SQLite] = weakref.WeakSet()
_forking: list[SQLite] = []


def _before_fork() -> None:
    for journal in list(_OPEN):
        _forking.append(journal)
        journal.close_before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop().resume_after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)


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
