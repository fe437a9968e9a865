"""SIGTERM and SIGINT drain the workers of this process; the same signal again has its usual effect.

A signal has one handler per process, and several workers may drain at it. So the first worker
installs the handler, and the last one to end restores the former. If that is the application's,
such as a web server's, it is called too: it has its own way to stop. A handler that was added with
`loop.add_signal_handler` needs no call: asyncio runs it for every signal.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

log = logging.getLogger("perdure")

SIGNALS = (signal.SIGTERM, signal.SIGINT)

_drains: list[Callable[[str | None], None]] = []
_before: dict[int, Any] = {}
"""The handlers that ours replaced."""
_owner = 0
"""The process that has these workers; a forked one has none."""


@contextlib.contextmanager
def drain_on_signals(loop: asyncio.AbstractEventLoop, drain: Callable[[], None]) -> Iterator[None]:
    """Call `drain` in the loop at the first SIGTERM or SIGINT. Only in the main thread, as Python
    requires."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def drain_here(name: str | None) -> None:
        if name is not None:
            log.info("%s: draining", name)
        drain()

    def drain_soon(name: str | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(drain_here, name)

    global _owner
    if _owner != os.getpid():
        _owner = os.getpid()
        _drains.clear()
    _drains.append(drain_soon)
    for number in SIGNALS:
        if number not in _before:
            _before[number] = signal.signal(number, _on_signal)
    try:
        yield
    finally:
        if drain_soon in _drains:
            _drains.remove(drain_soon)
        if not _drains:
            _restore()


def has_signal_handlers() -> bool:
    """Whether the application handles SIGTERM and SIGINT, and so stops by itself after a drain."""
    return all(_is_of_the_application(signal.getsignal(number)) for number in SIGNALS)


def _on_signal(number: int, frame: FrameType | None) -> None:
    before = _before.pop(number, signal.SIG_DFL)
    signal.signal(number, before)
    if _owner != os.getpid():
        signal.raise_signal(number)
        return
    name: str | None = signal.Signals(number).name
    for drain in _drains:
        drain(name)
        name = None  # one line in the log is enough
    if _is_of_the_application(before):
        before(number, frame)


def _restore() -> None:
    for number, handler in _before.items():
        if signal.getsignal(number) is _on_signal:
            signal.signal(number, handler)
    _before.clear()


def _is_of_the_application(handler: Any) -> bool:
    """Whether a signal handler is neither Python's nor that of `asyncio.run`, which cancels."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return getattr(getattr(handler, "func", handler), "__module__", "") != "asyncio.runners"
