"""Ids of LangSmith runs, made from the journal: each process gives the same thing the same id.

LangSmith orders the runs of a trace by their times and ids, and finds a run by both. So an id is a
UUID of version 7: the start time, and a hash of what the run stands for.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from perdure.observe.span_ids import SpanKey, hashed, segment_key
from perdure.observe.trace_fold import Path, TraceFold
from perdure.times import moment
from perdure.types import Event


class Place(NamedTuple):
    """Where a run is in LangSmith."""

    id: uuid.UUID
    trace_id: uuid.UUID
    """The run of its segment."""
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


def segment_place(run_id: str, token: int, claimed_at: int) -> Place:
    """The place of a segment: the root of a trace."""
    return place(run_id, ((segment_key(token), claimed_at),))


def feedback_id(run_id: str, name: str, about: str) -> uuid.UUID:
    """The id of the feedback for a score. It does not depend on the value."""
    return uuid.UUID(bytes=hashed("feedback", run_id, name, about)[:16], version=5)


def langsmith_run_ids(run_id: str, events: Iterable[Event]) -> dict[int, uuid.UUID]:
    """The ids of the LangSmith runs that stand for the segments of a run.

    Args:
        run_id: The run.
        events: Its whole history: `runtime.events(run_id)`.

    Returns:
        The ids by segment number, of the segments that have ended.
    """
    spans = TraceFold().spans(events)
    return {
        int(span.key[1]): place(run_id, ((span.key, span.start),)).id
        for span in spans
        if span.what == "segment"
    }


def _id(run_id: str, key: SpanKey, at: int) -> uuid.UUID:
    bits = int.from_bytes(hashed("langsmith", run_id, *key)[:10], "big") | (at % 2**48) << 80
    bits = bits & ~(0xF << 76) | 7 << 76  # the version
    bits = bits & ~(0b11 << 62) | 0b10 << 62  # and the variant
    return uuid.UUID(int=bits)
