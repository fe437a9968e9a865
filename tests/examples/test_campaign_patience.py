"""How often and how long a mail is tried that a server refuses, and who is asked then."""

from __future__ import annotations

from datetime import time, timedelta
from typing import Any

import pytest

from examples.campaign.cadence import MIDNIGHT, Cadence, Window
from examples.campaign.faults import Faults
from examples.campaign.postoffice import Fault, PostOffice, Reply, Stage, scripted
from perdure.types import State
from tests.support.campaigns import BO, DAY, HELD, MONDAY, PLAN, World, sql, world

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
PEOPLE = [f"p{n}@example.org" for n in range(12)]
ANY_HOUR = Window(time(0), MIDNIGHT, frozenset(range(7)))
DAILY = Cadence((0, 1, 1), ANY_HOUR)


def until_asked(office: World, *, limit: int = 100) -> list[str]:
    """Let time pass until a person is asked. Gives the kinds of the questions."""
    for _ in range(limit):
        office.drive()
        if questions := office.questions():
            return [one.value["kind"] for one in questions]
        office.clock.move_to(max(office.due() or MONDAY, office.clock.time))
    raise AssertionError(f"no person is asked by {office.clock.time}")


def always(fault: Fault | Reply, *recipients: str) -> Faults:
    return lambda to, _: fault if to in recipients or not recipients else None


def state(office: World) -> str:
    [row] = office.rows("SELECT state FROM campaigns")
    return str(row["state"])


# -- no answer to the content


@pytest.mark.parametrize("lookup_after", [0.0, 60.0])
def test_a_server_that_drops_each_content_is_asked_about_after_a_day(
    sqlite_url: str, lookup_after: float
) -> None:
    with world(
        sqlite_url, PostOffice(always(Fault.DROP_BEFORE)), lookup_after=lookup_after
    ) as office:
        office.campaign()
        office.drive()
        assert len(office.office.conversations) == 1  # the next one waits
        assert until_asked(office) == ["refusal"]
        assert office.clock.time <= MONDAY + DAY + HOUR
        assert len(office.office.conversations) <= 12
        said = office.questions()[0].value["said"]
        assert "no answer to the content" in said
        assert "the provider does not have the mail" in said
        office.office.faults = None
        office.answer("again")
        assert office.touch_states() == ["sent"]


def test_a_server_that_drops_every_mail_for_a_day_is_one_question(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(always(Fault.DROP_BEFORE))) as office:
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        office.app.database.write(sql("UPDATE touches SET refused = 11"))
        office.advance(10 * MINUTE)
        assert until_asked(office).count("trouble") == 1
        assert len(office.questions()) <= 5
        assert state(office) == "trouble"


def test_without_a_look_up_a_server_that_answers_no_content_stops_the_campaign(url: str) -> None:
    with world(url, PostOffice(always(Fault.DROP_BEFORE)), lookup_url="") as office:
        office.campaign(PLAN, *PEOPLE)
        while office.app.runtime.blocking.tick(limit=25, concurrency=1).claimed:
            pass
        assert len(office.office.conversations) == 5
        held = [one for one in PEOPLE if office.run(address=one).state is State.HELD]
        assert len(held) == 5
        [question] = office.questions()
        assert (question.value["kind"], state(office)) == ("trouble", "trouble")
        assert "no answer to the content" in question.value["said"]
        office.office.faults = None
        for effect in office.app.runtime.blocking.effects(state="unknown"):
            office.app.runtime.blocking.settle(effect.key, "retry", by="Eva")
        office.drive()
        assert office.office.log == []
        office.answer("resume")
        assert {mail.recipient for mail in office.office.log} == set(PEOPLE)


def test_without_a_look_up_the_campaign_is_asked_about_although_all_its_threads_are_held(
    sqlite_url: str,
) -> None:
    with world(sqlite_url, PostOffice(always(Fault.DROP_BEFORE)), lookup_url="") as office:
        office.campaign(PLAN, *PEOPLE[:5])
        office.drive()
        assert [one.value["kind"] for one in office.questions()] == ["trouble"]


# -- whose trouble it is


def test_a_server_that_is_too_busy_for_one_contact_only_is_no_trouble_of_the_campaign(
    sqlite_url: str,
) -> None:
    with world(sqlite_url, PostOffice(always(Fault.BUSY, BO))) as office:
        office.campaign(PLAN, BO, *PEOPLE[:3], cadence=DAILY)
        assert until_asked(office) == ["refusal"]
        [question] = office.questions()
        assert question.value["to"] == BO
        assert state(office) == "running"
        assert {mail.recipient for mail in office.office.log} == set(PEOPLE[:3])


def test_a_server_that_is_too_busy_for_many_contacts_stops_the_campaign(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(always(Fault.BUSY, *PEOPLE[:8]))) as office:
        office.campaign(PLAN, *PEOPLE, cadence=DAILY)
        office.drive()
        office.app.database.write(sql("UPDATE touches SET refused = 11 WHERE problem <> ''"))
        office.advance(10 * MINUTE)
        asked = [one.value["kind"] for one in office.questions()]
        assert (state(office), asked.count("trouble")) == ("trouble", 1)
        assert len(asked) <= 5


def test_one_busy_answer_after_many_greylistings_does_not_stop_the_campaign(
    sqlite_url: str,
) -> None:
    plan = {(BO, n): Fault.GREYLIST for n in range(1, 12)} | {(BO, 12): Fault.BUSY}
    with world(sqlite_url, PostOffice(scripted(plan))) as office:
        office.campaign(PLAN, BO, *PEOPLE[:2], cadence=DAILY)
        assert until_asked(office) == ["refusal"]
        assert state(office) == "running"


def test_a_refusal_of_another_kind_is_counted_from_one(sqlite_url: str) -> None:
    """A full mailbox is tried again after 1, 4 and 16 hours, whatever was said before."""
    plan: dict[tuple[str, int], Fault | Reply] = {
        (BO, n): Fault.GREYLIST if n < 4 else Fault.MAILBOX_FULL for n in range(1, 9)
    }
    with world(sqlite_url, PostOffice(scripted(plan))) as office:
        office.campaign(PLAN, cadence=Cadence((0,), ANY_HOUR))
        office.drive()
        for pause in (5 * MINUTE, 10 * MINUTE, 20 * MINUTE, HOUR, 4 * HOUR, 16 * HOUR):
            assert (office.due(), office.questions()) == (office.clock.time + pause, [])
            office.advance(pause)
        assert [one.value["kind"] for one in office.questions()] == ["refusal"]


def test_refusals_that_alternate_are_asked_about_after_a_day_as_well(sqlite_url: str) -> None:
    def alternating(_: str, attempt: int) -> Fault:
        return (Fault.GREYLIST, Fault.BUSY)[attempt % 2]

    with world(sqlite_url, PostOffice(alternating)) as office:
        office.campaign(PLAN)
        until_asked(office)
        assert office.clock.time <= MONDAY + DAY + HOUR


# -- how long


@pytest.mark.parametrize("fault", [Fault.GREYLIST, Fault.BUSY, Fault.MAILBOX_FULL], ids=str)
@pytest.mark.parametrize("closes", [time(10), time(17)], ids=str)
def test_a_day_is_a_day_whatever_the_window_is(sqlite_url: str, fault: Fault, closes: time) -> None:
    with world(sqlite_url, PostOffice(always(fault))) as office:
        office.campaign(cadence=Cadence((0,), Window(time(9), closes)))
        until_asked(office)
        full_in_an_hour = fault is Fault.MAILBOX_FULL and closes == time(10)  # one try a day
        assert office.clock.time - MONDAY == (2 * DAY if full_in_an_hour else DAY)
        assert len(office.office.conversations) >= 3


def test_a_weekend_alone_uses_up_no_patience(sqlite_url: str) -> None:
    friday = MONDAY + 4 * DAY + 7 * HOUR + 55 * MINUTE  # 16:55
    plan = {(one, n): Fault.GREYLIST for one in PEOPLE for n in (1, 2)}
    with world(sqlite_url, PostOffice(scripted(plan)), friday) as office:
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        office.clock.move_to(MONDAY + 7 * DAY)
        office.drive()
        office.advance(10 * MINUTE)
        assert (office.questions(), len(office.office.log)) == ([], len(PEOPLE))


# -- what no waiting mends


def test_encryption_on_a_port_without_it_is_asked_about_at_once(sqlite_url: str) -> None:
    with world(sqlite_url, smtp_tls=True) as office:
        office.campaign(PLAN, *PEOPLE[:3])
        office.drive()
        [question] = office.questions()
        assert question.value["kind"] == "trouble"
        assert "SSL" in question.value["said"]


def test_a_timeout_that_is_none_is_one_question(sqlite_url: str) -> None:
    with world(sqlite_url, smtp_timeout=1e10) as office:
        office.campaign(PLAN, *PEOPLE[:3])
        office.drive()
        assert [one.value["kind"] for one in office.questions()] == ["trouble"]


@pytest.mark.parametrize(
    "settings", [{"web_url": "mail.example.com"}, {"unsubscribe": "unsubscribe"}], ids=str
)
def test_a_way_out_that_cannot_be_written_stops_the_campaign(
    sqlite_url: str, settings: dict[str, Any]
) -> None:
    with world(sqlite_url, **settings) as office:
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        [question] = office.questions()
        assert question.value["kind"] == "trouble"
        assert question.value["said"].startswith("unsubscribe")
        assert office.office.conversations == []


def test_a_sender_that_cannot_be_written_stops_the_campaign_and_approvals_stay(
    sqlite_url: str,
) -> None:
    with world(sqlite_url) as office:
        office.campaign(HELD, *PEOPLE[:3])
        office.drive()
        office.app.database.write(
            sql("UPDATE campaigns SET sender = 'Ana =?utf-8?q?Hi?= <ana@example.com>'")
        )
        for question in office.questions():
            office.app.runtime.blocking.answer(question.id, {"action": "approve"}, by="Eva")
        office.drive()
        [question] = office.questions()
        assert question.value["kind"] == "trouble"
        assert "From would be read as" in question.value["said"]
        office.edit(1, sender="Ana <ana@example.com>")
        office.answer("resume")
        assert len(office.office.log) == 3


def test_a_sender_is_stored_as_mails_have_it(sqlite_url: str) -> None:
    with world(sqlite_url) as office:
        office.campaign(PLAN, sender='"Ruiz, Ana" <ana@München.example>')
        office.drive()
        [mail] = office.sent()
        assert mail.sender == "ana@xn--mnchen-3ya.example"
        assert 'From: "Ruiz, Ana" <ana@xn--mnchen-3ya.example>' in mail.content
        office.edit(1, sender=" ana@München.example ")
        [row] = office.rows("SELECT sender FROM campaigns")
        assert row["sender"] == "ana@xn--mnchen-3ya.example"


@pytest.mark.parametrize(
    "sender",
    [
        "Ana =?utf-8?q?Hi?= <ana@example.com>",
        "Ana\N{LINE SEPARATOR}Ruiz <ana@example.com>",
        f"ana@{'.'.join(['a' * 55] * 4)}.com",  # no room for a Message-ID
    ],
    ids=ascii,
)
def test_a_sender_that_a_mail_cannot_have_is_refused(sqlite_url: str, sender: str) -> None:
    with world(sqlite_url) as office:
        with pytest.raises(ValueError, match=r"read as|control character|is invalid"):
            office.campaign(PLAN, sender=sender)
        assert office.rows("SELECT * FROM campaigns") == []


def test_what_a_server_says_of_the_sender_with_the_code_of_a_recipient_bounces_nobody(
    sqlite_url: str,
) -> None:
    says = Reply("550 5.1.2 Sender domain does not exist", Stage.RECIPIENT)
    with world(sqlite_url, PostOffice(always(says))) as office:
        office.campaign(PLAN, *PEOPLE[:4])
        office.drive()
        assert {office.member(address=one) for one in PEOPLE[:4]} == {"active"}
        assert (office.due(), office.questions()) == (MONDAY + HOUR, [])
