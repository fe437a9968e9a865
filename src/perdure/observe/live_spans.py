"""Spans while a driver drives: the current one, for the instrumentations of others, and those of
the model calls that LangChain makes in a node.

A model call that is an effect (`perdure.langchain.Durable`) has its span from the journal already.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)

from perdure.effects import context as effect_context
from perdure.execution.progress import Progress
from perdure.langgraph_port import configs
from perdure.observe.span_ids import (
    SpanKey,
    effect_key,
    segment_key,
    span_id,
    step_key,
    trace_id,
)

SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_NEW = RandomIdGenerator()


class CurrentSpan(NonRecordingSpan):
    """The span that a driver is in: its segment, its step, or the effect that calls this code.

    It is exported when the segment has ended; until then others only need its id.
    """

    def __init__(self, run_id: str, token: int, progress: Progress) -> None:
        super().__init__(INVALID_SPAN_CONTEXT)
        self._run_id, self._token, self._progress = run_id, token, progress

    def get_span_context(self) -> SpanContext:
        key = segment_key(self._token)  # LangGraph itself, around its steps
        if configs.is_in_task(configs.current_configurable()):
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


class ModelCalls(BaseCallbackHandler):
    """LangChain's callbacks for one segment."""

    run_inline = True  # else each node would cost two tasks of the event loop
    ignore_chain = ignore_agent = ignore_retriever = ignore_retry = ignore_custom_event = True

    def __init__(self, here: CurrentSpan, thread_id: str, keep: Callable[..., None]) -> None:
        self._here, self._thread_id, self._keep = here, thread_id, keep
        self._begun: dict[UUID, tuple[int, str, SpanContext]] = {}

    def on_chat_model_start(
        self, serialized: dict[str, Any] | None, messages: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._start(run_id, more)

    def on_llm_start(
        self, serialized: dict[str, Any] | None, prompts: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._start(run_id, more)

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        self._end(run_id, usage=_usage(response))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self._end(run_id, error=type(error).__name__)

    def _start(self, run_id: UUID, more: dict[str, Any]) -> None:
        effect = effect_context.current()
        if effect is not None and effect.is_model:
            return
        settings = {**(more.get("metadata") or {}), **(more.get("invocation_params") or {})}
        names = (settings.get(name) for name in ("ls_model_name", "model_name", "model"))
        model = next((name for name in names if isinstance(name, str)), "model")
        self._begun[run_id] = (time.time_ns(), model, self._here.get_span_context())

    def _end(
        self, run_id: UUID, *, usage: dict[str, Any] | None = None, error: str | None = None
    ) -> None:
        begun = self._begun.pop(run_id, None)
        if begun is None:
            return
        start, model, parent = begun
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.conversation.id": self._thread_id,
            "perdure.run.id": self._here.run_id,
            "perdure.span": "model",
            **(usage or {}),
        }
        self._keep(
            name=f"chat {model}",
            context=SpanContext(
                parent.trace_id, _NEW.generate_span_id(), False, parent.trace_flags
            ),
            parent=parent,
            attributes=attributes,
            kind=SpanKind.CLIENT,
            status=Status(StatusCode.UNSET) if error is None else Status(StatusCode.ERROR, error),
            start_time=start,
            end_time=time.time_ns(),
        )


def _usage(response: Any) -> dict[str, Any]:
    """The tokens that a response says it cost."""
    found = {"input": 0, "output": 0}
    for some in getattr(response, "generations", None) or ():
        for one in some:
            usage = getattr(getattr(one, "message", None), "usage_metadata", None) or {}
            for part in found:
                found[part] += usage.get(f"{part}_tokens", 0)
    return {f"gen_ai.usage.{part}_tokens": count for part, count in found.items() if count}
