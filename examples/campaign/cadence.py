"""When the next mail may go out: days between touches, and the contact's sending hours.

Everything here is arithmetic: nothing reads a clock. Days are days of the contact's calendar, and
`due` is always inside the window by the contact's own clock, even on days when the clocks change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MIDNIGHT = time.max
"""The end of a day, written 24:00."""


@dataclass(frozen=True)
class Window:
    """From `opens` until just before `closes`, on `days` (0 is Monday), local to the contact."""

    opens: time = time(9)
    closes: time = time(17)
    days: frozenset[int] = frozenset(range(5))

    def __post_init__(self) -> None:
        if self.opens >= self.closes or not self.days:
            raise ValueError("A send window opens before it closes, on at least one weekday.")

    def is_open(self, local: datetime) -> bool:
        return local.weekday() in self.days and self.opens <= local.time() < self.closes


@dataclass(frozen=True)
class Cadence:
    """`gaps` are the days before each touch, counted from the one before it."""

    gaps: tuple[int, ...] = (0, 4, 7, 7, 7, 7)
    window: Window = Window()

    def __post_init__(self) -> None:
        if not self.gaps or min(self.gaps) < 0 or max(self.gaps) > 3650:
            raise ValueError("A cadence has the days before each touch: 0 to 3650.")

    @staticmethod
    def of(row: Mapping[str, Any]) -> Cadence:
        """The cadence in a row of `campaigns`."""
        days = frozenset(json.loads(row["days"]))
        window = Window(_time(row["opens"]), _time(row["closes"]), days)
        return Cadence(tuple(json.loads(row["gaps"])), window)

    @staticmethod
    def parse(gaps: str, window: str, days: str) -> Cadence:
        """The cadence in words, such as `0,4,7`, `09:00-17:00` and `mon-fri`."""
        opens, _, closes = window.partition("-")
        try:
            parsed = tuple(int(gap) for gap in gaps.split(","))
        except ValueError:
            raise ValueError(f"{gaps!r} is not a list of days such as 0,4,7.") from None
        return Cadence(parsed, Window(_time(opens), _time(closes), _days(days)))

    def columns(self) -> dict[str, str]:
        """What `of` reads."""
        return {
            "gaps": json.dumps(self.gaps),
            "days": json.dumps(sorted(self.window.days)),
            "opens": _clock(self.window.opens),
            "closes": _clock(self.window.closes),
        }


def due(cadence: Cadence, step: int, last: datetime, zone: str) -> datetime:
    """The earliest moment, in UTC, at which touch `step` (the first is 1) may go out.

    `last` is when the touch before it went out, or when the thread began. The gap is added to the
    local date of `last`, at the same time of day; the result is the next moment from there at which
    the window is open, and never before `last`.
    """
    there = ZoneInfo(zone)
    wall = last.astimezone(there).replace(tzinfo=None)
    wished = (wall + timedelta(days=cadence.gaps[step - 1])).replace(tzinfo=there)
    return next_open(cadence.window, max(wished.astimezone(UTC), last.astimezone(UTC)), there)


def next_open(window: Window, moment: datetime, zone: ZoneInfo) -> datetime:
    """The first moment from this one on at which the window is open."""
    local = moment.astimezone(zone)
    if window.is_open(local):
        return moment
    day = local.date()
    while True:
        opening = datetime.combine(day, window.opens, zone).astimezone(UTC)
        if opening >= moment and window.is_open(opening.astimezone(zone)):
            return opening
        day += timedelta(days=1)


def _clock(at: time) -> str:
    return "24:00" if at == MIDNIGHT else f"{at:%H:%M}"


def _time(text: str) -> time:
    if text.strip() == "24:00":
        return MIDNIGHT
    try:
        return time.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(f"{text!r} is not a time of day such as 09:00.") from None


def _days(text: str) -> frozenset[int]:
    """Weekdays, from `mon-fri` or `mon,wed,fri`. A range may go over the end of the week."""
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = (name.strip() for name in part.partition("-"))
        if not {first, last if dash else first} <= set(WEEKDAYS):
            raise ValueError(f"{text!r} is not a list of days such as mon-fri or mon,wed,fri.")
        start = WEEKDAYS.index(first)
        length = (WEEKDAYS.index(last) - start) % 7 if dash else 0
        days.update((start + n) % 7 for n in range(length + 1))
    return frozenset(days)
