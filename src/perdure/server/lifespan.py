"""From start to stop: the lifespan opens the runtime, runs a worker, drains, and closes it; open
streams end when the server stops.

A process may run a lifespan more than once, as tests and reloading servers do, and several at once.
The first opens the runtime and the last closes it, unless it was open before. Each runs its own
worker.

A server waits for its open responses before it ends its lifespan. A stream that lasts as long as a
run would keep it from stopping, so streams end on the signal that stops the server. So do streams
opened just after it: the server may take a moment to stop listening.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from perdure.client import Client
from perdure.errors import Unavailable
from perdure.failures import WORKER
from perdure.server.authorization import ANYONE, Caller
from perdure.server.errors import ApiError
from perdure.shutdown import drain_on_signals, has_signal_handlers

log = logging.getLogger("perdure")

RESTART_AFTER = 1.0
"""Seconds until a worker that failed is started again."""


STOPS_WITHIN = 2.0
"""Seconds after the signal in which a server may still accept connections."""


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


class SharedCall:
    """A call that concurrent requests share."""

    def __init__(self, call: Callable[[], Coroutine[Any, Any, None]]) -> None:
        self._call = call
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        task, loop = self._task, asyncio.get_running_loop()
        if task is None or task.done() or task.get_loop() is not loop:
            task = self._task = loop.create_task(self._call())
            task.add_done_callback(retrieve_exception)
        await asyncio.shield(task)


def retrieve_exception(task: asyncio.Task[Any]) -> None:
    """Keep asyncio quiet about the failed call of a request that is gone."""
    if not task.cancelled():
        task.exception()


def is_not_of_a_cut(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn is not the error that it logs for each stream that is cut."""
    return record.msg != "ASGI callable returned without completing response."


class OpenStream:
    """One open stream, or a request that waits for a run. A block closes it, unless a response was
    made of it: then that does."""

    def __init__(self, close: Callable[[], None], redact: Callable[[str], str]) -> None:
        self.close, self.redact = close, redact
        self.stopping = asyncio.Event()
        """Set when the server stops, or the caller's token is no longer valid. It must then end."""
        self.is_handed_on = False

    def __enter__(self) -> OpenStream:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None or not self.is_handed_on:
            self.close()

    def __del__(self) -> None:
        self.close()  # a response that is never sent


class OpenStreams:
    """The open streams of one application."""

    def __init__(self, most: int, redact: Callable[[str], str]) -> None:
        self._most, self._redact = most, redact
        self._open: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        self._counted = 0
        self._signals = contextlib.ExitStack()
        self._stopped_at = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    def open(self, caller: Caller = ANYONE, *, counts: bool = True) -> OpenStream:
        """Register a stream until it is closed. Raises 503 if the maximum is open already, unless
        it does not count, as a request that waits for a run."""
        if counts and self._counted >= self._most:
            raise ApiError(
                503,
                f"{self._most} streams are open, the maximum of this server. Try again later.",
                {"Retry-After": "5"},
            )
        loop, closing = asyncio.get_running_loop(), contextlib.ExitStack()
        stream = OpenStream(closing.close, self._redact)
        if time.monotonic() < self._stopped_at + STOPS_WITHIN:
            stream.stopping.set()
        if not self._open and has_signal_handlers():
            self._signals.enter_context(drain_on_signals(loop, self.stop))
        self._counted += counts
        self._open.add(entry := (loop, stream.stopping))
        closing.callback(self._close, entry, counts=counts)
        if caller.until_invalid is not None:
            watching = loop.create_task(_stop_after(caller.until_invalid, stream.stopping))
            closing.callback(watching.cancel)
        return stream

    def _close(
        self, entry: tuple[asyncio.AbstractEventLoop, asyncio.Event], *, counts: bool
    ) -> None:
        self._open.discard(entry)
        self._counted -= counts
        if not self._open:
            self._signals.close()

    def stop(self) -> None:
        """Tell every stream to end."""
        self._stopped_at = time.monotonic()
        logging.getLogger("uvicorn.error").addFilter(is_not_of_a_cut)
        for loop, stopping in list(self._open):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                loop.call_soon_threadsafe(stopping.set)


async def _stop_after(
    ending: Callable[[], Coroutine[Any, Any, None]], stopping: asyncio.Event
) -> None:
    await ending()
    stopping.set()
