"""Traces for OpenTelemetry: one per run, across all processes that drive it.

The spans of a run are made from its events, after the fact (`trace_fold`), and exported as segments
end. While a worker drives a segment, OpenTelemetry's current span has the id that the span of the
current step, or effect, will have, so the spans of other instrumentations nest in ours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from perdure.effects import context as effect_context
from perdure.langgraph_port import configs
from perdure.observe.trace_exporter import RunSpans, TraceSink
from perdure.observe.trace_fold import (
    RUN,
    Span,
    SpanKey,
    effect_key,
    segment_key,
    span_id,
    step_key,
    trace_id,
)
from perdure.text import json_text
from perdure.types import EffectRecord, EffectState

SCOPE = InstrumentationScope("perdure")
SAMPLED = TraceFlags(TraceFlags.SAMPLED)
CONTENT = 16_384  # maximum length of an argument or result, in characters
_KINDS = {"run": SpanKind.CONSUMER, "effect": SpanKind.CLIENT}


class OpenTelemetry(TraceSink):
    """Observer that exports one OpenTelemetry trace per run, across all processes that drive it.

    Needs the extra `otel`. Configure all workers on a journal the same way.

        runtime = Runtime("sqlite:///agents.db", observe=OpenTelemetry())

    Args:
        exporter: An exporter of OpenTelemetry's SDK. Default: OTLP over HTTP, to the endpoint in
            `OTEL_EXPORTER_OTLP_*`.
        resource: The resource of the spans. Default: from `OTEL_SERVICE_NAME` and
            `OTEL_RESOURCE_ATTRIBUTES`; the service is named `perdure` if neither names it.
        content: Whether spans have the stored arguments and results of effects, at most 16,384
            characters of each. Default: `OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`, or
            False.
    """

    name = "otel"
    spans = 512

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        resource: Resource | None = None,
        content: bool | None = None,
    ) -> None:
        super().__init__()
        self._is_own = exporter is None
        self._otlp = exporter or OTLPSpanExporter()
        default = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "perdure"}
        self._resource = resource or Resource.create(default)
        self._content = _captures_content() if content is None else content

    @contextlib.contextmanager
    def around(self, drive: Any) -> Iterator[None]:
        """Make the current step, or the effect that is being called, the current span."""
        here = trace.set_span_in_context(_CurrentSpan(drive))
        token = otel_context.attach(here)
        try:
            yield
        finally:
            otel_context.detach(token)

    def close(self) -> None:
        super().close()
        if self._is_own:
            self._otlp.shutdown()
        else:
            self._otlp.force_flush()

    def reopen(self) -> None:
        super().reopen()
        if self._is_own:
            self._otlp = OTLPSpanExporter()

    def give(self, runs: Sequence[RunSpans]) -> bool:
        called = self.called_effects(runs) if self._content else {}
        spans = [self._readable(run, span, called) for run in runs for span in run.spans]
        return self._otlp.export(spans) is SpanExportResult.SUCCESS

    def _readable(
        self, run: RunSpans, span: Span, called: Mapping[str, EffectRecord]
    ) -> ReadableSpan:
        links = [] if span.link is None else [Link(_context(run.run_id, span.link))]
        if span.what == "run":
            links += _callers(run)
        return ReadableSpan(
            name=span.name,
            context=_context(run.run_id, span.key),
            parent=None if span.parent is None else _context(run.run_id, span.parent),
            resource=self._resource,
            attributes=_attributes(run, span, called),
            links=links,
            kind=_KINDS.get(span.what, SpanKind.INTERNAL),
            status=status_of(span),
            start_time=span.start * 1_000_000,
            end_time=span.end * 1_000_000,
            instrumentation_scope=SCOPE,
        )


class _CurrentSpan(NonRecordingSpan):
    """The span that a driver is in: its segment, its step, or the effect that calls this code.

    It is exported when the segment has ended; until then others only need its id.
    """

    def __init__(self, drive: Any) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        owner = drive.owner
        self._run_id, self._token = owner.run_id, owner.token
        self._progress = drive.progress

    def get_span_context(self) -> SpanContext:
        key = segment_key(self._token)  # LangGraph itself, around its steps
        if configs.is_in_task(configs.current_configurable()):
            key = step_key(self._token, self._progress.steps)
        effect = effect_context.current()
        while effect is not None and not effect.attempt:
            effect = effect.outer
        if effect is not None and effect.owner is not None and effect.owner.run_id == self._run_id:
            key = effect_key(effect.key, effect.attempt)
        return _context(self._run_id, key)


def _context(run_id: str, key: SpanKey) -> SpanContext:
    """The ids of a span."""
    return SpanContext(trace_id(run_id), span_id(run_id, key), False, SAMPLED)


def status_of(span: Span) -> Status:
    """Whether it went wrong, and how, without content."""
    if span.error is None:
        return Status(StatusCode.UNSET)
    return Status(StatusCode.ERROR, span.error)


def _callers(run: RunSpans) -> Iterator[Link]:
    """Links to what started a run: its parent run, and the span of the caller."""
    parent, caller = run.fold.open.parent, run.fold.open.caller
    if parent is not None:
        yield Link(_context(parent, RUN), {"perdure.parent": parent})
    outside = TraceContextTextMapPropagator().extract({"traceparent": caller or ""})
    if (span := trace.get_current_span(outside).get_span_context()).is_valid:
        yield Link(span)


def _captures_content() -> bool:
    setting = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return setting.lower() in ("true", "span_only", "span_and_event")


def _attributes(run: RunSpans, span: Span, called: Mapping[str, EffectRecord]) -> Mapping[str, Any]:
    common: dict[str, Any] = {}
    operation, _, of = span.name.partition(" ")
    if span.what != "step":  # attributes cost time, and most spans are steps
        common = {
            "gen_ai.conversation.id": run.thread_id,
            "perdure.run.id": run.run_id,
            "perdure.span": span.what,
        }
    if span.what in ("run", "segment"):
        common["gen_ai.agent.name"] = run.fold.open.graph
        common["gen_ai.agent.version"] = run.fold.open.version
    if span.what in ("run", "effect"):
        common["gen_ai.operation.name"] = operation
    if span.what == "effect" and operation == "execute_tool":
        common["gen_ai.tool.name"] = of
        common["gen_ai.tool.call.id"] = str(span.attributes["perdure.effect.key"])
    effect = called.get(str(span.attributes.get("perdure.effect.key")))
    if span.what == "effect" and effect is not None and not effect.damaged:
        common["gen_ai.tool.call.arguments"] = json_text(effect.arguments)[:CONTENT]
        if span.attributes.get("perdure.effect.state") == EffectState.DONE:
            common["gen_ai.tool.call.result"] = json_text(effect.result)[:CONTENT]
    if span.error is not None:
        common["error.type"] = span.error
    every = {**common, **span.attributes}
    return {name: value for name, value in every.items() if value not in (None, "", [])}
