"""A clock that only moves when a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

from perdure.times import milliseconds, moment


class Clock:
    """Time for a runtime: `Runtime(..., clock=Clock())`.

    Move it between two ticks. What is being driven while it jumps over the end of its lease looks
    abandoned, and is taken over.
    """

    def __init__(self, at: datetime | None = None) -> None:
        self._at = milliseconds(at or datetime.now(UTC))
        self._moving = threading.Lock()

    def now(self) -> int:
        return self._at

    @property
    def time(self) -> datetime:
        return moment(self._at)

    def advance(self, by: timedelta) -> None:
        """Move on; backwards too, as clocks of real machines do."""
        with self._moving:
            self._at += round(by.total_seconds() * 1000)

    def move_to(self, at: datetime) -> None:
        with self._moving:
            self._at = milliseconds(at)
