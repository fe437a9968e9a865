"""The lifespan of the application: it opens the runtime, drains its ticks, and closes it.

A process may run it more than once, as tests and reloading servers do, and several at once. The
first opens the runtime and the last closes it, unless it was open before.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from perdure.client import Client


class SharedLifespan:
    """A client that is open while at least one lifespan runs."""

    def __init__(self, client: Client, drain: Callable[[], Awaitable[None]]) -> None:
        self._client, self._drain = client, drain
        self._changing = threading.Lock()  # lifespans may run in event loops of several threads
        self._running = 0
        self._opened_here = False

    @asynccontextmanager
    async def run(self, app: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(self._begin)
        try:
            yield
        finally:
            try:
                await self._drain()
            finally:  # also if the server does not wait for that
                await asyncio.to_thread(self._end)

    def _begin(self) -> None:
        with self._changing:
            if not self._running and not self._client.is_open:
                self._client.setup()
                self._opened_here = True
            self._running += 1

    def _end(self) -> None:
        with self._changing:
            self._running -= 1
            if not self._running and self._opened_here:
                self._opened_here = False
                self._client.close()
