"""What a mail server refuses, and what becomes of the contact, the touch and the campaign.

A sender's mistake bounces nobody: a contact is given up only for an address that the server does
not know, twice, while it takes other mail of the campaign.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from examples.campaign.cadence import Cadence
from examples.campaign.demo.postoffice import Fault, Faults, PostOffice, Reply, scripted
from examples.campaign.refusals import Stage
from perdure.types import State
from tests.examples import campaigns
from tests.examples.campaigns import BO, CY, DAY, MONDAY, PLAN, World, sql, world

office, workers = campaigns.office, campaigns.workers
HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
PEOPLE = [f"p{n}@example.org" for n in range(24)]
UNKNOWN = Reply("550 5.1.1 No such mailbox")


def always(reply: Fault | Reply, *recipients: str) -> Faults:
    return lambda to, _: reply if to in recipients or not recipients else None


def state(office: World) -> str:
    [row] = office.rows("SELECT state FROM campaigns")
    return str(row["state"])


def until_asked(office: World, limit: int = 100) -> list[str]:
    """Let time pass until a person is asked. Returns the kinds of the questions."""
    for _ in range(limit):
        office.drive()
        if questions := office.questions():
            return [one.value["kind"] for one in questions]
        office.clock.move_to(max(office.due() or MONDAY, office.clock.time))
    raise AssertionError(f"no person is asked by {office.clock.time}")


# -- the sender's mistakes


@pytest.mark.parametrize(
    "refusal",
    [
        Reply("550 5.1.8 Sender address rejected: Domain not found"),
        Reply("550 5.1.8 <p1@example.org>: not from you", Stage.SENDER),
        Reply("530 5.7.0 Log in first"),
    ],
    ids=lambda reply: reply.text[:9],
)
def test_a_sender_that_is_refused_stops_the_campaign_at_once(url: str, refusal: Reply) -> None:
    with world(url) as office:
        office.office.refuses = refusal
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        [row] = office.rows("SELECT state, trouble FROM campaigns")
        assert row["state"] == "trouble"
        assert refusal.text[:5] in row["trouble"]
        assert "@example.org" not in row["trouble"]
        assert {office.member(address=one) for one in PEOPLE} == {"active"}
        tried = len(office.office.conversations)
        assert tried < len(PEOPLE)
        office.advance(3 * DAY)
        assert len(office.office.conversations) == tried
        office.office.refuses = None
        office.app.resume(1)
        office.drive()
        assert len(office.office.log) == len(PEOPLE)
        assert state(office) == "running"


@pytest.mark.parametrize(
    "refusal",
    [UNKNOWN, Reply("554 5.7.1 Not from you"), Reply("550 5.1.2 Sender domain does not exist")],
    ids=lambda reply: reply.text[:9],
)
def test_whatever_the_server_says_to_everybody_bounces_nobody(url: str, refusal: Reply) -> None:
    with world(url) as office:
        office.office.refuses = refusal
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        assert (state(office), office.office.log) == ("trouble", [])
        assert 5 <= len(office.office.conversations) < len(PEOPLE)
        office.app.resume(1)
        office.drive()
        assert state(office) == "trouble"
        assert {office.member(address=one) for one in PEOPLE} == {"active"}
        office.office.refuses = None
        office.app.resume(1)
        office.drive()
        assert {mail.recipient for mail in office.office.log} == set(PEOPLE)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"smtp_security": "starttls"}, "STARTTLS: SMTPNotSupportedError"),
        ({"smtp_security": "tls"}, "connecting: SSLError"),
        ({"smtp_user": "ana", "smtp_password": "secret"}, "logging in: SMTPNotSupportedError"),
    ],
    ids=str,
)
def test_a_wrong_setting_stops_the_campaign_and_bounces_nobody(
    sqlite_url: str, settings: dict[str, Any], reason: str
) -> None:
    with world(sqlite_url, **settings) as office:
        office.campaign(PLAN, *PEOPLE[:3])
        office.drive()
        [row] = office.rows("SELECT * FROM campaigns")
        assert (row["state"], row["trouble"].partition(" [")[0]) == ("trouble", reason) or row[
            "trouble"
        ].startswith(reason)
        assert "secret" not in row["trouble"]
        assert {office.member(address=one) for one in PEOPLE[:3]} == {"active"}


def test_a_bounce_for_our_reputation_gives_up_no_contact(office: World) -> None:
    office.campaign()
    office.drive()
    report = campaigns.bounce(office.message_id(1)).replace(b"5.1.1", b"5.7.26")
    row = office.receive(report)
    assert (row["kind"], office.member()) == ("automatic", "active")


# -- addresses that are not there


def test_an_unknown_recipient_bounces_once_the_server_takes_other_mail(url: str) -> None:
    with world(url, PostOffice(always(UNKNOWN, BO))) as office:
        office.campaign(PLAN, BO)
        office.drive()
        assert (office.member(), office.touch_states()) == ("active", ["approved"])
        office.clock.advance(MINUTE)
        office.enrol(1, CY)
        office.app.launch(1)
        office.drive()
        assert [mail.recipient for mail in office.office.log] == [CY]
        office.advance(5 * MINUTE)
        assert (office.member(), office.touch_states()) == ("bounced", ["refused"])
        office.ends("bounced")
        assert office.member(address=CY) == "active"
        assert len(office.office.conversations) == 3


def test_a_contact_who_is_refused_alone_is_asked_about(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(always(UNKNOWN))) as office:
        office.campaign()
        assert until_asked(office) == ["refusal"]
        assert office.member() == "active"
        assert "5.1.1" in office.questions()[0].value["response"]
        office.answer("bounce")
        office.ends("bounced")
        assert office.touch_states() == ["refused"]


# -- what may pass


def test_greylisted_contacts_do_not_delay_others(sqlite_url: str) -> None:
    """A sequential tick reaches everybody, and no process sleeps in it."""
    faults = scripted({(one, 1): Fault.GREYLIST for one in PEOPLE[:8]})
    with world(sqlite_url, PostOffice(faults)) as office:
        office.campaign(PLAN, *PEOPLE)
        counts = office.app.runtime.blocking.tick(limit=25, concurrency=1)
        assert counts.claimed == len(PEOPLE)
        assert {mail.recipient for mail in office.office.log} == set(PEOPLE[8:])
        assert state(office) == "running"
        office.advance(5 * MINUTE)
        assert len(office.office.log) == len(PEOPLE)


@pytest.mark.parametrize(
    "fault", [Fault.GREYLIST, Fault.BUSY, Fault.REJECT_BARE, Fault.DROP_BEFORE], ids=str
)
def test_a_refusal_is_retried_for_a_day_and_then_asked_about(url: str, fault: Fault) -> None:
    with world(url, PostOffice(always(fault))) as office:
        office.campaign()
        assert until_asked(office) == ["refusal"]
        assert DAY <= office.clock.time - MONDAY <= DAY + 6 * HOUR
        assert 3 <= len(office.office.conversations) <= 20
        assert office.member() == "active"
        office.office.faults = None
        office.answer("again")
        assert office.touch_states() == ["sent"]


def test_a_person_may_skip_a_touch_that_is_refused(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(always(Fault.REJECT_BARE))) as office:
        office.campaign(cadence=Cadence((0, 4)))
        until_asked(office)
        office.office.faults = None
        office.answer("skip")
        office.sleep_through()
        assert office.touch_states() == ["skipped", "sent"]


def test_a_server_that_defers_every_mail_for_a_day_stops_the_campaign(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(always(Fault.GREYLIST))) as office:
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        office.app.database.write(
            sql("UPDATE touches SET refused_at = refused_at - 86400000, refusals = 1")
        )
        assert state(office) == "running"
        office.advance(5 * MINUTE)
        assert state(office) == "trouble"


def test_a_mail_deferred_on_friday_evening_goes_out_on_monday(office: World) -> None:
    office.clock.move_to(MONDAY + 4 * DAY + 7 * HOUR + 55 * MINUTE)  # 16:55
    office.office.down = True
    office.campaign()
    office.drive()
    assert office.run().state == "waiting"
    office.office.down = False
    office.clock.move_to(office.due() or MONDAY)
    office.drive()
    assert office.dates() == [MONDAY + 7 * DAY]


def test_a_conversation_that_was_cut_off_on_friday_goes_on_on_monday(
    sqlite_url: str, workers: campaigns.Workers
) -> None:
    """The content had not gone out. Whoever takes over on Saturday waits for the window."""

    def kill(moment: object, mail: object) -> None:
        server.on = None
        workers.kill()

    server = PostOffice(on=kill)
    with world(sqlite_url, server, lookup_after=0.1) as office:
        office.clock.move_to(MONDAY + 4 * DAY + 7 * HOUR)
        office.campaign()
        assert workers.drive(office) is None
        office.clock.move_to(MONDAY + 5 * DAY)
        while not office.sent():
            office.drive()
            office.clock.move_to(max(office.due() or MONDAY, office.clock.time))
        assert office.dates()[0] >= MONDAY + 7 * DAY


def test_a_text_that_no_mail_can_have_goes_back_to_a_person(sqlite_url: str) -> None:
    with world(sqlite_url) as office:
        office.campaign(campaigns.HELD)
        office.drive()
        office.app.database.write(sql("UPDATE contacts SET name = 'Bo' || char(10) || 'Bcc: x@y'"))
        office.answer("approve")
        assert "cannot be written" in office.questions()[0].value["problem"]
        assert (office.office.conversations, office.run().state) == ([], State.WAITING)
