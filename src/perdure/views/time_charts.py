"""Charts over time as SVG: a curve of samples, and bars by day. Drawn as `charts.py` draws.

Time runs from left to right in the reader's zone; the dates of the first and the last sample are
written below. Every bar, and the last sample of a curve, has its figure in a `<title>`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date, datetime

from perdure.views import formatting
from perdure.views.charts import MARGIN, WIDTH, Axis, frame, rule, text
from perdure.views.markup import Html, element

HEIGHT = 132.0
"""Height of the drawing, without the dates below."""
TOP = 22.0
"""Room above the highest value, for its label."""
Words = Callable[[float], str]


def curve(
    samples: Sequence[tuple[datetime, float]], *, title: str, words: Words = formatting.number
) -> Html:
    """Samples of one figure, joined by a line. The axis begins at zero."""
    if not samples:
        return frame(title, "No samples yet.", 40, [text(MARGIN, 24, "No samples yet.", "quiet")])
    first, last = samples[0][0], samples[-1][0]
    span = (last - first).total_seconds() or 1.0
    axis = Axis.over([0.0, *(value for _, value in samples)], percent=False)
    points = [
        (_x((at - first).total_seconds() / span if last > first else 1.0), _y(axis, value))
        for at, value in samples
    ]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    base = f"{points[-1][0]:.1f},{HEIGHT:.1f} {points[0][0]:.1f},{HEIGHT:.1f}"
    x, y = points[-1]
    now = words(samples[-1][1])
    parts = [
        *_grid(axis, words),
        element("polygon", class_="area", points=f"{drawn} {base}"),
        element("polyline", class_="curve", points=drawn),
        element("circle", element("title", now), class_="dot", cx=x, cy=y, r=3.5),
        *_dates(_day(first), _day(last)),
    ]
    said = f"From {words(samples[0][1])} on {_day(first)} to {now} on {_day(last)}."
    return frame(title, said, HEIGHT + 22, parts)


def bars(
    days: Sequence[tuple[date, float]], *, title: str, words: Words = formatting.number
) -> Html:
    """One bar for each day. Days without a value keep their place."""
    axis = Axis.over(
        [0.0, *(value for _, value in days)] if any(v for _, v in days) else [0, 1], percent=False
    )
    width = (WIDTH - 2 * MARGIN) / max(1, len(days))
    parts = [*_grid(axis, words)]
    for n, (day, value) in enumerate(days):
        if value:
            top = _y(axis, value)
            note = element("title", f"{_day(day)}: {words(value)}")
            place = {"x": MARGIN + n * width, "y": top, "width": width, "height": HEIGHT - top}
            parts.append(element("rect", note, class_="block", **place))
    if days:
        parts += _dates(_day(days[0][0]), _day(days[-1][0]))
    given = [(day, value) for day, value in days if value]
    said = "; ".join(f"{_day(day)}: {words(value)}" for day, value in given) or "Nothing."
    return frame(title, said, HEIGHT + 22, parts)


def _grid(axis: Axis, words: Words) -> list[Html]:
    """Lines at round values, each with its label above it."""
    parts: list[Html] = []
    for value in axis.ticks:
        y = _y(axis, value)
        parts.append(rule("zero" if value == 0 else "grid", MARGIN, y, WIDTH - MARGIN, y))
        if value:
            parts.append(text(MARGIN, y - 4, words(value), "quiet"))
    return parts


def _dates(first: str, last: str) -> list[Html]:
    ends = [text(WIDTH - MARGIN, HEIGHT + 16, last, "quiet", "end")]
    return ends if first == last else [text(MARGIN, HEIGHT + 16, first, "quiet"), *ends]


def _day(at: date) -> str:
    return f"{at.day} {at:%b}"


def _x(part: float) -> float:
    return MARGIN + part * (WIDTH - 2 * MARGIN)


def _y(axis: Axis, value: float) -> float:
    return HEIGHT - (value - axis.low) / (axis.high - axis.low) * (HEIGHT - TOP)
