"""Delete ended runs by policy, in small pieces beside the runs that are driven.

`Retention` says how long a run is kept, by the state it ended in. A sweep walks over the runs,
oldest first, as far as they may be too old: a bounded page of rows per read, a bounded number of
deletions per piece. At the end it rests, then starts over. Its position is in memory only: after a
crash the sweep starts over, and a partly deleted run is finished by the next sweep that finds it
(`runs.delete`). Two processes that sweep at once delete each run once between them.
"""

from __future__ import annotations

import time

from perdure.journal import Journal, in_pieces
from perdure.journal.ids import random_number
from perdure.operations import runs
from perdure.operations.look import Oldest
from perdure.service.failures import Failures
from perdure.times import FIRST_MS
from perdure.types import Retention

PAGE = 200
"""Runs that are read at once."""
DELETIONS = 20
"""Runs that are deleted before the worker looks for due runs again."""
REST = 600.0
"""Seconds between two sweeps."""
PAUSE = 0.2
"""Seconds between two pieces of one sweep."""
PAGES_OF_TICK = 5
"""Pages that one call of `tick` reads."""


class RetentionSweep:
    """One process's sweeps over a journal."""

    what = "Deleting old runs"

    def __init__(self, retention: Retention, failures: Failures) -> None:
        self._failures = failures
        self._ages = {
            state.value: round(age.total_seconds() * 1000) for state, age in retention.ages.items()
        }
        self._after: tuple[int, str] = (FIRST_MS, "")
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether a piece should be done now."""
        return time.monotonic() >= self._next_at

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return True  # only its own pages tell

    async def tick(self, journal: Journal, now: int) -> int:
        """What one `tick` does: the oldest runs, then, if there are many, those behind a random
        place. A process that lives for one tick cannot remember where the last one was."""
        self._after = (FIRST_MS, "")
        deleted = await self.piece(journal, now)
        for _ in range(PAGES_OF_TICK - 1):
            if self._after[0] == FIRST_MS or deleted >= DELETIONS:
                break
            ahead = max(1, now - self._after[0])
            self._after = (self._after[0] + random_number() % ahead, "")
            deleted += await self.piece(journal, now)
        return deleted

    async def piece(self, journal: Journal, now: int) -> int:
        """Read a page and delete the runs that are too old. Returns how many."""
        before = now - min(self._ages.values())
        page = await journal.ado(runs.oldest(self._after, before, PAGE))
        deleted, rows = 0, journal.capabilities.delete_count
        for row in page:
            with self._failures.guard(self.what, row.id):
                if self._is_too_old(row, now):
                    if deleted == DELETIONS:
                        self._rest(PAUSE)
                        return deleted
                    await journal.arun(in_pieces(runs.delete(row.thread_id, row.id, rows)))
                    deleted += 1
            self._after = (row.created_at, row.id)
        if len(page) < PAGE:
            self._after = (FIRST_MS, "")
            self._rest(REST)
        else:
            self._rest(PAUSE)
        return deleted

    def _is_too_old(self, row: runs.OldRun, now: int) -> bool:
        if row.is_deleted_in_part:
            return True
        age = self._ages.get(row.state)
        return age is not None and not row.has_live_parent and row.updated_at <= now - age

    def _rest(self, seconds: float) -> None:
        self._next_at = time.monotonic() + seconds
