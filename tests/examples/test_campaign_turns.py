"""Bookings: send windows, and the limits that campaigns share."""

from __future__ import annotations

import itertools
import random
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

from examples.campaign.cadence import MIDNIGHT, Window
from examples.campaign.database import Database, Row, Statement, sql
from examples.campaign.turns import (
    DAY,
    PATIENCE,
    TURN,
    Booking,
    Known,
    Limits,
    book,
    hindrance,
    next_in_line,
    release,
    until,
)
from tests.support import polling

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
    database.write(_touch(contact, campaign, "sent", when, when))


def begun(database: Database, contact: int, when: int) -> None:
    """Its conversation with the mail server has begun."""
    database.write(_touch(contact, 1, "approved", when, None))


def _touch(contact: int, campaign: int, status: str, when: int, sent_at: int | None) -> Statement:
    return sql(
        """INSERT INTO touches (campaign_id, contact_id, step, status, subject, body,
             prompt_version, run_id, message_id, drafted_at, attempt, attempt_at, sent_at)
           VALUES (:campaign_id, :contact_id, :step, :status, '', '', '', '', '', 0,
             '0-x', :when, :sent_at)""",
        **place(contact, campaign),
        status=status,
        when=when,
        sent_at=sent_at,
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


def allowed(asked: Limits, known: Known, moment: int) -> bool:
    near = any(
        first - asked.apart <= moment < last + asked.apart
        for first, last in known.others
        if asked.apart
    )
    full = str(local(moment, asked.day_zone).date()) in known.full
    return asked.window.is_open(local(moment, asked.zone)) and not (near or full)


def watched(asked: Limits, known: Known, moment: int) -> Iterator[tuple[int, int]]:
    """The times for a mail, found by looking at each quarter of an hour."""
    while True:
        while not allowed(asked, known, moment):
            moment += QUARTER
        begun = moment
        while allowed(asked, known, moment) and _days(asked, begun) == _days(asked, moment):
            moment += QUARTER
        yield begun, moment


def _days(asked: Limits, moment: int) -> list[date]:
    return [local(moment, zone).date() for zone in (asked.zone, asked.day_zone)]


def found(asked: Limits, known: Known, moment: int) -> Iterator[tuple[int, int]]:
    """The same, by arithmetic."""
    while True:
        while hindered := hindrance(asked, known, moment):
            moment = hindered[0]
        ends = until(asked, known, moment)
        yield moment, ends
        moment = ends


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
CHANGES = ["2026-03-29", "2026-10-25", "2026-03-08", "2026-11-01", "2026-04-05", "2026-10-04"]


@st.composite
def situations(draw: st.DrawFn) -> tuple[Limits, Known, int]:
    """Near a change of the clocks, everything at a quarter of an hour."""
    start = at(f"{draw(st.sampled_from(CHANGES))} 00:00") + draw(st.integers(-150, 150)) * QUARTER
    opens, closes = sorted(draw(st.sets(st.integers(0, 96), min_size=2, max_size=2)))
    window = Window(
        of_day(opens), of_day(closes), draw(st.frozensets(st.integers(0, 6), min_size=1))
    )
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
    )
    return asked, Known(tuple(sorted(others)), frozenset(full)), start


def of_day(quarter: int) -> time:
    return MIDNIGHT if quarter == 96 else time(quarter // 4, quarter % 4 * 15)


@settings(max_examples=100, deadline=None)
@given(situations())
def test_times_are_those_that_someone_watching_the_clock_would_allow(
    situation: tuple[Limits, Known, int],
) -> None:
    expected = list(itertools.islice(watched(*situation), 3))
    assert list(itertools.islice(found(*situation), 3)) == expected


# -- bookings


def test_a_wait_is_explained(sqlite: Database) -> None:
    berlin: dict[str, Any] = {"zone": "Europe/Berlin", "per_day": 1, "domain_pause": 60.0}
    saturday = at("2030-01-05 12:00")
    turn(sqlite, 1, **berlin, now=MONDAY)
    turn(sqlite, 2, **{**berlin, "sender": "eva@example.com"}, now=at("2030-01-08 07:00"))
    waiting = turn(sqlite, 3, **berlin, now=saturday)
    assert (waiting.at, waiting.until) == (at("2030-01-08 08:01"), None)
    assert waiting.because == (
        "the send window (mon-fri 09:00-17:00, Europe/Berlin) is closed; "
        "ana@example.com has used up its 1 mails of 2030-01-07; "
        "example.org gets one mail every 60 seconds"
    )
    sent(sqlite, 1, 1, saturday)
    assert turn(sqlite, 1, 2, apart=3, now=MONDAY).because == (
        "another campaign's mail to p1@example.org is dated 2030-01-05, "
        "and mails of different campaigns are 3 days apart"
    )


def test_a_touch_has_one_booking_which_is_made_anew_each_time(database: Database) -> None:
    limited: dict[str, Any] = {"per_day": 1, "domain_pause": 60.0}
    assert turn(database, **limited) == Booking(MONDAY, MONDAY + TURN)
    assert turn(database, **limited) == Booking(MONDAY, MONDAY + TURN)
    late = MONDAY + HOUR
    assert turn(database, **limited, now=late) == Booking(late, late + TURN)
    next_day = turn(database, 2, **limited)
    assert next_day == Booking(MONDAY + DAY, None)
    database.write(release(place(1)))
    database.write(release(place(1)))
    assert turn(database, 2, **limited, now=late) == Booking(late, late + TURN)
    assert turn(database, 3, **limited).at == MONDAY + DAY
    [row, _] = bookings(database)
    assert (row["sender"], row["day"], row["domain"]) == (
        "ana@example.com",
        "2030-01-07",
        "example.org",
    )


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
        ({"domain_pause": 60.0}, {"domain_pause": 7200.0}, MONDAY + 2 * HOUR),
        ({"window": Window(time(14), time(15))}, {"window": Window()}, MONDAY),
        ({"per_day": 1}, {"per_day": 2}, MONDAY),
        ({"domain_pause": 60.0}, {"domain_pause": 0.0}, MONDAY),
        ({"per_day": 5}, {"per_day": 1}, MONDAY + DAY),
        ({"per_day": 5}, {"sender": "eva@example.com", "per_day": 1}, MONDAY),
        ({"apart": 0}, {"apart": 1}, MONDAY + 2 * DAY),
    ],
)
def test_a_booking_follows_a_changed_limit_to_an_earlier_or_a_later_time(
    sqlite: Database, before: dict[str, Any], after: dict[str, Any], expected: int
) -> None:
    """Another campaign has written to the same person, domain and from the same address."""
    turn(sqlite, 1, 1, person=BO, **before)
    first = turn(sqlite, 1, 2, person=BO, **before)
    assert turn(sqlite, 1, 2, person=BO, **{**before, **after}).at == expected, first
    assert len(bookings(sqlite)) == 2


def test_the_booking_of_a_mail_that_was_sent_or_is_on_its_way_stays(database: Database) -> None:
    for contact in range(4):
        turn(database, contact)
    sent(database, 0, 1, MONDAY)
    begun(database, 1, MONDAY)
    begun(database, 2, MONDAY)
    database.write(sql("UPDATE touches SET tries = 1 WHERE contact_id = 2"))  # it was refused
    database.write(*(release(place(contact)) for contact in range(4)))
    assert [row["contact_id"] for row in bookings(database)] == [0, 1]


def test_mails_of_a_campaign_without_a_limit_count_for_one_that_has_one(database: Database) -> None:
    for contact in range(3):
        assert turn(database, contact, 1).at == MONDAY
    assert turn(database, 4, 2, per_day=3).at == MONDAY + DAY
    assert turn(database, 5, 2, per_day=4).at == MONDAY
    assert turn(database, 6, 1).at == MONDAY
    database.write(release(place(1)), release(place(2)))
    assert turn(database, 4, 2, per_day=4).at == MONDAY
    assert turn(database, 7, 2, sender="eva@example.com", per_day=1).at == MONDAY


# -- the queue of a domain


def test_two_mails_to_a_domain_are_a_pause_apart_from_the_moment_the_first_has_begun(
    database: Database,
) -> None:
    def ask(contact: int, now: int) -> Booking:
        return turn(database, contact, domain_pause=60.0, now=now)

    assert ask(1, MONDAY + 59_000) == Booking(MONDAY + 59_000, MONDAY + 59_000 + TURN)
    assert ask(2, MONDAY + 60_000) == Booking(MONDAY + 119_000, None)
    begun(database, 1, MONDAY + 59_500)
    assert ask(2, MONDAY + 60_000) == Booking(MONDAY + 119_500, None)
    assert ask(1, MONDAY + 60_000).at == MONDAY + 119_500  # a second try is no exception
    assert ask(2, MONDAY + 119_499).until is None
    assert turn(database, 3, domain="example.com", domain_pause=60.0).at == MONDAY


def test_a_turn_that_nobody_used_keeps_a_domain_waiting_for_a_moment(sqlite: Database) -> None:
    turn(sqlite, 1, domain_pause=60.0)
    waiting = turn(sqlite, 2, domain_pause=60.0)
    assert waiting == Booking(MONDAY + 60_000, None)
    later = turn(sqlite, 2, domain_pause=60.0, now=waiting.at)
    assert later == Booking(MONDAY + TURN + 60_000, None)  # it might have begun that late
    assert turn(sqlite, 2, domain_pause=60.0, now=later.at).until == later.at + TURN


def test_who_comes_late_is_not_sent_behind_the_others(database: Database) -> None:
    def ask(contact: int, now: int) -> int:
        booked = turn(database, contact, domain_pause=10.0, now=MONDAY + now * 1000)
        return (booked.at - MONDAY) // 1000 if booked.until is None else -1

    assert ask(0, 0) == -1
    begun(database, 0, MONDAY)
    assert [ask(contact, 0) for contact in range(1, 5)] == [10, 70, 130, 190]
    assert ask(3, 180) == 180 + 120  # the first two are about to come
    assert ask(1, 180) == -1
    begun(database, 1, MONDAY + 180_000)
    assert [ask(contact, 180) for contact in (2, 3, 4)] == [190, 250, 310]
    assert ask(5, 180) == 370
    missed = 310 + PATIENCE // 1000
    assert ask(5, missed) == -1  # the others did not come at all
    begun(database, 5, MONDAY + missed * 1000)
    assert [ask(6, missed), ask(2, missed)] == [missed + 10, missed + 10]
    assert ask(6, missed) == missed + 70


def test_a_campaign_that_does_not_run_holds_nobody_up(sqlite: Database) -> None:
    turn(sqlite, 1, 1, domain_pause=60.0)
    turn(sqlite, 2, 2, domain_pause=60.0)
    assert turn(sqlite, 3, 1, domain_pause=60.0).at == MONDAY + 120_000
    paused = """INSERT INTO campaigns VALUES (2, 'x', 'x', '', '', '', '', '', '', 0, 0, 'paused',
      '', 0, 1)"""
    sqlite.write(sql(paused))
    assert turn(sqlite, 3, 1, domain_pause=60.0).at == MONDAY + 60_000


def test_a_touch_goes_before_appointments_that_are_far_away(sqlite: Database) -> None:
    for contact in range(50):  # in the evening
        turn(sqlite, contact, domain_pause=60.0, window=Window(time(20), time(23)))
    assert turn(sqlite, 60, domain_pause=60.0).until == MONDAY + TURN
    assert turn(sqlite, 61, domain_pause=60.0).at == MONDAY + 60_000


def test_many_contacts_of_one_domain_have_an_appointment_each(sqlite: Database) -> None:
    tuesday = at("2030-01-08 06:00")
    booked = [
        turn(sqlite, contact, per_day=40, domain_pause=60.0, now=tuesday).at
        for contact in range(60)
    ]
    per_day = Counter(local(one, ZoneInfo("UTC")).date() for one in booked)
    assert sorted(per_day.values()) == [20, 40]
    assert booked == sorted({*booked})


@pytest.mark.parametrize(("driver", "minutes"), [("worker", 11), ("cron", 61)])
def test_a_worker_reaches_the_rate_and_a_cron_sends_a_mail_each_time_it_comes(
    sqlite: Database, driver: str, minutes: int
) -> None:
    """60 mails to one domain, ten seconds apart, in the order in which they were booked."""
    dice = random.Random(7)
    due = dict.fromkeys(range(60), MONDAY)
    went: list[tuple[int, int]] = []
    now, drives = MONDAY, 0
    while due:
        now = max(now, min(due.values()))
        if driver == "cron":
            now = MONDAY - (MONDAY - now) // 60_000 * 60_000
        for contact in sorted((one for one in due if due[one] <= now), key=lambda one: due[one]):
            drives += 1
            booked = turn(sqlite, contact, domain_pause=10.0, now=now)
            due[contact] = booked.at
            if booked.until is not None:
                if after := next_in_line(sqlite, "example.org", 10.0, now):
                    due[after[1]] = now
                now += dice.randrange(300)
                begun(sqlite, contact, now)
                went.append((now, contact))
                del due[contact]
    assert [contact for _, contact in went] == list(range(60))
    assert min(after[0] - before[0] for before, after in itertools.pairwise(went)) >= 10_000
    assert went[-1][0] - MONDAY < minutes * 60_000
    assert drives < 60 * 5


def test_twenty_who_book_at_once_never_get_the_same(database: Database) -> None:
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
    assert len({row["place"] for row in rows}) == 40
    assert len({row["at"] for row in rows}) == 40
    assert sum(row["until"] is not None for row in rows) == 1
    assert max(Counter(row["day"] for row in rows).values()) <= 12
    for one, other in itertools.permutations(rows, 2):
        if one["person"] == other["person"] and one["sequence"] != other["sequence"]:
            assert one["at"] <= other["at"] - 3 * DAY or other["at"] <= one["at"] - 3 * DAY


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
        polling.until(
            lambda: second.done() or other.rows("SELECT 1 FROM pg_locks WHERE NOT granted"),
            "the second waits",
        )
        hesitant.go_on.set()
        assert first.result().at == MONDAY
        assert second.result().at == MONDAY + 4 * DAY
