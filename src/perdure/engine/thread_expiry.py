"""Erase the threads whose time is over, in small pieces beside the runs that are driven.

A thread expires so many minutes after its creation, or after its time was last set. One with a run
under way is erased once that has ended. Two processes that do this at once erase each thread once
between them; after a crash the next piece finds what is left.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from perdure.errors import WrongState
from perdure.journal import Journal, Plan
from perdure.operations import threads
from perdure.operations.look import Oldest

REST = 30.0
"""Seconds between two looks for threads whose time is over."""
PAUSE = 0.2
"""Seconds between two pieces while there are more."""


class ThreadExpiry:
    """One process's looks for threads whose time is over. `erase` is a plan for one thread."""

    what = "Erasing threads whose time is over"

    def __init__(self, erase: Callable[[str], Plan[object]]) -> None:
        self._erase = erase
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        """Whether a piece should be done now."""
        return time.monotonic() >= self._next_at

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        return oldest.expires_at is not None and oldest.expires_at <= now

    async def piece(self, journal: Journal, now: int) -> int:
        """Erase some threads whose time is over."""
        found = await journal.ado(threads.expired(now))
        for thread_id in found:
            with contextlib.suppress(WrongState):  # a run was started meanwhile
                await journal.arun(self._erase(thread_id))
        self._next_at = time.monotonic() + (PAUSE if len(found) == threads.EXPIRED else REST)
        return 0

    tick = piece
