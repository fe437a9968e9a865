"""How a process keeps what it has claimed, and how others see that it lives.

The keeper renews the leases of this process, enforces its time limits, and expires leases of dead
workers. It does the first two in one thread, so that it goes on when an event loop is blocked. A
driver that does not return in time loses its lease here, and its late writes are refused. A lease
is renewed only while its driver can make progress, which the pulse of its event loop shows:

    loop late by half a lease   the lease is not renewed until the loop responds
    loop late by a lease        a quarter of the lease is left. The run is given up, before another
                                worker can take it: nothing of it begins or is written here any more
    process suspended           this thread was, too, so its loops are not late. Leases may have run
                                out: each is renewed, unless another worker has the run. Until then
                                no effect is called, no step begins, and nothing is claimed here: a
                                loop that is back first would take its own runs

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
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from perdure.commands import claims, effects, workers
from perdure.commands.claims import LeaseRow, LeaseTimes, SegmentEnd
from perdure.commands.effects import report
from perdure.commands.runs import RunRow
from perdure.commands.workers import WorkerLeases, WorkerRow, beat_of
from perdure.errors import Closed, Error, StepTimeout, WentBack
from perdure.execution.drive import Drive, Driver, Ended, StopReason
from perdure.execution.segment import LoopPulse
from perdure.execution.segment_end import end_segment, failed, released
from perdure.execution.segment_start import stopped
from perdure.journal.clock import JournalClock, host_time
from perdure.types import Control

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

    def __init__(self, driver: Driver, worker: str) -> None:
        self._journal, self._clock, self.worker = driver.journal, driver.clock, worker
        self._failures = driver.failures
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


ROUND = 0.25
"""Seconds between two rounds; fewer if a lease is short."""
NEAR = 250
"""Milliseconds: a lease that others are to renew is never so near to its end."""
AGREE = 5.0
"""Seconds after which the keeper asks for the time, if nothing else has."""


class LeaseKeeper:
    """The keeper thread of one runtime in one process."""

    def __init__(self, driver: Driver, *, lease: float) -> None:
        self._driver, self._journal, self._clock = driver, driver.journal, driver.clock
        self._failures, self._lease = driver.failures, lease
        self.beat = min(ROUND, lease / 8)
        self.pause = lease / 4
        """Seconds between two renewals."""
        self.process_lock = ProcessLock(clock=host_time(driver.clock).clock)
        self.presence = Presence(driver, self.worker)
        self._driven: dict[str, Drive] = {}
        self._beginning: dict[tuple[str, int], LoopPulse | None] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._renewed = 0.0
        self._void_until = -1
        """What was claimed until then was claimed in a history that is gone."""
        self.silent: tuple[str, ...] = ()
        """Workers on this host that live, and let their leases run out."""
        self.pid = os.getpid()

    @property
    def worker(self) -> str:
        """The name of this process as a worker."""
        return self.process_lock.id

    @property
    def driven(self) -> list[Drive]:
        """What this process drives now."""
        return list(self._driven.values())

    @property
    def is_behind(self) -> bool:
        """Whether a lease of this process may have run out."""
        return any(one.is_overdue and not one.closing for one in self.driven)

    def times(self) -> LeaseTimes:
        """Now, and when a lease that begins now runs out."""
        now = self._clock.now()
        return LeaseTimes(now, now + round(self._lease * 1000), host_time(self._clock))

    @property
    def is_started(self) -> bool:
        return self._thread is not None and self.pid == os.getpid()

    def start(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed:
                self.process_lock.acquire()
                self._journal.acknowledged.listeners.append(self._drop_all)
                thread = threading.Thread(target=self._loop, name="perdure-keeper", daemon=True)
                thread.start()
                self._thread = thread  # not before: an interrupt must leave nothing to join

    @contextlib.contextmanager
    def renewing(self, row: RunRow, pulse: LoopPulse | None = None) -> Iterator[None]:
        """Keep the lease of a claimed run while its segment begins. That may take longer than a
        lease: the journal is slow, or compensations are made. `pulse` is that of its event loop."""
        claimed, is_first = (row.id, row.token), not self._driven and not self._beginning
        self._beginning[claimed] = pulse
        self._renew_in_time(self._left(row), is_first)
        try:
            yield
        finally:
            del self._beginning[claimed]

    def add(self, drive: Drive) -> None:
        """Keep the lease of a segment from now on."""
        left, is_first = self._left(drive.row), not self._driven and not self._beginning
        drive.keep(min(left, self._lease))
        self._driven[drive.name] = drive
        if drive.row.updated_at <= self._void_until:
            self._drop(drive)
        self._renew_in_time(left, is_first)

    def _drop_all(self, error: WentBack) -> None:
        """The database went back in time: drop what this process drives, before anyone uses the
        older database, and leave the runs to the next claim."""
        self._void_until = now = self._clock.now()
        for drive in self.driven:
            self._drop(drive)
        self._journal.defer(claims.expire(self.worker, now))

    def _drop(self, drive: Drive) -> None:
        drive.is_void = True
        self._lose(drive, Ended.LOST)

    def _left(self, row: RunRow) -> float:
        """Seconds left of a lease as it was claimed."""
        return ((row.due_at or 0) - self._clock.now()) / 1000

    def _renew_in_time(self, left: float, is_first: bool) -> None:
        if left < self._lease - self.pause:
            self.nudge()  # it took long to claim it, or to begin
        elif is_first:
            self._renewed = time.monotonic()  # a segment that ends soon needs no renewal

    def remove(self, drive: Drive) -> None:
        """Keep the lease of a segment no longer."""
        self._driven.pop(drive.name, None)

    def stop(self, run_id: str, control: Control) -> None:
        """Stop a run before its next step, if this process drives it."""
        for drive in self.driven:
            if drive.row.id == run_id:
                drive.ask_to_stop(StopReason(control.value))
        self.nudge()

    def nudge(self) -> None:
        """Look into the journal now: this process has asked to stop runs."""
        with self._changed:
            self._renewed = 0.0
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(5.0)
        if self.pid == os.getpid():
            self.process_lock.release()

    # -- the thread

    def _loop(self) -> None:
        late = took = used = 0.0
        while not self._closed:
            begun = time.monotonic()
            try:
                with self._failures.guard("Renewing leases"):
                    self._round(late, took, used)
            except Closed:
                return
            with self._changed:
                waiting, cpu = time.monotonic(), time.process_time()
                took = waiting - begun
                if not self._closed:
                    self._changed.wait(self.beat)
                late = time.monotonic() - waiting - self.beat
                used = time.process_time() - cpu

    def _round(self, late: float, took: float, used: float) -> None:
        """`took`: seconds of the last round; `late`: how late this thread woke up after it; `used`:
        CPU that the process had meanwhile."""
        now = time.monotonic()
        every = self.driven
        pulses = [*self._beginning.values(), *(one.pulse for one in every)]
        if max(late, took) > self.pause and pulses:
            why = "this process was suspended, or the machine is starved"
            if took > late:
                why = f"the database is slow, or {why}"
            elif used > late / 2:
                why = "a call kept the interpreter's lock"
            runs = ", ".join(one.row.id for one in every[:3]) + (", …" if len(every) > 3 else "")
            log.warning("No lease was renewed for %.1f s: %s; runs %s", max(late, took), why, runs)
            self._renewed = 0.0
        for pulse in {one for one in pulses if one is not None}:
            pulse.watch(late if late > self.pause else 0.0)
        for drive in every:
            if drive.progress.idle_seconds > drive.graph.timeout.total_seconds():
                self._time_out(drive)
            elif drive.left < self.pause and not drive.closing and self._is_late(drive.pulse):
                self._leave(drive)
        if (every or self._beginning) and now - self._renewed >= self.pause:
            self._renewed = now
            self._renew_all(every)
        if isinstance(self._clock, JournalClock) and self._clock.age > AGREE:
            self._clock.agree()
        self.process_lock.beat()

    def _renew_all(self, every: list[Drive]) -> None:
        journal = self._journal
        begun = time.monotonic()
        alive = [one for one in every if not self._is_late(one.pulse)]
        beginning = list(self._beginning.items())
        ids = [id for (id, _), pulse in beginning if not self._is_late(pulse)]
        ids += [one.row.id for one in alive]
        renewing = claims.renew(self.worker, self.times(), ids)
        if isinstance(self._clock, JournalClock):
            renewing = self._clock.agree_by(renewing)
        last = {drive.row.id: journal.acknowledged.last_event(drive.row.id) for drive in every}
        # Past the queue: leases are renewed however long a commit takes.
        found = {lease.run_id: lease for lease in journal.do_unqueued(renewing)}
        for drive in every:
            if drive.name not in self._driven or drive.closing:
                continue
            lease = found.get(drive.row.id)
            if lease is None or lease.token != drive.row.token:
                self._lose(drive, Ended.LOST)
                continue
            if lease.events < last[lease.run_id]:
                journal.look_back(f"the history of run {lease.run_id} is shorter", is_certain=True)
                return
            if drive in alive:
                drive.keep(begun + self._lease - time.monotonic())
            if lease.control is not None:
                self._stop(drive, lease, Control(lease.control))

    def _stop(self, drive: Drive, lease: LeaseRow, control: Control) -> None:
        """Stop a cancelled or paused run at its next step, or at once when its grace is over."""
        drive.ask_to_stop(StopReason(control.value))
        now = self._clock.now()
        if lease.control_at is not None and self._is_grace_over(drive, lease.control_at, now):
            attempts = max(0, drive.progress.attempts - 1)
            found = self._journal.read_committed(effects.of_run(drive.row.id))
            self._end(drive, stopped(control, now, attempts, forced=True, **report(found)))

    def _is_grace_over(self, drive: Drive, control_at: int, now: int) -> bool:
        """A grace runs by the host's clock, so that setting the journal's does not shorten it."""
        host = host_time(self._clock)
        here = host.tick if host.clock else now
        if drive.grace is None or drive.grace[0] != control_at:
            drive.grace = (control_at, here + control_at - now)
        return drive.grace[1] <= here

    def _time_out(self, drive: Drive) -> None:
        graph, row = drive.graph, drive.row
        error = StepTimeout(
            f"Run {row.id} made no progress for {graph.timeout}, which is the timeout of graph "
            f"{graph.name!r}; register it with a longer one if a step may take that long."
        )
        attempts = drive.progress.attempts
        self._end(drive, failed(drive, error, attempts))

    def _is_late(self, pulse: LoopPulse | None) -> bool:
        return pulse is not None and time.monotonic() - pulse.at >= self._lease / 2

    def _leave(self, drive: Drive) -> None:
        """Give a run up whose event loop does not respond, while its lease lasts."""
        drive.is_lost = True  # first: whatever becomes of the next lines
        row, why = drive.row, drive.pulse.why_late() if drive.pulse else ""
        log.warning(
            "run %s of %r is given up: %s", row.id, row.graph, why, extra={"run_id": row.id}
        )
        ended = Ended.LOST
        try:
            op = claims.revoke_lease(self._driver.serializer, row, self._clock.now(), why)
            if self._journal.do(op):
                ended = Ended.RELEASED
        finally:
            self._lose(drive, ended)

    def give_back(self, drive: Drive) -> None:
        """Give a run back whose driver is not waited for any longer."""
        attempts = max(0, drive.progress.attempts - 1)
        self._end(drive, released(self._clock.now(), attempts, forced=True))

    def _end(self, drive: Drive, end: SegmentEnd) -> None:
        """End a segment in place of its driver, whose writes are refused from here on."""
        ended = self._journal.run(end_segment(self._driver, drive.row, end))
        self._lose(drive, ended)

    def _lose(self, drive: Drive, ended: Ended) -> None:
        drive.is_lost = True
        drive.ask_to_stop(StopReason.LOST)
        self.remove(drive)
        drive.give_up(ended)

    def expire_dead(self, every: Sequence[WorkerLeases]) -> bool:
        """Make the runs of dead workers on this host due, and those of stopped ones, whose leases
        are over by the host's clock, even if the journal's was set back since. `every` is each
        worker that has a lease. Returns whether any worker's runs were made due."""
        journal, host = self._journal, host_time(self._clock)
        now, until, _ = self.times()
        is_changed, silent = False, []
        for one in every:
            with self._failures.guard("Expiring dead workers", one.worker):
                if self.process_lock.is_dead(one.worker):
                    journal.do(claims.expire(one.worker, self._clock.now()))
                    journal.do(workers.leave(one.worker))
                    self.process_lock.remove(one.worker)
                    is_changed = True
                elif host.clock and 0 < one.lease_until <= host.tick + NEAR:
                    silent += [one.worker] if self.process_lock.is_alive(one.worker) else []
                # Beyond any lease that begins now: the clock was set back. Otherwise it ends by
                # itself.
                is_late = host.clock and 0 < one.lease_until <= host.tick and one.due_at > until
                if is_late and self.process_lock.is_alive(one.worker):
                    journal.do(claims.expire(one.worker, now, before=host.tick))
                    is_changed = True
        self.silent = tuple(silent)
        return is_changed
