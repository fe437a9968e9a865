"""The connections of one process to one SQLite file: a writer, and readers beside it.

SQLite keeps its locks in the memory of the process, so a connection inherited by a forked process
is wrong about them: locks look taken that no process holds, and locks it needs look taken by
itself. So no connection is open while a process forks; parent and child open theirs again when they
next need one.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Mapping

from perdure.errors import BadURL, Closed, Error, Unavailable
from perdure.journal.migrate import migrate
from perdure.journal.sqlite_wal import Wal

LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_UNAVAILABLE = {
    *LOCKED,
    sqlite3.SQLITE_CANTOPEN,  # no descriptor left, or no room for a file beside it
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_NOMEM,
    sqlite3.SQLITE_PROTOCOL,
    sqlite3.SQLITE_READONLY,  # the system mounted the disk read-only after an I/O error
}


def is_unavailable(error: BaseException) -> bool:
    """Whether the database failed, and not the statement: the same call may succeed later."""
    if isinstance(error, MemoryError):  # what Python makes of SQLITE_NOMEM
        return True
    code: int = getattr(error, "sqlite_errorcode", 0)
    return isinstance(error, sqlite3.Error) and code & 0xFF in _UNAVAILABLE


def not_opened(path: str, error: Exception) -> Error:
    """The error of a file that cannot be opened."""
    code: int = getattr(error, "sqlite_errorcode", 0)
    if isinstance(error, sqlite3.Error) and code in LOCKED:
        return Unavailable(f"{path} stayed locked by another process.")
    # What is read-only from the beginning needs a person.
    if is_unavailable(error) and code & 0xFF != sqlite3.SQLITE_READONLY:
        reason = "out of memory" if isinstance(error, MemoryError) else error
        return Unavailable(f"{path} cannot be opened now: {reason}. Nothing was written.")
    return BadURL(f"{path} cannot be used as a journal: {error}.")


class Connections:
    """Opens the file in WAL mode, brings its schema up to date, and lends connections."""

    def __init__(
        self, path: str, deadline: float, synchronous: str, fragments: Mapping[str, str]
    ) -> None:
        self.path, self.in_memory = path, path == ":memory:"
        # The working directory may change between two connections.
        self._absolute = path if self.in_memory else os.path.abspath(path)
        self.writing = threading.Lock()
        """Held while the writer is used."""
        self._deadline, self._synchronous, self._fragments = deadline, synchronous, fragments
        self._wal = Wal(path)
        self._closed = False
        self._idle: list[sqlite3.Connection] = []
        self._reading: set[object] = set()
        self._lock = threading.RLock()
        self._read = threading.Condition(self._lock)
        self._open_writer()
        self._file = None if self.in_memory else self._file_now()
        if not self.in_memory:
            _OPEN.add(self)

    def _file_now(self) -> tuple[int, int]:
        try:
            status = os.stat(self._absolute)
        except OSError as error:
            raise Unavailable(
                f"{self.path} was moved or deleted while it was open: {error}. Nothing was "
                "written; put it back."
            ) from error
        return status.st_dev, status.st_ino

    @property
    def is_replaced(self) -> bool:
        """Whether another file is at the path now, such as a backup: a commit to the one that we
        have open would be lost."""
        return self._file is not None and self._file_now() != self._file

    def use_new_file(self) -> sqlite3.Connection:
        """Open the file that is at the path now. The caller holds `writing`."""
        self._file = self._file_now()
        with self._lock:
            self._close_all()
        self._open_writer()
        return self._writer

    def writer(self) -> sqlite3.Connection:
        """The writer, opened again after a fork. The caller holds `writing`."""
        if self._closed_for_fork:
            self._open_writer()
        return self._writer

    def begin(self, writer: sqlite3.Connection) -> None:
        """Begin a transaction that writes. Moves a long WAL first. The caller holds `writing`."""
        writer.execute("BEGIN IMMEDIATE")
        if not self.in_memory and self._wal.is_long():
            with self.reader() as mover:
                self._wal.move(mover)
            writer.execute("ROLLBACK")
            writer.execute("BEGIN IMMEDIATE")

    @contextlib.contextmanager
    def reader(self) -> Iterator[sqlite3.Connection]:
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
                self._read.notify_all()

    def _keep(self, connection: sqlite3.Connection, file: object) -> None:
        with self._lock:
            if not self._closed and file == self._file:
                self._idle.append(connection)
                return
        connection.close()

    def reopen(self) -> None:
        """Open a new database in memory: the parent's data is the parent's."""
        if self.in_memory:
            self._open_writer()

    def close(self) -> None:
        with self.writing, self._lock:
            self._closed = True
            _OPEN.discard(self)
            self._close_all()

    def _close_all(self) -> None:
        self._writer.close()
        while self._idle:
            self._idle.pop().close()

    def close_before_fork(self) -> None:
        """Wait for the connections in use, keep others from them, close them all."""
        self.writing.acquire()
        self._lock.acquire()
        while self._reading:
            self._read.wait(0.1)  # a reader that was interrupted may not say that it ended
        if not self._closed:
            self._closed_for_fork = True
            self._close_all()

    def resume_after_fork(self) -> None:
        self._lock.release()
        self.writing.release()

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
            raise not_opened(self.path, error) from error

    def _new_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA synchronous = {self._synchronous}")  # when it moves the WAL
        return connection

    def _open_writer(self) -> None:
        self._closed_for_fork = False
        self._writer = self._connect()
        try:
            self._prepare(self._writer)
        except BaseException:
            self._writer.close()
            raise

    def _prepare(self, writer: sqlite3.Connection) -> None:
        try:
            if not self.in_memory:
                Wal.keep(writer)
                self._use_wal(writer)
            writer.execute(f"PRAGMA synchronous = {self._synchronous}")
            # Keeps the rollback of a statement out of a file (60 us measured).
            writer.execute("PRAGMA temp_store = MEMORY")
            # Also when nothing is to be migrated: a file that cannot be written is refused here.
            with transaction(writer, "BEGIN IMMEDIATE"):
                migrate(lambda sql: writer.execute(sql).fetchall(), self._fragments)
                if writer.execute(
                    "SELECT 1 FROM sqlite_master WHERE name = 'perdure_chunks'"
                ).fetchall():
                    from perdure.journal import d1_large_values

                    d1_large_values.put_back(writer)
        except (sqlite3.DatabaseError, MemoryError) as error:
            raise not_opened(self.path, error) from error

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
            raise BadURL(f"{self.path} cannot use WAL (it stays {mode!r}); move the file.")


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


_OPEN: weakref.WeakSet[Connections] = weakref.WeakSet()
_forking: list[Connections] = []


def _before_fork() -> None:
    for connections in list(_OPEN):
        _forking.append(connections)
        connections.close_before_fork()


def _after_fork() -> None:
    while _forking:
        _forking.pop().resume_after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
