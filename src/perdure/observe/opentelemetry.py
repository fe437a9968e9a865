"""Traces for OpenTelemetry: one per run, whichever processes drive it.

The spans of a run are made from its events, after the fact (`trace_fold`), and exported as segments
end. While a worker drives a segment, OpenTelemetry's current span has the id that the span of the
current step, or effect, will have: so the spans of other instrumentations nest in ours. Model calls
that are not effects are only known while they are made: their spans are exported every few seconds,
and those that were not are lost with the process.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from opentelemetry import context as otel_context
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode

from perdure.observe.called_effects import called_effects
from perdure.observe.caller import parse
from perdure.observe.current_span import SAMPLED, CurrentSpan, context_of
from perdure.observe.model_calls import ModelCalls
from perdure.observe.observed import Observed, check_is_new
from perdure.observe.span_ids import RUN
from perdure.observe.trace_exporter import RunSpans, TraceExporter
from perdure.observe.trace_fold import Span
from perdure.service.views.json_text import json_text
from perdure.types import EffectRecord, EffectState

SCOPE = InstrumentationScope("perdure")
LIVE = 10_000
"""How many spans of model calls are kept while they cannot be exported: they are exported with the
next that are due, or after a few seconds."""
CONTENT = 16_384
"""Characters of an argument or result, at most."""
CHAT_MODELS = "langchain_core.language_models.chat_models"
_OPERATIONS = {"run": "invoke_agent", "effect": "execute_tool"}
_KINDS = {"run": SpanKind.CONSUMER, "effect": SpanKind.CLIENT}


class _Resource(Resource):
    """A resource that is hashed once: the exporter hashes it for each span."""

    def __init__(self, resource: Resource) -> None:
        super().__init__(resource.attributes, resource.schema_url)
        self._hash = super().__hash__()

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or super().__eq__(other)


class OpenTelemetry:
    """Exports one trace per run.

    Without an `exporter` spans go to an OTLP endpoint over HTTP, as the variables
    OTEL_EXPORTER_OTLP_* say; `resource` is made of OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES.
    With several workers, give each of them the same. `content` adds what effects are called with
    and return; by default OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT says whether.

        runtime = Runtime("sqlite:///agents.db", observe=OpenTelemetry())
    """

    name = "otel"

    def __init__(
        self,
        exporter: SpanExporter | None = None,
        *,
        resource: Resource | None = None,
        content: bool | None = None,
    ) -> None:
        self._exporter = exporter or OTLPSpanExporter()
        given = {} if "OTEL_SERVICE_NAME" in os.environ else {"service.name": "perdure"}
        self._resource = _Resource(resource or Resource.create(given))
        self._content = _captures_content() if content is None else content
        self._traces: TraceExporter | None = None
        self._engine: Observed
        self._live: list[ReadableSpan] = []
        self._lock = threading.Lock()

    # -- an observer

    def attach(self, engine: Observed) -> None:
        check_is_new(self, self._traces)
        self._engine, self._traces = engine, TraceExporter(engine, self)
        engine.sinks.append(self.name)

    def nudge(self) -> None:
        if self._traces is not None:
            self._traces.nudge()

    @contextlib.contextmanager
    def around(self, drive: Any) -> Iterator[None]:
        """Make the step that is driven, or the effect that is called, the current span."""
        lease = drive.segment.lease
        here = CurrentSpan(lease.run_id, lease.token, drive.segment.progress)
        if CHAT_MODELS in sys.modules:  # a handler costs every node, so only if there can be a call
            calls = ModelCalls(here, lease.thread_id, self._keep)
            callbacks = drive.config.get("callbacks") or []
            drive.config["callbacks"] = [*callbacks, calls]
        token = otel_context.attach(trace.set_span_in_context(here))
        try:
            yield
        finally:
            otel_context.detach(token)

    def flush(self) -> None:
        """Export now what is due. It blocks; `close` of the runtime does it too."""
        if self._traces is not None:
            while self._traces.export_due():
                pass

    def close(self) -> None:
        if self._traces is not None:
            self._traces.close()
        self._exporter.shutdown()

    # -- a sink

    def give(self, runs: Sequence[RunSpans]) -> bool:
        with self._lock:
            live, self._live = self._live, []
        called = called_effects(self._engine, runs) if self._content else {}
        made = [self._readable(run, span, called) for run in runs for span in run.spans]
        if not made and not live:
            return True
        given = self._exporter.export([*made, *live]) is SpanExportResult.SUCCESS
        if not given:
            with self._lock:
                self._live = [*live, *self._live][:LIVE]
        return given

    def _keep(self, **made: Any) -> None:
        """Export the span of a model call with the next that are exported."""
        span = ReadableSpan(**made, resource=self._resource, instrumentation_scope=SCOPE)
        with self._lock:
            if len(self._live) < LIVE:
                self._live.append(span)

    def _readable(
        self, run: RunSpans, span: Span, called: Mapping[str, EffectRecord]
    ) -> ReadableSpan:
        links = []
        if span.link is not None:
            links.append(Link(context_of(run.run_id, span.link)))
        if span.what == "run":
            links += _callers(run)
        error = span.error
        return ReadableSpan(
            name=span.name,
            context=context_of(run.run_id, span.key),
            parent=None if span.parent is None else context_of(run.run_id, span.parent),
            resource=self._resource,
            attributes=_attributes(run, span, called),
            links=links,
            kind=_KINDS.get(span.what, SpanKind.INTERNAL),
            status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
            start_time=span.start * 1_000_000,
            end_time=span.end * 1_000_000,
            instrumentation_scope=SCOPE,
        )


def _callers(run: RunSpans) -> Iterator[Link]:
    """Who started a run: another run, and the span of the call."""
    if run.fold.parent is not None:
        yield Link(context_of(run.fold.parent, RUN), {"perdure.parent": run.fold.parent})
    if run.fold.caller is not None and (ids := parse(run.fold.caller)) is not None:
        yield Link(SpanContext(*ids, is_remote=True, trace_flags=SAMPLED))


def _captures_content() -> bool:
    said = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return said.lower() in ("true", "span_only", "span_and_event")


def _attributes(run: RunSpans, span: Span, called: Mapping[str, EffectRecord]) -> Mapping[str, Any]:
    common: dict[str, Any] = {}
    if span.what != "step":  # each attribute has its price, and most spans are steps
        common = {
            "gen_ai.conversation.id": run.thread_id,
            "perdure.run.id": run.run_id,
            "perdure.span": span.what,
        }
    if span.what in ("run", "segment"):
        common |= {"gen_ai.agent.name": run.fold.graph, "gen_ai.agent.version": run.fold.version}
    if span.what in _OPERATIONS:
        common["gen_ai.operation.name"] = span.name.partition(" ")[0]
    if span.what == "effect" and span.name.startswith("execute_tool "):
        common["gen_ai.tool.name"] = span.name.partition(" ")[2]
        common["gen_ai.tool.call.id"] = str(span.attributes["perdure.effect.key"])
    effect = called.get(str(span.attributes.get("perdure.effect.key")))
    if span.what == "effect" and effect is not None and not effect.damaged:
        common["gen_ai.tool.call.arguments"] = json_text(effect.arguments)[:CONTENT]
        if span.attributes.get("perdure.effect.state") == EffectState.DONE:
            common["gen_ai.tool.call.result"] = json_text(effect.result)[:CONTENT]
    if span.error is not None:
        common["error.type"] = span.error
    given = {**common, **span.attributes}
    return {name: value for name, value in given.items() if value not in (None, "", [])}
