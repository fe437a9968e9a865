"""A runtime on a journal that is gone afterwards, and clocks that a test moves."""

from __future__ import annotations

import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

from perdure.runtime import Runtime
from perdure.times import milliseconds


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
        return datetime.fromtimestamp(self._at / 1000, UTC)

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

    def host_time(self) -> tuple[str | None, int]:
        """Return the host, and its monotonic time. The runtime calls it."""
        return self._host, round(time.monotonic() * 1000)


class TemporaryRuntime(Runtime):
    """A `Runtime` for tests: a movable clock and a temporary journal. `runtime` makes it.

    Args:
        url: The journal. By default a new SQLite file in a temporary folder, which `close` removes.
        clock: The clock. By default a new one, at the current time.
        **options: Other arguments of `Runtime`.
    """

    def __init__(self, url: str | None = None, *, clock: Clock | None = None, **options: Any):
        self.clock = clock or Clock()
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if url is None:
            self._folder = tempfile.TemporaryDirectory(prefix="perdure-")
            url = f"sqlite:///{self._folder.name}/journal.db"
        super().__init__(url, clock=self.clock, **options)

    def close(self) -> None:
        """Close the runtime, and remove the temporary journal."""
        super().close()
        if self._folder is not None:
            self._folder.cleanup()


def runtime(url: str | None = None, **options: Any) -> TemporaryRuntime:
    """Return a runtime for a test, to use with `with` or `async with`.

        with perdure.testing.runtime() as rt:
            rt.register(builder, name="campaign")
            run = rt.blocking.start("campaign", {})
            rt.blocking.tick()
            rt.clock.advance(timedelta(days=7))
            rt.blocking.tick()

    It is the real runtime on a real journal. `rt.clock` moves its time.

    Args:
        url: The journal. By default a new SQLite file in a temporary folder.
        **options: `clock`, and the other arguments of `Runtime`.
    """
    return TemporaryRuntime(url, **options)
