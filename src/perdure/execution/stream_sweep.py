"""Delete the stream chunks of ended runs, some time after their end, in small pieces in the
background.

A sweep goes through the runs that have chunks, oldest first, one page per piece. At the end it
rests, then starts over. Its position is in memory only, so a crash loses nothing else.
"""

from __future__ import annotations

import time
from datetime import timedelta

from perdure.journal import Journal
from perdure.operations import streams
from perdure.operations.look import Oldest
from perdure.service.failures import Failures
from perdure.times import FIRST_MS

PAGE = 200
"""Runs that are read at once."""
ROWS = 500
"""Rows that one transaction deletes."""
DELETIONS = 20
"""Transactions of one piece."""
REST, PAUSE = 60.0, 0.2
"""Seconds between two sweeps, and between two pieces of one."""


class StreamSweep:
    """The sweeps of one process over a journal."""

    what = "Deleting stream chunks of ended runs"

    def __init__(self, ttl: timedelta, failures: Failures) -> None:
        self._failures = failures
        self._ttl = round(ttl.total_seconds() * 1000)
        self._after: tuple[int, str] = (FIRST_MS, "")
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether a piece should be done now."""
        return time.monotonic() >= self._next_at

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.streamed_at is not None and oldest.streamed_at <= now - self._ttl

    async def tick(self, journal: Journal, now: int) -> int:
        """The one piece that a `tick` does: the oldest runs."""
        self._after = (FIRST_MS, "")
        return await self.piece(journal, now)

    async def piece(self, journal: Journal, now: int) -> int:
        """Read a page, and delete what is too old."""
        page = await journal.ado(streams.kept(self._after, PAGE))
        deletions = 0
        count = min(ROWS, journal.capabilities.delete_count)
        for run in page:
            with self._failures.guard(self.what, run.id):
                while streams.is_over(run) and run.updated_at <= now - self._ttl:
                    if deletions == DELETIONS:
                        self._rest(PAUSE)
                        return 0
                    deletions += 1
                    if not await journal.ado(streams.forget(run, count)):
                        break
            self._after = (run.created_at, run.id)
        if len(page) < PAGE:
            self._after = (FIRST_MS, "")
            self._rest(REST)
        else:
            self._rest(PAUSE)
        return 0

    def _rest(self, seconds: float) -> None:
        self._next_at = time.monotonic() + seconds
