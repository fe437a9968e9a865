"""The marks of a timeline inside a period: steps, effects, saved work, decisions.

An effect's event is its outcome; its mark starts at its intent. An effect in progress when its
worker was lost has no event there: the event of the next attempt tells (`cut_off`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import Any

from perdure.commands.events import is_input
from perdure.times import utc_time
from perdure.types import EffectRecord, EffectState, Event, EventKind
from perdure.views.event_wording import FormatTime, Tone, view_event
from perdure.views.formatting import count, duration
from perdure.views.timeline import Period

NAMED = 2
"""Nodes of a step, or effects from the record, that are named."""
UNMARKED = frozenset({EventKind.STARTED, EventKind.WAIT, EventKind.POSTPONED, EventKind.RELEASED})
"""Events that the periods around them show."""


class MarkKind(StrEnum):
    """What a mark stands for."""

    STEP = "step"
    INNER_STEP = "inner step"
    """A step of a subgraph."""
    EFFECT = "effect"
    SAVED = "saved"
    """Effects that came from their records: they were not called again."""
    MOMENT = "moment"
    """Something without a duration: an answer, a signal, a decision, an end."""


class Look(StrEnum):
    """How a mark is drawn. Each look has a shape of its own, not only a colour."""

    PLAIN = "plain"
    GOOD = "good"
    BAD = "bad"
    NOTABLE = "notable"
    UNKNOWN = "unknown"
    OPEN = "open"
    """In progress, or to be retried."""
    CUT_OFF = "cut"
    """Its outcome was lost with its worker."""


TONES: Mapping[Tone, Look] = {Tone.GOOD: Look.GOOD, Tone.BAD: Look.BAD, Tone.NOTABLE: Look.NOTABLE}
EFFECTS: Mapping[str, Look] = {
    EffectState.DONE: Look.GOOD,
    EffectState.UNKNOWN: Look.UNKNOWN,
    EffectState.OPEN: Look.OPEN,
    EffectState.AGAIN: Look.OPEN,
}


@dataclass(frozen=True)
class Mark:
    """Something that happened in a period."""

    kind: MarkKind
    look: Look
    since: datetime
    until: datetime
    label: str
    """Its name, a few words."""
    say: Callable[[], str]
    """Returns what happened, in words. Called only for marks that are drawn."""
    first: int
    """The number of its event, or of the first one."""
    last: int
    count: int = 1
    """Number of marks that it stands for."""

    @property
    def text(self) -> str:
        """What happened, as sentences."""
        return self.say()


def marks_of(
    period: Period, *, asked: Collection[str] = (), format_time: FormatTime = utc_time
) -> Iterator[Mark]:
    """What happened in a period, in order. `asked`: the ids of the waits for a person."""
    fold = _Fold(period, asked, format_time)
    for event in period.events:
        yield from fold.add(event)


def cut_off(periods: Sequence[Period]) -> Iterator[tuple[int, Mark]]:
    """The effects that were in progress when a worker was lost, with the index of its period. They
    are inferred from later events: the outcome of an effect that began back then."""
    lost = [n for n, one in enumerate(periods) if one.died]
    begins = [periods[n].since for n in lost]
    seen: set[str] = set()
    for at, period in enumerate(periods if lost else ()):
        for event in period.events:
            key, begun = event.data.get("key"), event.data.get("begun_at")
            if event.kind != EventKind.EFFECT or key in seen or not isinstance(begun, datetime):
                continue
            seen.add(str(key))
            last = bisect_right(begins, begun) - 1
            if last >= 0 and lost[last] < at and begun <= _end(periods, lost[last]):
                until = max(begun, periods[lost[last]].until or begun)
                yield lost[last], _cut_off(event, begun, until)


def _end(periods: Sequence[Period], lost: int) -> datetime:
    """When the run was taken over from a lost worker."""
    after = periods[lost + 1] if lost + 1 < len(periods) else periods[lost]
    return after.until or after.since


def _cut_off(event: Event, begun: datetime, until: datetime) -> Mark:
    name = str(event.data.get("name"))
    later = event.data.get("how") or f"its outcome is {event.data.get('state')}"
    text = f"effect {name} was in progress when its worker was lost; later: {later}"
    kind, look = MarkKind.EFFECT, Look.CUT_OFF
    return Mark(kind, look, begun, until, name, lambda: text, event.n, event.n)


def under_way(effect: EffectRecord, now: datetime, after: int) -> Mark:
    """The mark of an effect that is being called now, `after` the event of this number."""
    began = max(effect.created_at, effect.updated_at)
    text = f"effect {effect.name} in progress for {duration(now - began)}, key {effect.key}"
    kind, look = MarkKind.EFFECT, Look.OPEN
    return Mark(kind, look, began, max(began, now), effect.name, lambda: text, after, after)


@dataclass
class _Fold:
    """The marks of one period."""

    period: Period
    asked: Collection[str]
    format_time: FormatTime

    def __post_init__(self) -> None:
        self._moved = self._last = self.period.since
        self._inner: dict[str, datetime] = {}
        self._tried: dict[str, datetime] = {}

    def add(self, event: Event) -> Iterator[Mark]:
        yield from self._saved(event)
        if event.kind == EventKind.STEP and not event.damaged:
            yield from self._step(event)
        elif event.kind == EventKind.EFFECT and not event.damaged:
            yield self._effect(event)
        else:
            yield from self._moment(event)
        self._last = event.at

    def _saved(self, event: Event) -> Iterator[Mark]:
        saved = event.data.get("saved")
        if not isinstance(saved, Mapping) or not saved.get("effects"):
            return
        names = list(dict.fromkeys(str(one[0]) for one in saved.get("replayed") or ()))
        number = saved["effects"]
        label = names[0] if len(names) == 1 else count(number, "effect")
        text = f"{count(number, 'effect')} from the record, not called again"
        if named := _some(names, 5):
            text += f": {named}"
        if saved.get("tokens"):
            text += f"; {count(saved['tokens'], 'token')} saved"
        kind, look = MarkKind.SAVED, Look.NOTABLE
        yield Mark(kind, look, self._last, event.at, label, lambda: text, event.n, event.n)

    def _step(self, event: Event) -> Iterator[Mark]:
        data, ns = event.data, event.data.get("ns") or ""
        if is_input(data):
            self._inner[ns] = event.at
            return
        nodes = [str(one) for one in data.get("nodes") or ()]
        label = _some(nodes, NAMED) or str(data.get("source") or "step")
        kind = MarkKind.INNER_STEP if ns else MarkKind.STEP
        since = self._inner.get(ns, self._moved) if ns else self._moved
        self._inner[ns] = event.at
        if not ns:
            self._moved, self._inner = event.at, {}
        say = partial(self._lasting, event, since)
        yield Mark(kind, Look.PLAIN, since, event.at, label, say, event.n, event.n)

    def _effect(self, event: Event) -> Mark:
        data, key = event.data, str(event.data.get("key"))
        attempt = data.get("attempt") or 1
        begun = data.get("begun_at")
        since = begun if isinstance(begun, datetime) else event.at
        since = max(since, self._tried.get(key, since), self.period.since)
        if attempt > 1:  # it was begun with the first attempt, perhaps days ago
            since = max(since, self._moved)
        self._tried[key] = event.at
        tries = f" ×{attempt}" if attempt > 1 else ""
        label = f"{data.get('name')}{tries}"
        look = EFFECTS.get(str(data.get("state")), Look.BAD)
        begin, kind = min(since, event.at), MarkKind.EFFECT
        say = partial(self._lasting, event, begin, f", key {key}")
        return Mark(kind, look, begin, event.at, label, say, event.n, event.n)

    def _moment(self, event: Event) -> Iterator[Mark]:
        view = view_event(event, format_time=self.format_time)
        if event.kind in UNMARKED and not event.damaged:
            return
        if view.routine and not event.damaged:
            return
        if event.kind == EventKind.WOKE and not event.data.get("early"):
            return
        if event.kind == EventKind.EXPIRED and event.data.get("wait") not in self.asked:
            return  # what waits for a signal or a time ends so
        text = "; ".join((view.text, *view.lines))
        look = TONES.get(view.tone, Look.PLAIN)
        label = view.text.partition(": ")[0]
        kind = MarkKind.MOMENT
        yield Mark(kind, look, event.at, event.at, label, lambda: text, event.n, event.n)

    def _lasting(self, event: Event, since: datetime, more: str = "") -> str:
        """An event in words, with how long it took."""
        text = view_event(event, format_time=self.format_time).text
        return f"{text}, {duration(event.at - since)}{more}"


def _some(names: Iterable[str], most: int) -> str:
    """The first of some names, and how many more there are."""
    found = [*names]
    more = f" +{len(found) - most}" if len(found) > most else ""
    return f"{', '.join(found[:most])}{more}"


def merged(marks: Sequence[Mark]) -> Mark:
    """One mark for several that follow each other."""
    kinds: dict[MarkKind, int] = {}
    for one in marks:
        kinds[one.kind] = kinds.get(one.kind, 0) + one.count
    steps = kinds.pop(MarkKind.INNER_STEP, 0) + kinds.pop(MarkKind.STEP, 0)
    effects = kinds.pop(MarkKind.EFFECT, 0)
    saved, moments = kinds.pop(MarkKind.SAVED, 0), kinds.pop(MarkKind.MOMENT, 0)
    counted: list[Any] = [
        count(number, noun)
        for number, noun in ((steps, "step"), (effects, "effect"), (moments, "moment"))
        if number
    ]
    if saved:
        counted.append("saved work")
    worst = next((look for look in WORST if any(one.look is look for one in marks)), Look.PLAIN)
    label = f"+{counted[0]}" if counted else ""
    since = min(one.since for one in marks)
    until = max(one.until for one in marks)
    text = f"{', '.join(counted)} in {duration(until - since)}"
    total = sum(one.count for one in marks)
    first, last = min(one.first for one in marks), max(one.last for one in marks)
    return Mark(MarkKind.STEP, worst, since, until, label, lambda: text, first, last, total)


WORST = (Look.BAD, Look.UNKNOWN, Look.CUT_OFF)
