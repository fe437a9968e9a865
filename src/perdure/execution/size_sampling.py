"""Samples the size of the database once an hour, in the background.

The look of a worker or a tick also reads when the last sample was taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from perdure.journal import Journal
from perdure.operations import sizes
from perdure.operations.look import Oldest

REST = 60.0
"""Seconds between two checks of whether a sample is due."""


class SizeSampling:
    """A sweep that samples the size. `can_tell`: whether the database reports it."""

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
