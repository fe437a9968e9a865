"""Traces for OpenTelemetry: one per run, across all processes that drive it.

The spans of a run are made from its events, after the fact (`trace_fold`), and exported as segments
end. While a worker drives a segment, OpenTelemetry's current span has the id that the span of the
current step, or effect, will have, so the spans of other instrumentations nest in ours. Model calls
that are not effects are not in the journal: their spans are exported every few seconds, and lost if
the process dies before.
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

from perdure.observe.live_spans import SAMPLED, CurrentSpan, ModelCalls, context_of
from perdure.observe.span_ids import RUN, parse_traceparent
from perdure.observe.trace_exporter import RunSpans, TraceSink
from perdure.observe.trace_fold import Span
from perdure.types import EffectRecord, EffectState
from perdure.views.json_text import json_text

SCOPE = InstrumentationScope("perdure")
LIVE = 10_000
"""Maximum number of model call spans kept in memory while the exporter fails."""
CONTENT = 16_384
"""Maximum length of an argument or result, in characters."""
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
        self._resource = _Resource(resource or Resource.create(default))
        self._content = _captures_content() if content is None else content
        self._live: list[ReadableSpan] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def around(self, drive: Any) -> Iterator[None]:
        """Make the current step, or the effect that is being called, the current span."""
        owner = drive.segment.owner
        here = CurrentSpan(owner.run_id, owner.token, drive.segment.progress)
        if CHAT_MODELS in sys.modules:  # a handler costs every node, so only if there can be a call
            calls = ModelCalls(here, owner.thread_id, self._keep)
            callbacks = drive.config.get("callbacks") or []
            drive.config["callbacks"] = [*callbacks, calls]
        token = otel_context.attach(trace.set_span_in_context(here))
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
        with self._lock:
            live, self._live = self._live, []
        called = self.called_effects(runs) if self._content else {}
        spans = [self._readable(run, span, called) for run in runs for span in run.spans]
        if not spans and not live:
            return True
        arrived = self._otlp.export([*spans, *live]) is SpanExportResult.SUCCESS
        if not arrived:
            with self._lock:
                self._live = [*live, *self._live][:LIVE]
        return arrived

    def _keep(self, **span_fields: Any) -> None:
        """Export the span of a model call with the next batch, or within seconds."""
        span = ReadableSpan(**span_fields, resource=self._resource, instrumentation_scope=SCOPE)
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
    """Links to what started a run: its parent run, and the span of the caller."""
    parent, caller = run.fold.open.parent, run.fold.open.caller
    if parent is not None:
        yield Link(context_of(parent, RUN), {"perdure.parent": parent})
    if caller is not None and (ids := parse_traceparent(caller)) is not None:
        yield Link(SpanContext(*ids, is_remote=True, trace_flags=SAMPLED))


def _captures_content() -> bool:
    setting = os.environ.get("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "")
    return setting.lower() in ("true", "span_only", "span_and_event")


def _attributes(run: RunSpans, span: Span, called: Mapping[str, EffectRecord]) -> Mapping[str, Any]:
    common: dict[str, Any] = {}
    if span.what != "step":  # attributes cost time, and most spans are steps
        common = {
            "gen_ai.conversation.id": run.thread_id,
            "perdure.run.id": run.run_id,
            "perdure.span": span.what,
        }
    if span.what in ("run", "segment"):
        common |= {
            "gen_ai.agent.name": run.fold.open.graph,
            "gen_ai.agent.version": run.fold.open.version,
        }
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
    every = {**common, **span.attributes}
    return {name: value for name, value in every.items() if value not in (None, "", [])}
