"""LangSmith: each segment of a run is a trace, and scores are feedback.

Spans are sent by OTLP, with the attributes by which LangSmith takes run ids, parents and content
from us. A run is not one trace there: LangSmith drops spans whose root does not arrive within
hours, and a run may sleep for weeks. OTLP has no feedback: LangSmith's client sends that.

What LangChain itself reports while a segment is driven (LANGSMITH_TRACING) becomes a child of the
segment. LangChain sends it from memory, so it is lost with the process.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from langsmith import Client
from langsmith.run_helpers import get_tracing_context, tracing_context
from langsmith.run_trees import RunTree
from langsmith.utils import (
    LangSmithConflictError,
    LangSmithError,
    get_tracer_project,
    tracing_is_enabled,
)
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import SpanContext
from urllib3.util import Retry

from perdure.commands import scores
from perdure.errors import BadArgument
from perdure.langgraph_port import ecosystem
from perdure.observe.opentelemetry import SAMPLED, status_of
from perdure.observe.trace_exporter import RunSpans, TraceSink
from perdure.observe.trace_fold import (
    PARTS,
    REPLAYED,
    Path,
    Span,
    SpanKey,
    TraceFold,
    hashed,
    segment_key,
)
from perdure.text import json_text
from perdure.times import milliseconds, moment
from perdure.types import EffectRecord, Event, Score

log = logging.getLogger("perdure")

# Milliseconds for which feedback is sent again if LangSmith does not have its run, or refuses it
# for another reason that stays.
OLD = 600_000
_NEVER_TAKEN = (400, 404, 413, 422)
TIMEOUT = (5_000, 20_000)  # milliseconds to connect to LangSmith, and to wait for its answer
# Retries of lost feedback. What did not arrive is sent again later, from the journal.
RETRY = Retry(4, backoff_factor=0.1, status_forcelist=(502, 503, 504), allowed_methods=None)
_USAGE = ("gen_ai.request.model", "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")


class LangSmith(TraceSink):
    """Observer that sends each segment of a run to LangSmith as a trace, and scores as feedback.

    Needs the extra `langsmith`. Configure all workers on a journal the same way.

        runtime = Runtime("sqlite:///agents.db", observe=LangSmith())

    Args:
        client: A LangSmith client. What it hides or anonymizes is hidden here too. Default: one
            that LangSmith's variables configure: `LANGSMITH_ENDPOINT`, `LANGSMITH_API_KEY`,
            `LANGSMITH_WORKSPACE_ID`, `LANGSMITH_HIDE_INPUTS`, `LANGSMITH_HIDE_OUTPUTS`,
            `LANGSMITH_HIDE_METADATA`, `LANGSMITH_TRACING_SAMPLING_RATE`.
        project: The project. Default: `LANGSMITH_PROJECT`, or `default`.

    Raises:
        BadArgument: The variables configure a client that cannot work.
    """

    name = "langsmith"
    spans = 100

    def __init__(self, client: Client | None = None, *, project: str | None = None) -> None:
        super().__init__()
        self._callers_client = client
        self._live_client = client if client and ecosystem.can_queue(client) else None
        self._resource = Resource.create({"service.name": "perdure"})
        self._connect()
        self._project = project or get_tracer_project() or "default"

    def _connect(self) -> None:
        try:
            self._client = self._callers_client or Client(
                auto_batch_tracing=False, retry_config=RETRY, timeout_ms=TIMEOUT
            )
        except (LangSmithError, ValueError) as error:
            raise BadArgument(f"LangSmith cannot be used as it is configured: {error}") from error
        headers = {"x-api-key": self._client.api_key, "x-tenant-id": self._client.workspace_id}
        self._otlp: SpanExporter = OTLPSpanExporter(
            f"{self._client.api_url}/otel/v1/traces",
            headers={name: value for name, value in headers.items() if value},
        )

    @contextlib.contextmanager
    def around(self, drive: Any) -> Iterator[None]:
        """Make the segment's LangSmith run the parent of what LangChain reports."""
        if not tracing_is_enabled():
            yield
            return
        row = drive.row
        where = place(row.id, ((segment_key(row.token), row.updated_at),))
        parent = RunTree(
            name=row.graph,
            id=where.id,
            trace_id=where.trace_id,
            dotted_order=where.dotted_order,
            start_time=where.start,
            project_name=self._project,
            ls_client=self._live_client,
        )
        metadata = {"thread_id": row.thread_id, "perdure_run_id": row.id}
        now = get_tracing_context() | {"parent": parent, "distributed_parent_id": None}
        now["metadata"] = {**(now["metadata"] or {}), **metadata}
        with tracing_context(**now):
            yield

    def close(self) -> None:
        super().close()
        self._otlp.shutdown()
        if self._callers_client is None:
            self._client.close()

    def reopen(self) -> None:
        super().reopen()
        self._connect()

    def give(self, runs: Sequence[RunSpans]) -> bool:
        called = self.called_effects(runs)
        spans = [one for run in runs for one in self._readable_spans(run, called)]
        if spans and self._otlp.export(spans) is not SpanExportResult.SUCCESS:
            return False
        try:
            for run in runs:
                if any(span.what == "score" for span in run.spans):
                    self._send_scores(run)
        except (LangSmithError, OSError) as error:
            log.debug("LangSmith does not take feedback now: %s", error)
            return False
        return True

    # -- spans

    def _readable_spans(
        self, run: RunSpans, called: Mapping[str, EffectRecord]
    ) -> Iterator[ReadableSpan]:
        for span in run.spans:
            if span.what in ("run", "score") or (span.what != "segment" and not span.path):
                continue  # it is not a run in LangSmith
            where = place(run.run_id, (*span.path, (span.key, span.start)))
            if not ecosystem.is_sampled(self._client, where.trace_id):
                continue
            effect = called.get(str(span.attributes.get("perdure.effect.key")))
            try:
                attributes = self._attributes(run, span, where, effect)
            except Exception:  # an anonymizer raised: sending without it could leak a secret
                log.exception("LangSmith run %s cannot be prepared, and is left out.", where.id)
            else:
                yield self._readable(span, where, attributes)

    def _attributes(
        self, run: RunSpans, span: Span, where: Place, effect: EffectRecord | None
    ) -> dict[str, Any]:
        inputs, outputs, metadata = ecosystem.hidden_content(
            self._client, *_content(span, effect), _metadata(run, span)
        )
        is_model = "gen_ai.request.model" in span.attributes or span.name.startswith("chat ")
        is_llm = is_model and not tracing_is_enabled()  # else LangChain reports it, with its usage
        is_effect = span.what == "effect"
        found = {
            "langsmith.span.id": str(where.id),
            "langsmith.trace.id": str(where.trace_id),
            "langsmith.span.parent_id": str(where.parent_id or ""),
            "langsmith.span.dotted_order": where.dotted_order,
            "langsmith.trace.session_name": self._project,
            "langsmith.trace.name": run.fold.open.graph if span.what == "segment" else _name(span),
            "langsmith.span.kind": "llm" if is_llm else "tool" if is_effect else "chain",
            "gen_ai.prompt": json_text(inputs) if inputs else "",
            "gen_ai.completion": json_text(outputs) if outputs else "",
            **{f"langsmith.metadata.{name}": _plain(value) for name, value in metadata.items()},
        }
        if is_llm:
            found |= {name: span.attributes.get(name, "") for name in _USAGE}
        return {name: value for name, value in found.items() if value != ""}

    def _readable(self, span: Span, where: Place, attributes: Mapping[str, Any]) -> ReadableSpan:
        def context(id: UUID) -> SpanContext:
            return SpanContext(where.trace_id.int, id.int % 2**64, False, SAMPLED)

        start = milliseconds(where.start)
        return ReadableSpan(
            name=_name(span),
            context=context(where.id),
            parent=None if where.parent_id is None else context(where.parent_id),
            resource=self._resource,
            attributes=attributes,
            status=status_of(span),
            start_time=start * 1_000_000,
            end_time=max(start, span.end) * 1_000_000,
        )

    # -- feedback

    def _send_scores(self, run: RunSpans) -> None:
        engine = self._engine
        of_run = scores.of_run(engine.serializer, run.thread_id, run.run_id)
        stored = {(one.name, one.about): one for one, _ in engine.journal.do(of_run)}
        for span in run.spans:
            if span.what != "score" or not span.path:
                continue
            where = place(run.run_id, span.path)
            names = ("perdure.score.about", *PARTS.values())
            about = next((str(found) for one in names if (found := span.attributes.get(one))), "")
            score = stored.get((str(span.attributes["gen_ai.evaluation.name"]), about))
            if score is not None and ecosystem.is_sampled(self._client, where.trace_id):
                self._send_feedback(run.run_id, where, score, about)  # else it was withdrawn

    def _send_feedback(self, run_id: str, where: Place, score: Score, about: str) -> None:
        """Send a score, as it is now, as feedback; if LangSmith has that feedback, update it."""
        digest = hashed("feedback", run_id, score.name, about)
        id = UUID(bytes=digest[:16], version=5)  # whatever the value of the score is
        value: dict[str, Any] = {"score": score.value, "value": score.label}
        value["comment"] = self._comment(score)
        source = {
            "perdure_run_id": run_id,
            "perdure_score_about": about,
            "perdure_by": score.by,
            "perdure_prompts": [f"{name}@{version}" for name, version in score.prompts],
        }
        try:
            self._client.create_feedback(
                where.id,
                score.name,
                **value,
                feedback_id=id,
                source_info={name: one for name, one in source.items() if one},
                session_id=self._client.read_project(project_name=self._project).id,
                start_time=where.start,
                stop_after_attempt=1,
            )
        except LangSmithConflictError:
            self._client.update_feedback(id, **value)
        except LangSmithError as error:
            status = getattr(getattr(error.__context__, "response", None), "status_code", None)
            age = self._engine.clock.now() - milliseconds(score.at)
            if age <= OLD or status not in _NEVER_TAKEN:
                raise
            log.warning("LangSmith does not take feedback on run %s: %s", where.id, error)

    def _comment(self, score: Score) -> str | None:
        try:
            _, outputs, _ = ecosystem.hidden_content(self._client, {}, {"text": score.comment}, {})
        except Exception:
            log.exception("A comment cannot be prepared for LangSmith and is left out.")
            return None
        return outputs.get("text")


def langsmith_run_ids(run_id: str, events: Iterable[Event]) -> dict[int, UUID]:
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


def _name(span: Span) -> str:
    return span.name.removeprefix("execute_tool ")


def _metadata(run: RunSpans, span: Span) -> dict[str, Any]:
    found = {
        **{name.replace(".", "_"): value for name, value in span.attributes.items()},
        "thread_id": run.thread_id,  # LangSmith groups traces by it
        "perdure_run_id": run.run_id,
        "perdure_graph": run.fold.open.graph,
        "perdure_version": run.fold.open.version,
        "perdure_span": span.what,
        "perdure_parent": run.fold.open.parent,
    }
    return {name: value for name, value in found.items() if value not in (None, "", [])}


def _content(
    span: Span, effect: EffectRecord | None
) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Arguments and result of an effect that was called."""
    if effect is None or effect.damaged or REPLAYED in span.attributes:
        return {}, {}
    result = effect.result if span.attributes.get("perdure.effect.state") == "done" else None
    if result is None or isinstance(result, dict):
        return effect.arguments, result or {}
    return effect.arguments, {"output": result}


def _plain(value: Any) -> str | bool | int | float:
    return value if isinstance(value, (str, bool, int, float)) else json_text(value)


# -- ids
#
# LangSmith orders the runs of a trace by their times and ids, and finds a run by both. So an id is
# a UUID of version 7: the start time, and a hash of what the run stands for.


class Place(NamedTuple):
    """Where a run is in LangSmith. Its trace is the run of its segment."""

    id: UUID
    trace_id: UUID
    parent_id: UUID | None
    dotted_order: str
    start: datetime


def place(run_id: str, path: Path) -> Place:
    """The place of the last part of a path."""
    ids: list[UUID] = []
    order: list[str] = []
    start = 0
    for key, at in path:
        start = max(start, at)  # LangSmith does not accept a run that begins before its parent
        ids.append(_id(run_id, key, start))
        order.append(f"{moment(start):%Y%m%dT%H%M%S%fZ}{ids[-1]}")
    parent = ids[-2] if len(ids) > 1 else None
    return Place(ids[-1], ids[0], parent, ".".join(order), moment(start))


def _id(run_id: str, key: SpanKey, at: int) -> UUID:
    bits = int.from_bytes(hashed("langsmith", run_id, *key)[:10], "big") | (at % 2**48) << 80
    bits = bits & ~(0xF << 76) | 7 << 76  # the version
    bits = bits & ~(0b11 << 62) | 0b10 << 62  # and the variant
    return UUID(int=bits)
