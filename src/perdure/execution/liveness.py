"""How other processes see that this one lives: a file lock, and a heartbeat row.

Each process that drives runs locks a file named after it, and the kernel drops the lock when the
process dies. Another process on this host that gets the lock knows at once that the owner is dead,
without waiting for a lease to run out. On another host, or in another container, the file is not
there, and the lease decides.

The heartbeat is one small row, rewritten at every beat. It serves lists of workers and requests to
drain; leases alone decide who drives what. A worker that stops when idle announces itself only
after a whole beat, any other after a second, so a tick writes nothing. Heartbeats go through the
journal's queue, in the commits of other operations. A heartbeat that fails is repeated at the next
beat. One that is older in the database than it was written shows that the database went back in
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import logging
import os
import re
import secrets
import socket
import stat
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from perdure.commands import workers
from perdure.commands.workers import WorkerRow, beat_of
from perdure.errors import Error
from perdure.failures import Failures
from perdure.journal import Journal
from perdure.journal.clock import Clock

log = logging.getLogger("perdure")

STALE = 3600.0
"""Seconds after its last beat when the lock file of a dead process may be removed."""
BEAT = 60.0
"""Seconds between two beats."""
MAX_SWEPT = 500
"""Maximum number of stale lock files removed at start-up."""


class ProcessLock:
    """The lock by which other processes on this host see that this one is alive."""

    def __init__(self, folder: str | None = None, *, clock: str = "") -> None:
        self._folder = Path(folder or Path(tempfile.gettempdir()) / f"perdure-{os.getuid()}")
        host = re.sub(r"[^\w.-]", "_", socket.gethostname())[:100]
        # Its clock comes last: by it other processes know whether they share it.
        self.id = ":".join(filter(None, (host, str(os.getpid()), secrets.token_hex(4), clock)))
        self._pid = os.getpid()
        self._file: int | None = None
        self._beaten = time.monotonic()

    def acquire(self) -> None:
        """Lock this process's file."""
        if self._file is not None:
            return
        with contextlib.suppress(OSError):  # then the lease decides, as on another host
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours():
                log.warning(
                    "%s is not used, because others could write to it: it must be a folder of this "
                    "user with mode 700. Until it is, the death of a worker on this host is "
                    "noticed when its lease runs out.",
                    self._folder,
                )
                return
            flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
            file = os.open(self._path(self.id), flags, 0o600)
            fcntl.flock(file, fcntl.LOCK_EX)
            self._file = file
            os.register_at_fork(after_in_child=self._forget)
            self._sweep(os.fstat(file).st_mtime - STALE)

    def _is_ours(self) -> bool:
        """Whether only this user can create lock files: others could make a worker look alive."""
        try:
            found = self._folder.lstat()
        except OSError:
            return False
        is_private = not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and is_private

    def _sweep(self, before: float) -> None:
        """Remove the files of processes that died long ago and drove nothing then."""
        with os.scandir(self._folder) as files:
            old = [
                one
                for one in files
                if one.name.endswith(".lock")
                and one.is_file(follow_symlinks=False)
                and one.stat(follow_symlinks=False).st_mtime < before
            ]
        for one in islice(old, MAX_SWEPT):
            if self._is_free(Path(one.path)):
                Path(one.path).unlink(missing_ok=True)

    def beat(self) -> None:
        """Touch the file now and then, so that it is not stale."""
        if self._file is not None and time.monotonic() - self._beaten > BEAT:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError):
                os.utime(self._file)

    def _forget(self) -> None:
        # A child shares the lock with its parent, and must not keep it after the parent's death.
        if self._file is not None and self._pid != os.getpid():
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def release(self) -> None:
        """Release the lock and remove the file."""
        if self._file is not None and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                self._path(self.id).unlink(missing_ok=True)
                os.close(self._file)
        self._file = None

    def is_dead(self, worker: str) -> bool:
        """Whether a worker was on this host and is certainly dead."""
        return worker != self.id and self._is_ours() and self._is_free(self._path(worker))

    def is_alive(self, worker: str) -> bool:
        """Whether a worker is a process on this host, though it may have been stopped."""
        path = self._path(worker)
        return path.exists() and not self._is_free(path)

    def _is_free(self, path: Path) -> bool:
        """Whether the file exists and is not locked."""
        try:
            file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return False
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        finally:
            os.close(file)
        return True

    def remove(self, worker: str) -> None:
        """Remove the file of a dead worker."""
        with contextlib.suppress(OSError):
            self._path(worker).unlink(missing_ok=True)

    def _path(self, worker: str) -> Path:
        name = re.sub(r"[^\w.-]", "-", worker)  # it is read from the journal, and may be anything
        return self._folder / f"{name}.lock"


SOON = 1.0
"""Seconds after which a worker that does not stop when idle announces itself."""
PATIENCE = 2.0
"""Seconds that a stopping worker waits for its row to be deleted."""


@dataclass(frozen=True, eq=False)
class Member:
    """One call of `work` or `tick`: two with the same settings are two."""

    graphs: tuple[str, ...]
    concurrency: int
    until_idle: bool


class Presence:
    """What this process announces: the workers in it share one row, as they share their leases."""

    def __init__(self, journal: Journal, clock: Clock, worker: str, failures: Failures) -> None:
        self._journal, self._clock, self.worker = journal, clock, worker
        self._failures = failures
        self._members: list[Member] = []
        self._started_at: int | None = None
        """When it was first announced; its row may exist since then."""
        self._announced_at: int | None = None
        """Its last heartbeat. None: it has no row."""

    @property
    def is_announced(self) -> bool:
        """Whether its row exists, so that it may be asked to drain."""
        return self._announced_at is not None

    async def keep(self, member: Member) -> None:
        """Announce a worker, and again at every beat, until it is cancelled."""
        beat = beat_of(self._journal.capabilities)
        await asyncio.sleep(beat if member.until_idle else min(SOON, beat))
        self._members.append(member)
        while True:
            await self._announce()
            await asyncio.sleep(beat)

    async def _announce(self) -> None:
        now = self._clock.now()
        if self._started_at is None:
            self._started_at = now
        graphs: Iterable[str] = (name for one in self._members for name in one.graphs)
        row = WorkerRow(
            self.worker,
            socket.gethostname()[:200],
            os.getpid(),
            workers.dump_graphs(graphs),
            sum(one.concurrency for one in self._members),
            self._started_at,
            now,
        )
        with self._failures.guard("Announcing this worker"):
            stored = await self._journal.ado(workers.announce(row, is_new=not self.is_announced))
            last, self._announced_at = self._announced_at, now
            # No other process writes its row. A stale one may have been deleted.
            if last is not None and (
                now - last < workers.KEPT if stored is None else stored < last
            ):
                why = "it has an earlier heartbeat of this process than the last one"
                look_back = functools.partial(self._journal.look_back, why, is_certain=True)
                await asyncio.to_thread(look_back)

    async def leave(self, member: Member) -> None:
        """Delete the row, if this was the last worker in the process."""
        with contextlib.suppress(ValueError):  # it was not announced
            self._members.remove(member)
        if self._members or self._started_at is None:
            return
        self._started_at = self._announced_at = None
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._journal.ado(workers.leave(self.worker))
