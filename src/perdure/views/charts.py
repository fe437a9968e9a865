"""Charts as SVG, drawn here: no library, no script.

A chart is as wide as its column and readable on a phone: labels stand above their line, not beside
it. Colours are CSS variables of the page (`STYLE`), so one drawing serves light and dark. Meaning
never rests on colour: what differs also differs in shape or is written out. `<title>` and `<desc>`
say for screen readers what is drawn.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from perdure.views import formatting
from perdure.views.intervals import Estimate
from perdure.views.markup import Html, element, join

WIDTH, MARGIN = 460.0, 12.0
LINE = 44.0
"""Height of one row: its label and what is drawn below."""
DOT = 4.5
CHARACTER = 7.2
"""Width of a letter at the size of a label, for shortening."""
SHADES = 5
"""Fills of the parts of a bar, darkest first; then they repeat."""

STYLE = """
svg.chart{display:block;width:100%;height:auto;max-width:560px;font:13px system-ui,sans-serif}
.chart text{fill:var(--text)}.chart .quiet{fill:var(--quiet);font-size:12px}
.chart .grid{stroke:var(--line);stroke-width:1}.chart .zero{stroke:var(--quiet);stroke-width:1.5}
.chart .span{stroke:var(--accent);stroke-width:2.5}
.chart .dot{fill:var(--accent);stroke:var(--accent);stroke-width:2}
.chart .open{fill:var(--paper);stroke:var(--accent);stroke-width:2}
.chart .one{fill:var(--accent);fill-opacity:.45}.chart .mean{stroke:var(--text);stroke-width:2}
.chart .block{fill:var(--accent);stroke:var(--paper);stroke-width:1}
.chart .area{fill:var(--accent);fill-opacity:.14}
.chart .curve{fill:none;stroke:var(--accent);stroke-width:2;stroke-linejoin:round}
.chart .s0{fill:var(--s0)}.chart .s1{fill:var(--s1)}.chart .s2{fill:var(--s2)}
.chart .s3{fill:var(--s3)}.chart .s4{fill:var(--s4)}
.chart .on0,.chart .on1{fill:var(--on-dark)}
.chart .on2,.chart .on3,.chart .on4{fill:var(--on-light)}
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a plot: a version, an experiment, a score."""

    label: str
    estimate: Estimate | None
    note: str = ""
    """Written at the right; by default the figure with its interval."""
    marked: bool = False
    """Drawn as a square: the one that others are compared with."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Where a value is drawn, from left to right."""

    low: float
    high: float
    ticks: tuple[float, ...]
    percent: bool

    def x(self, value: float) -> float:
        part = (value - self.low) / (self.high - self.low)
        return MARGIN + min(1.0, max(0.0, part)) * (WIDTH - 2 * MARGIN)

    def tick(self, value: float, *, signed: bool = False) -> str:
        plus = "+" if signed and value > 0 else ""
        if self.percent:
            return plus + formatting.percent(value)
        return plus + f"{value:,.10g}".replace("-", formatting.MINUS)

    @staticmethod
    def over(values: Iterable[float], *, percent: bool) -> Axis:
        """An axis that shows all values, with round ticks."""
        low, high = _range(values)
        step = _round_step((high - low) / 4)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        ticks = tuple(round(at * step, 12) for at in range(first, last + 1))
        return Axis(ticks[0], ticks[-1], ticks, percent)


SHARES = Axis(0, 1, (0, 0.25, 0.5, 0.75, 1), percent=True)


def dot_plot(rows: Sequence[Row], *, title: str, description: str = "", unit: str = "") -> Html:
    """Figures with their intervals on one axis. Shares are drawn on 0 to 100 %."""
    drawn = [row.estimate for row in rows if row.estimate is not None]
    shares = bool(drawn) and all(one.share for one in drawn)
    axis = SHARES if shares else Axis.over(_ends(drawn), percent=False)
    parts = [_line(axis, n, row, formatting.estimate(row.estimate)) for n, row in enumerate(rows)]
    said = description or _said(rows, formatting.estimate)
    return _chart(title, said, _bands(len(rows)), axis, parts, unit=unit)


def difference_plot(
    rows: Sequence[Row], *, title: str, description: str = "", unit: str = ""
) -> Html:
    """Differences around zero. A filled point is more than chance: its interval leaves zero out."""
    drawn = [row.estimate for row in rows if row.estimate is not None]
    shares = bool(drawn) and all(one.share for one in drawn)
    axis = Axis.over([0.0, *_ends(drawn)], percent=shares)
    parts = [
        _line(axis, n, row, formatting.difference(row.estimate), open_at_zero=True)
        for n, row in enumerate(rows)
    ]
    said = description or _said(rows, formatting.difference)
    return _chart(title, said, _bands(len(rows)), axis, parts, unit=unit, signed=True)


def histogram(
    values: Sequence[float], *, title: str, description: str = "", bins: int = 20
) -> Html:
    """How many values fall into each part of their range."""
    axis = Axis.over(values, percent=False)
    counts = Counter(
        min(bins - 1, int((value - axis.low) / (axis.high - axis.low) * bins)) for value in values
    )
    height, tallest = 110.0, max(counts.values(), default=1)
    width = (WIDTH - 2 * MARGIN) / bins
    parts: list[Html] = []
    for at, count in sorted(counts.items()):
        tall, left = count / tallest * (height - 18), MARGIN + at * width
        top = height - tall
        parts.append(element("rect", class_="block", x=left, y=top, width=width, height=tall))
        parts.append(text(left + width / 2, top - 4, str(count), "quiet", "middle"))
    said = description or f"{formatting.count(len(values), 'value')}, {axis.low} to {axis.high}."
    return _chart(title, said, [(16, height)], axis, parts)


def strip(
    groups: Sequence[tuple[str, Sequence[float]]], *, title: str, description: str = ""
) -> Html:
    """Every single value as a dot, one line per group, with a tick at the mean."""
    axis = Axis.over([value for _, values in groups for value in values], percent=False)
    parts: list[Html] = []
    for n, (label, values) in enumerate(groups):
        top = n * LINE
        parts.append(text(MARGIN, top + 14, _short(label, 40), title=label))
        mean = sum(values) / len(values) if values else None
        said = "–" if mean is None else f"mean {formatting.number(mean)}, n = {len(values)}"
        parts.append(text(WIDTH - MARGIN, top + 14, said, "quiet", "end"))
        stacked: Counter[int] = Counter()
        for value in values:
            x = axis.x(value)
            level = stacked[round(x / 6)]
            stacked[round(x / 6)] += 1
            y = top + 31 + (0, -4, 4, -8, 8, -2, 2, -6, 6)[level % 9]
            parts.append(element("circle", class_="one", cx=x, cy=y, r=3.2))
        if mean is not None:
            parts.append(rule("mean", axis.x(mean), top + 21, axis.x(mean), top + 39))
    said = description or "; ".join(f"{label}: {len(values)} values" for label, values in groups)
    return _chart(title, said, _bands(len(groups)), axis, parts)


def share_bar(
    rows: Sequence[tuple[str, Mapping[str, int]]], *, title: str, description: str = ""
) -> Html:
    """How each row divides into categories. The counts are written out below each bar."""
    names = list(dict.fromkeys(name for _, counts in rows for name in counts))
    parts: list[Html] = []
    said: list[str] = []
    height = 62.0
    for n, (label, counts) in enumerate(rows):
        total, top = sum(counts.values()), n * height
        given = [(name, counts[name]) for name in names if counts.get(name)]
        words = " · ".join(f"{name} {count}" for name, count in given) or "none"
        said.append(f"{label}: {words}")
        parts.append(text(MARGIN, top + 14, _short(label, 40), title=label))
        parts.append(text(WIDTH - MARGIN, top + 14, f"n = {total}", "quiet", "end"))
        left = MARGIN
        for name, count in given:
            width = count / total * (WIDTH - 2 * MARGIN)
            shade = names.index(name) % SHADES
            bar = {"x": left, "y": top + 21, "width": width, "height": 18}
            parts.append(
                element(
                    "rect", element("title", f"{name}: {count}"), class_=f"block s{shade}", **bar
                )
            )
            inside = f"{name} {formatting.percent(count / total)}"
            if len(inside) * CHARACTER < width - 8:
                parts.append(text(left + 6, top + 34.5, inside, f"on{shade}"))
            left += width
        parts.append(text(MARGIN, top + 53, _short(words, 64), "quiet", title=words))
    return frame(title, description or "; ".join(said), len(rows) * height + 4, parts)


def _line(axis: Axis, n: int, row: Row, note: str, *, open_at_zero: bool = False) -> Html:
    top, one = n * LINE, row.estimate
    note = row.note or note
    room = int((WIDTH - 2 * MARGIN) / CHARACTER) - len(note) - 2
    words = [text(MARGIN, top + 14, _short(row.label, room), title=row.label)]
    words.append(text(WIDTH - MARGIN, top + 14, note, "quiet", "end"))
    if one is None:
        return join(*words)
    y, x, span = top + 30, axis.x(one.value), []
    if one.low is not None and one.high is not None:
        low, high = axis.x(one.low), axis.x(one.high)
        span = [rule("span", low, y, high, y)]
        span += [rule("span", end, y - 4, end, y + 4) for end in (low, high)]
    look = "open" if open_at_zero and not one.apart_from_zero else "dot"
    if row.marked:
        side = 2 * DOT
        mark = element("rect", class_=look, x=x - DOT, y=y - DOT, width=side, height=side)
    else:
        mark = element("circle", class_=look, cx=x, cy=y, r=DOT)
    return join(*words, *span, mark)


def _chart(
    title: str,
    description: str,
    bands: Sequence[tuple[float, float]],
    axis: Axis,
    parts: Sequence[Html],
    *,
    unit: str = "",
    signed: bool = False,
) -> Html:
    """A drawing over an axis. The grid is drawn in the bands only, so that it crosses no label."""
    grid: list[Html] = []
    height = bands[-1][1] if bands else 0.0
    for value in axis.ticks:
        x = axis.x(value)
        look = "zero" if signed and value == 0 else "grid"
        grid += [rule(look, x, top, x, bottom) for top, bottom in bands]
        anchor = "start" if value == axis.low else "end" if value == axis.high else "middle"
        at = x if anchor == "middle" else x - 6 if anchor == "start" else x + 6
        grid.append(text(at, height + 16, axis.tick(value, signed=signed), "quiet", anchor))
    if unit:
        grid.append(text(WIDTH / 2, height + 32, unit, "quiet", "middle"))
    return frame(title, description, height + (38 if unit else 22), [*grid, *parts])


def _bands(rows: int) -> list[tuple[float, float]]:
    return [(n * LINE + 20, n * LINE + 41) for n in range(rows)]


def frame(title: str, description: str, height: float, parts: Sequence[Html]) -> Html:
    """The drawing around its parts, with what screen readers say of it."""
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        *parts,
        class_="chart",
        role="img",
        aria_label=f"{title}. {description}",
        viewBox=f"0 0 {WIDTH:.0f} {height:.0f}",
        xmlns="http://www.w3.org/2000/svg",
    )


def rule(look: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("line", class_=look, x1=x1, y1=y1, x2=x2, y2=y2)


def text(
    x: float, y: float, text: str, look: str = "", anchor: str | None = None, title: str = ""
) -> Html:
    whole = element("title", title) if title and title != text else None
    return element("text", whole, text, class_=look or None, x=x, y=y, text_anchor=anchor)


def _short(text: str, most: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= max(most, 4) else f"{text[: max(most, 4) - 1].rstrip()}…"


def _said(rows: Sequence[Row], how: Callable[[Estimate | None], str]) -> str:
    return "; ".join(f"{row.label}: {row.note or how(row.estimate)}" for row in rows)


def _ends(drawn: Iterable[Estimate]) -> list[float]:
    return [end for one in drawn for end in (one.low, one.value, one.high) if end is not None]


def _range(values: Iterable[float]) -> tuple[float, float]:
    given = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = min(given), max(given)
    if low == high:
        reach = abs(low) / 2 or 0.5
        return low - reach, high + reach
    return low, high


def _round_step(least: float) -> float:
    """The smallest of 1, 2, 2.5 or 5 times a power of ten that is at least that large."""
    power = 10.0 ** math.floor(math.log10(least))
    steps = (power * factor for factor in (1, 2, 2.5, 5, 10))
    return next(step for step in steps if step >= least * (1 - 1e-9))
