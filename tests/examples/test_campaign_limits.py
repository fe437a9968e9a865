"""The campaign's limits, seen from the mail server: a daily limit, a pause for each domain, and
days between the mails of two campaigns. A thread that has to wait sleeps; no process does."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise

import pytest

from examples.campaign import control
from examples.campaign.app import Plan
from examples.campaign.cadence import Cadence
from tests.support.campaigns import BO, DAY, MONDAY, PLAN, World, world

PEOPLE = [f"p{n}@example.org" for n in range(5)]
ONE = Cadence((0,))


def days(office: World) -> list[int]:
    """How many days after Monday each mail went out."""
    return sorted((office.dates(mail.recipient)[0] - MONDAY).days for mail in office.office.log)


def test_a_sender_sends_no_more_than_its_limit_in_a_day(url: str) -> None:
    with world(url) as office:
        office.campaign(PLAN, *PEOPLE, cadence=ONE, per_day=2)
        office.drive()
        assert len(office.office.log) == 2
        reasons = [wait.value["because"] for wait in office.app.runtime.blocking.waits()]
        assert sum("has used up its 2 mails" in one for one in reasons) == 3
        office.sleep_through()
        assert days(office) == [0, 0, 1, 1, 2]


def test_two_campaigns_of_a_sender_keep_to_the_limit_of_the_one_that_has_it(url: str) -> None:
    with world(url) as office:
        office.campaign(PLAN, *PEOPLE[:3], cadence=ONE)
        office.drive()
        office.campaign(PLAN, *PEOPLE[3:], name="two", sequence="two", cadence=ONE, per_day=4)
        office.sleep_through()
        assert days(office) == [0, 0, 0, 0, 1]


@pytest.mark.parametrize("seconds", [10, 90])
def test_a_mail_to_a_domain_begins_a_pause_after_the_one_before(url: str, seconds: int) -> None:
    with world(url, at=MONDAY + timedelta(seconds=59), domain_pause=float(seconds)) as office:
        office.campaign(PLAN, *PEOPLE, "do@example.com", cadence=ONE)
        office.drive()
        assert {mail.recipient.partition("@")[2] for mail in office.office.log} == {
            "example.org",
            "example.com",
        }
        assert len(office.office.log) == 2
        office.advance(timedelta(seconds=1))
        assert len(office.office.log) == 2
        office.sleep_through()
        times = sorted(office.dates(one)[0] for one in PEOPLE)
        gaps = {after - before for before, after in pairwise(times)}
        assert gaps == {timedelta(seconds=seconds)}


def test_ticks_once_a_minute_send_a_mail_each_to_a_domain_and_all_that_is_due_to_others(
    sqlite_url: str,
) -> None:
    others = [f"p{n}@firm{n}.example" for n in range(8)]
    with world(sqlite_url, domain_pause=10.0) as office:
        office.campaign(PLAN, *(f"q{n}@example.org" for n in range(12)), *others, cadence=ONE)
        sent = []
        for _ in range(14):
            driven = office.app.runtime.blocking.tick(limit=25, concurrency=1).claimed
            sent.append(len(office.office.log))
            office.clock.advance(timedelta(minutes=1))
            assert driven <= (2 if len(sent) > 1 else 25)
        assert sent[:12] == [9, *range(10, 21)]
        places = office.rows("SELECT place FROM bookings WHERE domain = 'example.org' ORDER BY at")
        assert [row["place"] for row in places] == list(range(1, 13))


def test_a_second_campaign_with_default_settings_sends_some_days_after_the_first(url: str) -> None:
    with world(url, apart=3) as office:
        office.campaign(PLAN, sequence="", cadence=ONE)
        office.drive()
        second = Plan("autumn", "Chairs", "Ana <ana@example.com>", auto_approve=True, cadence=ONE)
        office.campaign(second, BO, "bo+news@example.org")
        office.sleep_through()
        sent = sorted((office.dates(one)[-1], one) for one in (BO, "bo+news@example.org"))
        assert [mail.subject for mail in office.sent()] == ["Better tables (1)", "Chairs (1)"]
        assert sent[0][0] == MONDAY + 3 * DAY


def test_a_raised_limit_releases_waiting_touches(url: str) -> None:
    with world(url) as office:
        office.campaign(PLAN, *PEOPLE, cadence=ONE, per_day=1)
        office.drive()
        assert len(office.office.log) == 1
        control.edit(office.app, 1, control.Changes(per_day=200))
        office.drive()
        assert len(office.office.log) == 5
