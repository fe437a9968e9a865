"""Sums that are dear to make are kept for a while, for all viewers of a process.

What sums up every score of a prompt, or all that recovery saved, reads as many rows as there are.
It is read once at a time, and then kept for so long that reading it takes a small part of the time.
The page says of when it is.
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
"""Seconds for which a sum is kept at least."""
SHARE = 50
"""Making a sum takes at most 1/SHARE of the time."""
MOST = 100
"""Sums that are kept."""

T = TypeVar("T")


@dataclass(frozen=True)
class Sum:
    """A sum, and when it was made."""

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
        """The sum of this name, and when it was made: it is made again if it is too old."""
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
