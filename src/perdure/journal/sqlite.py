"""The journal on SQLite: WAL, `synchronous=FULL`, one writer connection, readers beside it.

Other processes may use the same file at the same time: each has its own writer, and SQLite's
lock decides who commits next.

SQLite keeps its locks in the memory of the process, so that a connection inherited by a forked
process lies to it: locks look taken that nobody holds, and locks it needs look taken by itself.
So no connection is open while a process forks; both sides open theirs again when they next need
one.
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
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote

from perdure.errors import BadArgument, BadURL, Unavailable
from perdure.journal import failpoints
from perdure.journal.migrate import migrate, version
from perdure.journal.operation import ENDED_INSIDE, Ambiguous, Refused, Row, Statement, Transaction
from perdure.journal.sql import has_rows, positional, render

T = TypeVar("T")

OLDEST = (3, 39, 0)
FRAGMENTS = {
    "text": "TEXT",
    "blob": "BLOB",
    "one_tree": "WITHOUT ROWID",
    "keep": "",
    "share": "",
    "lock": "",
    "skip": "",
    "identity": "SELECT file, '' FROM pragma_database_list WHERE name = 'main'",
    "names": "SELECT value FROM json_each(:names)",
    "clock": "CAST(ROUND((julianday('now') - 2440587.5) * 86400000) AS INTEGER)",
}
# WAL needs shared memory between all users of the file, which these do not give.
NETWORK = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smbfs",
        "smb3",
        "smb2",
        "9p",
        "afs",
        "afpfs",
        "webdav",
        "davfs",
        "fuse.sshfs",
        "fuse.s3fs",
        "fuse.glusterfs",
        "fuse.davfs",
        "glusterfs",
        "lustre",
        "ceph",
        "fuse.ceph",
        "gpfs",
        "beegfs",
        "vboxsf",
        "prl_fs",
    ]
)


def peek_version(path: str) -> int | None:
    """The version of the schema in a file; None: there is none. Makes nothing."""
    if not os.path.exists(path):
        return None
    only_read = f"file:{quote(path)}?mode=ro"
    try:
        with contextlib.closing(sqlite3.connect(only_read, uri=True)) as connection:
            return version(lambda sql: connection.execute(sql).fetchall())
    except sqlite3.DatabaseError as error:
        if "no such table" in str(error):
            return None
        raise BadURL(f"{path} cannot be used as a journal: {error}.") from error


class SQLite:
    """A `Backend` on one file, or in memory."""

    near = True

    def __init__(self, path: str, *, deadline: float = 30.0, synchronous: str = "full") -> None:
        self._path, self._deadline, self._synchronous = path, deadline, synchronous.upper()
        self._memory = path == ":memory:"
        self._closed = False
        self._sql = {name: _bound(sql) for name, sql in render(FRAGMENTS).items()}
        if sqlite3.sqlite_version_info < OLDEST:
            raise BadURL(
                f"SQLite {sqlite3.sqlite_version} is too old; perdure needs "
                f"{'.'.join(map(str, OLDEST))} or newer. Use a newer Python build."
            )
        if not self._memory:
            _check_place(path)
        self._writing = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._reading = 0
        self._reads = threading.Condition()
        self._open()
        if not self._memory:
            _FILES.add(self)

    def _open(self) -> None:
        self._away = False
        self._writer = self._connect()
        try:
            self._prepare()
        except BaseException:
            self._writer.close()
            raise

    def _let_go(self) -> None:
        """Before a fork: wait for who uses a connection, keep others from it, close them all."""
        self._writing.acquire()
        self._reads.acquire()
        while self._reading:
            self._reads.wait()
        if self._closed:
            return
        self._away = True
        self._writer.close()
        while self._idle:
            self._idle.pop().close()

    def _take_up(self) -> None:
        self._reads.release()
        self._writing.release()

    def _connect(self) -> sqlite3.Connection:
        try:
            connection = sqlite3.connect(
                self._path,
                timeout=self._deadline,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
            )
        except sqlite3.OperationalError as error:
            raise BadURL(f"{self._path} cannot be opened: {error}.") from error
        return connection

    def _prepare(self) -> None:
        try:
            if not self._memory:
                # Of a new file: rows of about 1 KB leave a sixth of a 4 KB page empty.
                self._writer.execute("PRAGMA page_size = 8192")
                self._use_wal()
            self._writer.execute(f"PRAGMA synchronous = {self._synchronous}")
            # A WAL that is used again is cheaper to sync than one that grows (1.4x measured).
            self._writer.execute("PRAGMA wal_autocheckpoint = 256")
            # What undoes a statement is not written to a file each time (60 us measured).
            self._writer.execute("PRAGMA temp_store = MEMORY")
            self._migrate()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode in _LOCKED:
                raise Unavailable(f"{self._path} stayed locked by another process.") from error
            raise BadURL(f"{self._path} cannot be used as a journal: {error}.") from error

    def _use_wal(self) -> None:
        """Switch to WAL. SQLite does not wait here for others who open a new file with us."""
        give_up = time.monotonic() + self._deadline
        mode = ""
        while not mode:
            try:
                mode = self._writer.execute("PRAGMA journal_mode = WAL").fetchone()[0]
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode not in _LOCKED or time.monotonic() > give_up:
                    raise
                time.sleep(0.01)
        if mode != "wal":
            raise BadURL(f"{self._path} cannot use WAL (it stays {mode!r}); move the file.")

    def _migrate(self) -> None:
        # Also when nothing is to be migrated: a file that cannot be written is refused here.
        with self._transaction(self._writer, "BEGIN IMMEDIATE"):
            migrate(lambda sql: self._writer.execute(sql).fetchall(), FRAGMENTS)

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        with self._writing:
            return self._commit(lambda: self._run(self._writer, statements))

    def transact(self, work: Callable[[Transaction], T]) -> T:
        with self._writing:
            return self._commit(lambda: self._work(work))

    def _work(self, work: Callable[[Transaction], T]) -> T:
        lent = _Lent(self._writer)

        def run(statements: Sequence[Statement]) -> list[list[Row]]:
            if not self._writer.in_transaction:
                raise BadArgument(ENDED_INSIDE)
            return self._run(self._writer, statements)

        try:
            result = work(_Open(lent, run))
            run([])
        finally:
            lent.take_back()
        return result

    def _commit(self, run: Callable[[], T]) -> T:
        if self._away:
            self._open()
        execute = self._writer.execute
        self._roll_back()  # what Ctrl-C may have left
        try:
            execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise Unavailable(
                f"{self._path} stayed locked by another process: {error}. Nothing was written."
            ) from error
        try:
            result = run()
            failpoints.at("commit.before")
        except BaseException as error:
            self._roll_back()
            if isinstance(error, sqlite3.IntegrityError) and "NOT NULL" in str(error):
                raise Refused(str(error)) from error
            if isinstance(error, sqlite3.OperationalError) and _is_away(error):
                raise Unavailable(f"{self._path}: {error}. Nothing was written.") from error
            raise
        try:
            execute("COMMIT")
        except sqlite3.Error as error:
            # A failed fsync says nothing about what reached the disk.
            self._roll_back()
            raise Ambiguous(f"{self._path}: {error}") from error
        failpoints.at("commit.after")
        return result

    def _run(
        self, connection: sqlite3.Connection, statements: Sequence[Statement]
    ) -> list[list[Row]]:
        cursor = connection.cursor()
        results: list[list[Row]] = []
        for name, params in statements:
            sql, values, returns = self._sql[name]
            if failpoints.hook is not None:
                failpoints.hook(f"{name}.before")
            cursor.execute(sql, values(params))
            results.append(cursor.fetchall() if returns else [])
            if failpoints.hook is not None:
                failpoints.hook(f"{name}.after")
        return results

    def _roll_back(self) -> None:
        if self._writer.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                self._writer.execute("ROLLBACK")

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        if self._memory:
            with self._writing:
                return self._run(self._writer, statements)
        try:
            with self._reader() as connection, self._transaction(connection, "BEGIN"):
                return self._run(connection, statements)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path} cannot be read: {error}.") from error

    @contextlib.contextmanager
    def _reader(self) -> Iterator[sqlite3.Connection]:
        with self._reads:
            self._reading += 1
        try:
            connection = self._idle.pop() if self._idle else self._new_reader()
            try:
                yield connection
            except BaseException:
                connection.close()
                raise
            self._idle.append(connection)
        finally:
            with self._reads:
                self._reading -= 1
                self._reads.notify_all()

    def _new_reader(self) -> sqlite3.Connection:
        connection = self._connect()
        connection.execute("PRAGMA query_only = ON")
        return connection

    @contextlib.contextmanager
    def _transaction(self, connection: sqlite3.Connection, begin: str) -> Iterator[None]:
        connection.execute(begin)
        try:
            yield
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def reopen(self) -> None:
        if self._memory:
            self._open()  # the parent's data is the parent's

    def close(self) -> None:
        with self._writing:
            self._closed = True
            _FILES.discard(self)
            while self._idle:
                self._idle.pop().close()
            self._writer.close()


class _Open(NamedTuple):
    """A `Transaction`."""

    connection: Any
    run: Callable[[Sequence[Statement]], list[list[Row]]]


class _Lent:
    """A connection for somebody else's statements, for as long as the transaction lasts."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection: sqlite3.Connection | None = connection

    def take_back(self) -> None:
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


_FILES: weakref.WeakSet[SQLite] = weakref.WeakSet()
_forking: list[SQLite] = []


def _before_fork() -> None:
    for file in list(_FILES):
        _forking.append(file)
        file._let_go()


def _after_fork() -> None:
    while _forking:
        _forking.pop()._take_up()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_AWAY = frozenset(
    (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PROTOCOL,
    )
)


def _is_away(error: sqlite3.OperationalError) -> bool:
    """Whether it is the database that cannot, and not the statement that is wrong."""
    return error.sqlite_errorcode & 0xFF in _AWAY


def _bound(sql: str) -> tuple[str, Callable[[Mapping[str, Any]], tuple[Any, ...]], bool]:
    """A statement for `execute`, what takes its values from the parameters, has it rows."""
    text, names = positional(sql)
    returns = has_rows(text)
    if len(names) > 1:
        return text, itemgetter(*names), returns
    return text, lambda params: tuple(params[name] for name in names), returns


def _check_place(path: str) -> None:
    try:
        _check_file(path)
    except OSError as error:
        raise BadURL(f"{path} cannot be used: {error}.") from error


def _check_file(path: str) -> None:
    folder = Path(path).absolute().parent
    if not folder.is_dir():
        raise BadURL(f"The folder {folder} does not exist; create it, or name another file.")
    if Path(path).is_dir():
        raise BadURL(f"{path} is a folder; name a file in it.")
    if Path(path).exists() and not os.access(path, os.W_OK):
        raise BadURL(f"{path} is not writable by this process.")
    if not os.access(folder, os.W_OK):
        raise BadURL(f"The folder {folder} is not writable; SQLite needs to create files beside.")
    kind = file_system(str(folder.resolve()), _mounts())
    if kind in NETWORK:
        raise BadURL(
            f"{path} is on a network file system ({kind}), where SQLite's WAL is not safe. "
            "Use a local disk, or PostgreSQL for many machines."
        )


def file_system(folder: str, mounts: Sequence[tuple[str, str]]) -> str | None:
    """The kind of file system of a folder, given all (mount point, kind)."""
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
    found = []
    for line in text.splitlines():
        left, _, right = line.partition(" - ")
        point = left.split()[4].encode().decode("unicode_escape")
        found.append((point, right.split()[0]))
    return found
