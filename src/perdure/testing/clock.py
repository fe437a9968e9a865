"""A clock that only moves when a test moves it, and a host whose wall clock is set."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

from perdure.journal.clock import HostTime, host_clock
from perdure.times import milliseconds, moment


class Clock:
    """A clock that moves only when a test moves it: `Runtime(…, clock=Clock())`.

    Move it between two ticks. A run that is driven while the clock jumps past its lease looks
    abandoned, and is taken over. Time limits of steps and budgets of ticks are measured in real
    time.

    Args:
        at: The time to start at, with a time zone. By default now.
    """

    def __init__(self, at: datetime | None = None) -> None:
        self._at = milliseconds(at or datetime.now(UTC))
        self._moving = threading.Lock()

    def now(self) -> int:
        """Return the time in milliseconds since 1970. The runtime calls it."""
        return self._at

    @property
    def time(self) -> datetime:
        """The time, in UTC."""
        return moment(self._at)

    def advance(self, by: timedelta) -> None:
        """Move the clock forward, or backward if the duration is negative, as real clocks sometimes
        do.

        Args:
            by: How far.
        """
        with self._moving:
            self._at += round(by.total_seconds() * 1000)

    def move_to(self, at: datetime) -> None:
        """Set the clock to a time.

        Args:
            at: The time, with a time zone.
        """
        with self._moving:
            self._at = milliseconds(at)


class HostClock:
    """The clocks of a host, whose wall clock is set forward or back while workers run on it.

    Args:
        host: The name of another host. By default this one: workers on one host also measure
            leases by its monotonic clock, which cannot be set.
    """

    def __init__(self, host: str | None = None) -> None:
        self._host = host

    @property
    def ahead(self) -> timedelta:
        """How far the wall clock is set forward. A test overrides it."""
        return timedelta(0)

    def now(self) -> int:
        """Return the time in milliseconds since 1970. The runtime calls it."""
        return round((time.time() + self.ahead.total_seconds()) * 1000)

    def host_time(self) -> HostTime:
        """Return the monotonic time. The runtime calls it."""
        return HostTime(self._host or host_clock(), round(time.monotonic() * 1000))
