"""When the next mail may go out: days between touches, and the contact's sending hours.

Everything here is arithmetic: nothing reads a clock, so the same question always has the same
answer. Days are days of the contact's calendar, not multiples of 24 hours, and `due` is always
inside the send window by the contact's own clock, even on days when the clocks change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
LONGEST = 3650
"""Maximum gap, in days: a typo fails at once instead of leaving a thread asleep."""

MIDNIGHT = time.max
"""The end of a day, written 24:00."""


@dataclass(frozen=True)
class Window:
    """From `opens` until just before `closes`, on `days` (0 is Monday), local to the contact."""

    opens: time = time(9)
    closes: time = time(17)
    days: frozenset[int] = frozenset(range(5))

    def __post_init__(self) -> None:
        for edge in (self.opens, self.closes):
            if edge != MIDNIGHT and (edge.second or edge.microsecond):
                raise ValueError(f"A send window needs whole minutes, not {edge}.")
        if self.opens >= self.closes:
            raise ValueError(
                f"A send window opens before it closes, on the same day: {clock(self.opens)} is "
                f"not before {clock(self.closes)}."
            )
        if not self.days:
            raise ValueError("A send window is open on at least one day of the week.")
        if not self.days <= set(range(7)):
            raise ValueError(f"Days are 0 (Monday) to 6 (Sunday), not {sorted(self.days)}.")

    def is_open(self, local: datetime) -> bool:
        """At this local time?"""
        return local.weekday() in self.days and self.opens <= local.time() < self.closes


@dataclass(frozen=True)
class Cadence:
    """`gaps` are the days before each touch, counted from the one before it."""

    gaps: tuple[int, ...] = (0, 4, 7, 7, 7, 7)
    window: Window = Window()

    def __post_init__(self) -> None:
        if not self.gaps:
            raise ValueError("A cadence has at least one gap: the days before its first touch.")
        for gap in self.gaps:
            if not 0 <= gap <= LONGEST:
                raise ValueError(f"A gap is 0 to {LONGEST} days, not {gap}.")

    @staticmethod
    def of(row: Mapping[str, Any]) -> Cadence:
        """The cadence in a row of `campaigns`."""
        window = Window(
            _time(row["opens"]), _time(row["closes"]), frozenset(json.loads(row["days"]))
        )
        return Cadence(tuple(json.loads(row["gaps"])), window)

    def to_columns(self) -> dict[str, str]:
        """What `of` reads."""
        return {
            "gaps": json.dumps(self.gaps),
            "days": json.dumps(sorted(self.window.days)),
            "opens": clock(self.window.opens),
            "closes": clock(self.window.closes),
        }


def due(cadence: Cadence, step: int, last: datetime, zone: str) -> datetime:
    """The earliest moment, in UTC, at which touch `step` (the first is 1) may go out.

    `last` is when the touch before it went out, or when the contact was enrolled. The gap is added
    to the local date of `last`, at the same time of day; the result is the next moment from there
    at which the window is open, and never before `last`. A time of day that a clock change skips is
    the moment of the change; of a repeated one, the first counts.
    """
    if not 1 <= step <= len(cadence.gaps):
        raise ValueError(f"There is no touch {step}: the cadence has 1 to {len(cadence.gaps)}.")
    if last.tzinfo is None:
        raise ValueError(f"{last} has no time zone; pass a time in UTC.")
    there = ZoneInfo(zone)
    wall = last.astimezone(there).replace(tzinfo=None, fold=0)
    wished = _moment(wall + timedelta(days=cadence.gaps[step - 1]), there)
    return next_open(cadence.window, max(wished, last.astimezone(UTC)), there)


def _moment(wall: datetime, zone: ZoneInfo) -> datetime:
    first, second = (wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))
    # For a skipped time, fold 0 uses the offset before the change, so it comes after `second`.
    return _change(zone, second, first) or first


def next_open(window: Window, moment: datetime, zone: ZoneInfo) -> datetime:
    """The first moment from this one on at which the window is open."""
    # Jumps to the next opening as if clocks never changed, or to a change before that.
    while not window.is_open(local := moment.astimezone(zone)):
        day = local.date() if local.time() < window.opens else local.date() + timedelta(days=1)
        while day.weekday() not in window.days:
            day += timedelta(days=1)
        ahead = datetime.combine(day, window.opens) - local.replace(tzinfo=None)
        moment = _change(zone, moment, moment + ahead) or moment + ahead
    return moment


def open_until(window: Window, moment: datetime, zone: ZoneInfo) -> datetime:
    """The moment at which a window that is open now closes: midnight at the latest."""
    today = moment.astimezone(zone).date()
    end = datetime.combine(today, window.closes)
    if window.closes == MIDNIGHT:
        end = datetime.combine(today + timedelta(days=1), time(0))
    while (local := moment.astimezone(zone)).date() == today and window.is_open(local):
        ahead = end - local.replace(tzinfo=None)
        moment = _change(zone, moment, moment + ahead) or moment + ahead
    return moment


def _change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """The first moment in (after, until] at which the clocks of a zone change.

    No zone has ever changed twice within an hour, and every change is at a whole second.
    """
    start = after.replace(microsecond=0)
    offset = start.astimezone(zone).utcoffset()
    while start < until:
        end = min(start + timedelta(hours=1), until)
        if end.astimezone(zone).utcoffset() != offset:
            low, high = 0, int((end - start).total_seconds())
            while low + 1 < high:
                middle = (low + high) // 2
                found = (start + timedelta(seconds=middle)).astimezone(zone).utcoffset()
                low, high = (middle, high) if found == offset else (low, middle)
            return start + timedelta(seconds=high)
        start = end
    return None


def clock(at: time) -> str:
    """A time of day as it is written and stored."""
    return "24:00" if at == MIDNIGHT else f"{at:%H:%M}"


def hours(window: Window) -> str:
    """What `parse_window` reads."""
    return f"{clock(window.opens)}-{clock(window.closes)}"


def weekdays(days: frozenset[int]) -> str:
    """What `parse_days` reads: `mon-fri`, or `mon,wed,fri`."""
    names = [WEEKDAYS[day] for day in sorted(days)]
    in_a_row = len(names) > 2 and max(days) - min(days) == len(names) - 1
    return f"{names[0]}-{names[-1]}" if in_a_row else ",".join(names)


def _time(text: str) -> time:
    if text.strip() == "24:00":
        return MIDNIGHT
    try:
        return datetime.strptime(text.strip(), "%H:%M").time()  # noqa: DTZ007 - a time of any zone
    except ValueError:
        raise ValueError(f"{text!r} is not a time of day such as 09:00.") from None


def parse_gaps(text: str) -> tuple[int, ...]:
    """The days before each touch, from `0,4,7`."""
    try:
        gaps = tuple(int(gap) for gap in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of days such as 0,4,7.") from None
    return Cadence(gaps).gaps


def parse_window(text: str) -> tuple[time, time]:
    """When a window opens and closes, from `09:00-17:00`."""
    opens, dash, closes = text.partition("-")
    if not dash:
        raise ValueError(f"{text!r} is not a window such as 09:00-17:00.")
    window = Window(_time(opens), _time(closes))
    return window.opens, window.closes


def parse_days(text: str) -> frozenset[int]:
    """Weekdays, from `mon-fri` or `mon,wed,fri`. A range may go over the end of the week."""
    days: set[int] = set()
    for part in text.lower().split(","):
        first, dash, last = (name.strip() for name in part.partition("-"))
        if not {first, last if dash else first} <= set(WEEKDAYS):
            raise ValueError(f"{text!r} is not a list of days such as mon-fri or mon,wed,fri.")
        start, length = WEEKDAYS.index(first), 0
        if dash:
            length = (WEEKDAYS.index(last) - start) % 7
        days.update((start + n) % 7 for n in range(length + 1))
    return frozenset(days)
