"""The cadence of the campaign: days between touches, send windows, and clocks that are changed."""

from __future__ import annotations

import functools
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.campaign.cadence import MIDNIGHT, Cadence, Window, due

MINUTE = timedelta(minutes=1)
DAY = timedelta(days=1)
ALWAYS = frozenset(range(7))
ANY_TIME = Window(time(0), MIDNIGHT, ALWAYS)
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/Dublin",  # winter time is its "summer time"
    "America/New_York",
    "America/St_Johns",  # changed at 00:01, into the day before
    "America/Sao_Paulo",  # changed at midnight
    "America/Santiago",
    "Africa/Casablanca",  # back in Ramadan
    "Africa/Cairo",
    "Asia/Kathmandu",
    "Asia/Gaza",
    "Australia/Sydney",
    "Australia/Lord_Howe",  # by half an hour
    "Pacific/Apia",  # had no 30 December 2011
    "Pacific/Kwajalein",  # had no 21 August 1993
    "Pacific/Chatham",
    "Antarctica/Troll",  # by two hours
]


def after(gap: int, last: datetime, zone: str, window: Window = ANY_TIME) -> str:
    """When a touch that is `gap` days after `last` is due, by the contact's clock."""
    cadence = Cadence((gap,), window)
    return due(cadence, 1, last, zone).astimezone(ZoneInfo(zone)).isoformat(" ", "minutes")


def at(text: str, zone: str = "UTC", fold: int = 0) -> datetime:
    """A local time as a moment in UTC."""
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold)
    return local.astimezone(UTC)


def opening(opens: str, closes: str, days: str = "mon-sun") -> Window:
    return Cadence.parse("0", f"{opens}-{closes}", days).window


# -- days and windows


def test_a_touch_in_the_window_is_due_at_the_same_time_of_day_its_gap_later() -> None:
    last = at("2026-03-02 10:30", "Asia/Kathmandu")
    assert due(Cadence(), 2, last, "Asia/Kathmandu") == at("2026-03-06 10:30", "Asia/Kathmandu")
    assert due(Cadence(), 3, last, "Asia/Kathmandu") == at("2026-03-09 10:30", "Asia/Kathmandu")


def test_the_first_touch_goes_out_at_once_when_the_window_is_open() -> None:
    last = at("2026-03-02 10:30:05.123457")
    assert due(Cadence(), 1, last, "UTC") == last


@pytest.mark.parametrize(
    ("last", "found"),
    [
        ("2026-03-02 08:59", "2026-03-02 09:00"),  # a Monday, before it opens
        ("2026-03-02 09:00", "2026-03-02 09:00"),
        ("2026-03-02 16:59", "2026-03-02 16:59"),
        ("2026-03-02 17:00", "2026-03-03 09:00"),  # closed is closed
        ("2026-03-06 17:00", "2026-03-09 09:00"),  # Friday evening
        ("2026-03-07 10:00", "2026-03-09 09:00"),  # Saturday
    ],
)
def test_a_touch_outside_the_window_waits_for_its_next_opening(last: str, found: str) -> None:
    assert due(Cadence(), 1, at(last), "UTC") == at(found)


def test_the_window_is_in_the_time_zone_of_the_contact() -> None:
    last = at("2026-03-02 10:00")  # 05:00 in New York, 21:00 in Sydney
    assert due(Cadence(), 1, last, "America/New_York") == at("2026-03-02 14:00")
    assert due(Cadence(), 1, last, "Australia/Sydney") == at("2026-03-02 22:00")


def test_the_gap_is_added_to_the_date_of_the_contact() -> None:
    last = at("2026-03-02 23:30")  # already Tuesday in Tokyo
    assert after(4, last, "Asia/Tokyo") == "2026-03-07 08:30+09:00"
    assert after(4, last, "America/Los_Angeles") == "2026-03-06 15:30-08:00"


def test_the_answer_is_in_utc() -> None:
    berlin = datetime(2026, 3, 2, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    found = due(Cadence(), 1, berlin, "Europe/Berlin")
    assert found == berlin
    assert found.tzinfo is UTC


def test_a_window_may_reach_from_midnight_to_midnight() -> None:
    assert after(1, at("2026-03-02 23:59"), "UTC") == "2026-03-03 23:59+00:00"
    late = opening("23:00", "24:00")
    assert after(0, at("2026-03-02 23:59:59"), "UTC", late) == "2026-03-02 23:59+00:00"
    assert after(0, at("2026-03-03 00:00"), "UTC", late) == "2026-03-03 23:00+00:00"


def test_an_unknown_zone_is_refused() -> None:
    with pytest.raises(ZoneInfoNotFoundError):
        due(Cadence(), 1, at("2026-03-02 10:00"), "Europe/Nowhere")


# -- clocks that are changed


@pytest.mark.parametrize(
    ("zone", "last", "found"),
    [
        ("Europe/Berlin", "2026-03-25 10:00", "2026-03-29 10:00+02:00"),
        ("Europe/Berlin", "2026-10-21 10:00", "2026-10-25 10:00+01:00"),
        ("Australia/Sydney", "2026-10-01 10:00", "2026-10-05 10:00+11:00"),
        ("Australia/Sydney", "2026-04-02 10:00", "2026-04-06 10:00+10:00"),
    ],
)
def test_a_gap_over_a_change_keeps_the_time_of_day(zone: str, last: str, found: str) -> None:
    assert after(4, at(last, zone), zone) == found


@pytest.mark.parametrize(
    ("zone", "last", "found"),
    [
        ("Europe/Berlin", "2026-10-24 02:30", "2026-10-25 02:30+02:00"),
        ("America/New_York", "2026-10-31 01:30", "2026-11-01 01:30-04:00"),
        ("Australia/Lord_Howe", "2026-04-04 01:45", "2026-04-05 01:45+11:00"),
        ("America/Sao_Paulo", "2018-02-16 23:30", "2018-02-17 23:30-02:00"),
    ],
)
def test_a_repeated_time_is_the_first_of_the_two(zone: str, last: str, found: str) -> None:
    assert after(1, at(last, zone), zone) == found


def test_a_touch_is_never_due_before_the_previous_one() -> None:
    second = at("2026-10-25 02:30", "Europe/Berlin", fold=1)
    assert due(Cadence((0,), ANY_TIME), 1, second, "Europe/Berlin") == second


def test_a_window_that_is_skipped_as_a_whole_opens_the_next_day() -> None:
    night = opening("02:15", "02:45")
    last = at("2026-03-29 00:00", "Europe/Berlin")
    assert after(0, last, "Europe/Berlin", night) == "2026-03-30 02:15+02:00"


def test_a_window_on_a_skipped_day_opens_a_week_later() -> None:
    fridays = opening("09:00", "17:00", "fri")  # 30 December 2011 would have been one
    last = at("2011-12-29 18:00", "Pacific/Apia")
    assert after(0, last, "Pacific/Apia", fridays) == "2012-01-06 09:00+14:00"


def test_working_hours_leave_out_a_skipped_day() -> None:
    last = at("2011-12-29 10:00", "Pacific/Apia")
    assert after(1, last, "Pacific/Apia", Window()) == "2012-01-02 09:00+14:00"


# -- any zone, any window


@functools.cache
def changes(zone: str) -> tuple[datetime, ...]:
    """The days in which the clocks of a zone are changed."""
    there = ZoneInfo(zone)
    start = datetime(1980, 1, 1, tzinfo=UTC)
    days = [start + n * DAY for n in range(50 * 365)]
    offsets = [day.astimezone(there).utcoffset() for day in days]
    return tuple(
        day
        for day, before, behind in zip(days, offsets, offsets[1:], strict=False)
        if before != behind
    )


@st.composite
def windows(draw: st.DrawFn) -> Window:
    opens, closes = draw(
        st.tuples(st.integers(0, 1439), st.integers(1, 1440)).filter(
            lambda edges: edges[0] < edges[1]
        )
    )
    days = draw(st.frozensets(st.integers(0, 6), min_size=1))
    return Window(of_day(opens), of_day(closes), days)


def of_day(minute: int) -> time:
    return MIDNIGHT if minute == 1440 else time(*divmod(minute, 60))


@st.composite
def moments(draw: st.DrawFn, zone: str, gap: int) -> datetime:
    """Any minute, but most often one whose touch falls near a change of the clocks."""
    minutes = draw(st.integers(-2000, 3000)) * MINUTE
    if not changes(zone) or draw(st.integers(0, 9)) == 0:
        return datetime(2026, 1, 1, tzinfo=UTC) + draw(st.integers(0, 364)) * DAY + minutes
    return draw(st.sampled_from(changes(zone))) - gap * DAY + minutes


@settings(max_examples=500, deadline=None)
@given(
    zone=st.sampled_from(ZONES),
    gap=st.integers(0, 400),
    window=windows(),
    fraction=st.integers(0, 59_999_999),
    data=st.data(),
)
def test_it_is_in_the_window_and_not_before_the_previous_touch(
    zone: str, gap: int, window: Window, fraction: int, data: st.DataObject
) -> None:
    last = data.draw(moments(zone, gap)) + timedelta(microseconds=fraction)
    found = due(Cadence((gap,), window), 1, last, zone)
    assert found >= last
    assert window.is_open(found.astimezone(ZoneInfo(zone)))
    assert found - last < (gap + 16) * DAY
    assert due(Cadence((0,), window), 1, found, zone) == found


# -- what is stored, and what is typed


@given(gaps=st.lists(st.integers(0, 3650), min_size=1), window=windows())
def test_a_stored_cadence_reads_back_equal(gaps: list[int], window: Window) -> None:
    cadence = Cadence(tuple(gaps), window)
    assert Cadence.of(cadence.columns()) == cadence


def test_a_cadence_is_read_from_the_command_line() -> None:
    found = Cadence.parse("0,4, 7", " 08:30 - 24:00 ", "sat-mon,wed")
    assert found.gaps == (0, 4, 7)
    assert found.window == Window(time(8, 30), MIDNIGHT, frozenset({5, 6, 0, 2}))


@pytest.mark.parametrize(
    ("gaps", "window", "days", "match"),
    [
        ("0,four", "09:00-17:00", "mon-fri", "list of days such as 0,4,7"),
        ("0,-4", "09:00-17:00", "mon-fri", "0 to 3650"),
        ("0", "09:00", "mon-fri", "such as 09:00"),
        ("0", "17:00-09:00", "mon-fri", "opens before it closes"),
        ("0", "09:00-17:00", "mon-", "such as mon-fri"),
        ("0", "09:00-17:00", "monday", "such as mon-fri"),
    ],
)
def test_a_cadence_that_makes_no_sense_is_refused(
    gaps: str, window: str, days: str, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        Cadence.parse(gaps, window, days)
