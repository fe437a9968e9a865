"""The next times of a schedule, on its own clock and on the reader's."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from perdure.commands.schedules import ScheduleRow
from perdure.times import milliseconds
from perdure.views.formatting import Upcoming, upcoming

ROME, NEW_YORK = ZoneInfo("Europe/Rome"), ZoneInfo("America/New_York")


def schedule(cron: str, zone: str = "Europe/Rome", end_at: datetime | None = None) -> ScheduleRow:
    end = None if end_at is None else milliseconds(end_at)
    return ScheduleRow("daily", "digest", cron, zone, None, 0, b"", end_at=end)


def shown(times: tuple[Upcoming, ...]) -> list[str]:
    return [f"{one.theirs:%d %H:%M} = {one.yours:%d %H:%M}  {one.change}" for one in times]


def test_each_time_is_on_both_clocks_and_a_change_of_one_is_named() -> None:
    friday = datetime(2026, 10, 23, 12, tzinfo=UTC)  # Rome's clocks go back on Sunday
    assert shown(upcoming(schedule("0 9 * * *"), friday, NEW_YORK, 3)) == [
        "24 09:00 = 24 03:00  ",
        "25 09:00 = 25 04:00  clocks in Europe/Rome go back 1h",
        "26 09:00 = 26 04:00  ",
    ]


def test_the_change_of_the_readers_clock_is_named_too() -> None:
    saturday = datetime(2026, 10, 31, 12, tzinfo=UTC)  # New York's clocks go back on Sunday
    assert shown(upcoming(schedule("0 9 * * *"), saturday, NEW_YORK, 1)) == [
        "01 09:00 = 01 03:00  clocks in America/New_York go back 1h",
    ]


def test_a_change_of_a_clock_that_both_read_is_named_once() -> None:
    friday = datetime(2026, 3, 28, 12, tzinfo=UTC)
    [one] = upcoming(schedule("30 2 * * *"), friday, ROME, 1)
    assert one.theirs == one.yours
    assert f"{one.theirs:%H:%M}" == "03:00"  # there is no 02:30 that night
    assert one.change == "clocks in Europe/Rome go forward 1h"


def test_no_time_is_after_the_end_of_a_schedule() -> None:
    end = datetime(2026, 6, 2, 12, tzinfo=UTC)
    assert (
        len(upcoming(schedule("0 9 * * *", end_at=end), datetime(2026, 6, 1, tzinfo=UTC), ROME))
        == 2
    )


@pytest.mark.parametrize(("cron", "zone"), [("every day", "UTC"), ("0 9 * * *", "Mars/Olympus")])
def test_a_line_that_cannot_be_read_has_no_times(cron: str, zone: str) -> None:
    assert upcoming(schedule(cron, zone), datetime(2026, 6, 1, tzinfo=UTC), ROME) == ()
