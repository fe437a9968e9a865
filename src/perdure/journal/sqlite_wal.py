"""Moves the WAL of a SQLite file into the file, while no other connection can commit.

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
import logging
import os
import select
import sqlite3
import time
from collections.abc import Collection

from perdure.errors import Unavailable

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
