"""The timeline of a run as a value: its periods, the time spent in each, and the picture.

The command line and the page of a run draw from it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo

from perdure.times import utc_time
from perdure.types import EffectRecord, Event, Run
from perdure.views import timeline_picture
from perdure.views.event_wording import FormatTime
from perdure.views.markup import Html
from perdure.views.timeline import Period, PeriodKind, timeline, totals
from perdure.views.timeline_drawing import NO_LINKS, Links
from perdure.views.timeline_parts import (
    TimelineParts,
    Zoom,
    timeline_parts,
)
from perdure.views.waiting_for import is_lost


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

    def between(self, first: int, last: int) -> Timeline:
        """The part between two events.

        Args:
            first: Number of the first event.
            last: Number of the last event.
        """
        return replace(self, zoom=Zoom(first, last))

    def parts(self, format_time: FormatTime = utc_time) -> TimelineParts:
        """What its picture shows."""
        return timeline_parts(
            self.periods, self.now, zoom=self.zoom, effects=self.effects, format_time=format_time
        )

    def picture(
        self, *, links: Links = NO_LINKS, selected: int | None = None, zone: tzinfo = UTC
    ) -> Html:
        """The picture, with its legend and its text."""

        def format_time(at: datetime) -> str:
            return f"{at.astimezone(zone):%Y-%m-%d %H:%M:%S %Z}"

        digest = hashlib.blake2s(self.run.id.encode(), digest_size=6).hexdigest()
        return timeline_picture.timeline_picture(
            self.parts(utc_time if zone is UTC else format_time),
            title="Timeline of the run",
            links=links,
            selected=selected,
            zone=zone,
            id=f"timeline-{digest}",
        )
