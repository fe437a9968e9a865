"""The next times of a schedule, in its own time zone and in the reader's.

A cron line follows the wall clock of its zone, so 09:00 there is not the same time here all year.
Each time is shown in both zones, and clock changes in either are pointed out.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from perdure.commands import schedules
from perdure.commands.schedules import ScheduleRow
from perdure.errors import BadArgument
from perdure.times import milliseconds, moment
from perdure.views.formatting import duration

TIMES = 10
"""Number of times shown."""


@dataclass(frozen=True)
class Upcoming:
    """One time at which a schedule starts a run."""

    theirs: datetime
    """In the zone of the schedule."""
    yours: datetime
    """The same time in the zone of the reader."""
    change: str = ""
    """Clock changes between the previous time and this one."""

    @property
    def same_day(self) -> bool:
        """Whether it is the same date in both zones."""
        return self.theirs.date() == self.yours.date()


def upcoming(
    row: ScheduleRow, now: datetime, zone: ZoneInfo, count: int = TIMES
) -> tuple[Upcoming, ...]:
    """The next times of a schedule, as if it were enabled. Empty if it has ended, or if its cron
    line or zone is invalid."""
    try:
        found = list(islice(schedules.slots(row.cron, row.timezone, milliseconds(now)), count))
    except BadArgument:
        return ()
    theirs = ZoneInfo(row.timezone)
    times = [moment(slot) for slot in found if row.end_at is None or slot <= row.end_at]
    both = [(at.astimezone(theirs), at.astimezone(zone)) for at in times]
    before = [(now.astimezone(theirs), now.astimezone(zone)), *both]
    return tuple(
        Upcoming(there, here, _change(earlier, (there, here)))
        for earlier, (there, here) in zip(before, both, strict=False)
    )


def cron_words(cron: str) -> str:
    """A cron line in words: At 09:00 on Monday through Friday. Empty if it cannot be worded."""
    try:
        return str(CronSim(cron, datetime(2000, 1, 1)).explain())  # noqa: DTZ001 — any time will do
    except (CronSimError, ValueError):
        return ""


def _change(before: tuple[datetime, datetime], after: tuple[datetime, datetime]) -> str:
    """The clock changes of both zones between two times."""
    moves: dict[str, str] = {}
    for old, new in zip(before, after, strict=True):
        by = (new.utcoffset() or timedelta(0)) - (old.utcoffset() or timedelta(0))
        if by:
            way = "forward" if by > timedelta(0) else "back"
            moves[str(new.tzinfo)] = f"clocks in {new.tzinfo} go {way} {duration(abs(by))}"
    return "; ".join(moves.values())
