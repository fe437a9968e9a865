"""Ids of traces and spans, computed from the run, so that they are the same in every process; and
the span that a caller is in, for the trace of the run that it starts."""

from __future__ import annotations

import hashlib
import sys
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


def caller_span() -> str | None:
    """The current span as a W3C `traceparent`. It does not import OpenTelemetry: if the caller has
    not, there is no span."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None:
        return None
    at = api.get_current_span().get_span_context()
    if not at.is_valid:
        return None
    return f"00-{at.trace_id:032x}-{at.span_id:016x}-{at.trace_flags:02x}"


def parse_traceparent(traceparent: str) -> tuple[int, int] | None:
    """The trace id and span id of a `traceparent`. None if the text is malformed."""
    match traceparent.split("-"):
        case [_, trace, span, *_]:
            try:
                return int(trace, 16), int(span, 16)
            except ValueError:
                return None
    return None
