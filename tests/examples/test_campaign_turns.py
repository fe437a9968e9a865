"""Bookings: send windows, and the limits that campaigns share."""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.campaign import turns
from examples.campaign.cadence import MIDNIGHT, Window
from examples.campaign.database import Database, Row, Statement, sql
from examples.campaign.turns import DAY, Booking, Known, Limits, book, describe, fitting, release
from tests.support.polling import until

HOUR = 3_600_000
QUARTER = 900_000
ANY_TIME = Window(time(0), MIDNIGHT, frozenset(range(7)))
BO, ANA = "bo@example.org", "Ana Ruiz <Ana@example.com>"


def at(text: str, zone: str = "UTC") -> int:
    local = datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone))
    return round(local.timestamp() * 1000)


MONDAY = at("2030-01-07 09:00")


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    yield from _created(url)


@pytest.fixture
def sqlite(sqlite_url: str) -> Iterator[Database]:
    yield from _created(sqlite_url)


def _created(url: str) -> Iterator[Database]:
    made = Database(url, keep=True)
    made.create()
    yield made
    made.close()


def place(contact: int = 1, campaign: int = 1, step: int = 1) -> dict[str, int]:
    return {"campaign_id": campaign, "contact_id": contact, "step": step}


def turn(database: Database, contact: int = 1, campaign: int = 1, **changes: Any) -> Booking:
    """Of a touch without limits but its window. Each campaign is a sequence of its own."""
    asked: dict[str, Any] = {
        "person": f"p{contact}@example.org",
        "domain": "example.org",
        "sender": ANA,
        "sequence": f"sequence {campaign}",
        "per_day": 0,
        "apart": 0,
        "domain_pause": 0.0,
        "window": Window(),
        "zone": "UTC",
        "day_zone": "UTC",
        "now": MONDAY,
    }
    step = changes.pop("step", 1)
    return book(database, place(contact, campaign, step), **{**asked, **changes})


def bookings(database: Database) -> list[dict[str, Any]]:
    return database.rows("SELECT * FROM bookings ORDER BY campaign_id, contact_id, step")


def sent(database: Database, contact: int, campaign: int, when: int) -> None:
    database.write(
        sql(
            """INSERT INTO touches (campaign_id, contact_id, step, status, subject, body,
                 prompt_version, run_id, message_id, drafted_at, sent_at)
               VALUES (:campaign_id, :contact_id, :step, 'sent', '', '', '', '', '', 0,
                 :sent_at)""",
            **place(contact, campaign),
            sent_at=when,
        )
    )


# -- arithmetic, against a clock that is watched


def limits(**changes: Any) -> Limits:
    asked: dict[str, Any] = {
        "window": ANY_TIME,
        "zone": ZoneInfo("UTC"),
        "person": BO,
        "sequence": "spring",
        "apart": 0,
        "domain": "example.org",
        "pause": 0,
        "sender": "ana@example.com",
        "per_day": 0,
        "day_zone": ZoneInfo("UTC"),
    }
    return Limits(**{**asked, **changes})


def local(moment: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(moment // 1000, UTC).astimezone(zone)


def allowed(asked: Limits, known: Known, taken: set[int], moment: int) -> bool:
    near = any(
        first - asked.apart <= moment < last + asked.apart
        for first, last in known.others
        if asked.apart
    )
    full = asked.per_day and str(local(moment, asked.day_zone).date()) in known.full
    busy = asked.pause and moment // asked.pause in taken
    return asked.window.is_open(local(moment, asked.zone)) and not (near or full or busy)


def watched(asked: Limits, known: Known, taken: set[int], moment: int) -> Iterator[Booking]:
    """The turns, found by looking at each quarter of an hour."""
    while True:
        while not allowed(asked, known, taken, moment):
            moment += QUARTER
        begun = moment
        while allowed(asked, known, taken, moment) and _same(asked, begun, moment):
            moment += QUARTER
        yield Booking(begun, moment)


def _same(asked: Limits, one: int, other: int) -> bool:
    """Whether two moments are of the same slot and the same days."""

    def mark(moment: int) -> tuple[date, int, date | None]:
        day = local(moment, asked.day_zone).date() if asked.per_day else None
        return local(moment, asked.zone).date(), moment // (asked.pause or sys.maxsize), day

    return mark(one) == mark(other)


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
CHANGES = ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05", "2026-10-04"]


@st.composite
def situations(draw: st.DrawFn) -> tuple[Limits, Known, set[int], int]:
    """Near a change of the clocks, everything at a quarter of an hour."""
    start = at(f"{draw(st.sampled_from(CHANGES))} 00:00") + draw(st.integers(-150, 150)) * QUARTER
    opens, closes = sorted(draw(st.sets(st.integers(0, 96), min_size=2, max_size=2)))
    window = Window(
        of_day(opens), of_day(closes), draw(st.frozensets(st.integers(0, 6), min_size=1))
    )
    pause = draw(st.sampled_from([0, 1, 2, 4, 10, 97])) * QUARTER
    ahead = draw(st.sets(st.integers(0, 40))) if pause else set()
    taken = {start // pause + slot for slot in ahead} if pause else set()
    others = draw(
        st.lists(st.tuples(st.integers(-400, 800), st.integers(0, 30)), max_size=3).map(
            lambda found: tuple((start + a * QUARTER, start + (a + b) * QUARTER) for a, b in found)
        )
    )
    today = local(start, ZoneInfo("UTC")).date()
    full = {str(today + timedelta(days=day)) for day in draw(st.sets(st.integers(-1, 6)))}
    asked = limits(
        window=window,
        zone=ZoneInfo(draw(st.sampled_from(ZONES))),
        day_zone=ZoneInfo(draw(st.sampled_from(ZONES))),
        apart=draw(st.integers(0, 3)) * DAY,
        pause=pause,
        per_day=draw(st.integers(0, 1)),
    )
    runs = _runs(taken)
    return asked, Known(tuple(sorted(others)), frozenset(full), runs), taken, start


def of_day(quarter: int) -> time:
    return MIDNIGHT if quarter == 96 else time(quarter // 4, quarter % 4 * 15)


def _runs(slots: set[int]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if found and found[-1][1] == slot - 1:
            found[-1] = (found[-1][0], slot)
        else:
            found.append((slot, slot))
    return tuple(found)


@settings(max_examples=100, deadline=None)
@given(situations())
def test_turns_are_those_that_a_watcher_of_the_clock_would_allow(
    situation: tuple[Limits, Known, set[int], int],
) -> None:
    asked, known, taken, start = situation
    found = list(itertools.islice(fitting(asked, known, start), 3))
    expected = watched(asked, known, taken, start)
    assert found == list(itertools.islice(expected, 3))
    assert bool(describe(asked, known, start, found[0].at)) == (found[0].at > start)


def test_a_wait_is_explained() -> None:
    asked = limits(window=Window(), zone=ZoneInfo("Europe/Berlin"), pause=60_000, per_day=50)
    saturday, monday = at("2030-01-05 12:00"), at("2030-01-07 08:00")
    busy = Known(full=frozenset({"2030-01-07"}), taken=((at("2030-01-08 08:00") // 60_000,) * 2,))
    [found] = itertools.islice(fitting(asked, busy, saturday), 1)
    assert found.at == at("2030-01-08 08:01")
    assert describe(asked, busy, saturday, found.at) == (
        "the send window (mon-fri 09:00-17:00, Europe/Berlin) is closed; "
        "ana@example.com has used up its 50 mails for 2030-01-07; "
        "example.org gets one mail every 60 seconds"
    )
    written = Known(others=((saturday, saturday),))
    assert describe(limits(apart=3 * DAY), written, monday, saturday + 3 * DAY) == (
        "another campaign's mail to bo@example.org is dated 2030-01-05, "
        "and mails of different campaigns are at least 3 days apart"
    )


# -- bookings


def test_a_turn_is_given_back_until_it_is_over_and_then_replaced(database: Database) -> None:
    limited: dict[str, Any] = {"per_day": 1, "domain_pause": 60.0}
    first = turn(database, **limited)
    assert first == Booking(MONDAY, MONDAY + 60_000)
    assert turn(database, **limited) == first
    assert turn(database, **limited, now=first.until - 1) == first
    second = turn(database, **limited, now=first.until)  # it keeps its number of the day
    assert second == Booking(first.until, first.until + 60_000)
    [row] = bookings(database)
    assert (row["sender"], row["day"], row["number"]) == ("ana@example.com", "2030-01-07", 1)
    next_day = turn(database, 2, **limited)
    assert next_day == Booking(MONDAY + DAY, MONDAY + DAY + 60_000)
    database.write(release(place(1)))
    database.write(release(place(1)))
    assert turn(database, 2, **limited) == next_day
    assert turn(database, 3, **limited).at == MONDAY


def test_mails_of_different_sequences_to_one_person_are_apart_both_ways(database: Database) -> None:
    def of(campaign: int, now: int = MONDAY, contact: int = 1, **more: Any) -> Booking:
        return turn(database, contact, campaign, person=BO, apart=3, now=now, **more)

    week = 7 * DAY
    later = of(1, MONDAY + week)
    assert later == Booking(MONDAY + week, MONDAY + week + 8 * HOUR)
    before = of(2, MONDAY + 4 * DAY - HOUR)  # Friday at eight
    assert before.at == at("2030-01-18 09:00")  # Thursday at five is too early, and closed
    assert "another campaign's mail to bo@example.org is dated 2030-01-14" in before.because
    assert of(3, contact=2).at == MONDAY  # bo+news@, another contact
    assert of(3, contact=2, step=2).at == MONDAY  # the cadence has its own gaps
    assert of(4, contact=2, now=MONDAY + HOUR).at == at("2030-01-22 09:00")
    sent(database, 1, 2, before.at + HOUR)  # then it is known when it went out
    assert of(5, now=MONDAY + 11 * DAY).at == at("2030-01-25 17:00") - 8 * HOUR + 3 * DAY


def test_a_turn_is_cut_short_by_the_next_mail_to_the_person(sqlite: Database) -> None:
    turn(sqlite, 1, 1, person=BO, apart=2, now=MONDAY + 2 * DAY + HOUR)
    assert turn(sqlite, 1, 2, person=BO, apart=2) == Booking(MONDAY, MONDAY + HOUR)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ({}, {"window": Window(time(14), time(15))}, MONDAY + 5 * HOUR),
        ({}, {"zone": "America/New_York"}, MONDAY + 5 * HOUR),
        ({"domain_pause": 60.0}, {"domain_pause": 7200.0}, MONDAY),  # other slots
        ({"per_day": 5}, {"per_day": 1}, MONDAY + DAY),
        ({"per_day": 5}, {"sender": "eva@example.com", "per_day": 1}, MONDAY),
        ({"apart": 0}, {"apart": 1}, MONDAY + 2 * DAY),
    ],
)
def test_a_turn_that_breaks_a_changed_limit_is_replaced(
    sqlite: Database, before: dict[str, Any], after: dict[str, Any], expected: int
) -> None:
    """Another campaign has written to the same person, domain and from the same address."""
    turn(sqlite, 1, 1, person=BO, **before)
    first = turn(sqlite, 1, 2, person=BO, **before)
    assert turn(sqlite, 1, 2, person=BO, **{**before, **after}).at == expected, first
    assert len(bookings(sqlite)) == 2


def test_the_turn_of_a_sent_touch_stays(sqlite: Database) -> None:
    turn(sqlite)
    sent(sqlite, 1, 1, MONDAY)
    sqlite.write(release(place()))
    assert len(bookings(sqlite)) == 1


def test_a_campaign_takes_numbers_up_to_its_own_limit(sqlite: Database) -> None:
    for contact in range(1, 4):
        turn(sqlite, contact, per_day=3)
    assert turn(sqlite, 4, 2, per_day=3).at == MONDAY + DAY
    assert turn(sqlite, 5, 2, per_day=4).at == MONDAY
    sqlite.write(release(place(2)))
    assert turn(sqlite, 6, 2, per_day=3).at == MONDAY
    assert turn(sqlite, 7, 2, sender="eva@example.com", per_day=1).at == MONDAY
    today = sorted(row["number"] for row in bookings(sqlite) if row["day"] == "2030-01-07")
    assert today == [1, 1, 2, 3, 4]


def test_a_busy_domain_is_read_page_by_page(
    sqlite: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "RUNS", 2)
    for minute in (0, 2, 3, 5, 7, 8, 9):  # and the others are another campaign's, later
        turn(sqlite, 100 + minute, domain_pause=60.0, now=MONDAY + minute * 60_000)
    found = [turn(sqlite, contact, domain_pause=60.0).at for contact in range(4)]
    assert [(one - MONDAY) // 60_000 for one in found] == [1, 4, 6, 10]


def test_no_slot_is_too_short_to_begin_a_mail_in(sqlite: Database) -> None:
    found = [turn(sqlite, contact, domain_pause=0.001) for contact in range(2)]
    assert [(one.at - MONDAY, one.until - MONDAY) for one in found] == [(0, 1000), (1000, 2000)]


def test_many_contacts_of_one_domain_have_a_slot_each(sqlite: Database) -> None:
    found = [turn(sqlite, contact, per_day=40, domain_pause=60.0) for contact in range(60)]
    per_day = Counter(local(one.at, ZoneInfo("UTC")).date() for one in found)
    assert sorted(per_day.values()) == [20, 40]
    assert [one.at for one in found] == sorted({one.at for one in found})


def test_twenty_concurrent_bookings_are_all_different(database: Database) -> None:
    """Two campaigns for each person, the two at the same time."""
    ready = threading.Barrier(20)

    def begin(number: int) -> list[Booking]:
        ready.wait()
        return [
            turn(
                database,
                contact=number // 2,
                campaign=number % 2,
                step=step,
                per_day=12,
                apart=3,
                domain_pause=60.0,
            )
            for step in range(2)
        ]

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(begin, range(20)))
    rows = bookings(database)
    assert len(rows) == 40
    assert len({row["slot"] for row in rows}) == 40
    assert len({(row["day"], row["number"]) for row in rows}) == 40
    assert {row["number"] for row in rows} <= set(range(1, 13))
    for one, other in itertools.permutations(rows, 2):
        if one["person"] == other["person"] and one["sequence"] != other["sequence"]:
            assert one["until"] <= other["at"] - 3 * DAY or other["until"] <= one["at"] - 3 * DAY


class Hesitant(Database):
    """Waits before it commits what it wrote."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.written, self.go_on = threading.Event(), threading.Event()

    def _run(self, connection: Any, statement: Statement) -> list[Row]:
        rows = super()._run(connection, statement)
        if statement.text.startswith("WITH"):
            self.written.set()
            assert self.go_on.wait(30)
        return rows


def test_a_booking_waits_for_one_that_is_about_to_be_committed(postgres_url: str) -> None:
    """No key of the table keeps two mails to one person apart, and neither sees the other."""
    hesitant, other = Hesitant(postgres_url), Database(postgres_url)
    other.create()
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(turn, hesitant, 1, 1, person=BO, apart=3)
        assert hesitant.written.wait(30)
        second = pool.submit(turn, other, 1, 2, person=BO, apart=3)
        until(
            lambda: second.done() or other.rows("SELECT 1 FROM pg_locks WHERE NOT granted"),
            "the second waits",
        )
        hesitant.go_on.set()
        assert first.result().at == MONDAY
        assert second.result().at == MONDAY + 4 * DAY
