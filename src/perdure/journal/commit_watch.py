"""Wait for the next commit of this process: what it changed is seen before the next poll."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress


class CommitWatch:
    """How often this process has committed, and who waits for it to do so again."""

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._coroutines: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}
        self._threads = 0

    @property
    def is_waited_for(self) -> bool:
        return bool(self._threads or self._coroutines)

    def note(self) -> None:
        """Something was committed."""
        with self._lock:
            self.count += 1
            self._changed.notify_all()
            for event, loop in self._coroutines.items():
                with suppress(RuntimeError):  # that loop is closed
                    loop.call_soon_threadsafe(event.set)

    def wait(self, seen: int, seconds: float) -> None:
        """Wait until the count is another than `seen`, or so long."""
        with self._lock:
            self._threads += 1
            try:
                self._changed.wait_for(lambda: self.count != seen, seconds)
            finally:
                self._threads -= 1

    async def await_(self, seen: int, seconds: float) -> None:
        """Like `wait`, without blocking the event loop."""
        event = asyncio.Event()
        with self._lock:
            if self.count != seen:
                return
            self._coroutines[event] = asyncio.get_running_loop()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await event.wait()
        finally:
            with self._lock:
                del self._coroutines[event]
