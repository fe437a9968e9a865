"""Background deletion by a worker: old runs, chunks of ended runs, expired threads.

A sweep is done in pieces beside the runs that are driven, each small enough that the worker can
stop after it. It walks over rows, oldest first: a bounded page per read, a bounded number of
deletions per piece. At the end it rests, then starts over. Its position is in memory only: after a
crash the sweep starts over and finishes what it finds half done. If two processes sweep at once,
each row is deleted once between them. A worker that stops when idle does one piece of each sweep.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import timedelta
from typing import Any

from perdure.commands import deleting, streams, threads
from perdure.commands.claims import Oldest
from perdure.errors import WrongState
from perdure.failures import Failures
from perdure.journal import Journal, Plan, in_pieces
from perdure.journal.clock import Clock
from perdure.journal.names import random_number
from perdure.times import FIRST_MS
from perdure.types import Retention

DUTY = "Housekeeping"
AGAIN = 10.0
"""Seconds until a worker asks again whether there is something to delete."""
PAGE = 200
"""Rows that are read at once."""
DELETIONS = 20
"""Transactions of one piece."""
CHUNK_ROWS = 500
"""Rows of chunks that one transaction deletes."""
PAUSE = 0.2
"""Seconds between two pieces of one sweep."""
PAGES_OF_TICK = 5
"""Pages that one call of `tick` reads in search of old runs."""
START = (FIRST_MS, "")


class Sweep:
    """The sweeps of one process over one kind of row."""

    what: str
    """What it does, for a log line: `Deleting old runs`."""
    rest: float
    """Seconds between two sweeps."""
    deletes_runs = False

    def __init__(self, failures: Failures) -> None:
        self._failures = failures
        self._after: tuple[int, str] = START
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether it has rested long enough."""
        return time.monotonic() >= self._next_at

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        """Whether there may be something to delete."""
        return True

    async def tick(self, journal: Journal, now: int) -> int:
        """Do the one piece of a worker that stops when idle: the oldest rows."""
        self._after = START
        return await self.piece(journal, now)

    async def piece(self, journal: Journal, now: int) -> int:
        """Read a page, and delete what is too old. Returns the number of deleted runs."""
        page, deletions = await self._page(journal, now), 0
        for row in page:
            with self._failures.guard(self.what, row.id):
                while self._is_too_old(row, now):
                    if deletions == DELETIONS:
                        self._rest(PAUSE)
                        return deletions if self.deletes_runs else 0
                    is_more = await self._delete(journal, row)
                    deletions += 1
                    if not is_more:
                        break
            self._after = (row.created_at, row.id)
        if len(page) < PAGE:
            self._after = START
        self._rest(PAUSE if len(page) == PAGE else self.rest)
        return deletions if self.deletes_runs else 0

    async def _page(self, journal: Journal, now: int) -> list[Any]:
        """The next rows after the position, at most `PAGE`."""
        raise NotImplementedError

    def _is_too_old(self, row: Any, now: int) -> bool:
        raise NotImplementedError

    async def _delete(self, journal: Journal, row: Any) -> bool:
        """Delete a row in one transaction. Returns whether there may be more of it."""
        raise NotImplementedError

    def _rest(self, seconds: float) -> None:
        self._next_at = time.monotonic() + seconds


class RetentionSweep(Sweep):
    """Deletes ended runs that are older than `Retention` keeps them. A partly deleted run is
    finished by the next sweep that finds it."""

    what, rest, deletes_runs = "Deleting old runs", 600.0, True

    def __init__(self, retention: Retention, failures: Failures) -> None:
        super().__init__(failures)
        self._ages = {
            state.value: round(age.total_seconds() * 1000) for state, age in retention.ages.items()
        }

    async def tick(self, journal: Journal, now: int) -> int:
        """The oldest runs, then, if there are many, those behind a random place. A process that
        lives for one tick cannot remember where the last one was."""
        deleted = await super().tick(journal, now)
        for _ in range(PAGES_OF_TICK - 1):
            if self._after == START or deleted >= DELETIONS:
                break
            ahead = max(1, now - self._after[0])
            self._after = (self._after[0] + random_number() % ahead, "")
            deleted += await self.piece(journal, now)
        return deleted

    async def _page(self, journal: Journal, now: int) -> list[deleting.OldRun]:
        return await journal.ado(deleting.oldest(self._after, now - min(self._ages.values()), PAGE))

    def _is_too_old(self, row: deleting.OldRun, now: int) -> bool:
        if row.is_deleted_in_part:
            return True
        age = self._ages.get(row.state)
        return age is not None and not row.has_live_parent and row.updated_at <= now - age

    async def _delete(self, journal: Journal, row: deleting.OldRun) -> bool:
        rows = journal.capabilities.delete_count
        await journal.arun(in_pieces(deleting.delete(row.thread_id, row.id, rows)))
        return False


class StreamSweep(Sweep):
    """Deletes the chunks of runs that ended longer ago than the stream's time to live."""

    what, rest = "Deleting stream chunks of ended runs", 60.0

    def __init__(self, ttl: timedelta, failures: Failures) -> None:
        super().__init__(failures)
        self._ttl = round(ttl.total_seconds() * 1000)

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.streamed_at is not None and oldest.streamed_at <= now - self._ttl

    async def _page(self, journal: Journal, now: int) -> list[streams.StreamedRun]:
        return await journal.ado(streams.kept(self._after, PAGE))

    def _is_too_old(self, row: streams.StreamedRun, now: int) -> bool:
        return streams.is_over(row) and row.updated_at <= now - self._ttl

    async def _delete(self, journal: Journal, row: streams.StreamedRun) -> bool:
        count = min(CHUNK_ROWS, journal.capabilities.delete_count)
        is_more: bool = await journal.ado(streams.forget(row, count))
        return is_more


class ThreadExpiry(Sweep):
    """Erases threads whose time to live is over; `erase` is the plan for one. A thread with a run
    under way is erased once the run has ended."""

    what, rest = "Erasing expired threads", 30.0

    def __init__(self, erase: Callable[[str], Plan[object]], failures: Failures) -> None:
        super().__init__(failures)
        self._erase = erase

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.expires_at is not None and oldest.expires_at <= now

    async def piece(self, journal: Journal, now: int) -> int:
        """Erase some expired threads."""
        failing = self._failures.failing.get(self.what, 0)  # they come first: behind them go on
        count = threads.EXPIRED + failing
        expired = await journal.ado(threads.expired(now, count))
        for thread_id in expired:
            if not self._failures.is_resting(self.what, thread_id):
                with (
                    self._failures.guard(self.what, thread_id),
                    contextlib.suppress(WrongState),  # a run has just been started
                ):
                    await journal.arun(self._erase(thread_id))
        self._rest(PAUSE if len(expired) == count else self.rest)
        return 0


class Housekeeping:
    """The sweeps of one worker. `swept` is called after each piece with the runs it deleted."""

    def __init__(
        self,
        sweeps: Iterable[Sweep],
        journal: Journal,
        clock: Clock,
        failures: Failures,
        swept: Callable[[int], None],
        *,
        once: bool,
    ) -> None:
        self._journal, self._clock, self._swept, self._once = journal, clock, swept, once
        self._failures = failures
        self._left = list(sweeps)
        self._asked: dict[int, float] = {}
        self.tasks: dict[asyncio.Task[int], Sweep] = {}

    @property
    def due(self) -> list[Sweep]:
        """The sweeps that could do a piece now."""
        under_way = {id(sweep) for sweep in self.tasks.values()}
        return [
            sweep
            for sweep in self._left
            if id(sweep) not in under_way
            and (self._once or (sweep.is_due and not self._failures.is_resting(DUTY, sweep.what)))
            and time.monotonic() - self._asked.get(id(sweep), float("-inf")) >= AGAIN
        ]

    def begin(self, sweeps: Iterable[Sweep], oldest: Oldest) -> None:
        """Begin a piece of each of these sweeps that is needed."""
        now = self._clock.now()
        for sweep in sweeps:
            if self._once:
                self._left.remove(sweep)
            self._asked[id(sweep)] = float("-inf")
            if not sweep.is_needed(oldest, now):
                self._asked[id(sweep)] = time.monotonic()
            else:
                work = sweep.tick if self._once else sweep.piece
                task = asyncio.create_task(self._guarded(sweep, work(self._journal, now)))
                self.tasks[task] = sweep
                task.add_done_callback(self._done)

    async def _guarded(self, sweep: Sweep, work: Awaitable[int]) -> int:
        """Do a piece. One that fails keeps no other sweep back."""
        try:
            deleted = await work
        except Exception as error:
            self._failures.note(error, DUTY, sweep.what)
            return 0
        self._failures.clear(DUTY, sweep.what)
        return deleted

    def _done(self, task: asyncio.Task[int]) -> None:
        del self.tasks[task]
        self._swept(0 if task.cancelled() or task.exception() else task.result())
