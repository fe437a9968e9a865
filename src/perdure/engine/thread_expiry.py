"""Erase the threads whose time is over, in small pieces beside the runs that are driven.

A thread expires so many minutes after its creation, or after its time was last set. One with a run
under way is erased once that has ended. Two processes that do this at once erase each thread once
between them; after a crash the next piece finds what is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from perdure.errors import WrongState
from perdure.journal import Journal, Plan
from perdure.operations import threads

PIECE = 10
"""Threads that are erased before the worker looks for due runs again."""
REST = 30.0
"""Seconds between two looks for threads whose time is over."""
PAUSE = 0.2
"""Seconds between two pieces while there are more."""


class ThreadExpiry:
    """One process's looks for threads whose time is over. `erase` is a plan for one thread."""

    def __init__(self, erase: Callable[[str], Plan[object]]) -> None:
        self._erase = erase
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether a piece should be done now."""
        return time.monotonic() >= self._next_at

    async def piece(self, journal: Journal, now: int) -> int:
        """Erase some threads whose time is over. Returns how many."""
        found = await journal.ado(threads.expired(now, PIECE))
        erased = 0
        for thread_id in found:
            try:
                await journal.arun(self._erase(thread_id))
                erased += 1
            except WrongState:  # a run was started meanwhile
                pass
        self._next_at = time.monotonic() + (PAUSE if len(found) == PIECE else REST)
        return erased
