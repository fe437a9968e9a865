"""Ids of traces and spans, computed from the run, so that they are the same in every process; and
the span that a caller is in, for the trace of the run that it starts.

LangSmith orders the runs of a trace by their times and ids, and finds a run by both. So an id there
is a UUID of version 7: the start time, and a hash of what the run stands for.
"""

from __future__ import annotations

import hashlib
import uuid
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

from perdure.times import moment

# What a span is about: `("segment", 2)`, `("effect", key, attempt)`. Unique in its run.
SpanKey = tuple[str | int, ...]

# Spans from the segment down, each with its start.
Path = tuple[tuple[SpanKey, int], ...]

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


# -- LangSmith's


class Place(NamedTuple):
    """Where a run is in LangSmith. Its trace is the run of its segment."""

    id: uuid.UUID
    trace_id: uuid.UUID
    parent_id: uuid.UUID | None
    dotted_order: str
    start: datetime


def place(run_id: str, path: Path) -> Place:
    """The place of the last part of a path."""
    ids: list[uuid.UUID] = []
    order: list[str] = []
    start = 0
    for key, at in path:
        start = max(start, at)  # LangSmith does not accept a run that begins before its parent
        ids.append(_id(run_id, key, start))
        order.append(f"{moment(start):%Y%m%dT%H%M%S%fZ}{ids[-1]}")
    parent = ids[-2] if len(ids) > 1 else None
    return Place(ids[-1], ids[0], parent, ".".join(order), moment(start))


def feedback_id(run_id: str, name: str, about: str) -> uuid.UUID:
    """The id of the feedback for a score. It does not depend on the value."""
    return uuid.UUID(bytes=hashed("feedback", run_id, name, about)[:16], version=5)


def _id(run_id: str, key: SpanKey, at: int) -> uuid.UUID:
    bits = int.from_bytes(hashed("langsmith", run_id, *key)[:10], "big") | (at % 2**48) << 80
    bits = bits & ~(0xF << 76) | 7 << 76  # the version
    bits = bits & ~(0b11 << 62) | 0b10 << 62  # and the variant
    return uuid.UUID(int=bits)
