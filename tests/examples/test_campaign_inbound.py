"""Mail that comes in: whose it is, whatever it says of itself, and what it ends."""

from __future__ import annotations

import smtplib

import pytest

from examples.campaign.cadence import Cadence
from examples.campaign.postoffice import Fault, PostOffice, scripted
from perdure.types import State
from tests.support.campaigns import (
    BO,
    DAY,
    HELD,
    HOST,
    PLAN,
    World,
    bounce,
    listening,
    reply,
    world,
)
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office

AL, ANA = "al@example.org", "ana@example.com"


def fault(one: Fault) -> PostOffice:
    return PostOffice(scripted({(BO, 1): one}))


# -- whose mail it is


def test_two_people_may_use_one_message_id(office: World) -> None:
    office.campaign(PLAN, BO, AL)
    office.drive()
    for sender in (AL, BO, BO):
        assert office.receive(reply(sender=sender, Message_ID="<1@localhost>"))["address"] == sender
    assert [office.member(address=one) for one in (AL, BO)] == ["replied", "replied"]
    assert office.rows("SELECT told FROM messages") == [{"told": 1}, {"told": 1}]
    assert [office.run(address=one).state for one in (AL, BO)] == [State.DONE, State.DONE]


def test_our_own_returned_mail_is_not_a_reply(office: World) -> None:
    office.campaign(cadence=Cadence((0, 4, 7)))
    office.drive()
    office.advance(4 * DAY)
    for mail in office.sent():
        assert office.receive(mail.content.encode())["kind"] == "dismissed"
    assert office.member() == "active"
    assert office.receive(reply(office.sent()[0].message_id))["kind"] == "reply"


@pytest.mark.parametrize(
    ("text", "kind"),
    [("Dear Bo, as promised.", "dismissed"), ("Please remove bo@example.org.", "stray")],
    ids=["a letter", "a wish that was handed on"],
)
def test_mail_that_the_sender_writes_by_hand_is_not_a_reply(
    office: World, text: str, kind: str
) -> None:
    """In the conversation with Bo, with a copy to herself."""
    office.campaign(PLAN, BO, AL)
    office.drive()
    mail = reply(office.message_id(1), text, sender=f"Ana <{ANA}>", Reply_To=AL, Cc=ANA)
    assert office.inbound.receive_known(mail.as_bytes()) is None
    row = office.receive(mail)
    assert (row["kind"], row["contact_id"]) == (kind, None)
    assert office.receive(mail) == row
    if kind == "dismissed":
        assert (row["address"], row["subject"], row["text"]) == ("", "", "")
    assert [office.member(address=one) for one in (BO, AL)] == ["active", "active"]
    assert office.rows("SELECT * FROM suppressions") == []


def test_a_sender_may_be_a_contact(office: World) -> None:
    office.campaign(PLAN, BO, ANA)
    office.drive()
    assert office.receive(reply(None, sender=ANA))["kind"] == "dismissed"
    to_herself = reply(office.message_id(1, address=ANA), "stop", sender=ANA)
    assert office.receive(to_herself)["kind"] == "unsubscribe"
    assert [office.member(address=one) for one in (BO, ANA)] == ["active", "unsubscribed"]


def test_a_token_counts_even_in_our_own_mail(office: World) -> None:
    """A rule in Bo's mailbox redirects our mail to his unsubscribe address."""
    office.campaign(PLAN, BO, AL)
    office.drive()
    [bo] = office.rows("SELECT token FROM contacts WHERE address = :bo", bo=BO)
    ours, to = office.sent()[0].content.encode(), [f"unsubscribe+{bo['token']}@example.com"]
    assert office.inbound.receive(ours, to)["kind"] == "unsubscribe"
    assert [office.member(address=one) for one in (BO, AL)] == ["unsubscribed", "active"]
    assert len(office.rows("SELECT * FROM suppressions")) == 1


def test_a_quotation_of_our_mail_is_not_the_authors(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    office.answer("edit", subject="Stop", body="Dear Bo,\nplease remove me from your shelf!\n")
    ours = office.sent()[0]
    quoted = "Yes!\n\nAna kirjoitti:\nDear Bo,\nplease remove me from your shelf!\n"
    mail = reply(ours.message_id, quoted, subject="Re: Stop")
    assert office.receive(mail)["kind"] == "reply"
    assert office.member() == "replied"


def test_a_bounce_of_a_mail_that_was_never_tried_is_ignored(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [touch] = office.touches()
    assert office.receive(bounce(touch["message_id"]))["kind"] == "stray"
    assert office.member() == "active"
    office.answer("approve")
    assert office.receive(bounce(touch["message_id"]))["kind"] == "bounce"
    assert office.member() == "bounced"


def test_a_reply_from_an_address_beyond_ascii_is_recognised(office: World) -> None:
    office.campaign(PLAN, "bo@bücher.example")
    office.drive()
    mail = "From: Bö <Bo@Bücher.example>\r\nSubject: hi\r\nMessage-ID: <z@z>\r\n\r\nhello\r\n"
    assert office.receive(mail.encode())["kind"] == "reply"
    assert office.rows("SELECT status FROM members") == [{"status": "replied"}]


def test_a_mail_from_several_people_is_a_reply_from_the_contact(office: World) -> None:
    office.campaign()
    office.drive()
    assert office.receive(reply(sender=f"Al <{AL}>, Bo <{BO}>"))["kind"] == "reply"
    assert office.member() == "replied"


# -- over the wire


@pytest.mark.parametrize("lmtp", [False, True], ids=["SMTP", "LMTP"])
def test_a_paragraph_on_one_line_is_accepted(sqlite_office: World, lmtp: bool) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    mail = f"From: {BO}\r\nMessage-ID: <l@z>\r\n\r\n{'yes ' * 100_000}\r\n"
    speak = smtplib.LMTP if lmtp else smtplib.SMTP
    with listening(office, lmtp=lmtp) as port, speak(HOST, port, "localhost") as client:
        assert client.sendmail(BO, ["ana@example.com"], mail) == {}
    assert office.member() == "replied"


@pytest.mark.parametrize(
    ("content", "code"), [(reply().as_bytes(), 250), (b"x" * 70 + b"\n", 552)], ids=["good", "big"]
)
def test_lmtp_answers_once_per_recipient(
    sqlite_office: World, content: bytes, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if code == 552:
        monkeypatch.setattr("examples.campaign.inbound._LARGEST", 50)
    with (
        listening(sqlite_office, lmtp=True) as port,
        smtplib.LMTP(HOST, port, "localhost", timeout=20) as client,
    ):
        client.ehlo()
        for number in (3, 1):
            client.mail(BO)
            for n in range(number):
                assert client.rcpt(f"ana{n}@example.com")[0] == 250
            assert client.data(content)[0] == code
            for _ in range(number - 1):
                assert client.getreply()[0] == code
            assert client.noop()[0] == 250
    assert len(sqlite_office.rows("SELECT * FROM messages")) == (1 if code == 250 else 0)


# -- threads that do not listen


def test_a_reply_to_a_cancelled_thread_is_scored(office: World) -> None:
    office.campaign()
    office.drive()
    office.app.runtime.blocking.cancel(office.run().id)
    office.drive()
    office.receive(reply(office.sent()[0].message_id))
    assert (office.run().state, office.member()) == (State.CANCELLED, "replied")
    assert office.scores() == {"touch 1": 1.0}


@pytest.mark.parametrize(
    ("mail", "ended"),
    [(reply(), "replied"), (reply(text="unsubscribe"), "unsubscribed")],
    ids=["reply", "unsubscribe"],
)
def test_a_thread_whose_mail_was_refused_ends(url: str, mail: object, ended: str) -> None:
    with world(url, fault(Fault.REJECT_DATA)) as office:
        office.campaign()
        office.drive()
        assert "554" in office.questions()[0].value["problem"]
        office.receive(mail)  # type: ignore[arg-type]
        assert office.run().state is State.DONE
        assert office.run().output["ended"] == ended
        assert (office.touch_states(), office.sent()) == (["stopped"], [])


def test_a_thread_that_is_held_for_an_unknown_mail_waits_for_a_person(url: str) -> None:
    with world(url, fault(Fault.DROP_AFTER), lookup_url="") as office:
        office.campaign()
        office.drive()
        office.receive(reply())
        assert (office.run().state, office.member()) == (State.HELD, "replied")
        [unknown] = office.app.runtime.blocking.effects(state="unknown")
        office.app.runtime.blocking.settle(unknown.key, "done", by="Eva")
        office.drive()
        assert office.run().output["ended"] == "replied"
        assert (office.touch_states(), len(office.sent())) == (["sent"], 1)
