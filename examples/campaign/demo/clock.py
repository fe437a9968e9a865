"""A clock that several processes share, and that can be moved: a month in a minute.

It is the real time plus an offset in a file that all of them map into memory. So time passes
between two moves, as leases and timeouts need, and every process sees a move at once. One process
moves the clock, the others read it.
"""

from __future__ import annotations

import mmap
import os
import time
from datetime import datetime, timedelta
from pathlib import Path

from perdure.times import milliseconds, moment


class SharedClock:
    """Time for a runtime: `App(settings, clock=SharedClock(path))`, in each process."""

    def __init__(self, path: Path | str) -> None:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, 8)  # a new file is all zeros: the real time
            self._offset = memoryview(mmap.mmap(file, 8)).cast("q")
        finally:
            os.close(file)

    def now(self) -> int:
        """Milliseconds since 1970."""
        return round(time.time() * 1000) + self._offset[0]

    @property
    def time(self) -> datetime:
        return moment(self.now())

    def advance(self, by: timedelta) -> None:
        self._offset[0] += round(by.total_seconds() * 1000)

    def move_to(self, at: datetime) -> None:
        self._offset[0] = milliseconds(at) - round(time.time() * 1000)
