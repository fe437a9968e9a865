"""A cache of expensive sums, shared by all viewers of a process.

A sum over every score of a prompt, or everything that recovery saved, reads as many rows as there
are. It is computed once at a time and cached for so long that computing it takes a small share of
the time. The page shows when it was computed.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar, cast
from weakref import WeakValueDictionary

LEAST = 2.0
"""Minimum seconds for which a sum is cached."""
SHARE = 50
"""Computing a sum takes at most 1/SHARE of the time."""
MOST = 100
"""Maximum number of cached sums."""

T = TypeVar("T")


@dataclass(frozen=True)
class Sum:
    """A sum, and when it was computed."""

    value: Any
    at: datetime
    until: float
    """By the monotonic clock."""


class KeptSums:
    """The sums of one site."""

    def __init__(self) -> None:
        self._sums: OrderedDict[str, Sum] = OrderedDict()
        self._making: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Only of those that are made now."""

    async def get(
        self, name: str, make: Callable[[], Awaitable[T]], now: datetime
    ) -> tuple[T, datetime]:
        """The sum of this name and when it was computed. Computes it again if it is too old."""
        lock = self._making.setdefault(name, asyncio.Lock())
        async with lock:
            found = self._sums.get(name)
            if found is None or time.monotonic() >= found.until:
                begun = time.monotonic()
                value = await make()
                took = time.monotonic() - begun
                until = time.monotonic() + max(LEAST, SHARE * took)
                found = Sum(value, now, until)
                self._sums[name] = found
            self._sums.move_to_end(name)
        while len(self._sums) > MOST:
            self._sums.popitem(last=False)
        return cast("T", found.value), found.at
