"""The span that a driver is in, for the instrumentations of others."""

from __future__ import annotations

from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
)

from perdure.effects import context as effect_context
from perdure.langgraph_port import task_config
from perdure.observe.span_ids import (
    SpanKey,
    effect_key,
    segment_key,
    span_id,
    step_key,
    trace_id,
)
from perdure.segments.progress import Progress

SAMPLED = TraceFlags(TraceFlags.SAMPLED)


class CurrentSpan(NonRecordingSpan):
    """The span that a driver is in: its segment, its step, or the effect that calls this code.

    It is exported when the segment has ended; until then others only need its id.
    """

    def __init__(self, run_id: str, token: int, progress: Progress) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self._run_id, self._token, self._progress = run_id, token, progress

    def get_span_context(self) -> SpanContext:
        key = segment_key(self._token)  # LangGraph itself, around its steps
        if task_config.is_in_task(task_config.current_configurable()):
            key = step_key(self._token, self._progress.steps)
        effect = effect_context.current()
        while effect is not None and not effect.attempt:
            effect = effect.outer
        if effect is not None and effect.owner is not None and effect.owner.run_id == self._run_id:
            key = effect_key(effect.key, effect.attempt)
        return context_of(self._run_id, key)

    @property
    def run_id(self) -> str:
        return self._run_id


def context_of(run_id: str, key: SpanKey) -> SpanContext:
    """The ids of a span."""
    return SpanContext(trace_id(run_id), span_id(run_id, key), False, SAMPLED)
