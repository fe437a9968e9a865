"""The layout of a timeline: pure geometry, in pixels.

Width grows with the logarithm of the duration, so milliseconds of work and weeks of sleep fit one
picture; each part states its real length. A long timeline continues on the next strip, as text does
on the next line. Each strip has its axis, a lane for each worker that drove the run in it, and a
lane for rests. Labels are placed where there is room, in a few rows, or left out: each part also
has its text as a title.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise

from perdure.views.formatting import duration
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_marks import Mark, MarkKind
from perdure.views.timeline_parts import Stretch, TimelineParts

WIDTH, MOST_STRIPS = 866.0, 12
"""Width of a strip, and the number of strips from which everything becomes narrower."""
LOOSEST = 1.6
"""How far a strip is stretched to the whole width."""
SNUG = 0.78
"""How much of its free space a rest keeps."""
GUTTER = 104.0
"""Where a strip begins: at its left are the names of the lanes."""
CHARACTER, BOLD = 6.1, 6.8
"""Width of a letter of a label, and of a bold one."""
LEAST_GAP, LEAST_REST = 4.0, 30.0
LONGEST_LABEL = 22
"""Letters of a label that are shown."""


@dataclass(frozen=True)
class Scale:
    """From times to pixels, inside of one stretch: a line through some points."""

    times: tuple[datetime, ...]
    places: tuple[float, ...]

    @property
    def left(self) -> float:
        return self.places[0]

    @property
    def right(self) -> float:
        return self.places[-1]

    def x(self, at: datetime) -> float:
        n = bisect_right(self.times, at)
        if n == 0:
            return self.left
        if n == len(self.times):
            return self.right
        before, after = self.times[n - 1], self.times[n]
        share = (at - before) / (after - before)
        return self.places[n - 1] + share * (self.places[n] - self.places[n - 1])


Strip = list[tuple[Stretch, Scale]]


@dataclass(frozen=True)
class _Gaps:
    """The points of a stretch, and the gaps between them."""

    stretch: Stretch
    times: tuple[datetime, ...]
    widths: tuple[float, ...]
    least: float
    """How narrow it may become to fit its strip: a rest gives way to segments."""

    @property
    def width(self) -> float:
        return sum(self.widths)

    @property
    def spare(self) -> float:
        return self.width - self.least

    @property
    def snug(self) -> float:
        """The width in which its words still fit."""
        return self.least + self.spare * SNUG


def strips(stretches: Sequence[Stretch]) -> list[Strip]:
    """The stretches with their scales, strip by strip."""
    points = [_points(one) for one in stretches]
    ideal = [_wanted(one, times) for one, times in zip(stretches, points, strict=True)]
    least = [_least(one, times) for one, times in zip(stretches, points, strict=True)]
    wanted, needed = sum(map(sum, ideal)), sum(map(sum, least))
    room = min(wanted, MOST_STRIPS * WIDTH)
    share = max(0.0, (room - needed) / (wanted - needed)) if wanted > needed else 1.0
    gaps: list[_Gaps] = []
    for one, times, small, large in zip(stretches, points, least, ideal, strict=True):
        widths = tuple(_between(small, large, share))
        gaps.append(_Gaps(one, times, widths, sum(widths if one.is_driven else small)))
    return [_scaled(line) for line in _broken(gaps)]


def _between(least: Sequence[float], wanted: Sequence[float], share: float) -> Iterator[float]:
    """Gaps that have so much of what they should have, and fit one strip if they can."""
    widths = [a + (b - a) * share for a, b in zip(least, wanted, strict=True)]
    whole, needed = sum(widths), sum(least)
    if whole > WIDTH and whole > needed:
        share = max(0.0, (WIDTH - needed) / (whole - needed))
        widths = [a + (b - a) * share for a, b in zip(least, widths, strict=True)]
    yield from widths


def _broken(gaps: Sequence[_Gaps]) -> Iterator[list[_Gaps]]:
    """Stretches strip by strip. A strip begins with a segment, if possible not with one that took
    over from a lost worker."""
    line: list[_Gaps] = []
    for group in _groups(gaps):
        parts = [group] if sum(one.snug for one in group) <= WIDTH else [[one] for one in group]
        for part in parts:
            used = sum(one.snug for one in line)
            if line and used + sum(one.snug for one in part) > WIDTH:
                yield line
                line = []
            line += part
    if line:
        yield line


def _groups(gaps: Sequence[_Gaps]) -> Iterator[list[_Gaps]]:
    """What should stay on one strip: segments between which a worker was lost, and the rest."""
    group: list[_Gaps] = []
    for one in gaps:
        rests = group and not group[-1].stretch.is_driven
        if rests and one.stretch.is_driven and group[-1].stretch.kind is not PeriodKind.LOST:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _scaled(line: Sequence[_Gaps]) -> Strip:
    """A strip of the whole width: rests become narrower, or everything wider, but not too wide."""
    over = sum(one.width for one in line) - WIDTH
    spare = sum(one.spare for one in line)
    narrower = min(1.0, max(0.0, over / spare)) if spare else 0.0
    wide = sum(one.width - one.spare * narrower for one in line)
    factor = min(LOOSEST, max(1.0, WIDTH / wide))
    x, found = GUTTER, []
    for one in line:
        places, left = [x], (one.width - one.spare * narrower) / one.width
        for width in one.widths:
            x += width * left * factor
            places.append(x)
        found.append((one.stretch, Scale(one.times, tuple(places))))
    return found


def _points(one: Stretch) -> tuple[datetime, ...]:
    """The times of a stretch that get their own point."""
    end = max(one.until, one.since + timedelta(microseconds=1))
    if not one.is_driven:
        return one.since, end
    times = (at for mark in one.marks for at in (mark.since, mark.until))
    return tuple(sorted({one.since, end, *(min(max(at, one.since), end) for at in times)}))


def _least(one: Stretch, times: Sequence[datetime]) -> list[float]:
    if not one.is_driven:
        return [max(LEAST_REST, _text_width(duration(one.until - one.since)) + 12)]
    gaps = [LEAST_GAP] * (len(times) - 1)
    for mark in one.marks:
        if mark.count > 1:
            _widen(gaps, *_span(mark, times), _text_width(mark.label) + 8)
    _widen(gaps, 0, len(gaps), _header_width(one))
    return gaps


def _wanted(one: Stretch, times: Sequence[datetime]) -> list[float]:
    """A rest is as wide as its words, a step as its name."""
    if not one.is_driven:
        words = _text_width(one.label) + 14 + _grown(one.until - one.since) / 2
        return [max(LEAST_REST, words)]
    gaps = [LEAST_GAP + _grown(after - before) for before, after in pairwise(times)]
    for mark in one.marks:
        if mark.kind is MarkKind.STEP:
            _widen(gaps, *_span(mark, times), _text_width(mark.label[:LONGEST_LABEL]) + 12)
    _widen(gaps, 0, len(gaps), _header_width(one))
    return gaps


def _header_width(one: Stretch) -> float:
    return len(one.label if one.count > 1 else f"#{one.segment}") * BOLD + 12


def _span(mark: Mark, times: Sequence[datetime]) -> tuple[int, int]:
    """The numbers of the points between which a mark is."""
    first = max(0, bisect_right(times, mark.since) - 1)
    return first, max(first + 1, bisect_right(times, mark.until) - 1)


def _widen(gaps: list[float], first: int, last: int, least: float) -> None:
    """Make the gaps from one point to another at least so wide together."""
    missing = least - sum(gaps[first:last])
    for n in range(first, last) if missing > 0 else ():
        gaps[n] += missing / (last - first)


def _grown(lasted: timedelta) -> float:
    """The width of a time: 8 pixels for 0.1 s, 14 for 1 s, 35 for an hour, 50 for two weeks."""
    return 6 * math.log10(1 + max(0.0, lasted.total_seconds()) * 200)


def _text_width(text: str) -> float:
    return len(text) * CHARACTER


def shorten(text: str, width: float) -> str:
    """As much of a text as fits; nothing if that is less than three letters."""
    most = int(width / CHARACTER)
    if len(text) <= most:
        return text
    return f"{text[: most - 1].rstrip()}…" if most >= 4 else ""


MARGIN, BETWEEN = 8.0, 18.0
"""Free space at the right, and between two strips."""
LIMIT = GUTTER + WIDTH + MARGIN
"""Where a picture ends."""
AXIS, ROW, BAR, EFFECT = 30.0, 15.0, 22.0, 9.0
"""Heights: the axis, one row of effects or moments, the bar of a segment, an effect."""
HEADER, PAD, REST = 14.0, 8.0, 20.0
"""Heights: the line above a bar, the space below a lane, a rest."""
MOST_LANES, MOST_ROWS, MOMENT_ROWS = 6, 4, 4
TICKS_APART = 84.0


@dataclass(frozen=True)
class PlacedMark:
    """A mark and its position."""

    mark: Mark
    left: float
    right: float
    row: int = 0
    label: str = ""
    """As much of its label as there is room for."""
    is_before: bool = False
    """Whether the label stands before the mark: at the end of a strip."""


@dataclass(frozen=True)
class PlacedStretch:
    """A stretch and its position."""

    stretch: Stretch
    left: float
    right: float
    lane: int
    """The lane of its worker; -1 for a rest."""
    marks: tuple[PlacedMark, ...] = ()
    header: str = ""
    """What stands above the bar of a segment."""


@dataclass(frozen=True)
class Lane:
    """The lane of a worker, or of several."""

    name: str
    top: float
    rows: int

    @property
    def bar(self) -> float:
        """The top of its bars."""
        return self.top + HEADER

    @property
    def height(self) -> float:
        return HEADER + BAR + (self.rows * ROW + 3 if self.rows else 0) + PAD


@dataclass(frozen=True)
class Tick:
    """A time that is written on the axis."""

    x: float
    at: datetime
    with_date: bool


@dataclass(frozen=True)
class PlacedStrip:
    """A part of a timeline from left to right."""

    top: float
    bottom: float
    rest: float
    """The top of its rests."""
    stretches: tuple[PlacedStretch, ...]
    moments: tuple[PlacedMark, ...]
    """What is drawn between the axis and the lanes."""
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]


@dataclass(frozen=True)
class Layout:
    """A whole picture."""

    width: float
    height: float
    strips: tuple[PlacedStrip, ...]


def lay_out(parts: TimelineParts) -> Layout:
    """Place the parts of a timeline."""
    found: list[PlacedStrip] = []
    right, top = GUTTER + WIDTH, 0.0
    for strip in strips(parts.stretches):
        found.append(_place_strip(strip, top))
        right, top = max(right, strip[-1][1].right), found[-1].bottom + BETWEEN
    return Layout(right + MARGIN, max(0.0, top - BETWEEN), tuple(found))


def _place_strip(strip: Strip, top: float) -> PlacedStrip:
    names, is_shared = _lanes([one for one, _ in strip])
    rows = [_Rows(MOST_ROWS) for _ in names]
    above = _Rows(MOMENT_ROWS)
    placed: list[PlacedStretch] = []
    moments: list[PlacedMark] = []
    headers = _headers(strip, names, is_shared)
    for one, scale in strip:
        lane = _lane(one, names, is_shared)
        marks = sorted(one.marks, key=lambda mark: mark.since)
        moments += [
            above.place(mark, scale.x(mark.since), scale.x(mark.until))
            for mark in marks
            if mark.kind is MarkKind.MOMENT
        ]
        inside = tuple(_place(marks, scale, rows[lane])) if lane >= 0 else ()
        header = headers.get(one.segment, "") if lane >= 0 else ""
        placed.append(PlacedStretch(one, scale.left, scale.right, lane, inside, header))
    at = top + AXIS + (above.used * ROW + 6 if above.used else 0)
    lanes: list[Lane] = []
    for name, row in zip(names, rows, strict=True):
        lanes.append(Lane(name, at, row.used))
        at += lanes[-1].height
    has_rests = any(not one.is_driven for one, _ in strip)
    bottom = at + (REST + 8 if has_rests else 0)
    ticks = tuple(_ticks(placed))
    return PlacedStrip(top, bottom, at + 2, tuple(placed), tuple(moments), tuple(lanes), ticks)


def _ticks(placed: Sequence[PlacedStretch]) -> Iterator[Tick]:
    """The beginnings of stretches, as many as there is room for."""
    last, before = -TICKS_APART, None
    for one in placed:
        at = one.stretch.since
        minute = at.replace(second=0, microsecond=0)
        if one.left - last < TICKS_APART or minute == before:
            continue
        yield Tick(one.left, at, before is None or at.date() != before.date())
        last, before = one.left, minute


# -- lanes


def _lanes(stretches: Sequence[Stretch]) -> tuple[list[str], bool]:
    """The names of the lanes, and whether the workers that drove least share the last one, so that
    many crashes do not make many lanes."""
    segments: dict[str, int] = {}
    for one in stretches:
        if one.is_driven and one.count == 1:
            segments[one.worker] = segments.get(one.worker, 0) + 1
    if len(segments) <= MOST_LANES:
        has_merged = any(one.is_driven for one in stretches)
        return [*segments] or ([""] if has_merged else []), False
    own = set(sorted(segments, key=lambda name: -segments[name])[: MOST_LANES - 1])
    others = len(segments) - len(own)
    return [*(name for name in segments if name in own), f"{others} others"], True


def _lane(one: Stretch, names: Sequence[str], is_shared: bool) -> int:
    if not one.is_driven:
        return -1
    own = names[:-1] if is_shared else names
    return own.index(one.worker) if one.worker in own else len(names) - 1


def _headers(strip: Strip, names: Sequence[str], is_shared: bool) -> dict[int, str]:
    """The text above each segment, as far as it fits before the next one in its lane."""
    next_left = [LIMIT] * len(names)
    found: dict[int, str] = {}
    lost = {
        after.segment: duration(before.until - before.since)
        for (before, _), (after, _) in pairwise(strip)
        if before.kind is PeriodKind.LOST
    }
    for one, scale in reversed(strip):
        lane = _lane(one, names, is_shared)
        if lane < 0:
            continue
        room, forms = next_left[lane] - scale.left - 6, [f"#{one.segment}"]
        next_left[lane] = scale.left
        if is_shared and lane == len(names) - 1:
            forms.insert(0, f"{forms[0]} {one.worker}")
        if one.recovered:
            after = f" after {lost[one.segment]}" if one.segment in lost else ""
            forms = [f"{forms[0]} recovered{after}", f"{forms[-1]} recovered", *forms]
        found[one.segment] = next((one for one in forms if len(one) * 6.6 < room), forms[-1])
    return found


def _place(marks: Sequence[Mark], scale: Scale, rows: _Rows) -> Iterator[PlacedMark]:
    """The steps of a segment on its bar, and its effects in the rows below."""
    for mark in marks:
        left, right = scale.x(mark.since), scale.x(mark.until)
        if mark.kind is MarkKind.STEP:
            yield PlacedMark(mark, left, right, label=shorten(mark.label, right - left - 4))
        elif mark.kind is MarkKind.INNER_STEP:
            yield PlacedMark(mark, left, right)
        elif mark.kind is not MarkKind.MOMENT:
            yield rows.place(mark, left, max(right, left + LEAST_GAP))


@dataclass
class _Rows:
    """Rows that marks with labels are put into, from left to right."""

    most: int
    marks: list[float] = field(default_factory=list)
    """Where the last mark of each row ends."""
    labels: list[float] = field(default_factory=list)
    """Where its label ends."""

    @property
    def used(self) -> int:
        return len(self.marks)

    def place(self, mark: Mark, left: float, right: float) -> PlacedMark:
        """Put a mark into the first row where it fits with its label, or else without."""
        label = mark.label
        if len(label) > LONGEST_LABEL:
            label = f"{label[: LONGEST_LABEL - 1].rstrip()}…"
        # After the mark come a sign of its outcome, or `saved`, and then the label.
        sign = 40 if mark.kind is MarkKind.SAVED else 18
        width = sign + len(label) * CHARACTER if label else 4
        is_before = right + width > LIMIT
        row = self._first(self.labels, left - width if is_before else left)
        if row is None:
            label, width = "", 2
            row = self._first(self.marks, left)
        if row is None:  # on top of others
            row = min(range(self.most), key=lambda n: self.labels[n])
        end = right if is_before else right + width
        self.marks[row] = max(self.marks[row], right)
        self.labels[row] = max(self.labels[row], end)
        return PlacedMark(mark, left, right, row, label, is_before)

    def _first(self, ends: Sequence[float], left: float) -> int | None:
        for n, end in enumerate(ends):
            if end <= left:
                return n
        if len(ends) < self.most:
            self.marks.append(0.0)
            self.labels.append(0.0)
            return len(self.marks) - 1
        return None
