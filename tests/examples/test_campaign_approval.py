"""A draft that needs approval goes out as it was decided, and never by a clock."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure.errors import AlreadyAnswered, BadAnswer
from tests.examples.campaigns import BO, DAY, HELD, MONDAY, TWO, World, reply
from tests.examples.campaigns import office as office
from tests.examples.campaigns import sqlite_office as sqlite_office

WEEK = 7 * DAY


def test_no_timer_sends_a_held_draft(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    assert question.value["subject"] == "Better tables (1)"
    assert question.value["to"] == BO
    office.nothing_more(sent=0)
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
    office.ends("finished")


def test_an_edited_draft_goes_out_as_it_was_edited(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.answer("edit", subject="Tables", body="Dear Bo, only this.")
    [mail] = office.sent()
    assert mail.subject == "Tables"
    assert "Dear Bo, only this." in mail.content
    [touch] = office.touches()
    assert (touch["subject"], touch["body"]) == ("Tables", "Dear Bo, only this.")


def test_a_rejected_draft_is_rewritten_and_asked_about_again(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [first] = office.questions()
    office.answer("reject", comment="too long")
    [second] = office.questions()
    assert "In short:" in second.value["body"]
    with pytest.raises(AlreadyAnswered):
        office.app.runtime.blocking.answer(first.id, {"action": "approve"})
    assert office.sent() == []
    office.answer("reject", comment="too short\nThe end is dull")
    office.answer("approve")
    [mail] = office.sent()
    assert "In short:" in mail.content
    assert "too" not in mail.content, "what a reviewer says is not for the recipient"


def test_a_skipped_touch_is_left_out_and_the_next_goes_out_on_time(office: World) -> None:
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
def test_an_invalid_decision_is_refused(sqlite_office: World, decision: Any) -> None:
    sqlite_office.campaign(HELD)
    sqlite_office.drive()
    [question] = sqlite_office.questions()
    with pytest.raises(BadAnswer):
        sqlite_office.app.runtime.blocking.answer(question.id, decision)
    sqlite_office.nothing_more(sent=0)


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
    office.ends("replied")
    office.nothing_more(sent=0)
