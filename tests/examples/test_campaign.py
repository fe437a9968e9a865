"""The campaign: it writes when it should, stops the instant somebody replies, and never twice.

The post office's own log decides what was sent.
"""

from __future__ import annotations

import importlib
import inspect
import json
import logging
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from datetime import UTC, datetime, time, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from examples.campaign import writer
from examples.campaign.__main__ import main
from examples.campaign.agent import Agent
from examples.campaign.app import Launched, Plan
from examples.campaign.cadence import Cadence, Window
from examples.campaign.postoffice import Mail, Moment, PostOffice
from perdure.errors import AlreadyAnswered, AnswerRefused, BadAnswer
from perdure.types import State
from tests.support import campaigns
from tests.support.campaigns import BO, DAY, HELD, MONDAY, PLAN, World, bounce, reply, world

office, sqlite_office = campaigns.office, campaigns.sqlite_office

WEEK = 7 * DAY
YEAR = 365 * DAY
HOUR = timedelta(hours=1)
CY = "cy@example.org"
TWO = Cadence((0, 4))


def ends(office: World, how: str, campaign_id: int = 1, address: str = BO) -> None:
    """The thread is over, everything says so alike, and nothing is left to ask."""
    run = office.run(campaign_id, address)
    assert run.state is State.DONE, (run.state, run.reason, run.error)
    assert run.output["ended"] == how
    assert office.member(campaign_id, address) == how
    assert office.questions(campaign_id, address) == []


def nothing_more(office: World, sent: int) -> None:
    """However long one waits."""
    office.advance(YEAR)
    office.advance(YEAR)
    assert len(office.office.log) == sent


# -- a month


def test_six_touches_go_out_in_a_month(office: World) -> None:
    office.campaign()
    office.sleep_through()
    days = [0, 4, 11, 18, 25, 32]
    assert office.dates() == [MONDAY + timedelta(days=day) for day in days]
    assert office.touch_states() == ["sent"] * 6
    ends(office, "finished")
    assert office.clock.time == MONDAY + 39 * DAY  # a last reply has a week


def test_the_touches_are_one_thread_of_the_readers(sqlite_office: World) -> None:
    sqlite_office.campaign(cadence=Cadence((0, 1, 1)))
    sqlite_office.sleep_through()
    first, second, third = sqlite_office.sent()
    assert "In-Reply-To" not in first.content
    assert f"In-Reply-To: {first.message_id}\r\n" in second.content
    assert f"In-Reply-To: {second.message_id}\r\n" in third.content


@pytest.mark.parametrize(
    ("zone", "begins", "expected"),
    [
        ("Asia/Tokyo", MONDAY, ["2030-01-08T00:00", "2030-01-14T00:00"]),  # closed; then a Saturday
        ("America/Los_Angeles", MONDAY, ["2030-01-07T17:00", "2030-01-11T17:00"]),
        (
            "Europe/Berlin",
            datetime(2030, 3, 28, 9, tzinfo=UTC),
            ["2030-03-28T09:00", "2030-04-01T08:00"],
        ),
        (
            "Europe/Berlin",
            datetime(2030, 10, 25, 9, tzinfo=UTC),
            ["2030-10-25T09:00", "2030-10-29T10:00"],
        ),
        ("UTC", MONDAY + 5 * DAY, ["2030-01-14T09:00", "2030-01-18T09:00"]),
        ("UTC", MONDAY + 8 * HOUR, ["2030-01-08T09:00", "2030-01-14T09:00"]),
    ],
    ids=["Tokyo", "Los Angeles", "to summer time", "to winter time", "a Saturday", "at closing"],
)
def test_a_touch_goes_out_in_the_hours_of_its_contact(
    sqlite_url: str, zone: str, begins: datetime, expected: list[str]
) -> None:
    with world(sqlite_url, at=begins) as office:
        office.campaign(cadence=TWO, zone=zone)
        office.sleep_through()
        assert [f"{date:%Y-%m-%dT%H:%M}" for date in office.dates()] == expected


def test_a_tick_that_comes_late_sends_one_touch_and_counts_from_then(sqlite_office: World) -> None:
    sqlite_office.campaign(cadence=Cadence((0, 4, 7)))
    sqlite_office.advance(21 * DAY)
    assert len(sqlite_office.sent()) == 1
    sqlite_office.advance(timedelta(days=3, hours=23))
    assert len(sqlite_office.sent()) == 1
    sqlite_office.advance(HOUR)
    assert len(sqlite_office.sent()) == 2


def test_a_run_says_whose_it_is_which_touch_is_next_and_who_drives_it(office: World) -> None:
    campaign_id = office.campaign(cadence=TWO)
    whose = {"campaign_id": campaign_id, "contact_id": office.contact()}
    assert office.run().metadata == {**whose, "sequence_step": 1}
    office.drive()
    run = office.run()
    assert run.thread_id == f"campaign-{campaign_id}-{office.contact()}"
    assert run.metadata == {**whose, "sequence_step": 2}
    assert "runtime:cron" in run.tags
    office.clock.advance(4 * DAY)
    office.app.runtime.blocking.work(until_idle=True)
    assert "runtime:worker" in office.run().tags
    [found] = office.app.runtime.blocking.runs(metadata={"campaign_id": campaign_id})
    assert found.id == run.id


def test_a_touch_keeps_the_version_of_its_prompt_and_the_run_that_sent_it(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite_office.campaign(cadence=TWO)
    sqlite_office.drive()
    changed = writer.PROMPT + "P. S."
    monkeypatch.setattr(writer, "PROMPT", changed)
    monkeypatch.setattr(writer, "PROMPT_VERSION", writer.version_of(changed))
    sqlite_office.sleep_through()
    first, second = sqlite_office.touches()
    assert first["prompt_version"] != second["prompt_version"]
    assert {first["run_id"], second["run_id"]} == {sqlite_office.run().id}


def test_launching_twice_starts_nothing_twice(office: World) -> None:
    campaign_id = office.campaign(PLAN, BO, CY)
    office.drive()
    assert office.app.launch(campaign_id).threads == 0
    office.drive()
    assert len(office.app.runtime.blocking.runs()) == 2
    assert len(office.office.log) == 2


def test_two_who_launch_at_once_start_nothing_twice(office: World) -> None:
    campaign_id = office.app.create(PLAN)
    office.enrol(campaign_id, BO, CY)
    with ThreadPoolExecutor() as pool:
        list(pool.map(office.app.launch, [campaign_id] * 4))
    assert len(office.app.runtime.blocking.runs()) == 2


def test_who_is_added_later_starts_with_the_next_launch(sqlite_office: World) -> None:
    campaign_id = sqlite_office.campaign(cadence=TWO)
    sqlite_office.advance(DAY)
    sqlite_office.enrol(campaign_id, BO, CY)
    assert sqlite_office.app.launch(campaign_id).threads == 1
    sqlite_office.sleep_through()
    assert len(sqlite_office.sent()) == len(sqlite_office.sent(CY)) == 2


@pytest.mark.parametrize(
    ("zones", "due", "zone", "is_due"),
    [
        (["UTC"], MONDAY, "UTC", True),
        (["America/New_York"], MONDAY + timedelta(hours=5), "America/New_York", False),
        (["Asia/Tokyo", "America/New_York"], MONDAY + timedelta(hours=5), "America/New_York", 0),
        (["Asia/Tokyo"], MONDAY + timedelta(hours=15), "Asia/Tokyo", False),
    ],
    ids=["now", "later today", "the first of two", "tomorrow"],
)
def test_a_launch_tells_when_the_first_touch_goes_out(
    sqlite_office: World, zones: list[str], due: datetime, zone: str, is_due: bool
) -> None:
    sqlite_office.clock.move_to(MONDAY)
    campaign_id = sqlite_office.app.create(PLAN)
    for number, one in enumerate(zones):
        sqlite_office.enrol(campaign_id, f"p{number}@example.org", zone=one)
    launched = sqlite_office.app.launch(campaign_id)
    assert launched == Launched(len(zones), due, zone, bool(is_due))
    sqlite_office.drive()
    while not sqlite_office.office.log:
        sqlite_office.advance(HOUR)
    assert sqlite_office.clock.time == due


def test_a_contact_without_a_name_is_greeted_without_one(sqlite_office: World) -> None:
    campaign_id = sqlite_office.app.create(PLAN)
    sqlite_office.app.bring(campaign_id, f"email,name,company\n{BO},,Ltd\n{CY},,\n")
    sqlite_office.app.launch(campaign_id)
    sqlite_office.drive()
    for address in (BO, CY):
        [touch] = sqlite_office.touches(address=address)
        assert touch["body"].startswith("Hello,\n")
    prompt = writer.prompt_for(step=1, steps=6, brief="Tables", name="", company="Ltd")
    assert "name is not known" in prompt
    named = writer.prompt_for(step=1, steps=6, brief="Tables", name="Bo", company="")
    assert "The person: Bo\n" in named
    assert writer.Scripted().invoke(named).text.splitlines()[2] == "Hello Bo,"


# -- whatever ends it


@pytest.mark.parametrize("ticks_before", [True, False], ids=["asleep", "before the first touch"])
def test_a_reply_ends_the_thread(office: World, ticks_before: bool) -> None:
    office.campaign()
    if ticks_before:
        office.drive()
    office.receive(reply())
    ends(office, "replied")
    nothing_more(office, sent=int(ticks_before))


def test_a_reply_takes_the_question_out_of_the_inbox(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    office.receive(reply())
    ends(office, "replied")
    assert office.touch_states() == ["stopped"]
    with pytest.raises(AnswerRefused):
        office.app.runtime.blocking.answer(question.id, {"action": "approve"})
    nothing_more(office, sent=0)


def test_a_reply_between_the_approval_and_the_send_is_honoured(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    office.app.runtime.blocking.answer(question.id, {"action": "approve"})
    office.receive(reply())
    ends(office, "replied")
    assert office.touch_states() == ["stopped"]
    nothing_more(office, sent=0)


@pytest.mark.parametrize("plan", [PLAN, HELD], ids=["sent by itself", "asked"])
def test_a_reply_while_the_draft_is_being_written_is_honoured(
    office: World, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = writer.Scripted._generate

    def interrupted(self: writer.Scripted, *args: Any, **more: Any) -> Any:
        office.inbound.receive(reply().as_bytes())
        return write(self, *args, **more)

    monkeypatch.setattr(writer.Scripted, "_generate", interrupted)
    office.campaign(plan)
    office.drive()
    ends(office, "replied")
    nothing_more(office, sent=0)


@pytest.mark.parametrize(
    ("moment", "sent"),
    [(Moment.BEGAN, 0), (Moment.DATA, 1), (Moment.ACCEPTED, 1), (Moment.ANSWERED, 1)],
)
def test_a_reply_in_the_middle_of_a_conversation(url: str, moment: Moment, sent: int) -> None:
    """What came before the content was asked for stops it; later it is too late, for this one."""

    received = threading.Event()

    def on(reached: Moment, mail: Mail) -> None:
        if reached is moment:
            here.inbound.receive(reply(sender=mail.recipient).as_bytes())
            received.set()

    with world(url, PostOffice(on=on)) as here:
        here.campaign()
        here.drive()
        assert received.wait(30)
        here.drive()
        ends(here, "replied")
        assert here.touch_states() == ["sent" if sent else "stopped"]
        nothing_more(here, sent)


def test_a_reply_to_a_touch_that_is_not_yet_noted_as_sent_is_its_own(url: str) -> None:
    def on(reached: Moment, mail: Mail) -> None:
        if reached is Moment.ACCEPTED and len(here.sent()) == 2:
            here.inbound.receive(reply(mail.message_id).as_bytes())

    with world(url, PostOffice(on=on)) as here:
        here.campaign()
        here.sleep_through()
        ends(here, "replied")
        assert here.scores() == {"touch 1": 0.0, "touch 2": 1.0}


def test_a_bounce_ends_every_campaign_of_the_contact(office: World) -> None:
    office.campaign()
    office.campaign(name="autumn", sequence="other")
    office.drive()
    row = office.receive(bounce(office.sent()[0].message_id))
    assert row["kind"] == "bounce"
    ends(office, "bounced", 1)
    ends(office, "bounced", 2)
    nothing_more(office, sent=2)


@pytest.mark.parametrize(
    "mail",
    [
        reply(text="Please remove me from your list."),
        reply(subject="unsubscribe", text="", To="unsubscribe@example.com"),
        reply(text="see the subject", To="unsubscribe@example.com"),
    ],
    ids=["by text", "by the header of a mail program", "by address"],
)
def test_an_unsubscribe_ends_it(sqlite_office: World, mail: EmailMessage) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    assert office.receive(mail)["kind"] == "unsubscribe"
    ends(office, "unsubscribed")
    assert office.scores() == {"touch 1": 0.0}
    nothing_more(office, sent=1)


def test_a_contact_who_is_removed_gets_no_more_mail(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    assert office.app.remove(BO.upper()) == [1]
    assert office.app.remove(BO) == []
    office.drive()
    ends(office, "removed")
    nothing_more(office, sent=0)


def test_a_campaign_whose_rows_were_deleted_by_hand_ends(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.rows("DELETE FROM members")
    office.rows("DELETE FROM touches")
    office.app.wake(1, office.contact(), "look")
    office.drive()
    assert office.run().output["ended"] == "removed"
    nothing_more(office, sent=0)


@pytest.mark.parametrize(
    ("mail", "kind"),
    [
        (reply(Auto_Submitted="auto-replied"), "automatic"),
        (reply(sender="someone@else.example"), "stray"),
        (reply("<of-nobody@else.example>", sender="someone@else.example"), "stray"),
        (bounce("<of-nobody@else.example>"), "stray"),
        (reply(sender="x@else.example", text="unsubscribe"), "stray"),
        (b"\x00\xff garbage", "stray"),
        (b"", "stray"),
    ],
    ids=[
        "out of office",
        "a stranger",
        "a stranger's thread",
        "forged bounce",
        "forged stop",
        "garbage",
        "nothing",
    ],
)
def test_mail_that_is_not_about_us_ends_nothing(
    sqlite_office: World, mail: EmailMessage | bytes, kind: str
) -> None:
    office = sqlite_office
    office.campaign(cadence=TWO)
    office.drive()
    assert office.receive(mail)["kind"] == kind
    assert office.member() == "active"
    office.sleep_through()
    assert len(office.sent()) == 2
    ends(office, "finished")


# -- whose reply it is, and what it earned


@pytest.mark.parametrize(
    ("how", "winner"),
    [
        (lambda ids: reply(ids[0]), 1),
        (lambda ids: reply(References=f"<x@y.example> {ids[0]} <z@y.example>"), 1),
        (lambda ids: reply(References=" ".join(ids)), 2),
        (lambda ids: reply(), 2),
        (lambda ids: reply("<unknown@example.org>"), 2),
        (lambda ids: reply(ids[0], sender="Assistant <pa@example.org>"), 1),
        (lambda ids: reply(sender="BO@Example.ORG"), 2),
    ],
    ids=[
        "In-Reply-To",
        "References",
        "nearest of References",
        "address",
        "unknown id",
        "forwarded",
        "other case",
    ],
)
def test_a_reply_scores_the_touch_that_earned_it(office: World, how: Any, winner: int) -> None:
    office.campaign(PLAN, BO, CY)
    office.drive()
    office.advance(4 * DAY)
    assert len(office.sent()) == 2
    office.receive(how([mail.message_id for mail in office.sent()]))
    ends(office, "replied")
    expected = {f"touch {step}": float(step == winner) for step in (1, 2)}
    assert office.scores() == expected
    assert [touch["outcome"] for touch in office.touches()] == list(expected.values())
    office.sleep_through()
    ends(office, "finished", address=CY)
    assert set(office.scores(address=CY).values()) == {0.0}


def test_a_reply_ends_every_campaign_and_scores_the_one_it_answers(office: World) -> None:
    office.campaign()
    office.campaign(name="autumn", sequence="other")
    office.drive()
    office.receive(reply(office.message_id(1, campaign_id=1)))
    ends(office, "replied", 1)
    ends(office, "replied", 2)
    assert (office.scores(1), office.scores(2)) == ({"touch 1": 1.0}, {"touch 1": 0.0})


def test_a_reply_that_comes_after_the_end_still_counts(office: World) -> None:
    office.campaign(cadence=TWO)
    office.campaign(name="old", sequence="other", cadence=Cadence((0,)))
    office.sleep_through()
    ends(office, "finished")
    assert office.scores() == {"touch 1": 0.0, "touch 2": 0.0}
    office.clock.advance(YEAR)
    office.receive(reply(office.message_id(2)))
    assert office.scores() == {"touch 1": 0.0, "touch 2": 1.0}
    assert [office.member(1), office.member(2)] == ["replied", "finished"]
    assert [touch["outcome"] for touch in office.touches()] == [0.0, 1.0]
    assert office.rows("SELECT told, late FROM messages") == [{"told": 1, "late": 1}]


def test_a_late_reply_to_a_run_that_was_pruned_is_kept(office: World) -> None:
    office.campaign(cadence=Cadence((0,)))
    office.sleep_through()
    office.clock.advance(YEAR)
    assert office.app.runtime.blocking.prune(older_than=DAY) == 1
    office.receive(reply())
    assert office.member() == "replied"
    assert office.rows("SELECT told FROM messages") == [{"told": 1}]


def test_a_reply_while_the_end_is_being_told_has_the_last_word(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread has said that nobody replied, and is about to score that."""
    with world(url) as office:
        office.campaign(cadence=Cadence((1,)))
        office.drive()
        office.advance(DAY)
        score = office.app.runtime.blocking.score

        def slow_score(run_id: str, *args: Any, **more: Any) -> None:
            monkeypatch.undo()
            assert office.inbound.receive(reply().as_bytes())["late"] == 1
            assert office.rows("SELECT told FROM messages") == [{"told": 0}]
            assert office.inbound.sweep() == 0
            score(run_id, *args, **more)

        monkeypatch.setattr(type(office.app.runtime.blocking), "score", staticmethod(slow_score))
        office.advance(DAY)
        assert office.scores() == {"touch 1": 0.0}
        assert office.inbound.sweep() == 1
        assert office.scores() == {"touch 1": 1.0}
        assert office.inbound.sweep() == 0
        assert office.member() == "replied"


def test_only_the_first_reply_of_a_contact_is_earned(office: World) -> None:
    office.campaign()
    office.drive()
    office.advance(4 * DAY)
    office.receive(reply(office.message_id(1)))
    office.receive(reply(office.message_id(2), "And one more thing."))
    assert office.scores() == {"touch 1": 1.0, "touch 2": 0.0}
    assert office.inbound.sweep() == 0


# -- approval


def test_a_held_draft_is_sent_by_no_clock(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    assert question.value["subject"] == "Better tables (1)"
    assert question.value["to"] == BO
    nothing_more(office, sent=0)
    assert office.touch_states() == ["draft_pending"]
    assert [one.id for one in office.questions()] == [question.id]


def test_an_approved_draft_goes_out_as_it_was_shown(office: World) -> None:
    office.campaign(HELD, cadence=TWO)
    office.drive()
    [question] = office.questions()
    office.answer("approve")
    [mail] = office.sent()
    assert mail.subject == question.value["subject"]
    assert question.value["body"].splitlines()[-1] in mail.content
    office.advance(4 * DAY)
    assert len(office.sent()) == 1
    office.answer("approve")
    office.sleep_through()
    assert len(office.sent()) == 2
    ends(office, "finished")


def test_an_edited_draft_goes_out_as_it_was_edited(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.answer("edit", subject="Tables", body="Dear Bo, only this.")
    [mail] = office.sent()
    assert mail.subject == "Tables"
    assert "Dear Bo, only this." in mail.content
    [touch] = office.touches()
    assert (touch["subject"], touch["body"]) == ("Tables", "Dear Bo, only this.")


def test_a_rejected_draft_is_written_again_and_asked_again(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [first] = office.questions()
    office.answer("reject", comment="too long")
    [second] = office.questions()
    assert "(Written again: too long)" in second.value["body"]
    with pytest.raises(AlreadyAnswered):
        office.app.runtime.blocking.answer(first.id, {"action": "approve"})
    assert office.sent() == []
    office.answer("reject", comment="too short")
    office.answer("approve")
    [mail] = office.sent()
    assert "too short" in mail.content


def test_a_skipped_touch_is_left_out_and_the_next_comes_in_its_time(office: World) -> None:
    office.campaign(HELD, cadence=TWO)
    office.drive()
    office.answer("skip")
    assert office.sent() == []
    office.advance(4 * DAY)
    office.answer("approve")
    assert [mail.subject for mail in office.sent()] == ["Better tables (2)"]
    assert office.touch_states() == ["skipped", "sent"]
    office.sleep_through()
    assert office.scores() == {"touch 2": 0.0}


def test_a_second_answer_is_refused(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    answer = office.app.runtime.blocking.answer
    answer(question.id, {"action": "skip"})
    with pytest.raises(AlreadyAnswered):
        answer(question.id, {"action": "approve"})
    office.drive()
    with pytest.raises(AlreadyAnswered):
        answer(question.id, {"action": "approve"})
    assert office.sent() == []


@pytest.mark.parametrize(
    "decision",
    [
        {"action": "send"},
        {"action": "edit"},
        {"action": "edit", "body": ""},
        {"action": "edit", "body": "x", "subject": "a\r\nBcc: all@example.org"},
        {"action": "approve", "to": "other@example.org"},
        "approve",
        None,
    ],
    ids=str,
)
def test_what_is_no_decision_is_refused(sqlite_office: World, decision: Any) -> None:
    sqlite_office.campaign(HELD)
    sqlite_office.drive()
    [question] = sqlite_office.questions()
    with pytest.raises(BadAnswer):
        sqlite_office.app.runtime.blocking.answer(question.id, decision)
    nothing_more(sqlite_office, sent=0)


def test_an_approval_at_night_is_sent_in_the_morning(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.clock.advance(5 * DAY)  # a Saturday
    office.answer("approve")
    assert office.sent() == []
    assert office.questions() == []
    office.advance(2 * DAY - timedelta(minutes=1))
    assert office.sent() == []
    office.advance(timedelta(minutes=1))
    assert office.dates() == [MONDAY + WEEK]


def test_a_reply_on_the_night_of_an_approval_is_honoured(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.clock.advance(5 * DAY)
    office.answer("approve")
    office.receive(reply())
    ends(office, "replied")
    nothing_more(office, sent=0)


# -- cadence


@pytest.mark.parametrize(("days", "when"), [(2, 2), (9, 9)], ids=["sooner", "later"])
def test_a_change_of_cadence_applies_to_threads_that_sleep(
    office: World, days: int, when: int
) -> None:
    campaign_id = office.campaign(cadence=TWO)
    office.drive()
    office.clock.advance(DAY)
    assert office.app.set_cadence(campaign_id, Cadence((0, days))) == 2
    office.drive()
    assert office.due() == MONDAY + timedelta(days=when)
    office.sleep_through()
    assert office.dates() == [MONDAY, MONDAY + timedelta(days=when)]


def test_a_touch_that_a_new_cadence_makes_due_goes_out_now(office: World) -> None:
    campaign_id = office.campaign(cadence=TWO)
    office.drive()
    office.clock.advance(2 * DAY)
    office.app.set_cadence(campaign_id, Cadence((0, 1)))
    office.drive()
    assert office.dates() == [MONDAY, MONDAY + 2 * DAY]


def test_fewer_touches_end_a_thread_that_has_sent_them(office: World) -> None:
    campaign_id = office.campaign()
    office.drive()
    office.advance(4 * DAY)
    office.app.set_cadence(campaign_id, Cadence((0,)))
    office.sleep_through()
    assert len(office.sent()) == 2
    ends(office, "finished")


def test_a_change_of_cadence_leaves_a_held_draft_in_the_inbox(office: World) -> None:
    campaign_id = office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    office.app.set_cadence(campaign_id, Cadence((9, 9), Window(days=frozenset({6}))))
    office.drive()
    assert [one.id for one in office.questions()] == [question.id]


def test_a_change_of_cadence_before_the_launch_is_no_harm(office: World) -> None:
    campaign_id = office.app.create(PLAN)
    office.enrol(campaign_id, BO)
    office.app.set_cadence(campaign_id, Cadence((0, 1)))
    office.app.launch(campaign_id)
    office.sleep_through()
    assert office.dates() == [MONDAY, MONDAY + DAY]


# -- never twice


def test_two_campaigns_of_a_sequence_send_each_step_once(office: World) -> None:
    office.campaign(cadence=TWO)
    office.drive()
    office.clock.advance(DAY)
    office.campaign(name="again", cadence=TWO)
    office.sleep_through()
    assert office.dates() == [MONDAY, MONDAY + 4 * DAY]
    states = zip(office.touch_states(1), office.touch_states(2), strict=True)
    assert next(states) == ("sent", "duplicate")
    assert set(next(states)) == {"sent", "duplicate"}  # both were due, and one of them was first
    ends(office, "finished", 1)
    ends(office, "finished", 2)
    assert len(office.scores(1)) + len(office.scores(2)) == 2


def test_campaigns_of_a_sequence_at_once_send_each_step_once(office: World) -> None:
    for n in range(5):
        office.campaign(name=f"c{n}", cadence=TWO)
    office.sleep_through()
    assert len(office.sent()) == 2
    states = [office.touch_states(n + 1) for n in range(5)]
    assert sorted(one[0] for one in states) == ["duplicate"] * 4 + ["sent"]
    assert sorted(one[1] for one in states) == ["duplicate"] * 4 + ["sent"]


def test_a_reply_scores_the_campaign_that_sent_the_touch(office: World) -> None:
    office.campaign(cadence=TWO)
    office.drive()
    office.campaign(name="again", cadence=TWO)
    office.drive()
    office.receive(reply(office.sent()[0].message_id))
    assert (office.scores(1), office.scores(2)) == ({"touch 1": 1.0}, {})


def test_another_import_and_another_case_are_the_same_contact(office: World) -> None:
    campaign_id = office.campaign(cadence=TWO)
    office.drive()
    office.enrol(campaign_id, "BO@EXAMPLE.ORG")
    second = office.app.create(replace(PLAN, name="again", cadence=TWO))
    office.enrol(second, "Bo@Example.org")
    office.app.launch(campaign_id)
    office.app.launch(second)
    office.sleep_through()
    assert len(office.office.log) == 2


def test_another_sequence_writes_to_the_same_contact(office: World) -> None:
    office.campaign(cadence=TWO)
    office.campaign(name="autumn", sequence="other", cadence=TWO)
    office.sleep_through()
    assert len({mail.message_id for mail in office.sent()}) == 4


# -- rules


@pytest.mark.parametrize(
    "node",
    ["check_reply", "compose_touch", "approval", "_release", "send_touch", "schedule_next", "_end"],
)
def test_nodes_ask_no_clock_and_no_chance_but_the_recorded_ones(node: str) -> None:
    source = inspect.getsource(getattr(Agent, node))
    assert not re.search(
        r"(?<!perdure\.)\b(time|uuid|random|monotonic|now|today)\(|\btime\.", source
    )


# -- the command line, and who drives it


@pytest.fixture
def command(
    sqlite_office: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Say something to `python -m examples.campaign`. Gives its exit code and what it printed."""
    for one in fields(sqlite_office.app.settings):
        value = str(getattr(sqlite_office.app.settings, one.name))
        monkeypatch.setenv(f"CAMPAIGN_{one.name.upper()}", value)

    def run(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["campaign", *words])
        try:
            code = main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        told = capsys.readouterr()
        return code, told.out + told.err

    return run


def test_a_campaign_can_be_run_from_the_command_line(
    sqlite_office: World, command: Callable[..., tuple[int, str]], tmp_path: Path
) -> None:
    sheet, bad = tmp_path / "good.csv", tmp_path / "bad.csv"
    sheet.write_text(f"email,name\n{BO},Bo\n{CY},Cy\n")
    bad.write_text("email,zone\nnot an address,\ndo@example.org,Mars/Base\n")
    create = ("create", "spring", "--brief", "Tables", "--sender", "ana@example.com")
    assert command(*create, "--gaps", "0,4", "--auto-approve") == (0, "Campaign 1: spring\n")
    assert command(*create)[0] == 2
    code, told = command("import", "spring", str(bad))
    assert code == 1
    assert "line 2" in told
    assert "line 3" in told
    assert command("import", "spring", str(sheet)) == (0, "2 added, 0 known, 0 left out\n")
    code, told = command("launch", "spring")
    assert code == 0
    assert re.match(r"2 threads; the first touch is due (now|20\d\d-\S+ \d\d:\d\d in UTC)\. ", told)
    assert command("launch", "spring") == (0, "0 threads; no active member is without one\n")
    sqlite_office.drive()
    assert command("cadence", "spring", "--gaps", "0,2") == (0, "Version 2 of the cadence\n")
    assert command("remove", CY) == (0, f"1 campaign ended for {CY}\n")
    sqlite_office.sleep_through()
    code, told = command("status")
    [status] = map(json.loads, told.splitlines())
    assert status["members"] == {"finished": 1, "removed": 1}
    assert status["touches"] == {"sent": 3}
    assert list(status["prompts"].values()) == [{"sent": 3, "replies": 0}]
    assert sqlite_office.dates() == [
        sqlite_office.dates(CY)[0],
        sqlite_office.dates(CY)[0] + 2 * DAY,
    ]


def test_what_is_not_said_of_a_cadence_stays_as_it_is(
    sqlite_office: World, command: Callable[..., tuple[int, str]]
) -> None:
    create = ("create", "spring", "--brief", "Tables", "--sender", "ana@example.com")
    assert command(*create, "--gaps", "0,3", "--window", "08:00-24:00", "--days", "sat,sun")[0] == 0

    def told() -> list[Any]:
        [status] = map(json.loads, command("status")[1].splitlines())
        return [status[name] for name in ("gaps", "window", "days")]

    assert told() == [[0, 3], "08:00-24:00", "sat,sun"]
    assert command("cadence", "spring", "--days", "mon-sun")[0] == 0
    assert told() == [[0, 3], "08:00-24:00", "mon-sun"]
    assert command("cadence", "spring", "--window", "00:00-12:30")[0] == 0
    assert told() == [[0, 3], "00:00-12:30", "mon-sun"]
    assert command("cadence", "spring", "--gaps", "1")[0] == 0
    assert told() == [[1], "00:00-12:30", "mon-sun"]
    assert command("cadence", "spring")[0] == 2


def test_the_status_counts_threads_that_do_not_go_on(office: World) -> None:
    office.campaign(HELD, BO, CY)
    office.campaign(HELD, "do@example.org", name="autumn")
    office.drive()
    client = office.app.runtime.blocking
    client.cancel(office.run(1, BO).id)
    client.pause(office.run(1, CY).id)
    office.drive()
    spring, autumn = office.app.status()
    assert spring["threads"] == {"cancelled": 1, "paused": 1}
    assert autumn["threads"] == {}
    assert office.app.launch(1).threads == 0


def test_what_was_sent_counts_for_its_prompt_before_it_is_known_what_it_earned(
    office: World,
) -> None:
    office.campaign(PLAN, BO, CY)
    office.drive()

    def told() -> list[Any]:
        return list(office.app.status()[0]["prompts"].values())

    assert told() == [{"sent": 2, "replies": 0}]
    office.receive(reply())
    assert told() == [{"sent": 2, "replies": 1}]


def test_the_log_of_a_worker_has_no_line_for_every_look_up(
    command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("httpx"), "level", logging.NOTSET)
    monkeypatch.delitem(sys.modules, "examples.campaign.service", raising=False)
    service = importlib.import_module("examples.campaign.service")
    service.app.close()
    assert logging.getLogger("httpx").level == logging.WARNING


@pytest.mark.parametrize(
    "words",
    [
        ("launch", "nothing"),
        ("remove", "nobody@example.org"),
        ("cadence", "nothing"),
        ("create", "x", "--brief", "x", "--sender", "a@b.c", "--gaps", "soon"),
        ("create", "x", "--brief", "x", "--sender", "a@b.c", "--window", "17:00-09:00"),
        ("import", "nothing", "nowhere.csv"),
        ("fly",),
    ],
    ids=" ".join,
)
def test_wrong_use_is_told_in_a_sentence(
    command: Callable[..., tuple[int, str]], words: tuple[str, ...]
) -> None:
    code, told = command(*words)
    assert code == 2
    assert told
    assert "Traceback" not in told


def test_a_cron_over_http_drives_the_campaign(
    sqlite_office: World, command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_CRON_SECRET", "s3cret" * 8)
    monkeypatch.delitem(sys.modules, "examples.campaign.service", raising=False)
    service = importlib.import_module("examples.campaign.service")
    always = Cadence((0,), Window(time(0), time.max, frozenset(range(7))))
    sqlite_office.clock.move_to(datetime.now(UTC))
    sqlite_office.campaign(cadence=always)
    with TestClient(service.web()) as cron:
        assert cron.post("/cron/tick").status_code == 401
        asked = {"Authorization": f"Bearer {'s3cret' * 8}"}
        assert cron.post("/cron/tick", headers=asked).status_code == 200
    assert sqlite_office.touch_states() == ["sent"]
