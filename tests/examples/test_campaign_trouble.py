"""What a mail server refuses, and what becomes of the contact, the touch and the campaign."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from examples.campaign import people
from examples.campaign.cadence import Cadence
from examples.campaign.faults import Reply
from examples.campaign.postoffice import Fault, PostOffice, scripted
from tests.support import campaigns
from tests.support.campaigns import BO, DAY, HELD, MONDAY, PLAN, BadAnswer, World, sql, world

office, workers = campaigns.office, campaigns.workers
HOUR = timedelta(hours=1)
SENDER = Reply("550 5.1.8 Sender address rejected: Domain not found")
PEOPLE = [f"p{n}@example.org" for n in range(20)]


def kinds(office: World) -> list[str]:
    return [question.value["kind"] for question in office.questions()]


def test_a_sender_that_is_refused_stops_the_campaign_and_asks_once(url: str) -> None:
    with world(url) as office:
        office.office.refuses = SENDER
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        [question] = office.questions()
        assert question.value["kind"] == "trouble"
        assert "5.1.8" in question.value["said"]
        assert "@example.org" not in str(question.value)
        assert {office.member(address=one) for one in PEOPLE} == {"active"}
        tried = len(office.office.conversations)
        office.advance(3 * DAY)
        assert len(office.office.conversations) == tried
        assert len(office.questions()) == 1
        office.office.refuses = None
        office.answer("resume")
        assert len(office.office.log) == 20
        assert office.rows("SELECT state, troubles FROM campaigns") == [
            {"state": "running", "troubles": 1}
        ]


def test_a_campaign_in_trouble_can_be_stopped_for_good(office: World) -> None:
    office.office.refuses = SENDER
    office.campaign(PLAN, *PEOPLE[:3])
    office.drive()
    office.office.refuses = None
    office.answer("stop")
    office.sleep_through(5)
    assert office.office.log == []
    assert {office.member(address=one) for one in PEOPLE[:3]} == {"stopped"}
    assert {office.run(address=one).state for one in PEOPLE[:3]} == {"done"}


def test_a_sender_that_is_refused_after_the_clock_was_set_back_stops_the_campaign(
    sqlite_url: str,
) -> None:
    with world(sqlite_url) as office:
        office.campaign(PLAN, PEOPLE[0])
        office.drive()
        office.app.database.write(sql("UPDATE touches SET sent_at = sent_at + 3600000"))
        office.office.refuses = SENDER
        office.enrol(1, PEOPLE[1])
        office.app.launch(1)
        office.drive()
        assert kinds(office) == ["trouble"]
        assert len(office.office.conversations) == 2


def test_a_server_that_defers_every_mail_for_a_day_is_one_question(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(lambda *_: Reply("451 4.3.0 Lookup failure"))) as office:
        office.campaign(PLAN, *PEOPLE[:8])
        office.drive()
        office.app.database.write(sql("UPDATE touches SET refused = 11"))
        office.advance(HOUR)
        assert kinds(office).count("trouble") == 1
        assert len(kinds(office)) <= 5
        office.office.faults = None
        [question] = [one for one in office.questions() if one.value["kind"] == "trouble"]
        office.app.runtime.blocking.answer(question.id, {"action": "resume"})
        office.drive()
        assert (len(office.office.log), kinds(office)) == (8, [])


def test_a_refusal_of_another_campaign_of_the_sequence_has_no_consequence_here(
    sqlite_url: str,
) -> None:
    with world(sqlite_url, PostOffice(scripted({(BO, 1): Fault.REJECT_RECIPIENT}))) as office:
        office.campaign(cadence=Cadence((0,)))
        office.drive()
        assert office.member() == "bounced"
        people.unbounce(office.app, BO)
        office.drive()
        office.campaign(name="again", cadence=Cadence((0, 1)))
        office.sleep_through()
        assert [office.member(1), office.member(2)] == ["finished", "finished"]
        assert office.touch_states(2) == ["duplicate", "sent"]
        assert len(office.sent()) == 2


def test_a_step_is_sent_once_if_the_address_changes_between_tries(sqlite_url: str) -> None:
    with world(sqlite_url, PostOffice(scripted({(BO, 1): Fault.GREYLIST}))) as office:
        office.campaign(cadence=Cadence((0,)))
        office.drive()
        people.update(office.app, BO, new_address="bo@example.net")
        office.campaign(PLAN, "bo@example.net", name="again", cadence=Cadence((0,)))
        office.sleep_through()
        assert [mail.recipient for mail in office.office.log] == ["bo@example.net"]


def test_many_unknown_recipients_in_a_row_are_trouble_and_no_contact_is_lost(
    url: str,
) -> None:
    faults = scripted({(one, 1): Fault.REJECT_RECIPIENT for one in PEOPLE})
    with world(url, PostOffice(faults)) as office:
        office.campaign(PLAN, *PEOPLE)
        office.drive()
        assert kinds(office) == ["trouble"]
        refused = [one for one in PEOPLE if office.member(address=one) == "bounced"]
        assert 5 <= len(refused) < 20
        office.office.faults = None
        office.answer("resume")
        assert {mail.recipient for mail in office.office.log} == set(PEOPLE)
        assert {office.member(address=one) for one in PEOPLE} == {"active"}


def test_a_list_with_many_wrong_addresses_goes_on_without_them(sqlite_url: str) -> None:
    wrong, right = PEOPLE[:5], PEOPLE[5:8]
    faults = scripted({(one, n): Fault.REJECT_RECIPIENT for one in wrong for n in (1, 2)})
    with world(sqlite_url, PostOffice(faults)) as office:
        office.campaign(PLAN, *wrong)
        office.drive()
        office.enrol(1, *right)
        office.app.launch(1)
        office.answer("resume")
        assert kinds(office) == ["trouble"]
        office.answer("accept")
        assert {mail.recipient for mail in office.office.log} == set(right)
        assert {office.member(address=one) for one in wrong} == {"bounced"}
        assert kinds(office) == []
        office.office.refuses = SENDER
        office.enrol(1, PEOPLE[9])
        office.app.launch(1)
        office.drive()
        [question] = office.questions()
        with pytest.raises(BadAnswer):  # they have nothing to do with it
            office.app.runtime.blocking.answer(question.id, {"action": "accept"})


def test_a_doubtful_refusal_is_retried_for_a_day_and_then_asked_about(office: World) -> None:
    office.office.faults = lambda recipient, attempt: Fault.MAILBOX_FULL
    office.campaign()
    for _ in range(10):
        office.drive()
        if kinds(office):
            break
        office.clock.move_to(office.due() or MONDAY)
    assert office.clock.time - MONDAY > 20 * HOUR
    assert (kinds(office), len(office.office.conversations)) == (["refusal"], 4)
    assert "5.2.2" in office.questions()[0].value["said"]
    assert office.member() == "active"
    office.office.faults = None
    office.answer("again")
    assert office.touch_states() == ["sent"]


@pytest.mark.parametrize(("action", "ended"), [("skip", "active"), ("bounce", "bounced")])
def test_a_person_may_give_up_a_touch_or_a_contact_that_is_refused(
    sqlite_url: str, action: str, ended: str
) -> None:
    with world(sqlite_url) as office:
        office.office.faults = lambda recipient, attempt: Fault.MAILBOX_FULL
        office.campaign()
        while not kinds(office):
            office.clock.move_to(office.due() or MONDAY)
            office.drive()
        office.answer(action)
        assert office.member() == ended
        assert office.sent() == []


def test_greylisted_contacts_do_not_delay_others(sqlite_url: str) -> None:
    """A sequential tick reaches everybody, and no process sleeps in it."""
    faults = scripted({(one, 1): Fault.GREYLIST for one in PEOPLE[:8]})
    with world(sqlite_url, PostOffice(faults)) as office:
        office.campaign(PLAN, *PEOPLE)
        counts = office.app.runtime.blocking.tick(limit=25, concurrency=1)
        assert counts.claimed == 20
        assert {mail.recipient for mail in office.office.log} == set(PEOPLE[8:])
        office.advance(timedelta(minutes=5))
        assert len(office.office.log) == 20


def test_a_mail_deferred_on_friday_evening_goes_out_on_monday(office: World) -> None:
    office.clock.move_to(MONDAY + 4 * DAY + 7 * HOUR + timedelta(minutes=55))  # 16:55
    office.office.busy = True
    office.campaign()
    office.drive()
    assert office.run().state == "waiting"
    office.office.busy = False
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
        local = [date.astimezone(ZoneInfo("UTC")) for date in office.dates()]
        assert local[0] >= MONDAY + 7 * DAY
        assert all(at.weekday() < 5 and 9 <= at.hour < 17 for at in local)


def test_a_paused_campaign_sends_nothing_even_in_the_middle_of_a_conversation(
    office: World,
) -> None:
    def pause(moment: object, mail: object) -> None:
        office.app.database.write(
            campaigns.sql("UPDATE campaigns SET state = 'paused' WHERE state = 'running'")
        )

    office.office.on = pause
    office.campaign()
    office.drive()
    assert (office.sent(), office.run().state) == ([], "waiting")
    office.office.on = None
    office.app.database.write(campaigns.sql("UPDATE campaigns SET state = 'running'"))
    office.advance(6 * HOUR)  # nobody woke it: it looks by itself
    assert len(office.sent()) == 1


def test_an_approval_cannot_contain_a_text(sqlite_url: str) -> None:
    with world(sqlite_url) as office:
        office.campaign(HELD)
        office.drive()
        for answer in ({"action": "approve", "body": "Other"}, {"action": "skip", "subject": "O"}):
            with pytest.raises(campaigns.BadAnswer):
                office.answer(**answer)
        office.answer("approve", comment="fine")
        assert len(office.sent()) == 1


def test_the_waits_of_a_thread_say_what_they_are(sqlite_url: str) -> None:
    with world(sqlite_url) as office:
        office.campaign(HELD)
        office.drive()
        assert office.questions()[0].value["kind"] == "approval"
        office.answer("approve")
        [wait] = office.app.runtime.blocking.waits(thread_id=office.thread())
        assert (wait.value["kind"], wait.value["touch"]) == ("cadence", 2)
        assert wait.expires_at == MONDAY + 4 * DAY
        assert isinstance(wait.expires_at, datetime)
        assert office.run().metadata == {"campaign_id": 1, "contact_id": 1, "sequence_step": 2}
        assert BO not in str(office.run().metadata)
