"""SIGTERM and SIGINT drain a worker; the same signal again has its usual effect."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

log = logging.getLogger("perdure")


@contextlib.contextmanager
def drain_on_signals(loop: asyncio.AbstractEventLoop, drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain` at the first SIGTERM or SIGINT. Only in the main thread, as Python requires."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: dict[signal.Signals, Any] = {}

    def stop(number: signal.Signals) -> None:
        log.info("%s: draining", number.name)
        loop.remove_signal_handler(number)
        signal.signal(number, before[number])
        drain()
        if _is_of_the_application(before[number]):
            before[number](number, None)  # which has its own way to stop

    for number in (signal.SIGTERM, signal.SIGINT):
        before[number] = signal.getsignal(number)
        loop.add_signal_handler(number, stop, number)
    try:
        yield
    finally:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)


def _is_of_the_application(handler: Any) -> bool:
    """Whether a signal handler is neither Python's nor that of `asyncio.run`, which cancels."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return getattr(getattr(handler, "func", handler), "__module__", "") != "asyncio.runners"
