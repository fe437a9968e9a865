"""The parts of a timeline that are drawn: a bounded number, however long the run.

Even a run of 10,000 events has only as many elements as fit a picture. The rest is merged into
parts that say how many they stand for and can be zoomed into: a zoom is a range of event numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeVar

from perdure.times import utc_time
from perdure.types import EffectRecord, EffectState, EventKind, Kind
from perdure.views.event_wording import FormatTime, view_event
from perdure.views.formatting import count, duration
from perdure.views.timeline import Period, PeriodKind
from perdure.views.timeline_marks import Mark, MarkKind, cut_off, marks_of, merged, under_way

T = TypeVar("T")
BRIEF = timedelta(seconds=1)
"""A shorter time in the queue is not shown."""
MOST_STRETCHES, MOST_MARKS = 90, 240
"""Maximum numbers of each in a picture."""
MOST_IN_PIECE, WIDE = 44, 4
"""Maximum number of marks of a segment on one strip; a mark that stands for several counts as that
many."""
BUCKETS = 16
"""Number of parts into which the middle of a long list is merged."""
REST_NAMES = {
    PeriodKind.QUEUED: "queued",
    PeriodKind.LOST: "lost",
    PeriodKind.PERSON: "for a person",
    PeriodKind.SIGNAL: "for a signal",
    PeriodKind.SIGNAL_OR_TIME: "for a signal",
    PeriodKind.RUN: "for a run",
    PeriodKind.ASLEEP: "asleep",
    PeriodKind.RETRYING: "to retry",
    PeriodKind.PAUSED: "paused",
    PeriodKind.HELD: "held",
    PeriodKind.FAILED: "failed",
}
"""What a run did in a period, in a word or two."""


@dataclass(frozen=True)
class Zoom:
    """The part of a run that is shown: from one event to another, by their numbers."""

    first: int
    last: int


@dataclass(frozen=True)
class Stretch:
    """A period as it is drawn, or several that are merged."""

    kind: PeriodKind
    since: datetime
    until: datetime
    label: str
    """Its length, and what the run did: `4d asleep`."""
    text: str
    """The same in a sentence."""
    first: int
    """The number of its first event; of a rest, of the question or the end of the segment."""
    last: int
    lasts: bool = False
    segment: int = 0
    worker: str = ""
    recovered: bool = False
    died: bool = False
    marks: tuple[Mark, ...] = ()
    count: int = 1
    """Number of periods that it stands for."""
    segments: int = 0
    """How many of them were driven."""
    crashes: int = 0

    @property
    def is_driven(self) -> bool:
        return self.kind is PeriodKind.DRIVEN


@dataclass(frozen=True)
class TimelineParts:
    """What a picture of a timeline shows."""

    stretches: tuple[Stretch, ...]
    last: int
    """The number of the run's last event."""
    zoom: Zoom | None = None
    is_over: bool = False
    """Whether the run has ended."""


def timeline_parts(
    periods: Sequence[Period],
    now: datetime,
    *,
    zoom: Zoom | None = None,
    effects: Iterable[EffectRecord] = (),
    format_time: FormatTime = utc_time,
) -> TimelineParts:
    """The parts of a timeline, or of the range of events in `zoom`. Of the run's
    `effects`, those in progress are shown, too."""
    made = list(_stretches(periods, now, format_time))
    if made and made[-1].lasts and made[-1].is_driven:
        last = made[-1]
        going = [one for one in effects if one.state is EffectState.OPEN and not one.damaged]
        more = [under_way(one, now, last.last) for one in going if one.updated_at >= last.since]
        made[-1] = replace(last, marks=(*last.marks, *more))
    end = max((one.last for one in made), default=0)
    over = bool(made) and not made[-1].lasts
    shown = [one for one in made if not _is_brief(one)]
    if zoom is not None:
        shown = list(_zoomed(shown, zoom))
    few = _few(_fewer_marks(shown))
    pieces = [piece for one in few for piece in _pieces(one)]
    return TimelineParts(tuple(pieces), end, zoom, over)


def _stretches(
    periods: Sequence[Period], now: datetime, format_time: FormatTime
) -> Iterator[Stretch]:
    lost: dict[int, list[Mark]] = {}
    for at, mark in cut_off(periods):
        lost.setdefault(at, []).append(mark)
    last, asked = 0, set(_asked(periods))
    for n, period in enumerate(periods):
        until = period.until or now
        marks = [*marks_of(period, asked=asked, format_time=format_time), *lost.get(n, ())]
        numbers = [one.n for one in period.events]
        numbers += [period.claim.n] if period.claim is not None else []
        # An effect in progress began after the last event: the worker was alive until then.
        until = max([until, *(one.until for one in lost.get(n, ()))])
        since = min(max([period.since, *(one.until for one in lost.get(n - 1, ()))]), until)
        first = min(numbers, default=last)
        last = max([last, *numbers])
        after = periods[n + 1] if n + 1 < len(periods) else None
        yield Stretch(
            kind=period.kind,
            since=since,
            until=until,
            label=_label(period, until - since),
            text=_text(period, until - since, marks, after, format_time),
            first=_first(periods, n, first),
            last=last,
            lasts=period.until is None,
            segment=period.segment,
            worker=period.worker,
            recovered=period.recovered,
            died=period.died,
            marks=tuple(marks),
            segments=int(period.kind is PeriodKind.DRIVEN),
            crashes=int(period.died),
        )


def _asked(periods: Iterable[Period]) -> Iterator[str]:
    """The ids of the waits for a person."""
    for event in (event for period in periods for event in period.events):
        if event.kind == EventKind.WAIT and event.data.get("kind") == Kind.HUMAN:
            yield event.data["wait"]


def _first(periods: Sequence[Period], at: int, first: int) -> int:
    """The most telling event of a period: a rest's question, a lost worker's takeover."""
    period = periods[at]
    if period.kind is PeriodKind.LOST and at + 1 < len(periods):
        claim = periods[at + 1].claim
        return first if claim is None else claim.n
    if period.kind is PeriodKind.DRIVEN or at == 0:
        return first
    before = periods[at - 1].events
    asked = [one.n for one in before if one.kind == EventKind.WAIT]
    return asked[-1] if asked else before[-1].n if before else first


def _label(period: Period, lasted: timedelta) -> str:
    name = REST_NAMES.get(period.kind, "")
    return f"{duration(lasted)} {name}".rstrip()


def _text(
    period: Period,
    lasted: timedelta,
    marks: Sequence[Mark],
    after: Period | None,
    format_time: FormatTime,
) -> str:
    """A period as a sentence."""
    at, how_long = format_time(period.since), duration(lasted)
    so_far = " so far" if period.until is None else ""
    if period.kind is PeriodKind.DRIVEN:
        steps = sum(one.kind is MarkKind.STEP for one in marks)
        effects = sum(one.kind is MarkKind.EFFECT for one in marks)
        did = ", ".join([count(steps, "step")] + [count(effects, "effect")] * bool(effects))
        text = f"segment {period.segment}, {at}: driven by {period.driver} ({period.worker})"
        ends = "; its worker was lost" if period.died else ""
        began = "; it took over from a lost worker" if period.recovered else ""
        return f"{text} for {how_long}{so_far}, {did}{began}{ends}"
    if period.kind is PeriodKind.LOST:
        by = "" if after is None else f"; recovered by {after.worker} after {how_long}"
        return f"{at}: the worker {period.worker} was lost{by}{so_far}"
    told = [view_event(one, format_time=format_time).text for one in period.events]
    until = f", until {format_time(period.due)}" if period.due and period.until is None else ""
    return "; ".join([f"{at}: {how_long} {period.kind}{so_far}{until}", *told])


def _is_brief(one: Stretch) -> bool:
    """Whether a time in the queue is too short to be shown."""
    is_queued = one.kind is PeriodKind.QUEUED and not one.lasts and not one.marks
    return is_queued and one.until - one.since < BRIEF


def _zoomed(stretches: Sequence[Stretch], zoom: Zoom) -> Iterator[Stretch]:
    for one in stretches:
        if one.is_driven:
            # What a crash cut off has its event in a later segment.
            end = min(zoom.last, one.last)
            inside = tuple(
                mark
                for mark in one.marks
                if zoom.first <= mark.first and (mark.last <= end or mark.first > one.last)
            )
            if zoom.first <= one.last and one.first <= zoom.last:
                yield _cut(one, inside, zoom)
        elif zoom.first <= one.first <= zoom.last:
            yield one


def _cut(one: Stretch, marks: tuple[Mark, ...], zoom: Zoom) -> Stretch:
    """The part of a segment that is inside of a zoom."""
    since, until = one.since, one.until
    if marks and one.first < zoom.first:
        since = min(mark.since for mark in marks)
    if marks and one.last > zoom.last:
        until = max(mark.until for mark in marks)
    is_whole = one.last <= zoom.last
    died, lasts = one.died and is_whole, one.lasts and is_whole
    return replace(one, since=since, until=until, marks=marks, died=died, lasts=lasts)


def _fewer_marks(stretches: Sequence[Stretch]) -> Iterator[Stretch]:
    """The same with at most `MOST_MARKS` marks in all."""
    most = _share([len(one.marks) for one in stretches], MOST_MARKS)
    for one in stretches:
        if len(one.marks) <= most:
            yield one
            continue
        parts = _buckets(sorted(one.marks, key=lambda mark: mark.first), most)
        marks = [part[0] if len(part) == 1 else merged(part) for part in parts]
        yield replace(one, marks=tuple(_apart(marks)))


def _apart(marks: Iterable[Mark]) -> Iterator[Mark]:
    """The same where each mark that stands for several begins where the one before it ends."""
    end: datetime | None = None
    for mark in marks:
        if mark.count > 1 and end is not None:
            mark = replace(mark, since=max(mark.since, end), until=max(mark.until, end))
        yield mark
        if mark.kind is MarkKind.STEP:
            end = mark.until if end is None else max(end, mark.until)


def _pieces(one: Stretch) -> Iterator[Stretch]:
    """A segment of many steps in pieces that fit a strip, each of which begins with a step."""
    marks = sorted(one.marks, key=lambda mark: (mark.until, mark.first))
    piece: list[Mark] = []
    since, is_first, size = one.since, True, 0
    for n, mark in enumerate(marks):
        piece.append(mark)
        size += WIDE if mark.count > 1 else 1
        is_full = mark.kind is MarkKind.STEP and size >= MOST_IN_PIECE
        if is_full and len(marks) - n > MOST_IN_PIECE // 3:
            yield _piece(one, piece, since, mark.until, is_first=is_first, is_last=False)
            piece, since, is_first, size = [], mark.until, False, 0
    yield _piece(one, piece, since, one.until, is_first=is_first, is_last=True)


def _piece(
    one: Stretch,
    marks: Sequence[Mark],
    since: datetime,
    until: datetime,
    *,
    is_first: bool,
    is_last: bool,
) -> Stretch:
    if is_first and is_last:
        return one
    return replace(
        one,
        since=since,
        until=max(since, until),
        marks=tuple(marks),
        recovered=one.recovered and is_first,
        died=one.died and is_last,
        lasts=one.lasts and is_last,
        segments=one.segments if is_first else 0,
        crashes=one.crashes if is_last else 0,
    )


def _share(sizes: Sequence[int], most: int) -> int:
    """How many each may have at most, so that there are no more than `most` in all."""
    left, number = most, len(sizes)
    for size in sorted(sizes):
        if size * number >= left:
            return max(4, left // number)
        left, number = left - size, number - 1
    return most


def _few(stretches: Iterable[Stretch]) -> Iterator[Stretch]:
    found = list(stretches)
    for part in _buckets(found, MOST_STRETCHES):
        yield part[0] if len(part) == 1 else _merge(part)


def _buckets(found: Sequence[T], most: int) -> Iterator[Sequence[T]]:
    """Parts of a list, at most `most`: each of its beginning and of its end, and of the middle as
    many as there is room for."""
    if len(found) <= most:
        yield from ([one] for one in found)
        return
    buckets = max(1, min(BUCKETS, most // 3))
    head = (most - buckets) // 3
    tail = most - buckets - head
    middle = found[head : len(found) - tail]
    yield from ([one] for one in found[:head])
    for n in range(buckets):
        part = middle[n * len(middle) // buckets : (n + 1) * len(middle) // buckets]
        if part:
            yield part
    yield from ([one] for one in found[len(found) - tail :])


def _merge(part: Sequence[Stretch]) -> Stretch:
    """Several periods as one."""
    segments = sum(one.is_driven for one in part)
    crashes = sum(one.crashes for one in part)
    since, until = part[0].since, part[-1].until
    died = f", {crashes} crash{'es' * (crashes != 1)}" if crashes else ""
    label = f"+{count(segments, 'segment')}"
    text = f"{count(segments, 'segment')} in {duration(until - since)}{died}"
    first, last = min(one.first for one in part), max(one.last for one in part)
    lasts = part[-1].lasts
    return Stretch(
        PeriodKind.DRIVEN,
        since,
        until,
        label,
        text,
        first,
        last,
        lasts,
        count=len(part),
        segments=segments,
        crashes=crashes,
    )
