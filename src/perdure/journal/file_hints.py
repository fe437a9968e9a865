"""Hints for SQLite: the kernel reports when this or another process writes to the WAL.

Linux only (inotify). Elsewhere there are no hints, and watched runs are polled.
"""

from __future__ import annotations

import ctypes
import os
import select
import sys
from collections.abc import Collection

IN_MODIFY, IN_CREATE = 0x2, 0x100
IN_NONBLOCK, IN_CLOEXEC = os.O_NONBLOCK, getattr(os, "O_CLOEXEC", 0)


class FileHints:
    """Reports writes to the WAL of a SQLite file, but not which run changed."""

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


def file_hints(path: str) -> FileHints | None:
    """Hints for a SQLite file, or None if the system has none."""
    return FileHints(path) if sys.platform == "linux" else None
