"""Ids of traces and spans, computed from the run, so that they are the same in every process."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

Part = str | int
SpanKey = tuple[Part, ...]
"""What a span is about: `("segment", 2)`, `("effect", key, attempt)`. Unique in its run."""

RUN: SpanKey = ("run", 1)


def segment_key(token: int) -> SpanKey:
    """The segment that a run's claim number `token` began."""
    return ("segment", token)


def step_key(token: int, index: int) -> SpanKey:
    """The step of a segment. `index` counts the steps it finished before, at the top of the
    graph."""
    return ("step", token, index)


def effect_key(key: str, attempt: int) -> SpanKey:
    return ("effect", key, attempt)


@lru_cache(1024)
def trace_id(run_id: str) -> int:
    """The trace of a run."""
    return int.from_bytes(hashed("trace", run_id)[:16], "big") or 1


@lru_cache(1024)
def span_id(run_id: str, key: SpanKey) -> int:
    return int.from_bytes(hashed("span", run_id, *key)[:8], "big") or 1


def hashed(*parts: Any) -> bytes:
    return hashlib.sha256(repr(parts).encode()).digest()
