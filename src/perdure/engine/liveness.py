"""Who is alive on this host, known at once: a lock that the kernel drops when a process dies.

Each process that drives runs holds a lock on a file named after it. Another one on this host that
gets that lock knows the owner is dead, without waiting for a lease to run out. From another host,
or another container, there is no such file, and the lease decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import secrets
import socket
import tempfile
import time
from itertools import islice
from pathlib import Path

OLD = 3600.0
"""Seconds after its last beat when nobody needs to know any more that a process is dead."""
BEAT = 60.0
SWEPT = 500
"""Files of dead processes that one which begins removes at most."""


class Presence:
    """This process, as others on this host can see it."""

    def __init__(self, folder: str | None = None) -> None:
        self._folder = Path(folder or Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}")
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:100]
        self.id = f"{host}:{os.getpid()}:{secrets.token_hex(4)}"
        self._pid = os.getpid()
        self._file: int | None = None
        self._beaten = time.monotonic()

    def show(self) -> None:
        """Let others see that this process is alive."""
        if self._file is not None:
            return
        with contextlib.suppress(OSError):  # then others wait for the lease, as on another host
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = os.open(self._path(self.id), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            self._file = file
            os.register_at_fork(after_in_child=self._forget)
            self._sweep(os.fstat(file).st_mtime - OLD)

    def _sweep(self, before: float) -> None:
        """Remove what processes left that died long ago, and drove nothing then."""
        with os.scandir(self._folder) as files:
            old = [
                one
                for one in files
                if one.name.endswith(".lock")
                and one.is_file(follow_symlinks=False)
                and one.stat(follow_symlinks=False).st_mtime < before
            ]
        for one in islice(old, SWEPT):
            if self._is_free(Path(one.path)):
                Path(one.path).unlink(missing_ok=True)

    def beat(self) -> None:
        """Say that it lives, for who sweeps."""
        if self._file is not None and time.monotonic() - self._beaten > BEAT:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def _forget(self) -> None:
        # A child has the lock in common with its parent, and must not keep it alive.
        if self._file is not None and self._pid != os.getpid():
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def hide(self) -> None:
        if self._file is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._path(self.id).unlink(missing_ok=True)
                os.close(self._file)
        self._file = None

    def is_dead(self, worker: str) -> bool:
        """Whether a worker was on this host and is certainly gone."""
        if worker == self.id:
            return False
        return self._is_free(self._path(worker))

    def _is_free(self, path: Path) -> bool:
        """Whether the lock is there, and nobody has it."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def bury(self, worker: str) -> None:
        """Remove what a dead worker left on this host."""
        with contextlib.suppress(OSError):
            self._path(worker).unlink(missing_ok=True)

    def _path(self, worker: str) -> Path:
        return self._folder / f"{worker.replace(':', '-')}.lock"
