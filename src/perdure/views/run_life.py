"""The timeline of a run as a value: its facts, periods, the time spent in each, and the picture.

The command line and the page of a run draw from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from perdure.times import utc_time
from perdure.types import EffectRecord, Event, EventKind, Run, State
from perdure.views import timeline_drawing
from perdure.views.event_wording import FormatTime
from perdure.views.formatting import age, count, duration
from perdure.views.markup import Html, element
from perdure.views.timeline import Period, PeriodKind, timeline, totals
from perdure.views.timeline_drawing import NO_LINKS, RESTS, Links
from perdure.views.timeline_parts import Zoom, timeline_parts
from perdure.views.waiting_for import is_lost

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


def crashes(events: Iterable[Event]) -> str:
    """How many workers the run lost. Empty if there were none."""
    lost = sum(one.kind == EventKind.RECOVERED for one in events)
    return str(lost) if lost else ""


def due(run: Run, now: datetime, format_time: FormatTime = utc_time) -> str:
    """When a run is due, or, if it is driven, when its lease ends. Empty if it is not due."""
    if run.due_at is None:
        return ""
    over = "ended" if run.state is State.RUNNING else "for"
    since = "" if run.due_at > now else f"{over} "
    ago = " ago" if since == "ended " else ""
    return f"{format_time(run.due_at)}, {since}{age(run.due_at, now)}{ago}"


def saved(run: Run) -> str:
    """What was not done again: `2 steps  3 effects  1 model call`. Empty if there is nothing."""
    return "  ".join(
        count(number, name.replace("_", " ").removesuffix("s"))
        for name, number in run.saved.items()
        if number
    )


@dataclass(frozen=True, repr=False)
class Timeline:
    """The timeline of a run: periods in which it was driven or rested."""

    run: Run
    """The run."""
    periods: tuple[Period, ...]
    """Its periods, in order."""
    now: datetime
    """The end of the run, or now."""
    zoom: Zoom | None = None
    """The events that its picture shows; None: all."""
    effects: tuple[EffectRecord, ...] = ()
    """Effects in progress."""

    @classmethod
    def of(
        cls,
        run: Run,
        events: Sequence[Event],
        today: datetime,
        effects: Sequence[EffectRecord] = (),
    ) -> Timeline:
        """The timeline of a run from its events. `effects` in progress are shown, too."""
        last = events[-1].at if events else run.updated_at
        now = last if run.ended else max(last, today)
        periods = timeline(events, now, lost=is_lost(run, today))
        return cls(run, tuple(periods), now, effects=tuple(effects))

    @property
    def totals(self) -> dict[PeriodKind, timedelta]:
        """The time spent in each kind of period, longest first."""
        return totals(self.periods, self.now)

    def picture(
        self, *, links: Links = NO_LINKS, selected: int | None = None, zone: tzinfo = UTC
    ) -> Html:
        """The picture, with its legend and its text."""

        def format_time(at: datetime) -> str:
            return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"

        parts = timeline_parts(
            self.periods,
            self.now,
            zoom=self.zoom,
            effects=self.effects,
            format_time=utc_time if zone is UTC else format_time,
        )
        digest = hashlib.blake2s(self.run.id.encode(), digest_size=6).hexdigest()
        return timeline_drawing.timeline_picture(
            parts,
            title="Timeline of the run",
            links=links,
            selected=selected,
            zone=zone,
            id=f"timeline-{digest}",
        )
