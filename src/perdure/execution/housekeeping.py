"""Background work of a worker: sweeps that delete what is no longer kept.

A sweep is done in pieces, each small enough that the worker can stop after it. A worker that stops
when idle does one piece of each.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

from perdure.journal import Journal
from perdure.journal.clock import Clock
from perdure.operations.look import Oldest
from perdure.service.failures import Failures

DUTY = "Housekeeping"
AGAIN = 10.0
"""Seconds until a worker asks again whether there is something to delete."""


class Sweep(Protocol):
    """Something to do beside the runs, piece by piece; most delete something."""

    what: str
    """What it does, for a log line: `Deleting old runs`."""

    @property
    def is_due(self) -> bool:
        """Whether it has rested long enough."""

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        """Whether there may be something to delete."""

    async def piece(self, journal: Journal, now: int) -> int:
        """Do a piece. Returns the number of deleted runs."""

    async def tick(self, journal: Journal, now: int) -> int:
        """Do the one piece of a worker that stops when idle."""


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
