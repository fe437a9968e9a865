"""Renew the leases of this process, enforce its time limits, and expire leases of dead workers.

The first two in one thread, so that it goes on when an event loop is blocked. A driver that does
not return in time loses its lease here, and its late writes are refused. A lease is renewed only
while its driver can make progress, which the pulse of its event loop shows:

    loop late by half a lease   the lease is not renewed until the loop responds
    loop late by a lease        a quarter of the lease is left. The run is given up, before another
                                worker can take it: nothing of it begins or is written here any more
    process suspended           this thread was, too, so its loops are not late. Leases may have run
                                out: each is renewed, unless another worker has the run. Until then
                                no effect is called, no step begins, and nothing is claimed here: a
                                loop that is back first would take its own runs
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Iterator, Sequence

from perdure.commands import claims, effects, workers
from perdure.commands.claims import LeaseRow, LeaseTimes, SegmentEnd, WorkerLeases
from perdure.commands.effects import report
from perdure.commands.runs import RunRow
from perdure.errors import Closed, StepTimeout, WentBack
from perdure.execution.drive import Drive, Driver, Ended, StopReason
from perdure.execution.finish import end_segment, failed, released
from perdure.execution.liveness import ProcessLock
from perdure.execution.segment import LoopPulse
from perdure.execution.start import stopped
from perdure.failures import Failures
from perdure.journal.clock import JournalClock, host_time
from perdure.types import Control

log = logging.getLogger("perdure")

BEAT = 0.25
"""Seconds between two rounds; fewer if a lease is short."""
SOON = 250
"""Milliseconds: a lease that others are to renew is never so near to its end."""
AGREE = 5.0
"""Seconds after which the keeper asks for the time, if nothing else has."""


class LeaseKeeper:
    """The keeper thread of one runtime in one process."""

    def __init__(self, driver: Driver, failures: Failures, *, lease: float) -> None:
        self._driver, self._clock, self._lease = driver, driver.clock, lease
        self._failures = failures
        self.beat = min(BEAT, lease / 8)
        self.pause = lease / 4
        """Seconds between two renewals."""
        self.process_lock = ProcessLock(clock=host_time(driver.clock).clock)
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
        return any(one.segment.is_overdue and not one.segment.closing for one in self.driven)

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
                self._driver.journal.acknowledged.listeners.append(self._drop_all)
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
        drive.segment.keep(min(left, self._lease))
        self._driven[drive.segment.name] = drive
        if drive.row.updated_at <= self._void_until:
            self._drop(drive)
        self._renew_in_time(left, is_first)

    def _drop_all(self, error: WentBack) -> None:
        """The database went back in time: drop what this process drives, before anyone uses the
        older database, and leave the runs to the next claim."""
        self._void_until = now = self._clock.now()
        for drive in self.driven:
            self._drop(drive)
        self._driver.journal.defer(claims.expire(self.worker, now))

    def _drop(self, drive: Drive) -> None:
        drive.segment.is_void = True
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
        self._driven.pop(drive.segment.name, None)

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
        pulses = [*self._beginning.values(), *(one.segment.pulse for one in every)]
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
            graph, segment = drive.graph, drive.segment
            if segment.progress.idle_seconds > graph.timeout.total_seconds():
                self._time_out(drive)
            elif segment.left < self.pause and not segment.closing and self._is_late(segment.pulse):
                self._leave(drive)
        if (every or self._beginning) and now - self._renewed >= self.pause:
            self._renewed = now
            self._renew_all(every)
        if isinstance(self._clock, JournalClock) and self._clock.age > AGREE:
            self._clock.agree()
        self.process_lock.beat()

    def _renew_all(self, every: list[Drive]) -> None:
        journal = self._driver.journal
        begun = time.monotonic()
        alive = [one for one in every if not self._is_late(one.segment.pulse)]
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
            if drive.segment.name not in self._driven or drive.segment.closing:
                continue
            lease = found.get(drive.row.id)
            if lease is None or lease.token != drive.row.token:
                self._lose(drive, Ended.LOST)
                continue
            if lease.events < last[lease.run_id]:
                journal.look_back(f"the history of run {lease.run_id} is shorter", is_certain=True)
                return
            if drive in alive:
                drive.segment.keep(begun + self._lease - time.monotonic())
            if lease.control is not None:
                self._stop(drive, lease, Control(lease.control))

    def _stop(self, drive: Drive, lease: LeaseRow, control: Control) -> None:
        """Stop a cancelled or paused run at its next step, or at once when its grace is over."""
        drive.ask_to_stop(StopReason(control.value))
        now = self._clock.now()
        if lease.control_at is not None and self._is_grace_over(drive, lease.control_at, now):
            attempts = max(0, drive.segment.progress.attempts - 1)
            found = self._driver.journal.read_committed(effects.of_run(drive.row.id))
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
        attempts = drive.segment.progress.attempts
        self._end(drive, failed(self._driver, drive, error, attempts))

    def _is_late(self, pulse: LoopPulse | None) -> bool:
        return pulse is not None and time.monotonic() - pulse.at >= self._lease / 2

    def _leave(self, drive: Drive) -> None:
        """Give a run up whose event loop does not respond, while its lease lasts."""
        drive.segment.is_lost = True  # first: whatever becomes of the next lines
        row, why = drive.row, drive.segment.pulse.why_late() if drive.segment.pulse else ""
        log.warning(
            "run %s of %r is given up: %s", row.id, row.graph, why, extra={"run_id": row.id}
        )
        ended = Ended.LOST
        try:
            op = claims.revoke_lease(self._driver.serializer, row, self._clock.now(), why)
            if self._driver.journal.do(op):
                ended = Ended.RELEASED
        finally:
            self._lose(drive, ended)

    def give_back(self, drive: Drive) -> None:
        """Give a run back whose driver is not waited for any longer."""
        attempts = max(0, drive.segment.progress.attempts - 1)
        self._end(drive, released(self._clock.now(), attempts, forced=True))

    def _end(self, drive: Drive, end: SegmentEnd) -> None:
        """End a segment in place of its driver, whose writes are refused from here on."""
        ended = self._driver.journal.run(end_segment(self._driver, drive.row, end))
        self._lose(drive, ended)

    def _lose(self, drive: Drive, ended: Ended) -> None:
        drive.segment.is_lost = True
        drive.ask_to_stop(StopReason.LOST)
        self.remove(drive)
        drive.give_up(ended)

    def expire_dead(self, every: Sequence[WorkerLeases]) -> bool:
        """Make the runs of dead workers on this host due, and those of stopped ones, whose leases
        are over by the host's clock, even if the journal's was set back since. `every` is each
        worker that has a lease. Returns whether any worker's runs were made due."""
        journal, host = self._driver.journal, host_time(self._clock)
        now, until, _ = self.times()
        is_changed, silent = False, []
        for one in every:
            with self._failures.guard("Expiring dead workers", one.worker):
                if self.process_lock.is_dead(one.worker):
                    journal.do(claims.expire(one.worker, self._clock.now()))
                    journal.do(workers.leave(one.worker))
                    self.process_lock.remove(one.worker)
                    is_changed = True
                elif host.clock and 0 < one.lease_until <= host.tick + SOON:
                    silent += [one.worker] if self.process_lock.is_alive(one.worker) else []
                # Beyond any lease that begins now: the clock was set back. Otherwise it ends by
                # itself.
                is_late = host.clock and 0 < one.lease_until <= host.tick and one.due_at > until
                if is_late and self.process_lock.is_alive(one.worker):
                    journal.do(claims.expire(one.worker, now, before=host.tick))
                    is_changed = True
        self.silent = tuple(silent)
        return is_changed
