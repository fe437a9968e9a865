"""How a run spent its time: the share of each kind of period, to scale."""

from __future__ import annotations

from datetime import timedelta

from perdure.views.formatting import duration
from perdure.views.markup import Html, element
from perdure.views.run_life import Timeline
from perdure.views.timeline import PeriodKind
from perdure.views.timeline_drawing import RESTS

WIDTH, HEIGHT = 1000.0, 10.0
THINNEST = 3.0


def time_spent(life: Timeline) -> Html | None:
    """A bar of shares with its figures; None if no time has passed."""
    sums = life.totals
    whole = sum(sums.values(), timedelta(0))
    if not whole:
        return None
    shares = {kind: lasted / whole for kind, lasted in sums.items()}
    wide = {kind: max(THINNEST, share * WIDTH) for kind, share in shares.items()}
    scale, x = WIDTH / sum(wide.values()), 0.0
    bars, lines = [], []
    for kind, share in shares.items():
        width = wide[kind] * scale
        look = "spent driven" if kind is PeriodKind.DRIVEN else f"spent {RESTS.get(kind, '')}"
        box = {"x": x, "y": 0, "width": max(1.0, width - 1), "height": HEIGHT}
        bars.append(
            element("rect", element("title", _said(kind, sums[kind], share)), class_=look, **box)
        )
        lines.append(element("li", _said(kind, sums[kind], share)))
        x += width
    bar = element(
        "svg",
        *bars,
        viewBox=f"0 0 {WIDTH:.0f} {HEIGHT:.0f}",
        preserveAspectRatio="none",
        aria_hidden="true",
        xmlns="http://www.w3.org/2000/svg",
    )
    return element(
        "figure",
        element("figcaption", f"Where its {duration(whole)} went"),
        bar,
        element("ul", *lines),
        class_="time-spent",
    )


def _said(kind: PeriodKind, lasted: timedelta, share: float) -> str:
    percent = f"{share:.0%}" if share >= 0.01 else "<1%"
    return f"{duration(lasted)} {kind.value} ({percent})"
