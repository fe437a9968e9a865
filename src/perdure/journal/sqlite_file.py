"""The file of a SQLite journal: whether its path can hold one, and the connections of one process
to it, a writer and readers beside it.

SQLite keeps its locks in the memory of the process, so a connection inherited by a forked process
is wrong about them: locks look taken that no process holds, and locks it needs look taken by
itself. So no connection is open while a process forks; parent and child open theirs again when they
next need one.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import sqlite3
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from perdure.errors import BadURL, Closed, Error, Unavailable
from perdure.journal.migrate import migrate
from perdure.journal.sqlite_wal import Wal

LENIENT = functools.partial(str, encoding="utf-8", errors="replace")
"""Reads a text that is not UTF-8: its bad bytes are replaced, and what is bound to it does not
open. It takes longer than SQLite's own way, and does not hide the other rows."""
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
        self.file = self.file_now()
        if not self.in_memory:
            _OPEN.add(self)

    def file_now(self) -> tuple[int, int] | None:
        """The file that is at the path now. If it is not `file`, such as a backup, a commit to the
        one that we have open would be lost."""
        if self.in_memory:
            return None
        try:
            status = os.stat(self._absolute)
        except OSError as error:
            raise Unavailable(
                f"{self.path} was moved or deleted while it was open: {error}. Nothing was "
                "written; put it back."
            ) from error
        return status.st_dev, status.st_ino

    def use_new_file(self) -> sqlite3.Connection:
        """Open the file that is at the path now. The caller holds `writing`."""
        self.file = self.file_now()
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
            file = self.file
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
            if not self._closed and file == self.file:
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
        self._writer.text_factory = LENIENT
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
                    from perdure.journal import d1_values

                    d1_values.put_back(writer)
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


# WAL needs memory shared by all users of the file, which these do not provide.
# fmt: off
NETWORK_FILE_SYSTEMS = frozenset((
    "nfs", "nfs4", "cifs", "smbfs", "smb3", "smb2", "9p", "afs", "afpfs", "webdav", "davfs",
    "fuse.sshfs", "fuse.s3fs", "fuse.glusterfs", "fuse.davfs", "glusterfs", "lustre", "ceph",
    "fuse.ceph", "gpfs", "beegfs", "vboxsf", "prl_fs",
))
# fmt: on


# The system failed, and not the path: the same call may succeed later.
PASSING = {
    errno.EDQUOT,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.ENOSPC,
}


def prepare_file(path: str) -> None:
    """Create the file if it is not there. Raises `BadURL` for a path that cannot be a journal."""
    try:
        _check_writable(path)
        kind = file_system(str(Path(path).absolute().parent.resolve()), _mounts())
        if kind not in NETWORK_FILE_SYSTEMS:
            create_private(path)
    except OSError as error:
        if error.errno in PASSING:
            raise Unavailable(f"{path} cannot be opened now: {error}.") from error
        raise BadURL(f"{path} cannot be used: {error}.") from error
    if kind in NETWORK_FILE_SYSTEMS:
        raise BadURL(
            f"{path} is on a network file system ({kind}), where SQLite's WAL is not safe. "
            "Use a local disk, or PostgreSQL for many machines."
        )


def _check_writable(path: str) -> None:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise BadURL(f"The folder {folder} does not exist; create it, or name another file.")
    if Path(path).is_dir():
        raise BadURL(f"{path} is a folder; name a file in it.")
    for file in (path, f"{path}-wal", f"{path}-shm"):
        if Path(file).exists() and not os.access(file, os.W_OK):
            raise BadURL(f"{file} is not writable by this process.")
    if not os.access(folder, os.W_OK):
        raise BadURL(f"The folder {folder} is not writable; SQLite needs to create files beside.")


def create_private(path: str) -> None:
    """Create the file for its owner alone, if it is not there. SQLite gives its other files the
    same mode. The mode of a file that is there is left as it is."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))


def file_system(folder: str, mounts: Sequence[tuple[str, str]]) -> str | None:
    """The type of a folder's file system, given all (mount point, type)."""
    best = max(
        (m for m in mounts if folder == m[0] or folder.startswith(m[0].rstrip("/") + "/")),
        key=lambda mount: len(mount[0]),
        default=None,
    )
    return None if best is None else best[1]


def _mounts() -> list[tuple[str, str]]:
    if sys.platform == "darwin":
        import subprocess

        done = subprocess.run(["/sbin/mount"], capture_output=True, text=True, check=False)
        lines = [line.partition(" on ")[2].rpartition(" (") for line in done.stdout.splitlines()]
        return [(point, rest.split(",")[0].rstrip(")")) for point, _, rest in lines]
    try:
        text = Path("/proc/self/mountinfo").read_text()
    except OSError:
        return []
    mounts = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        mounts.append((point, right.split()[0]))
    return mounts
