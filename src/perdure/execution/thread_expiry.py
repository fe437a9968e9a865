"""Erase expired threads, in small pieces in the background.

A thread expires some minutes after its creation, or after its time to live was last set. A thread
with a run under way is erased once the run has ended. If two processes do this at once, each thread
is erased once; after a crash the next piece finds what is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from perdure.errors import WrongState
from perdure.journal import Journal, Plan
from perdure.operations import threads
from perdure.operations.look import Oldest
from perdure.service.failures import Failures

REST = 30.0
"""Seconds between two searches for expired threads."""
PAUSE = 0.2
"""Seconds between two pieces while there are more."""


class ThreadExpiry:
    """Erases expired threads, for one process. `erase` is the plan for one thread."""

    what = "Erasing expired threads"

    def __init__(self, erase: Callable[[str], Plan[object]], failures: Failures) -> None:
        self._erase, self._failures = erase, failures
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether a piece should be done now."""
        return time.monotonic() >= self._next_at

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.expires_at is not None and oldest.expires_at <= now

    async def piece(self, journal: Journal, now: int) -> int:
        """Erase some expired threads."""
        failing = self._failures.failing.get(self.what, 0)  # they come first: behind them go on
        count = threads.EXPIRED + failing
        found = await journal.ado(threads.expired(now, count))
        for thread_id in found:
            if not self._failures.is_resting(self.what, thread_id):
                with self._failures.guard(self.what, thread_id):
                    await self._erase_if_idle(journal, thread_id)
        self._next_at = time.monotonic() + (PAUSE if len(found) == count else REST)
        return 0

    async def _erase_if_idle(self, journal: Journal, thread_id: str) -> None:
        with contextlib.suppress(WrongState):  # a run has just been started
            await journal.arun(self._erase(thread_id))

    tick = piece
