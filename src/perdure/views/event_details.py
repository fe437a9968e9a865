"""One event in full: its facts, what went in and came out, errors with their traceback, and what a
step changed in the state, channel by channel.

`event_wording` puts an event into a sentence; this shows everything known about it. Data that is
not shown as a fact is shown as stored. A list of messages is compared by message, so new ones are
shown as messages; any other list shows what was appended. The rest is compared as text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.text import any_json
from perdure.times import utc_time
from perdure.types import EffectRecord, Event, EventKind, Kind, RunError, WaitRecord
from perdure.views.answer_difference import text_diff
from perdure.views.event_wording import EventView, FormatTime, view_event, worker_name
from perdure.views.formatting import count, duration, value_text
from perdure.views.markup import Html
from perdure.views.message_parts import MessageParts, is_message, message_parts

LONGEST = 20_000
"""Maximum length of the values that are compared."""
MOST_MESSAGES = 50
"""Maximum number of messages shown for one step."""


class ChangeKind(StrEnum):
    """How a channel changed."""

    ADDED = "new"
    REMOVED = "removed"
    CHANGED = "changed"
    EXTENDED = "extended"
    """Something was appended to a list."""


@dataclass(frozen=True)
class ChannelChange:
    """How one channel changed."""

    name: str
    kind: ChangeKind
    before: Any = None
    after: Any = None
    """The new value; for an extended list, only what was appended."""
    messages: tuple[MessageParts, ...] = ()
    """What was appended, if it is messages."""
    left_out: int = 0
    """How many more messages were appended."""
    difference: Html | None = None
    """The new text with what was removed and what was added, if both can be compared."""


def state_difference(before: Any, after: Any) -> list[ChannelChange]:
    """What changed from one state to the next. A state that is no mapping is one channel."""
    old = before if isinstance(before, Mapping) else {"state": before}
    new = after if isinstance(after, Mapping) else {"state": after}
    found: list[ChannelChange] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            found.append(ChannelChange(str(name), ChangeKind.REMOVED, before=old[name]))
        elif name not in old:
            found.append(_added(str(name), new[name]))
        elif not _is_equal(old[name], new[name]):
            found.append(_changed(str(name), old[name], new[name]))
    return found


def _added(name: str, value: Any) -> ChannelChange:
    if _are_messages(value):
        return _said(name, ChangeKind.ADDED, value)
    return ChannelChange(name, ChangeKind.ADDED, after=value)


def _said(name: str, kind: ChangeKind, messages: Sequence[Any]) -> ChannelChange:
    shown = tuple(message_parts(one) for one in messages[:MOST_MESSAGES])
    left_out = max(0, len(messages) - MOST_MESSAGES)
    return ChannelChange(name, kind, after=list(messages), messages=shown, left_out=left_out)


def _changed(name: str, old: Any, new: Any) -> ChannelChange:
    if isinstance(old, list) and isinstance(new, list) and _begins_with(new, old):
        more = new[len(old) :]
        if _are_messages(more):
            return _said(name, ChangeKind.EXTENDED, more)
        return ChannelChange(name, ChangeKind.EXTENDED, before=old, after=more)
    texts = _text(old), _text(new)
    difference = text_diff(*texts) if max(map(len, texts)) <= LONGEST else None
    return ChannelChange(name, ChangeKind.CHANGED, old, new, difference=difference)


def _begins_with(new: Sequence[Any], old: Sequence[Any]) -> bool:
    pairs = zip(old, new, strict=False)
    return len(new) > len(old) and all(_is_equal(one, other) for one, other in pairs)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal; values of a user's own type may refuse to be compared."""
    try:
        return bool(one == other)
    except Exception:
        return _text(one) == _text(other)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple) and not _are_messages(value):
        return any_json(value, indent=2)
    return value_text(value)


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
