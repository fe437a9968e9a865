"""Wait for something that another thread, task or process does."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

PATIENCE = 60.0
"""Seconds. Long enough for a busy machine; a test that passes does not wait for it."""


def until(condition: Callable[[], T | None], what: str = "it", seconds: float = PATIENCE) -> T:
    """What `condition` returns, once that is true. `what` is waited for, for the message."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{seconds} s passed without {what}"
        time.sleep(0.01)
    return found


async def auntil(condition: Callable[[], Any], what: str = "it", seconds: float = PATIENCE) -> Any:
    """The same while the event loop goes on. `condition` may be a coroutine function."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if inspect.isawaitable(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < deadline, f"{seconds} s passed without {what}"
        await asyncio.sleep(0.01)
