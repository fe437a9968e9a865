"""One event in full: its facts, what went in and came out, errors with their traceback.

`event_wording` puts an event into a sentence; this shows everything known about it. Data that is
not shown as a fact is shown as stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.times import utc_time
from perdure.types import EffectRecord, Event, EventKind, Kind, RunError, WaitRecord
from perdure.views.event_wording import EventView, FormatTime, view_event, worker_name
from perdure.views.formatting import count, duration

CLAIMS = (EventKind.CLAIMED, EventKind.RECOVERED)


class Look(StrEnum):
    """How a part is shown."""

    VALUE = "value"
    TRACEBACK = "traceback"


@dataclass(frozen=True)
class Part:
    """A larger part of an event."""

    title: str
    value: Any
    look: Look = Look.VALUE


@dataclass(frozen=True)
class EventDetails:
    """An event in full."""

    event: Event
    view: EventView
    facts: tuple[tuple[str, str], ...] = ()
    parts: tuple[Part, ...] = ()
    checkpoint: tuple[str, str] | None = None
    """The namespace and the id of a step's checkpoint."""
    wait: WaitRecord | None = None
    effect: EffectRecord | None = None


@dataclass(frozen=True)
class Context:
    """What belongs to the event of a run."""

    effect: EffectRecord | None = None
    wait: WaitRecord | None = None
    format_time: FormatTime = utc_time


def event_details(event: Event, about: Context) -> EventDetails:
    """Everything that is known about an event."""
    view = view_event(event, format_time=about.format_time)
    if event.damaged:
        return EventDetails(event, view)
    facts, parts = _Facts(event, about), _Parts(event, about)
    shown, larger = dict(facts.all()), list(parts.all())
    left = {name: one for name, one in event.data.items() if name not in facts.seen | parts.seen}
    for name in [
        name for name, one in left.items() if isinstance(one, str | int | float | datetime)
    ]:
        shown.setdefault(name.replace("_", " "), facts.text(name))
        del left[name]
    more = [Part("Data", left)] if left else []
    data, checkpoint = event.data, None
    if event.kind == EventKind.STEP and data.get("checkpoint"):
        checkpoint = (str(data.get("ns") or ""), str(data["checkpoint"]))
    return EventDetails(
        event,
        view,
        tuple((name, one) for name, one in shown.items() if one),
        (*larger, *more),
        checkpoint,
        about.wait,
        about.effect,
    )


@dataclass
class _Facts:
    """The facts of an event as names and texts."""

    event: Event
    about: Context
    seen: set[str] = field(default_factory=set)
    """Fields of its data that are facts."""

    def all(self) -> Iterator[tuple[str, str]]:
        if self.event.kind in CLAIMS:
            yield "worker", worker_name(self.data)
            yield "driven by", self.text("driven")
            self.seen |= {"worker", "graph", "segment"}
        if self.event.kind == EventKind.STEP:
            yield from self._step()
        yield from self._effect()
        yield from self._wait()
        yield from self._person()
        yield from self._saved()

    @property
    def data(self) -> Mapping[str, Any]:
        return self.event.data

    def text(self, name: str) -> str:
        self.seen.add(name)
        one = self.data.get(name)
        if isinstance(one, datetime):
            return self.about.format_time(one)
        if isinstance(one, list | tuple):
            return ", ".join(map(str, one))
        return "" if one is None else str(one)

    def _step(self) -> Iterator[tuple[str, str]]:
        yield "step", self.text("step")
        yield "nodes", self.text("nodes")
        yield "in the subgraph", self.text("ns")
        yield "made by", self.text("source")
        yield "checkpoint", self.text("checkpoint")
        self.seen.add("prompts")
        read = [f"{one[0]} ({one[1]})" for one in self.data.get("prompts") or ()]
        yield "prompts read", ", ".join(read)

    def _effect(self) -> Iterator[tuple[str, str]]:
        if "key" not in self.data and self.about.effect is None:
            return
        effect, data = self.about.effect, self.data
        yield "effect", self.text("name") or self.text("effect")
        yield "outcome", self.text("state")
        yield "attempt", self.text("attempt")
        yield "total attempts", str(effect.attempts) if effect is not None else ""
        yield "key", self.text("key")
        yield "began", self.text("begun_at")
        begun = data.get("begun_at")
        if isinstance(begun, datetime) and begun <= self.event.at:
            yield "took", duration(self.event.at - begun)
        yield "how", self.text("how")
        yield "why", self.text("why")
        yield "next attempt", self.text("retry_at")
        yield "undone", "yes" if effect is not None and effect.undone else ""
        usage = data.get("usage")
        self.seen |= {"usage", "prompts", "transactional", "error"}
        if isinstance(usage, Mapping):
            yield "model", str(usage.get("model") or "")
            tokens = [usage.get(name) for name in ("input_tokens", "output_tokens")]
            yield "tokens", f"{tokens[0] or 0:,} in, {tokens[1] or 0:,} out"
        yield "transactional", "yes" if data.get("transactional") else ""

    def _wait(self) -> Iterator[tuple[str, str]]:
        wait = self.about.wait
        if "wait" not in self.data:
            return
        yield "wait", self.text("wait")
        if wait is None:
            return
        yield "waits for", _awaited(wait)
        self.seen |= {"kind", "name", "wake_at", "expires_at", "runs"}
        yield "asked", self.about.format_time(wait.created_at)
        yield "until", self._time(wait.wake_at or wait.expires_at)
        yield "state", wait.state
        yield "answered", self._time(wait.answered_at)
        yield "answered by", wait.answered_by or ""

    def _time(self, at: datetime | None) -> str:
        return "" if at is None else self.about.format_time(at)

    def _person(self) -> Iterator[tuple[str, str]]:
        yield "by", self.text("by")
        yield "through", self.text("via")
        yield "from", self.text("from")
        yield "reason", self.text("reason")

    def _saved(self) -> Iterator[tuple[str, str]]:
        saved = self.data.get("saved")
        self.seen.add("saved")
        if isinstance(saved, Mapping):
            nouns = {"effects": "effect", "model_calls": "model call", "tokens": "token"}
            counts = [count(saved[name], noun) for name, noun in nouns.items() if saved.get(name)]
            yield "from the record", ", ".join(counts)
            names = [f"{one[0]} ({one[1]})" for one in saved.get("replayed") or ()]
            yield "not called again", ", ".join(names)


@dataclass
class _Parts:
    """The larger parts of an event."""

    event: Event
    about: Context
    seen: set[str] = field(default_factory=set)

    def all(self) -> Iterator[Part]:
        data, effect, wait = self.event.data, self.about.effect, self.about.wait
        if self.event.kind == EventKind.FAILED:
            self.seen |= {"kind", "message", "traceback"}
            yield from _error(RunError(*(str(data.get(one) or "") for one in ERROR)))
        if effect is not None:
            yield from _of_effect(effect)
        elif data.get("error"):
            yield Part("Error", data["error"], Look.TRACEBACK)
        if wait is not None:
            yield from _of_wait(wait)


ERROR = ("kind", "message", "traceback")


def _of_effect(effect: EffectRecord) -> Iterator[Part]:
    if effect.damaged:
        yield Part("Damaged", effect.damaged, Look.TRACEBACK)
        return
    yield Part("Arguments", dict(effect.arguments))
    if effect.error is not None:
        yield from _error(effect.error)
    elif effect.result is not None:
        yield Part("Result", effect.result)


def _of_wait(wait: WaitRecord) -> Iterator[Part]:
    if wait.damaged:
        yield Part("Damaged", wait.damaged, Look.TRACEBACK)
        return
    if wait.kind in (Kind.HUMAN, Kind.SIGNAL):
        yield Part("What was shown" if wait.kind is Kind.HUMAN else "Waited for", wait.value)
    if wait.answered_at is not None and wait.kind in (Kind.HUMAN, Kind.SIGNAL):
        yield Part("Answer", wait.answer)


def _error(error: RunError) -> Iterator[Part]:
    yield Part("Error", f"{error.kind}: {error.message}", Look.TRACEBACK)
    if error.traceback:
        yield Part("Traceback", error.traceback, Look.TRACEBACK)


def _awaited(wait: WaitRecord) -> str:
    names = {
        Kind.CLOCK: "the clock",
        Kind.HUMAN: "a person",
        Kind.SIGNAL: f"the signal {wait.name}",
        Kind.RUN: "other runs",
    }
    return names[wait.kind]
