"""A reply, a bounce or an unsubscribe ends the campaign's thread at once, and scores its touch.

The post office's own log decides what was sent.
"""

from __future__ import annotations

import threading
from email.message import EmailMessage
from typing import Any

import pytest

from examples.campaign import writer
from examples.campaign.app import Plan
from examples.campaign.cadence import Cadence
from examples.campaign.demo.postoffice import Mail, Moment, PostOffice
from perdure.errors import AnswerRefused
from tests.examples.campaigns import BO, CY, DAY, HELD, PLAN, TWO, YEAR, World, bounce, reply, world
from tests.examples.campaigns import office as office
from tests.examples.campaigns import sqlite_office as sqlite_office

# -- whatever ends it


@pytest.mark.parametrize("ticks_before", [True, False], ids=["asleep", "before the first touch"])
def test_a_reply_ends_the_thread(office: World, ticks_before: bool) -> None:
    office.campaign()
    if ticks_before:
        office.drive()
    office.receive(reply())
    office.ends("replied")
    office.nothing_more(sent=int(ticks_before))


def test_a_reply_takes_the_question_out_of_the_inbox(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    office.receive(reply())
    office.ends("replied")
    assert office.touch_states() == ["stopped"]
    with pytest.raises(AnswerRefused):
        office.app.runtime.blocking.answer(question.id, {"action": "approve"})
    office.nothing_more(sent=0)


def test_a_reply_between_the_approval_and_the_send_is_honoured(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [question] = office.questions()
    office.app.runtime.blocking.answer(question.id, {"action": "approve"})
    office.receive(reply())
    office.ends("replied")
    assert office.touch_states() == ["stopped"]
    office.nothing_more(sent=0)


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
    office.ends("replied")
    office.nothing_more(sent=0)


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
        here.ends("replied")
        assert here.touch_states() == ["sent" if sent else "stopped"]
        here.nothing_more(sent)


def test_a_reply_to_a_touch_not_yet_recorded_as_sent_is_credited_to_it(url: str) -> None:
    def on(reached: Moment, mail: Mail) -> None:
        if reached is Moment.ACCEPTED and len(here.sent()) == 2:
            here.inbound.receive(reply(mail.message_id).as_bytes())

    with world(url, PostOffice(on=on)) as here:
        here.campaign()
        here.sleep_through()
        here.ends("replied")
        assert here.scores() == {"touch 1": 0.0, "touch 2": 1.0}


def test_a_bounce_ends_every_campaign_of_the_contact(office: World) -> None:
    office.campaign()
    office.campaign(name="autumn")
    office.drive()
    row = office.receive(bounce(office.sent()[0].message_id))
    assert row["kind"] == "bounce"
    office.ends("bounced", 1)
    office.ends("bounced", 2)
    office.nothing_more(sent=2)


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
    office.ends("unsubscribed")
    assert office.scores() == {"touch 1": 0.0}
    office.nothing_more(sent=1)


def test_a_contact_who_is_removed_gets_no_more_mail(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.app.remove(BO.upper())
    office.app.remove(BO)
    office.drive()
    office.ends("removed")
    office.nothing_more(sent=0)


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
def test_unrelated_mail_ends_nothing(
    sqlite_office: World, mail: EmailMessage | bytes, kind: str
) -> None:
    office = sqlite_office
    office.campaign(cadence=TWO)
    office.drive()
    assert office.receive(mail)["kind"] == kind
    assert office.member() == "active"
    office.sleep_through()
    assert len(office.sent()) == 2
    office.ends("finished")


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
    office.ends("replied")
    expected = {f"touch {step}": float(step == winner) for step in (1, 2)}
    assert office.scores() == expected
    assert [touch["outcome"] for touch in office.touches()] == list(expected.values())
    office.sleep_through()
    office.ends("finished", address=CY)
    assert set(office.scores(address=CY).values()) == {0.0}


def test_a_reply_ends_every_campaign_and_scores_the_one_it_answers(office: World) -> None:
    office.campaign()
    office.campaign(name="autumn")
    office.drive()
    office.receive(reply(office.message_id(1, campaign_id=1)))
    office.ends("replied", 1)
    office.ends("replied", 2)
    assert (office.scores(1), office.scores(2)) == ({"touch 1": 1.0}, {"touch 1": 0.0})


def test_a_reply_after_the_end_still_counts(office: World) -> None:
    office.campaign(cadence=TWO)
    office.campaign(name="old", cadence=Cadence((0,)))
    office.sleep_through()
    office.ends("finished")
    assert office.scores() == {"touch 1": 0.0, "touch 2": 0.0}
    office.clock.advance(YEAR)
    office.receive(reply(office.message_id(2)))
    assert office.scores() == {"touch 1": 0.0, "touch 2": 1.0}
    assert [office.member(1), office.member(2)] == ["finished", "finished"]
    assert [touch["outcome"] for touch in office.touches()] == [0.0, 1.0]
    assert office.rows("SELECT signalled, late FROM messages") == [{"signalled": 1, "late": 1}]


def test_a_late_reply_to_a_run_that_was_pruned_is_kept(office: World) -> None:
    office.campaign(cadence=Cadence((0,)))
    office.sleep_through()
    office.clock.advance(YEAR)
    assert office.app.runtime.blocking.prune(older_than=DAY) == 1
    office.receive(reply())
    assert office.rows("SELECT signalled FROM messages") == [{"signalled": 1}]


def test_a_reply_while_the_end_is_being_recorded_has_the_last_word(
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
            row = office.inbound.receive(reply().as_bytes())
            assert row is not None
            assert row["late"] == 1
            assert office.rows("SELECT signalled FROM messages") == [{"signalled": 0}]
            assert office.inbound.sweep() == 0
            score(run_id, *args, **more)

        monkeypatch.setattr(type(office.app.runtime.blocking), "score", staticmethod(slow_score))
        office.advance(DAY)
        assert office.scores() == {"touch 1": 0.0}
        assert office.inbound.sweep() == 1
        assert office.scores() == {"touch 1": 1.0}
        assert office.inbound.sweep() == 0


def test_only_the_first_reply_of_a_contact_is_credited(office: World) -> None:
    office.campaign()
    office.drive()
    office.advance(4 * DAY)
    office.receive(reply(office.message_id(1)))
    office.receive(reply(office.message_id(2), "And one more thing."))
    assert office.scores() == {"touch 1": 1.0, "touch 2": 0.0}
    assert office.inbound.sweep() == 0
