"""Ids that sort by the time they were made, and numbers that nobody else draws."""

from __future__ import annotations

import secrets
import time
from uuid import UUID


def draw(bits: int = 62) -> int:
    """A number by chance, whatever an agent seeds `random` with."""
    return secrets.randbits(bits)


def new_id() -> str:
    """A UUID of version 7: milliseconds, then their fraction, then chance."""
    milliseconds, rest = divmod(time.time_ns(), 1_000_000)
    fraction = rest * 4096 // 1_000_000
    value = (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | fraction << 64
    return str(UUID(int=value | 2 << 62 | secrets.randbits(62)))
