"""The lifespan of the application: it opens the runtime, runs a worker, drains, and closes it.

A process may run it more than once, as tests and reloading servers do, and several at once. The
first opens the runtime and the last closes it, unless it was open before. Each runs its own worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from perdure.client import Client
from perdure.server.json_errors import log_failure

RESTART_AFTER = 1.0
"""Seconds until a worker that failed is started again."""


class SharedLifespan:
    """Keeps a client open while at least one lifespan runs, each with its own worker."""

    def __init__(
        self,
        client: Client,
        drain: Callable[[], Awaitable[None]],
        work: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._client, self._drain, self._work = client, drain, work
        self._changing = threading.Lock()  # lifespans may run in event loops of several threads
        self._running = 0
        self._opened_here = False

    @property
    def is_running(self) -> bool:
        return self._running > 0

    @asynccontextmanager
    async def run(self, app: Any) -> AsyncIterator[None]:
        await asyncio.to_thread(self._begin)
        worker = None if self._work is None else asyncio.create_task(self._keep_working(self._work))
        try:
            yield
        finally:
            try:
                if worker is not None:
                    worker.cancel()  # each run stops at its next step, or is released
                    await asyncio.wait([worker])
                await self._drain()
            finally:  # also if the server cancels this
                await asyncio.to_thread(self._end)

    async def _keep_working(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run a worker until it is drained or cancelled; one that fails is started again."""
        while True:
            try:
                await work()
                return
            except Exception as error:
                log_failure("The worker", error, self._client.redact)
            await asyncio.sleep(RESTART_AFTER)

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
