"""Ids that sort by time of creation, and unique random numbers."""

from __future__ import annotations

import secrets
import time
from uuid import UUID


def random_number(bits: int = 62) -> int:
    """A random number, independent of how an agent seeds `random`."""
    return secrets.randbits(bits)


def new_id() -> str:
    """A UUID of version 7: milliseconds, their fraction, random bits."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | fraction << 64
    return str(UUID(int=value | 2 << 62 | secrets.randbits(62)))
