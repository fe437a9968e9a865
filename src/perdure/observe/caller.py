"""The OpenTelemetry span that a caller is in, for the trace of the run that it starts."""

from __future__ import annotations

import sys


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


def parse(traceparent: str) -> tuple[int, int] | None:
    """The trace id and span id of a `traceparent`. None if the text is malformed."""
    match traceparent.split("-"):
        case [_, trace, span, *_]:
            try:
                return int(trace, 16), int(span, 16)
            except ValueError:
                return None
    return None
