"""The trace of a run, made of its events: pure, no I/O.

`TraceFold` is given a run's events in order and gives the spans that they close. What is open is a
plain value (`dump`), stored with the number of the last event, so that another process can go on,
perhaps weeks later. The spans do not depend on how the events are cut into pieces.

    run        from its start to its end; one more for each time an ended run is retried
    segment    from its claim to its end, linked to the one before. One whose worker died is closed
               by the `recovered` of the next, as is the step it was in
    step       from the step before it, or the segment's begin
    effect     from its intent to its outcome; an attempt that was cut off ends with its segment
    wait       from the question to the answer, across segments
    moment     what a person did (paused, settled ...) and scores: no duration
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any

from perdure.commands.events import SEGMENT_ENDS, is_end, is_input
from perdure.times import milliseconds
from perdure.types import Event, EventKind

CRASHED = "its worker died, or was silent too long"
# The attribute of an effect that came from its record: it was not called.
REPLAYED = "perdure.replayed"
# What a segment did not have to do again, in the data of its end.
SAVED = ("effects", "model_calls", "tokens")
# What a score can be about, in the data of its event, and the attribute of that part's span.
PARTS = {"step": "perdure.checkpoint", "effect": "perdure.effect.key", "wait": "perdure.wait.id"}
_USAGE = {
    "model": "gen_ai.request.model",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
}
_TOKENS = ("gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens")
_WAIT_ENDS = (
    EventKind.WOKE,
    EventKind.ANSWER,
    EventKind.EXPIRED,
    EventKind.SIGNAL,
    EventKind.JOINED,
)

# -- ids, computed from the run, so that they are the same in every process

# What a span is about: `("segment", 2)`, `("effect", key, attempt)`. Unique in its run.
SpanKey = tuple[str | int, ...]

# Spans from the segment down, each with its start.
Path = tuple[tuple[SpanKey, int], ...]

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


@dataclass(slots=True)
class Span:
    """A part of a run that is over.

    `what` is `run`, `segment`, `step`, `effect`, `wait`, `moment` or `score`; `error` what went
    wrong, without content; `link` the segment before this one. `path` is what it is in, from the
    segment down to its parent, each with its start. Between two segments that is the last one.
    Empty: it is a segment or a run, or nothing was driven yet.
    """

    what: str
    key: SpanKey
    parent: SpanKey | None
    name: str
    start: int
    end: int
    attributes: Mapping[str, Any]
    error: str | None = None
    link: SpanKey | None = None
    path: Path = ()


@dataclass
class Open:
    """What is open in a trace: all that the fold remembers. It is stored."""

    graph: str = ""
    version: str = ""
    parent: str | None = None  # the run whose node started this one
    caller: str | None = None  # the span in which it was started: a `traceparent`
    started: int = 0
    life: int = 1
    token: int = 0
    segment: dict[str, Any] | None = None
    begun: int = 0  # when the last segment began
    steps: int = 0
    moved: int = 0
    inner: dict[str, int] = field(default_factory=dict)
    waits: dict[str, dict[str, Any]] = field(default_factory=dict)
    # The step that the last dead segment was in, and when it was left; when both began.
    crashed: list[Any] = field(default_factory=list)
    crashed_in: list[int] = field(default_factory=list)
    # Of each effect that is not done: the last attempt that has a span, and its end.
    tried: dict[str, list[int]] = field(default_factory=dict)
    in_step: bool = False  # whether the step that has not ended contains a span


class TraceFold:
    """The spans of one run."""

    def __init__(self, opened: Mapping[str, Any] | None = None) -> None:
        known = Open.__dataclass_fields__.keys()  # earlier versions stored more
        self.open = Open(**{name: one for name, one in (opened or {}).items() if name in known})
        # The last span of each part that a score can be about, of those that were closed here.
        self._parts: dict[tuple[str, Any], Span] = {}

    def dump(self) -> dict[str, Any]:
        """What is open, for the process that goes on."""
        return dict(vars(self.open))

    def spans(self, events: Iterable[Event]) -> list[Span]:
        """The spans that these events close."""
        return [span for event in events for span in self._after(event)]

    def _span(self, span: Span) -> Span:
        """A span in its place, which a later score may be about."""
        span.end = max(span.start, span.end)
        span.path = self._path(span.what, span.parent)
        if span.what in PARTS and REPLAYED not in span.attributes:
            self._parts[span.what, span.attributes.get(PARTS[span.what])] = span
        return span

    # -- one event

    def _after(self, event: Event) -> Iterator[Span]:
        kind, at, data, now = event.kind, self.open, event.data, milliseconds(event.at)
        yield from self._replayed(event, now)
        if kind == EventKind.STARTED:
            at.graph, at.version = data.get("graph", ""), data.get("version", "")
            at.parent, at.caller, at.started = data.get("parent"), data.get("traceparent"), now
        elif kind in (EventKind.CLAIMED, EventKind.RECOVERED):
            yield from self._begin_segment(event, now)
        elif kind == EventKind.STEP:
            yield from self._step(event, now)
        elif kind == EventKind.EFFECT and "key" in data:  # else it is damaged
            yield from self._effect(event, now)
        elif kind == EventKind.WAIT and "wait" in data:
            about = {name: data[name] for name in ("kind", "name") if name in data}
            at.waits.setdefault(data["wait"], {"n": event.n, "from": now, **about})
        elif kind == EventKind.WITHDRAWN and "wait" in data:
            yield self._moment(event, now)
            at.waits.setdefault(data["wait"], {"n": event.n, "from": now, "kind": "human"})
        elif kind in _WAIT_ENDS:
            yield from self._end_wait(data.get("wait", ""), now, kind)
        elif kind == EventKind.SCORED:
            yield self._score(event, now)
        elif kind in SEGMENT_ENDS and at.segment is not None:
            yield from self._end_segment(event, now)
        else:
            yield self._moment(event, now)
        if kind == EventKind.RETRIED and not at.started:
            at.started = now
        if is_end(event) and kind not in (EventKind.HELD, EventKind.PAUSED):
            yield from self._end_run(event, now)

    def _begin_segment(self, event: Event, now: int) -> Iterator[Span]:
        at = self.open
        if at.segment is not None:  # its worker died, in the middle of a step
            at.crashed = [*step_key(at.token, at.steps), now]
            at.crashed_in = [at.begun, at.moved]
            yield self._open_step(now, CRASHED)
            yield self._segment_span(now, CRASHED, {"perdure.crashed": True})
        at.token += 1
        recovered = event.kind == EventKind.RECOVERED
        at.segment = {"from": now, "recovered": recovered, "effects": 0}
        at.segment |= {name: event.data.get(name) for name in ("worker", "driven")}
        at.started = at.started or now  # an ended run was retried, or its state was changed
        at.begun = at.moved = now
        at.steps, at.inner, at.in_step = 0, {}, False

    def _step(self, event: Event, now: int) -> Iterator[Span]:
        at, data = self.open, event.data
        ns, nodes = data.get("ns", ""), data.get("nodes") or []
        start = at.inner.get(ns, at.moved) if ns else at.moved
        if ns:
            at.inner[ns] = now
        else:
            at.moved = now
        if is_input(data):
            return
        attributes = {
            "perdure.checkpoint": data.get("checkpoint"),
            "perdure.namespace": ns,
            "perdure.prompts": _prompts(data),
        }
        name, current = f"step {', '.join(nodes)}".strip(), step_key(at.token, at.steps)
        at.in_step = bool(ns)
        if ns:
            yield self._span(
                Span("step", ("inner step", event.n), current, name, start, now, attributes)
            )
        else:
            at.inner, at.steps = {}, at.steps + 1
            parent = segment_key(at.token)
            yield self._span(Span("step", current, parent, name, start, now, attributes))

    def _open_step(self, now: int, error: str | None) -> Span:
        """The step that a segment ended in the middle of."""
        at, about = self.open, {"perdure.unfinished": True}
        key, parent = step_key(at.token, at.steps), segment_key(at.token)
        return self._span(Span("step", key, parent, "step", at.moved, now, about, error))

    def _effect(self, event: Event, now: int) -> Iterator[Span]:
        at, data = self.open, event.data
        key, attempt, how = data["key"], data.get("attempt", 1), data.get("how")
        begun = data.get("begun_at")
        start = milliseconds(begun) if isinstance(begun, datetime) else now
        if at.segment is not None:
            at.segment["effects"] += 1
            at.in_step = True
        name, about = _effect_name(data), _effect_attributes(data, attempt)
        last, ended = at.tried.pop(key, (0, 0))
        if how == "called again" and at.crashed and attempt - 1 > last:
            # The attempt before was cut off with its segment: what it did nests in this span.
            *crashed_in, left = at.crashed
            start, cut = max(start, ended), {one: about[one] for one in about if one not in _TOKENS}
            cut |= {"perdure.effect.attempt": attempt - 1, "perdure.crashed": True}
            cut |= {"perdure.effect.state": "open", "perdure.effect.how": None}
            cut_key = effect_key(key, attempt - 1)
            yield self._span(
                Span("effect", cut_key, tuple(crashed_in), name, start, left, cut, CRASHED)
            )
        if attempt > 1 or last:  # it was begun with the first attempt, perhaps days ago
            start = max(start, ended, at.moved)
        span_key = effect_key(key, attempt)
        if isinstance(how, str) and how.startswith("in run"):
            span_key = ("effect of another run", event.n)
        elif data.get("state") != "done":
            at.tried[key] = [max(attempt, last), now]
        if attempt <= last:  # its outcome was found out after the attempt, which has its span
            span_key = (*span_key, event.n)
        error = _effect_error(data)
        yield self._span(Span("effect", span_key, self._current(), name, start, now, about, error))

    def _end_wait(self, wait: str, now: int, ended: str) -> Iterator[Span]:
        if opened := self.open.waits.pop(wait, None):
            yield self._wait_span(wait, opened, now, ended)

    def _wait_span(self, wait: str, opened: Mapping[str, Any], now: int, ended: str) -> Span:
        about = {f"perdure.wait.{name}": opened.get(name) for name in ("kind", "name")}
        about |= {"perdure.wait.id": wait, "perdure.wait.ended": ended}
        name, key = f"wait {opened.get('kind', '')}", ("wait", wait, opened["n"])
        return self._span(Span("wait", key, self._run, name, opened["from"], now, about))

    def _end_segment(self, event: Event, now: int) -> Iterator[Span]:
        error = None
        if event.kind == EventKind.FAILED:
            error = str(event.data.get("kind", "failed"))
        elif event.kind == EventKind.HELD:
            error = "held"
        if event.kind != EventKind.DONE or self.open.in_step:  # else nothing ran after the last
            yield self._open_step(now, error)
        yield self._segment_span(now, error, {"perdure.ended": event.kind})

    def _segment_span(self, now: int, error: str | None, ended: dict[str, Any]) -> Span:
        at = self.open
        segment, at.segment = at.segment or {"from": now}, None
        attributes = {
            "perdure.segment": at.token,
            "perdure.worker": segment.get("worker"),
            "perdure.driven": segment.get("driven"),
            "perdure.recovered": segment.get("recovered") or None,
            "perdure.steps": at.steps,
            "perdure.effects": segment.get("effects"),
            **{f"perdure.saved.{name}": n for name, n in segment.get("saved", {}).items()},
            **ended,
        }
        link = segment_key(at.token - 1) if at.token > 1 else None
        key, name, start = segment_key(at.token), f"segment {at.token}", segment["from"]
        return self._span(
            Span("segment", key, self._run, name, start, now, attributes, error, link)
        )

    def _replayed(self, event: Event, now: int) -> Iterator[Span]:
        """The effects that came from the record before this event, in the step that it is in."""
        saved, segment = event.data.get("saved"), self.open.segment
        if not saved or segment is None:
            return
        for index, (name, key) in enumerate(saved.get("replayed", ())):
            about = {"perdure.effect.key": key, REPLAYED: True}
            place: SpanKey = ("replayed", event.n, index)
            yield self._span(Span("effect", place, self._current(), _named(name), now, now, about))
            self.open.in_step = True
        counts = segment.setdefault("saved", {})
        counts |= {n: counts.get(n, 0) + saved[n] for n in SAVED if saved.get(n)}

    def _moment(self, event: Event, now: int) -> Span:
        """Something that has no duration: what a person did, or what was noticed."""
        data = event.data
        attributes = {
            f"perdure.{name}": data[name]
            for name in ("wait", "key", "state", "by", "forced")
            if isinstance(data.get(name), (str, bool))
        }
        parent = self._run if self.open.segment is None else segment_key(self.open.token)
        name = f"{event.kind} {data['name']}" if isinstance(data.get("name"), str) else event.kind
        return self._span(Span("moment", ("event", event.n), parent, name, now, now, attributes))

    def _score(self, event: Event, now: int) -> Span:
        """A score, below the step, effect or wait that it is about, if that was closed here, else
        below the run."""
        data = event.data
        attributes = {
            "gen_ai.evaluation.name": data.get("name"),
            "gen_ai.evaluation.score.value": data.get("value"),
            "gen_ai.evaluation.score.label": data.get("label"),
            "perdure.score.about": data.get("about") or None,
            "perdure.score.by": data.get("by"),
            "perdure.prompts": _prompts(data),
            **{PARTS[what]: data.get(what) for what in PARTS},
        }
        earned = next(
            (self._parts.get((what, data[what])) for what in PARTS if data.get(what)), None
        )
        if earned is None and (opened := self.open.waits.get(data.get("wait", ""))):
            earned = self._wait_span(data["wait"], opened, now, "")
        parent = RUN if earned is None else earned.key
        name, key = f"score {data.get('name')}", ("event", event.n)
        span = self._span(Span("score", key, parent, name, now, now, attributes))
        if earned is not None:
            span.path = (*earned.path, (earned.key, earned.start))
        return span

    def _end_run(self, event: Event, now: int) -> Iterator[Span]:
        at = self.open
        for wait in list(at.waits):
            yield from self._end_wait(wait, now, "closed")
        attributes = {"perdure.state": event.kind, "perdure.segments": at.token}
        error = str(event.data.get("kind")) if event.kind == EventKind.FAILED else None
        parent = RUN if at.life > 1 else None
        name, start = f"invoke_agent {at.graph}", at.started or now
        yield self._span(Span("run", self._run, parent, name, start, now, attributes, error))
        at.life, at.started = at.life + 1, 0

    # -- where it is

    @property
    def _run(self) -> SpanKey:
        """The span of the run; of one that has ended, the one that ended."""
        life = self.open.life
        return ("run", life if self.open.started or life == 1 else life - 1)

    def _current(self) -> SpanKey:
        at = self.open
        return self._run if at.segment is None else step_key(at.token, at.steps)

    def _path(self, what: str, parent: SpanKey | None) -> Path:
        at = self.open
        if what in ("run", "segment") or not at.token:
            return ()
        if parent == step_key(at.token, at.steps):
            return (segment_key(at.token), at.begun), (parent, at.moved)
        if at.crashed and parent == tuple(at.crashed[:-1]):
            began, moved = at.crashed_in
            return (segment_key(at.crashed[1]), began), (parent, moved)
        return ((segment_key(at.token), at.begun),)


def is_about_a_part(event: Event) -> bool:
    """Whether this is the score of a step, effect or wait."""
    return event.kind == EventKind.SCORED and not PARTS.keys().isdisjoint(event.data)


def _prompts(data: Mapping[str, Any]) -> list[str]:
    return [f"{name}@{version}" for name, version in data.get("prompts", ())]


def _effect_attributes(data: Mapping[str, Any], attempt: int) -> dict[str, Any]:
    usage = data.get("usage") or {}
    return {
        "perdure.effect.key": data["key"],
        "perdure.effect.state": data.get("state"),
        "perdure.effect.attempt": attempt,
        "perdure.effect.how": data.get("how"),
        "perdure.transactional": data.get("transactional"),
        "perdure.prompts": _prompts(data),
        **{_USAGE[part]: usage[part] for part in _USAGE if part in usage},
    }


def _effect_error(data: Mapping[str, Any]) -> str | None:
    if data.get("error") is not None:
        return str(data["error"]).partition(":")[0]  # its message may hold content
    return "its outcome is unknown" if data.get("state") == "unknown" else None


def _effect_name(data: Mapping[str, Any]) -> str:
    if usage := data.get("usage"):
        return f"chat {usage.get('model') or data['name']}"
    return _named(data["name"])


def _named(effect: str) -> str:
    """The name of an effect's span. Those of `perdure.langchain` are `model` and `tool ...`."""
    return "chat model" if effect == "model" else f"execute_tool {effect.removeprefix('tool ')}"
