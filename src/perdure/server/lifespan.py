"""The lifespan of the application: it opens the runtime, runs a worker, drains, and closes it.

A process may run it more than once, as tests and reloading servers do, and several at once. The
first opens the runtime and the last closes it, unless it was open before. Each runs its own worker.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from perdure.client import Client
from perdure.errors import Unavailable
from perdure.failures import WORKER

log = logging.getLogger("perdure")

RESTART_AFTER = 1.0
"""Seconds until a worker that failed is started again."""


class SharedLifespan:
    """Keeps a client open while at least one lifespan runs, each with its own worker."""

    def __init__(
        self,
        client: Client,
        drain: Callable[[], Awaitable[None]],
        work: Callable[[asyncio.Event], Awaitable[object]] | None = None,
    ) -> None:
        """`work` is to drain when its event is set."""
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
        stop = asyncio.Event()
        worker = asyncio.create_task(self._keep_working(stop))
        try:
            yield
        finally:
            try:
                stop.set()  # each run stops at its next step, or is released
                await asyncio.wait([worker])
                await self._drain()
            finally:  # also if the server cancels this
                await asyncio.to_thread(self._end)

    async def _keep_working(self, stop: asyncio.Event) -> None:
        """Run a worker until it is drained; one that fails is started again."""
        while self._work is not None and not stop.is_set():
            try:
                await self._work(stop)
                return
            except Exception as error:
                self._client.engine.failures.note(error, WORKER)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESTART_AFTER):
                    await stop.wait()

    def _begin(self) -> None:
        with self._changing:
            if not self._running and not self._client.is_open:
                try:
                    self._client.setup()
                except Unavailable as error:  # its first use opens it
                    log.warning("%s Serving without it until it is there.", error)
                self._opened_here = True
            self._running += 1

    def _end(self) -> None:
        with self._changing:
            self._running -= 1
            if not self._running and self._opened_here:
                self._opened_here = False
                self._client.close()
