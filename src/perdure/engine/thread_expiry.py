"""Erase the threads whose time is over, some at a time beside the runs that are driven.

A thread expires so many minutes after its creation, or after its time was last set. One with a run
under way is erased once that has ended. Two processes that do this at once erase each thread once
between them; after a crash the next look finds what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from perdure.errors import WrongState
from perdure.journal import Journal, Plan


class ThreadExpiry:
    """Erases threads; `erase` is a plan for one of them."""

    def __init__(self, erase: Callable[[str], Plan[object]]) -> None:
        self._erase = erase

    async def erase(self, journal: Journal, thread_ids: Iterable[str]) -> int:
        """Erase these threads. Returns how many were."""
        erased = 0
        for thread_id in thread_ids:
            try:
                await journal.arun(self._erase(thread_id))
                erased += 1
            except WrongState:  # a run was started meanwhile
                pass
        return erased
