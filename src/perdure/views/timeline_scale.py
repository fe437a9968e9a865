"""The axis of a timeline: maps times to pixels, with breaks, on as many strips as needed.

Width grows with the logarithm of the duration, so milliseconds of work and weeks of sleep fit one
picture; each part states its real length. A long timeline continues on the next strip, as text does
on the next line.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from perdure.views.formatting import duration
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_marks import Mark, MarkKind
from perdure.views.timeline_parts import Stretch

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
