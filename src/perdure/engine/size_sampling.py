"""Note how large the database is, once an hour, beside the runs that are driven.

Workers and ticks learn from the look they make anyway when that was last done.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from perdure.journal import Journal
from perdure.operations import sizes
from perdure.operations.look import Oldest

REST = 60.0
"""Seconds until a process looks again whether it is to be noted."""


class SizeSampling:
    """A sweep that deletes nothing. `can_tell`: whether the database says how large it is."""

    what = "Noting the size of the database"

    def __init__(self, can_tell: Callable[[], bool]) -> None:
        self._can_tell = can_tell
        self._next_at = float("-inf")

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self._next_at

    def is_needed(self, oldest: Oldest, now: int) -> bool:
        is_old = oldest.sized_at is None or now - oldest.sized_at >= sizes.HOUR
        return is_old and self._can_tell()

    async def piece(self, journal: Journal, now: int) -> int:
        """Note it."""
        self._next_at = time.monotonic() + REST
        await journal.ado(sizes.note(now))
        return 0

    tick = piece
