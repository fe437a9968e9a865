"""The shapes that timelines are drawn with."""

from __future__ import annotations

from perdure.views.markup import Html, element, join
from perdure.views.timeline_marks import Look


def line(look: str, x1: float, y1: float, x2: float, y2: float) -> Html:
    return element("line", class_=look, x1=x1, y1=y1, x2=x2, y2=y2)


def text(
    x: float,
    y: float,
    words: str,
    look: str | None = None,
    anchor: str | None = None,
    title: str = "",
) -> Html:
    whole = element("title", title) if title and title != words else None
    return element("text", whole, words, class_=look, x=x, y=y, text_anchor=anchor)


def sign(x: float, y: float, look: Look) -> Html:
    """The outcome of an effect: a tick, a cross, a bolt, a question mark, dots."""
    paths = {
        Look.GOOD: f"M{x - 3:.1f} {y:.1f}l2 2.5l4 -5",
        Look.BAD: f"M{x - 2.5:.1f} {y - 2.5:.1f}l5 5m0 -5l-5 5",
        Look.CUT_OFF: f"M{x + 1:.1f} {y - 4:.1f}l-3 4h4l-3 4",
        Look.UNKNOWN: f"M{x - 2:.1f} {y - 2:.1f}c0 -3 4.5 -3 4.5 0c0 1.5 -2.2 1.5 -2.2 3m0 1.8v.6",
    }
    path = paths.get(look, f"M{x - 3:.1f} {y:.1f}h1m2 0h1m2 0h1")
    return element("path", class_=f"sign {look}", d=path)


def crack(x: float, y: float) -> Html:
    """The end of a segment whose worker was lost."""
    return element("path", class_="break", d=f"M{x:.1f} {y - 4:.1f}l-4 8l7 5l-7 5l7 5l-4 8")


def axis_break(x: float, y: float) -> Html:
    """Two strokes where the axis is broken."""
    under = element("rect", class_="under", x=x - 5, y=y - 3, width=10, height=6)
    return join(under, element("path", class_="gap", d=f"M{x - 5:.1f} {y + 4:.1f}l4 -8m2 8l4 -8"))


def hatching(id: str) -> Html:
    """The pattern of what was saved."""
    return element(
        "pattern",
        element("rect", class_="under", width=5, height=5),
        element("line", class_="hatch", x1=0, y1=0, x2=0, y2=5),
        id=f"{id}-hatch",
        width=5,
        height=5,
        patternUnits="userSpaceOnUse",
        patternTransform="rotate(45)",
    )
