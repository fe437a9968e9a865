"""The open streams of a server: how many there may be, and ending them when it stops.

A server waits for its open responses before it ends its lifespan. A stream that lasts as long as a
run would keep it from stopping, so streams end on the signal that stops the server. So do
streams opened just after it: the server may take a moment to stop listening.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, field
from typing import Any

from perdure.execution.shutdown import drain_on_signals, has_signal_handlers
from perdure.server.caller import ANYONE, Caller
from perdure.server.json_errors import ApiError

STOPS_WITHIN = 2.0
"""Seconds after the signal in which a server may still accept connections."""


def is_not_of_a_cut(record: logging.LogRecord) -> bool:
    """Whether a record of uvicorn is not the error that it logs for each stream that is cut."""
    return record.msg != "ASGI callable returned without completing response."


@dataclass(frozen=True, eq=False)
class OpenStream:
    """One open stream, or a request that waits for a run."""

    loop: asyncio.AbstractEventLoop
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the server stops, or the caller's token is no longer valid. The stream must then
    end."""


class OpenStreams:
    """The open streams of one application."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: set[OpenStream] = set()
        self._counted = 0
        self._signals = contextlib.ExitStack()
        self._stopped_at = float("-inf")

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.contextmanager
    def open(self, caller: Caller = ANYONE, *, counts: bool = True) -> Iterator[OpenStream]:
        """Register a stream while it is open. Raises 503 if the maximum is open already, unless it
        does not count, as a request that waits for a run."""
        if counts and self._counted >= self._most:
            raise ApiError(
                503,
                f"{self._most} streams are open, the maximum of this server. Try again later.",
                {"Retry-After": "5"},
            )
        loop = asyncio.get_running_loop()
        stream = OpenStream(loop)
        if time.monotonic() < self._stopped_at + STOPS_WITHIN:
            stream.stopping.set()
        if not self._open and has_signal_handlers():
            self._signals.enter_context(drain_on_signals(loop, self.stop))
        self._open.add(stream)
        self._counted += counts
        watching = None
        if caller.until_invalid is not None:
            watching = loop.create_task(_stop_after(caller.until_invalid, stream.stopping))
        try:
            yield stream
        finally:
            self._open.discard(stream)
            self._counted -= counts
            if watching is not None:
                watching.cancel()
            if not self._open:
                self._signals.close()

    def stop(self) -> None:
        """Tell every stream to end."""
        self._stopped_at = time.monotonic()
        logging.getLogger("uvicorn.error").addFilter(is_not_of_a_cut)
        for stream in list(self._open):
            with contextlib.suppress(RuntimeError):  # its loop is closed
                stream.loop.call_soon_threadsafe(stream.stopping.set)


async def _stop_after(
    ending: Callable[[], Coroutine[Any, Any, None]], stopping: asyncio.Event
) -> None:
    await ending()
    stopping.set()
