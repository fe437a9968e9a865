"""Reading incoming mail, and whom it ends: replies, bounces, opt-outs, machines, our own copies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.campaign.incoming import Incoming, opts_out, parse
from examples.campaign.mail import footer
from tests.examples import campaigns
from tests.examples.campaigns import BO, DAY, HELD, PLAN, TWO, World, bounce, reply, world

office, sqlite_office, workers = campaigns.office, campaigns.sqlite_office, campaigns.workers
AL, ANA, INFO = "al@example.org", "ana@example.com", "bo+news@example.org"
OURS = "Dear Bo,\nplease remove me from your shelf, it said on the box.\n"


def read(text: str = "", *headers: str, ours: tuple[str, ...] = ()) -> Incoming:
    lines = ["From: Bo <bo@example.org>", "Message-ID: <1@example.org>", *headers, "", text]
    return parse("\r\n".join(lines).encode(), "unsubscribe@example.com", (), ours)


# -- opting out in words

OPT_OUTS = """
stop
Stop.
STOP!!
unsubscribe
please unsubscribe
Hi Ana, please stop. Best regards, Bo
Please remove me from your list.
Take me off your mailing list, please
please take my address off this list
I'd like to opt out of these mails.
Don't email me again
do not contact us any more
Please stop emailing me
stop sending these
No more emails please.
no further mails, thanks
I no longer wish to receive your newsletter
we do not want to receive these messages
Leave me alone.
Bitte keine weiteren Mails.
Abmelden
bitte abmelden
Bitte schreiben Sie mir nicht mehr an: ich möchte mich abmelden
Ich will nichts mehr kontaktiert werden
Désinscription
Merci de me désinscrire
Je souhaite me désabonner
Je ne veux plus, merci de ne plus m'écrire
Por favor, denme de baja: quiero darme de baja
no me envíen más correos
Cancellami dalla lista, per favore: cancellami
afmelden
graag uitschrijven
descadastrar
""".strip().splitlines()
OTHER_MAIL = """
Yes, please call me!
Not interested, thanks.
We stopped by your stand at the fair.
Can you stop over in Berlin next week?
Where does the train stop?
Please send me more mails like this one.
The mail did not arrive, please send it again.
I have removed the old shelves already.
How do I order? The list of prices would help.
Don't worry, I will write to you on Monday.
Bitte melden Sie sich am Montag.
Wir schreiben Ihnen nächste Woche.
Merci, je vous appelle demain.
Gracias, me interesa la oferta.
""".strip().splitlines()


@pytest.mark.parametrize("text", OPT_OUTS)
def test_a_request_for_no_more_mail_is_recognised(text: str) -> None:
    assert opts_out(text)
    assert read(text).kind == "unsubscribe"


@pytest.mark.parametrize("text", OTHER_MAIL)
def test_mail_about_something_else_is_a_reply(text: str) -> None:
    assert not opts_out(text)
    assert read(text).kind == "reply"


@pytest.mark.parametrize("link", ["", "https://mail.example.com/unsubscribe/0123"])
@pytest.mark.parametrize(
    "quoted",
    [
        "Yes!\n\nOn Mon, 7 Jan 2030 at 09:00, Ana <ana@example.com> wrote:\n> {0}\n> {1}\n",
        "Ja!\n\nAm 07.01.2030 um 09:00 schrieb Ana <ana@example.com>:\n> {0}\n> {1}\n",
        "Yes!\n\nAna kirjoitti:\n{0}\n{1}\n",
        "{0}\n{1}\n\nYes!\n",
        "Yes!\n\n____________________\nFrom: Ana <a@b.c>\nSent: Monday\nTo: Bo\n\n{0}\n{1}\n",
        "Yes!\n\n-----Original Message-----\nFrom: Ana <ana@example.com>\n\n{0}\n{1}\n",
    ],
)
def test_our_own_words_are_not_the_authors_however_they_are_quoted(link: str, quoted: str) -> None:
    wrapped = footer(link).replace("answer with", "answer\n> with")
    ours = OURS.splitlines()[1]
    for below in (footer(link), wrapped):
        mail = read(quoted.format(ours, below), ours=(OURS,))
        assert (mail.kind, "Yes" in mail.text or "Ja" in mail.text) == ("reply", True)


def test_words_above_a_quotation_are_the_authors() -> None:
    text = "stop\n\nOn Mon, 7 Jan 2030 at 09:00, Ana <ana@example.com> wrote:\n> Hello\n"
    assert read(text).kind == "unsubscribe"
    assert read("<p>Please <b>stop</b></p><blockquote>Hello</blockquote>", HTML).text == (
        "Please  stop"
    )


HTML = "Content-Type: text/html"


@pytest.mark.parametrize(
    ("headers", "ours", "kind"),
    [
        (["Subject: unsubscribe"], (), "unsubscribe"),
        (["Subject: Re: AW: stop"], (), "unsubscribe"),
        (["Subject: Re: Stop"], ("Stop",), "reply"),
        (["Subject: Stop by on Monday"], (), "reply"),
        (["To: Unsubscribe@example.com"], (), "unsubscribe"),
        (["Cc: unsubscribe+0123456789abcdef0123@example.com"], (), "unsubscribe"),
        (["To: unsubscribe@elsewhere.example"], (), "reply"),
        (["Auto-Submitted: auto-replied"], (), "automatic"),
        (["Auto-Submitted: no"], (), "reply"),
        (["Precedence: bulk"], (), "automatic"),
        (["X-Autoreply: yes"], (), "automatic"),
        (["Subject: Automatic reply: Tables"], (), "automatic"),
        (["Subject: Abwesenheitsnotiz"], (), "automatic"),
        (["Return-Path: <>"], (), "automatic"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_headers_say_what_a_mail_is(headers: list[str], ours: tuple[str, ...], kind: str) -> None:
    assert read("As it says above.", *headers, ours=ours).kind == kind


def test_a_spam_complaint_is_an_opt_out_about_the_returned_mail() -> None:
    report = bounce("<ours@example.com>").replace(b"report-type=delivery-status", b"X=1")
    report = report.replace(b"multipart/report;", b"multipart/report; report-type=feedback-report;")
    mail = parse(report)
    assert (mail.kind, mail.address, mail.in_reply_to) == (
        "unsubscribe",
        "",
        ["<ours@example.com>"],
    )


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ((b"", b""), "bounce"),
        ((b"Action: failed\r\nStatus: 5.1.1", b"Action: delayed\r\nStatus: 4.4.1"), "automatic"),
        ((b"5.1.1", b"5.7.26"), "automatic"),
        ((b"5.1.1", b"5.2.2"), "automatic"),
    ],
    ids=["no such address", "a delay", "our reputation", "a full mailbox"],
)
def test_only_a_report_of_a_missing_address_is_a_bounce(
    change: tuple[bytes, bytes], kind: str
) -> None:
    mail = parse(bounce("<ours@example.com>").replace(*change))
    assert (mail.kind, mail.in_reply_to) == (kind, ["<ours@example.com>"])
    assert mail.address == BO or kind == "automatic"


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=400))
def test_garbage_is_read_as_something_that_can_be_stored(content: bytes) -> None:
    for mail in (parse(content), parse(bounce("<x@y>")[:200] + content)):
        assert "\x00" not in f"{mail.message_id}{mail.address}{mail.subject}{mail.text}"
        f"{mail.message_id}{mail.address}{mail.subject}{mail.text}".encode()
        assert mail.id == parse(content).id or mail.kind


def test_a_mail_made_to_take_long_does_not() -> None:
    for text in ("<" * 200_000, "stop " * 50_000, "> " * 100_000, "please take my " * 20_000):
        read(text)
        read(text, HTML)


# -- whom it ends


def test_two_people_may_use_one_message_id(office: World) -> None:
    office.campaign(PLAN, BO, AL)
    office.drive()
    for sender in (AL, BO, BO):
        row = office.receive(reply(sender=sender, Message_ID="<1@localhost>"))
        assert row["address"] == sender
    assert [office.member(address=one) for one in (AL, BO)] == ["replied", "replied"]
    assert len(office.rows("SELECT * FROM messages")) == 2


def test_our_own_returned_mail_is_not_a_reply(office: World) -> None:
    office.campaign(cadence=TWO)
    office.drive()
    office.advance(4 * DAY)
    for mail in office.sent():
        assert office.inbound.receive(mail.content.encode()) is None
    assert office.member() == "active"
    office.receive(reply(office.sent()[0].message_id))
    office.ends("replied")


def test_mail_that_the_sender_writes_by_hand_is_not_a_reply(office: World) -> None:
    """In the conversation with Bo, with a copy to herself."""
    office.campaign()
    office.drive()
    to = office.message_id(1)
    by_hand = reply(to, "As promised.", sender=f"Ana <{ANA}>", Cc=ANA)
    assert office.inbound.receive(by_hand.as_bytes()) is None
    row = office.receive(reply(to, "Please remove me.", sender=ANA))
    assert row["kind"] == "stray"
    assert office.member() == "active"
    assert office.rows("SELECT * FROM suppressions") == []


def test_a_token_counts_even_in_our_own_mail(office: World) -> None:
    """A rule in Bo's mailbox redirects our mail to his unsubscribe address."""
    office.campaign(PLAN, BO, AL)
    office.drive()
    [bo] = office.rows("SELECT token FROM contacts WHERE address = :bo", bo=BO)
    ours, to = office.sent()[0].content.encode(), [f"replies+{bo['token']}@campaign.invalid"]
    office.inbound.receive(ours, to)
    assert [office.member(address=one) for one in (BO, AL)] == ["unsubscribed", "active"]


def test_a_bounce_of_a_mail_that_was_never_tried_is_ignored(office: World) -> None:
    office.campaign(HELD)
    office.drive()
    [touch] = office.touches()
    office.receive(bounce(touch["message_id"]))
    assert office.member() == "active"
    office.answer("approve")
    office.receive(bounce(touch["message_id"]).replace(b"Undelivered", b"Undeliverable"))
    assert office.member() == "bounced"


def test_an_opt_out_stops_the_writer_and_the_recipient_everywhere_and_for_good(
    office: World,
) -> None:
    """Al answers, in words, the mail to Bo, who also has another address."""
    office.campaign(PLAN, BO, AL, "cy@example.org")
    office.campaign(PLAN, INFO, name="autumn")
    office.drive()
    row = office.receive(reply(office.message_id(1), "Take us off your list.", sender=AL))
    assert row["kind"] == "unsubscribe"
    for address, campaign_id in ((BO, 1), (AL, 1), (INFO, 2)):
        office.ends("unsubscribed", campaign_id, address)
    assert office.member(address="cy@example.org") == "active"
    third = office.app.create(campaigns.Plan("third", "", "ana@example.com"))
    with pytest.raises(ValueError, match="has opted out"):
        office.enrol(third, "al+home@example.org")


def test_a_stranger_who_opts_out_is_not_written_to_later(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign()
    row = office.receive(reply(text="unsubscribe", sender=AL))
    assert row["kind"] == "stray"
    with pytest.raises(ValueError, match="has opted out"):
        office.enrol(1, AL)


def test_a_bounce_does_not_undo_an_opt_out(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    office.receive(reply(text="stop"))
    office.receive(bounce(office.message_id(1)))
    assert office.rows("SELECT status FROM contacts") == [{"status": "unsubscribed"}]


def test_everyone_is_signalled_although_the_receiver_died(
    url: str, workers: campaigns.Workers
) -> None:
    with world(url) as office:
        office.campaign(HELD, BO, INFO)
        office.drive()
        workers.receive_and_die(office, reply(text="unsubscribe"))
        assert len(office.questions()) == 2
        assert office.inbound.sweep() == 1
        office.drive()
        for address in (BO, INFO):
            office.ends("unsubscribed", address=address)
