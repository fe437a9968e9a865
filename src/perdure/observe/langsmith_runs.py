"""Spans as LangSmith runs: pure, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from perdure.observe.langsmith_ids import Place, place
from perdure.observe.trace_exporter import RunSpans
from perdure.observe.trace_fold import Span
from perdure.times import moment
from perdure.types import EffectRecord

_USAGE = {"input": "gen_ai.usage.input_tokens", "output": "gen_ai.usage.output_tokens"}


@dataclass(frozen=True)
class About:
    """Metadata, tags and content of a run."""

    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Its own, and its labels."""
    tags: tuple[str, ...] = ()
    input: Any = None
    output: Any = None


def place_of(run_id: str, span: Span) -> Place | None:
    """Where a span is in LangSmith. None: it is not there."""
    if span.what == "run" or (span.what != "segment" and not span.path):
        return None
    return place(run_id, (*span.path, (span.key, span.start)))


def scored_place(run_id: str, span: Span) -> Place | None:
    """The LangSmith run that earned a score: of its step, effect or wait, else of the segment that
    was last when the score was given."""
    return place(run_id, span.path) if span.path else None


def to_run(
    run: RunSpans,
    span: Span,
    about: About,
    effect: EffectRecord | None,
    *,
    traced_live: bool,
) -> dict[str, Any] | None:
    """A LangSmith run, for its client. With `traced_live`, LangChain itself reports model calls
    with their usage."""
    where = place_of(run.run_id, span)
    if where is None:
        return None
    is_model = "gen_ai.request.model" in span.attributes or span.name.startswith("chat ")
    run_type = "tool" if span.what == "effect" else "chain"
    metadata = _metadata(run, span, about)
    if is_model and not traced_live:
        run_type = "llm"
        metadata["usage_metadata"] = _usage(span)
        metadata["ls_model_name"] = span.attributes.get("gen_ai.request.model")
    driven = [f"runtime:{span.driven}"] if span.driven else []
    return {
        "id": where.id,
        "trace_id": where.trace_id,
        "parent_run_id": where.parent_id,
        "dotted_order": where.dotted_order,
        "name": _name(run, span),
        "run_type": run_type,
        "start_time": where.start,
        "end_time": max(where.start, moment(span.end)),
        "error": span.error,
        "tags": [*about.tags, *driven],
        "extra": {"metadata": metadata},
        **_content(span, about, effect),
    }


def _name(run: RunSpans, span: Span) -> str:
    return run.fold.graph if span.what == "segment" else span.name.removeprefix("execute_tool ")


def _metadata(run: RunSpans, span: Span, about: About) -> dict[str, Any]:
    own = {
        **{name.replace(".", "_"): value for name, value in span.attributes.items()},
        "thread_id": run.thread_id,  # LangSmith groups traces by it
        "perdure_run_id": run.run_id,
        "perdure_graph": run.fold.graph,
        "perdure_version": run.fold.version,
        "perdure_span": span.what,
        "perdure_parent": run.fold.parent,
    }
    shown = {name: value for name, value in own.items() if value not in (None, "", [])}
    return {**about.metadata, **shown}


def _usage(span: Span) -> dict[str, int]:
    parts = {f"{part}_tokens": int(span.attributes.get(name, 0)) for part, name in _USAGE.items()}
    return {**parts, "total_tokens": sum(parts.values())}


def _content(span: Span, about: About, effect: EffectRecord | None) -> dict[str, Any]:
    if span.what == "segment":
        inputs = _fields("input", about.input) if span.key[1] == 1 else {}
        is_end = span.attributes.get("perdure.ended") == "done"
        return {"inputs": inputs, "outputs": _fields("output", about.output) if is_end else {}}
    if effect is None or effect.damaged or span.attributes.get("perdure.replayed"):
        return {"inputs": {}, "outputs": {}}
    is_done = span.attributes.get("perdure.effect.state") == "done"
    outputs = _fields("output", effect.result) if is_done else {}
    return {"inputs": dict(effect.arguments), "outputs": outputs}


def _fields(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    return value if isinstance(value, dict) else {name: value}
