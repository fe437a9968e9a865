"""The file of a SQLite journal: whether its path can hold one, and its WAL.

The WAL is moved into the file while no other connection can commit.

SQLite 3.7.0 to 3.51.2 can lose commits when several connections write and checkpoint one WAL. A
checkpoint reads the length of the WAL, and then how much of it is in the file already. If another
checkpoint has just moved everything, a commit between those two reads starts the WAL again at its
beginning. The checkpoint then takes the old length for the new WAL's: it marks frames as moved that
are not written yet, later commits fill them, no checkpoint moves them, and the next restart of the
WAL overwrites them.

Only a commit restarts a WAL, and a commit needs SQLite's write lock. So no connection of ours
checkpoints by itself (`wal_autocheckpoint = 0`). A writer that finds the WAL long does this at the
beginning of its commit, with every version of SQLite:

    BEGIN IMMEDIATE            the writer has the write lock: no connection can commit
    wal_checkpoint(PASSIVE)    on another connection; it waits for nothing
    ROLLBACK                   the writer wrote nothing
    BEGIN IMMEDIATE            its own commit; it restarts the WAL if everything was moved

The other modes of a checkpoint fall back to PASSIVE without the write lock when they do not get it,
so they are not used. The checkpoint of the last connection that closes holds an exclusive lock on
the file: there is no other connection.

Crash points and what each leaves behind:

    before or in the checkpoint    pages half written; the WAL has them all and is read first. The
                                   system frees the locks, and the next checkpoint begins again
    after it, before the commit    everything is in the file and in the WAL
    in the commit                  as without a checkpoint: committed frames are valid, others not

How long a WAL gets: about `FRAMES` pages and the largest transaction, for as long as no reader
keeps a snapshot. With one it grows by what is committed meanwhile. `LIMIT` bounds what stays of the
file once it starts again.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import logging
import os
import select
import sqlite3
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from perdure.errors import BadURL, Error, Unavailable

FRAMES = 512
"""Pages in a WAL that is moved: 2 MiB."""
AGAIN = 128
"""Pages until the next try, if the WAL did not start again: something still reads it."""
LIMIT = 8 << 20
"""Bytes that the file of a WAL keeps when it starts again. To use them again is cheaper to sync
than to grow (1.4x measured)."""
HEADER, FRAME_HEADER = 32, 24
IN_MODIFY, IN_CREATE = 0x2, 0x100
IN_NONBLOCK, IN_CLOEXEC = os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0)


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


def loses_commits(version: tuple[int, ...]) -> bool:
    """Whether a version of SQLite has the bug."""
    return (3, 7) <= version < (3, 51, 3) and not (
        (3, 50, 7) <= version < (3, 51) or (3, 44, 6) <= version < (3, 45)
    )


class Wal:
    """The WAL of one file, as one process sees it."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path) + "-wal"
        self._salts = b""
        self._due = FRAMES

    @staticmethod
    def keep(connection: sqlite3.Connection, limit: int = LIMIT) -> None:
        """Let a connection that writes leave the WAL to us."""
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute(f"PRAGMA journal_size_limit = {limit}")

    def is_long(self) -> bool:
        """Whether to move it. Reads 48 bytes: a frame counts if it has the salts of the header."""
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:  # there is no WAL; or no descriptor left, and the next commit asks again
            return False
        try:
            header = os.pread(file, HEADER, 0)
            if header[16:24] != self._salts:
                self._salts, self._due = header[16:24], FRAMES
            size = FRAME_HEADER + int.from_bytes(header[8:12], "big")
            frame = os.pread(file, 16, HEADER + (self._due - 1) * size)
            return len(frame) == 16 and frame[8:] == self._salts
        finally:
            os.close(file)

    def move(self, mover: sqlite3.Connection) -> bool:
        """Move it into the file, as far as readers permit. Another connection holds the write lock,
        with nothing written. True: all of it is in the file."""
        try:
            busy, frames, moved = mover.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        except sqlite3.OperationalError as error:
            # Everything is in the WAL. A disk that is full also refuses the commit.
            logging.getLogger("perdure").warning("%s was not moved: %s.", self._path, error)
            busy, frames, moved = 1, self._due, 0
        self._due = frames + AGAIN
        return not busy and frames == moved

    def move_if_long(self, holder: sqlite3.Connection, mover: sqlite3.Connection) -> None:
        """Move a long WAL; `holder`, which is in no transaction, takes the write lock for it."""
        if self.is_long():
            try:
                holder.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:  # others write; the next call tries again
                return
            try:
                self.move(mover)
            finally:
                holder.execute("ROLLBACK")

    def empty(self, holder: sqlite3.Connection, mover: sqlite3.Connection, deadline: float) -> bool:
        """Move it and cut its file down to one page. False: a reader prevented it for so many
        seconds. `holder` has `keep(limit=0)`."""
        give_up = time.monotonic() + deadline
        while True:
            holder.execute("BEGIN IMMEDIATE")
            try:
                moved = self.move(mover)
            finally:
                holder.execute("ROLLBACK")
            if moved:
                # The smallest commit that starts the WAL again. Its limit cuts the file.
                holder.execute("BEGIN IMMEDIATE")
                version = holder.execute("PRAGMA user_version").fetchone()[0]
                holder.execute(f"PRAGMA user_version = {version}")
                holder.execute("COMMIT")
                page = holder.execute("PRAGMA page_size").fetchone()[0]
                if os.path.getsize(self._path) <= HEADER + 2 * (FRAME_HEADER + page):
                    return True
            if time.monotonic() > give_up:
                return False
            time.sleep(0.01)


class FileHints:
    """Hints that something was committed: the kernel (inotify, on Linux only) reports when this or
    another process writes to the WAL of a file, but not which run changed. Elsewhere watched runs
    are polled."""

    def __init__(self, path: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd: int = libc.inotify_init1(IN_NONBLOCK | IN_CLOEXEC)
        folder, name = os.path.split(os.path.abspath(path))
        self._wal = os.fsencode(f"{name}-wal")
        # The folder, because the WAL is removed and created again with its last connection.
        where, what = os.fsencode(folder), IN_MODIFY | IN_CREATE
        if self._fd < 0 or libc.inotify_add_watch(self._fd, where, what) < 0:
            self.close()
            raise OSError(ctypes.get_errno(), "inotify cannot watch", folder)
        self._poll = select.poll()
        self._poll.register(self._fd, select.POLLIN)

    def wait(self, seconds: float) -> Collection[str] | None:
        if not self._poll.poll(seconds * 1000):
            return ()
        events = os.read(self._fd, 64 * 1024)
        return None if self._wal in events else ()

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def scrub(path: str, deadline: float) -> None:
    """Rewrite a file without what was deleted from it, and empty its WAL. Others can read it
    meanwhile, and wait to write. Raises `Unavailable` if they keep it from that until the deadline.
    """
    if path == ":memory:" or not os.path.exists(path):
        return
    with contextlib.ExitStack() as stack:
        writer, mover = (
            stack.enter_context(
                contextlib.closing(sqlite3.connect(path, timeout=deadline, isolation_level=None))
            )
            for _ in range(2)
        )
        try:
            Wal.keep(writer, limit=0)
            writer.execute("VACUUM")
            emptied = Wal(path).empty(writer, mover, deadline)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{path} could not be rewritten: {error}. Scrub it again.") from error
    if not emptied:
        raise Unavailable(
            f"{path} is rewritten, but another process kept reading it for {deadline:g} s: deleted "
            "bytes may still be in its -wal file. Scrub it again."
        )


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
