"""Keeps what this process drives: leases, time limits, requests to stop, and the dead next door.

One thread, so that it goes on when an event loop is blocked. A lease is kept only while whoever
drives it can make progress: a loop that is blocked gives no pulse, and what it drives goes to
another worker. A driver that does not come back in time loses its lease here, and its late writes
are refused.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from perdure.engine.driver import Drive, Driver, told_to_stop
from perdure.engine.liveness import Presence
from perdure.errors import Closed, Error, StepTimeout
from perdure.journal.clock import Clock, JournalClock
from perdure.operations import effects, runs
from perdure.operations.effects import report
from perdure.operations.runs import End, Lease
from perdure.types import State

BEAT = 0.25
"""Seconds between two looks at everything; fewer when a lease is short."""

log = logging.getLogger("perdure")


@dataclass
class Pulse:
    """An event loop's sign of life."""

    beaten: float = field(default_factory=time.monotonic)
    excused: int = 0
    """How many plain effects, called by coroutines, block the loop just now."""

    @property
    def at(self) -> float:
        return time.monotonic() if self.excused else self.beaten

    def beat(self) -> None:
        self.beaten = time.monotonic()


@dataclass(eq=False)
class Hold:
    """A segment this process drives."""

    drive: Drive
    pulse: Pulse | None
    give_up: Callable[[str], None]
    """Told that nobody waits for the driver any more, and how the segment ended."""

    @property
    def run_id(self) -> str:
        return self.drive.row.id

    @property
    def key(self) -> tuple[str, int]:
        return self.drive.row.id, self.drive.row.token


class Keeper:
    """Of one runtime in one process."""

    def __init__(
        self, driver: Driver, clock: Clock, *, lease: float, presence: Presence | None = None
    ) -> None:
        self._driver, self._clock, self._lease = driver, clock, lease
        self.beat = min(BEAT, lease / 8)
        self._presence = presence or Presence()
        self._holds: dict[tuple[str, int], Hold] = {}
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._renewed = 0.0
        self._agreed = time.monotonic()
        self.pid = os.getpid()
        self.on_dead: set[Callable[[], None]] = set()
        """Called when a dead worker's runs were made due."""

    @property
    def worker(self) -> str:
        return self._presence.id

    def until(self) -> int:
        """When a lease taken now runs out."""
        return self._clock.now() + round(self._lease * 1000)

    def keep(self, run_id: str) -> None:
        """Keep the lease of a run that has no driver yet."""
        self._driver.journal.do_unqueued(runs.renew(self.worker, self.until(), [run_id]))

    def start(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed:
                self._presence.show()
                self._thread = threading.Thread(
                    target=self._keep, name="perdure-keeper", daemon=True
                )
                self._thread.start()

    def hold(self, hold: Hold) -> None:
        hold.drive.segment.kept_until = time.monotonic() + self._lease
        hold.drive.segment.pulse = hold.pulse
        self._holds[hold.key] = hold

    def drop(self, hold: Hold) -> None:
        self._holds.pop(hold.key, None)

    def stop(self, run_id: str, why: str) -> None:
        """Somebody here asked to stop a run: if it is driven here, it begins no further step."""
        for hold in list(self._holds.values()):
            if hold.run_id == run_id:
                hold.drive.ask_to_stop(why)
        self.nudge()

    def nudge(self) -> None:
        """Look at the journal now: somebody here asked to stop runs."""
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
            self._presence.hide()

    # -- the thread

    def _keep(self) -> None:
        while not self._closed:
            try:
                self._look()
            except Closed:
                return
            except Error as error:
                log.warning("The journal cannot be reached: %s", error)
            except Exception:
                log.exception("Keeping leases failed; it is tried again.")
            with self._changed:
                if not self._closed:
                    self._changed.wait(self.beat)

    def _look(self) -> None:
        now = time.monotonic()
        holds = list(self._holds.values())
        for hold in holds:
            if now - hold.drive.segment.moved_at > hold.drive.graph.timeout.total_seconds():
                self._time_is_up(hold)
        if holds and now - self._renewed >= self._lease / 4:
            self._renewed = now
            self._renew(holds)
        if isinstance(self._clock, JournalClock) and now - self._agreed > 5.0:
            self._agreed = now
            self._clock.agree()
        self._presence.beat()
        if self.on_dead:
            self.find_dead()

    def _renew(self, holds: list[Hold]) -> None:
        journal = self._driver.journal
        fresh = time.monotonic() - self._lease / 2
        alive = [hold for hold in holds if hold.pulse is None or hold.pulse.at > fresh]
        kept_until = time.monotonic() + self._lease
        # Past the queue: however long a commit takes, leases are kept.
        journal.do_unqueued(runs.renew(self.worker, self.until(), [hold.run_id for hold in alive]))
        found = {lease.run_id: lease for lease in journal.read_committed(runs.leases(self.worker))}
        for hold in holds:
            if hold.key not in self._holds or hold.drive.segment.closing:
                continue
            lease = found.get(hold.run_id)
            if lease is None or lease.token != hold.drive.row.token:
                self._lose(hold, "lost")
                continue
            if hold in alive:
                hold.drive.segment.kept_until = kept_until
            if lease.control is not None:
                self._stop(hold, lease)

    def _stop(self, hold: Hold, lease: Lease) -> None:
        """Somebody cancelled or paused it: at the next step, or, when that takes too long, now."""
        hold.drive.ask_to_stop(str(lease.control))
        now = self._clock.now()
        if lease.control_at is not None and lease.control_at <= now:
            attempts = max(0, hold.drive.segment.attempts - 1)
            found = self._driver.journal.read_committed(effects.of_run(hold.run_id))
            left = report(found)
            self._end(hold, told_to_stop(str(lease.control), now, attempts, forced=True, **left))

    def _time_is_up(self, hold: Hold) -> None:
        graph, row = hold.drive.graph, hold.drive.row
        error = StepTimeout(
            f"Run {row.id} made no progress for {graph.timeout}, which is the timeout of graph "
            f"{graph.name!r}; register it with a longer one if a step may take that long."
        )
        self._end(hold, self._driver.failed(hold.drive, error))

    def release(self, hold: Hold) -> None:
        """Give a run back whose driver is not waited for any longer."""
        attempts = max(0, hold.drive.segment.attempts - 1)
        self._end(
            hold,
            End(
                State.PENDING,
                "released",
                {"forced": True},
                due_at=self._clock.now(),
                attempts=attempts,
            ),
        )

    def _end(self, hold: Hold, end: End) -> None:
        """End a segment in its driver's place, whose writes are refused from here on."""
        kind = self._driver.journal.run(self._driver.let_go(hold.drive.row, end))
        self._lose(hold, kind)

    def _lose(self, hold: Hold, kind: str) -> None:
        hold.drive.segment.lost = True
        hold.drive.ask_to_stop("lost")
        self.drop(hold)
        hold.give_up(kind)

    def find_dead(self) -> None:
        """Make due what workers of this host drove that are dead."""
        journal = self._driver.journal
        found = [w for w in journal.read_committed(runs.workers()) if self._presence.is_dead(w)]
        for worker in found:
            journal.do(runs.expire(worker, self._clock.now()))
            self._presence.bury(worker)
        if found:
            for tell in list(self.on_dead):
                tell()
