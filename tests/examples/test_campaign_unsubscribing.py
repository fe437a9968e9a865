"""Who asks for no more mail gets none: whatever his words, whichever of his addresses he uses."""

from __future__ import annotations

import email
import hashlib
import re
import smtplib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from email.message import EmailMessage
from typing import Any

import pytest

from examples.campaign import people
from examples.campaign.contacts import Refused
from examples.campaign.letter import BadLetter, Letter, compose, footer, unsubscribe_of
from examples.campaign.quoting import spoken
from examples.campaign.reading import Written, parse
from examples.campaign.settings import Settings
from examples.campaign.unsubscribing import asks_to_stop
from perdure.types import State
from tests.support.campaign_ends import CY, ends, nothing_more
from tests.support.campaigns import (
    BO,
    HELD,
    HOST,
    PLAN,
    Workers,
    World,
    bounce,
    listening,
    reply,
    world,
)
from tests.support.campaigns import office as office
from tests.support.campaigns import sqlite_office as sqlite_office
from tests.support.campaigns import workers as workers

INFO, LABEL, STRANGER = "info@example.org", "bo+news@example.org", "someone@else.example"
LEAVE = "unsubscribe@example.com"
TOKEN = "0123456789abcdef0123"
LINK = f"https://mail.example.com/unsubscribe/{TOKEN}"

STOP = [
    "please unsubscribe me",
    "Hi Ana, please take me off your list. Thanks",
    "No thanks, and please don't write to me again",
    "Bitte keine weiteren Mails",
    "désinscrire",
    "darme de baja",
    "STOP",
    "Stop.",
    "unsubscribe",
    "Hi Ana,\n\nstop\n\nBo",
    "Remove me, please.",
    "take me off your list",
    "opt out",
    "Stop e-mailing me or I will complain.",
    "If you don't stop emailing me I will complain.",
    "How do I unsubscribe?",
    "I would like to unsubscribe from this newsletter.",
    "I'd like to be removed from your mailing list.",
    "I don\u2019t want to receive these emails.",
    "I no longer wish to hear from you.",
    "We do not wish to be contacted again.",
    "Please do not\nwrite to me again.",
    "Do not contact us again",
    "Don't email me.",
    "Never write to this address again.",
    "Please remove my email address from your database.",
    "Please delete my data.",
    "No more emails please!",
    "Stop sending me this stuff",
    "Stop these emails.",
    "This is spam.",
    "I never signed up for this.",
    "Leave me alone!",
    "Not interested. Please unsubscribe.",
    "I am not interested, so unsubscribe me please",
    "Please cancel my subscription",
    "Kindly remove us from all your lists",
    "Bitte melden Sie mich ab.",
    "Bitte nehmen Sie mich aus dem Verteiler.",
    "Ich möchte keine Mails mehr bekommen.",
    "Bitte schreiben Sie mir nicht mehr.",
    "Kein Interesse. Bitte nicht mehr anschreiben.",
    "Bitte löschen Sie meine Daten.",
    "Lassen Sie mich in Ruhe!",
    "Abmelden",
    "Bitte keine Werbung!",
    "Merci de me désinscrire de votre liste.",
    "Je ne souhaite plus recevoir vos mails.",
    "Veuillez me désabonner",
    "Ne m'écrivez plus.",
    "Retirez-moi de votre liste, merci",
    "Arrêtez de m'envoyer des mails",
    "Plus de mails svp",
    "Quiero darme de baja",
    "No me escriban más, por favor.",
    "No quiero recibir más correos",
    "Por favor elimínenme de la lista",
    "Cancellatemi dalla lista",
    "Non voglio più ricevere queste mail",
    "Não quero mais receber estes e-mails",
    "Graag uitschrijven",
    "Geen mails meer aub",
    "Let us talk.\n\nPS: unsubscribe me from the other list",
    "Thanks but no thanks. I do not want any more mails.",
    "Who are you? How did you get my address? Delete it. Don't mail me again",
    "Hi Ana, please stop.",
    "Hi Ana please stop",
    "Stop. Best regards, Bo",
    "Stop, Bo",
    "STOP - Bo Li, Acme",
    "Hi Ana\nstop. Best\nBo",
    "Not interested, please stop.",
    "I have told you twice that I am not interested so please stop",
    "Stop emails",
    "STOP ALL",
    "Un-subscribe",
    "unsuscribe",
    "Unsubcribe",
    "Unsubscribed",
    "Remove from list",
    "Please remove bo@example.org from your mailing list.",
    "Kindly remove our company from your list",
    "Please delete all my data",
    "I would like to be removed",
    "How can I get off this list?",
    "Please discontinue sending emails",
    "I withdraw my consent.",
    "Bitte nehmen Sie mich von der Liste",
    "Hören Sie auf, mir zu schreiben.",
    "Keine Werbung!",
    "Abmeldung vom Newsletter",
    "Ich widerspreche der Nutzung meiner Daten.",
    "Merci d'arrêter",
    "Stop met mailen",
    "Haal me van de lijst",
]

GO_ON = [
    "Tell me more, please.",
    "Yes, please call me.",
    "Stop by on Tuesday!",
    "How do I unsubscribe my customers with your tool?",
    "Can my users unsubscribe themselves?",
    "What is your unsubscribe rate?",
    "Unsubscribe rates",
    "Does it have an unsubscribe link?",
    "Not interested, thanks.",
    "No thanks.",
    "I don't want to miss this, tell me more!",
    "I don't write much, but this is great.",
    "We want to stop sending faxes. Can you help?",
    "Please don't send me the contract by post, mail is fine.",
    "Do not contact me by phone, mail is better.",
    "If you no longer wish to receive emails from us, unsubscribe here.",
    "You can unsubscribe at any time.",
    "Falls Sie keine weiteren E-Mails erhalten möchten, klicken Sie hier.",
    "Si vous ne souhaitez plus recevoir nos mails, cliquez ici",
    "Ich habe keine Mails von Ihnen bekommen.",
    "Wie kann ich meine Kunden abmelden?",
    "We stopped using our old tool. Let's talk.",
    "Could you remove duplicates from the list?",
    "Could you send me more mails like this?",
    "I have no more questions. Send the contract.",
    "Please don't hesitate to call me.",
    "We can't stop here, go on!",
    "Take me through the offer, please.",
    "Please get me a quote.",
    "No further questions",
    "Our customers never subscribe to newsletters.",
    "Do you mail us the invoice?",
    "Why not contact me tomorrow?",
    "If it is not too late, write to me again next week.",
    "Wir melden uns nächste Woche.",
    "Ich melde mich, wenn ich mehr weiß. Bitte nicht anrufen.",
    "I cannot mail you the file, it is too large.",
    "Je vous recontacte, je veux en savoir plus.",
    "No me queda claro. ¿Me llamas?",
    "I do not have your email any more",
    "Yes please, do not stop",
    "Please do not stop",
    "We never stop.",
    "Will it ever stop?",
    "stop by our office on Friday",
    "Please stop by!",
    "Stop me if you have heard this",
    "The bus stop, the one at the corner, is near.",
    "Full stop.",
    "no more questions",
    "Please send all the mails to us",
    "Will your cat adopt us?",
    "We shall need about fifty of these tables in the\nend. Let us talk",
    "It is a long way and we shall certainly not want to\nstop. So tell me more",
    "Could you remove our logo from your website?",
    "I would like the old tables to be removed.",
    "The logo is ugly, remove it, then send me the offer.",
    "I want to get on the list!",
    "Write to cy@example.org instead.",
    "Please send the offer to bo@example.org and cy@example.org",
    "I gave my consent already.",
    "Ich habe Ihre Adresse von der Liste der Aussteller.",
    "Hören Sie auf Ihr Gefühl und rufen Sie an.",
    "Ich widerspreche Ihnen nicht.",
    "Keine Zeit diese Woche, aber gern im Mai.",
    "Merci de vous arrêter à notre stand",
]


# -- words


def test_requests_for_no_more_mail_are_recognised() -> None:
    assert [text for text in STOP if not asks_to_stop(text)] == []


def test_mail_about_something_else_does_not_unsubscribe() -> None:
    assert [text for text in GO_ON if asks_to_stop(text)] == []


@pytest.mark.parametrize("link", ["", LINK], ids=["without a link", "with a link"])
def test_our_own_footer_in_a_reply_does_not_unsubscribe(link: str) -> None:
    words = footer(link).split(" ")
    wrapped = "\n".join(words)
    marked = "\n| ".join(words)
    half_marked = "> " + footer(link).replace(" stop.", "\nstop.")
    cut_off = "To get no more of these mails,"
    rewritten = footer(link).replace(link, f"<https://safe.example/?u=x>{link}") if link else ""
    for text in (footer(link), wrapped, marked, half_marked, cut_off, rewritten):
        assert kind_of(f"Yes, call me!\n\nDear Bo,\nhow are you?\n\n{text}\n") == "reply"
        assert kind_of(f"Please stop writing to me.\n\n{text}\n") == "unsubscribe"
        assert kind_of(f"{text}\n\nstop\n") == "unsubscribe"


def kind_of(text: str, *ours: Written) -> str:
    return parse(reply("<touch@example.com>", text).as_bytes(), LEAVE, ours=ours).kind


BODY = "Dear Bo,\n\nslow mails? Please remove me\nfrom your shelf!\nTell me to stop, or not.\n"
QUOTED = f"{BODY}\n{footer(LINK)}\n"


@pytest.mark.parametrize(
    "above",
    [
        "From: Ana Ruiz <ana@example.com>\nSent: Monday\nTo: Bo\nSubject: Hello\n",
        "Von: Ana Ruiz <ana@example.com>\nGesendet: Montag\nAn: Bo\n",
        "De\u00a0: Ana Ruiz <ana@example.com>\nEnvoyé\u00a0: lundi\nÀ\u00a0: Bo\n",
        "Från: Ana Ruiz <ana@example.com>\nSkickat: den 2 mars\nTill: Bo\nÄmne: Hello\n",
        "Frá: Ana Ruiz <ana@example.com>\nSent þann: 2. mars 2026\nTil: Bo\n",
        f"{'_' * 32}\nFrå: Ana Ruiz <ana@example.com>\nSendt: 2. mars 2026\nTil: Bo\n",
        "On Mon, 2 Mar 2026 at 09:30, Ana <a@b.c> wrote:\n\n",
        " On Monday, March 2, 2026 at 09:30:05 AM GMT+1, Ana Ruiz <a@b.c> wrote:   ",
        "Am Mo., 2. März 2026 um 09:30 Uhr schrieb Ana Ruiz <\na@b.c>:\n\n",
        "Le lun. 2 mars 2026 à 09:30, Ana <a@b.c> a écrit\u00a0:\n",
        "W dniu 2.03.2026 o 09:30, Ana Ruiz <a@b.c> pisze:\n",
        "W dniu poniedziałek, 2.03.2026 o 09:30, Ana Ruiz\n<a@b.c> napisał(a):\n",
        "-------- Ursprüngliche Nachricht --------\n",
        "-- \nBo Li\n",
    ],
    ids=[
        "Outlook", "Outlook in German", "Outlook in French", "Outlook in Swedish",
        "any language", "line", "English", "Yahoo", "German", "French", "Polish", "wrapped",
        "divider", "signature",
    ],
)  # fmt: skip
def test_text_quoted_without_marks_is_not_the_authors(above: str) -> None:
    found = parse(reply(text=f"Yes, call me!\n\n{above}{QUOTED}").as_bytes(), LEAVE)
    assert (found.kind, found.text) == ("reply", "Yes, call me!")


@pytest.mark.parametrize(
    "text",
    [
        f"Yes, call me!\n\n{QUOTED}",
        f"Yes, call me!\n{QUOTED}".replace("\n", "\n| "),
        f"{QUOTED}\n\nYes, call me!",
        "Yes, call me!\n" + " ".join(QUOTED.split()),
        "Yes, call me!\n" + "\n".join(QUOTED.split()),
        f"Yes, call me!\n\nAna kirjoitti:\n{QUOTED}",
    ],
    ids=["bare", "other marks", "above", "one line", "wrapped", "unknown language"],
)
def test_our_own_words_are_not_the_authors_however_they_are_quoted(text: str) -> None:
    ours = Written("Hello", BODY)
    assert kind_of(text) == "unsubscribe"  # or it would be no test
    assert kind_of(text, ours) == "reply"
    for wish in ("Please remove me.", "stop", "Tell me to stop? Stop!"):
        assert kind_of(text.replace("Yes, call me!", wish), ours) == "unsubscribe"


def test_words_above_an_attribution_are_the_authors() -> None:
    for above in ("Stop", "Please remove me at 9:30", "On Monday I said stop it, so please stop"):
        text = f"{above}\nOn Mon, 2 Mar 2026 at 09:30, Ana <a@b.c> wrote:\n> Dear Bo\n"
        assert parse(reply(text=text).as_bytes(), LEAVE).text == above


def test_the_line_of_a_banner_does_not_end_the_text() -> None:
    banner = f"CAUTION: this mail is from outside.\n{'_' * 40}\n\n"
    assert kind_of(f"{banner}Please unsubscribe me\n") == "unsubscribe"


def test_an_out_of_office_note_that_quotes_us_is_automatic() -> None:
    mail = reply(text=f"I am away.\n\n{QUOTED}\nstop\n", Auto_Submitted="auto-replied")
    assert parse(mail.as_bytes(), LEAVE).kind == "automatic"


@pytest.mark.parametrize(
    ("subject", "to", "headers", "kind"),
    [
        ("Stop", "<touch@example.com>", {}, "unsubscribe"),
        ("Please take my address off your list", None, {}, "unsubscribe"),
        ("Re: unsubscribe", "<touch@example.com>", {}, "unsubscribe"),
        ("[EXT] RE: AW: STOP", "<touch@example.com>", {}, "unsubscribe"),
        ("AW: abmelden", "<touch@example.com>", {}, "unsubscribe"),
        ("RE: Stop sending mails by hand", "<touch@example.com>", {}, "reply"),
        ("RE: Re: No more emails", "<touch@example.com>", {}, "reply"),
        ("Automatic reply: Stop sending mails by hand", None, {"X-Autoreply": "yes"}, "automatic"),
    ],
    ids=["alone", "a sentence", "Re", "RE", "AW", "ours", "ours alone", "ours, by a machine"],
)
def test_a_subject_counts_unless_it_is_ours(
    subject: str, to: str | None, headers: dict[str, str], kind: str
) -> None:
    mail = reply(to, "", subject=subject, **headers).as_bytes()
    assert parse(mail, LEAVE, ours=[Written("Re: No more emails", "Dear Bo")]).kind == kind


@pytest.mark.timeout(30)
def test_a_text_made_to_take_long_does_not() -> None:
    for piece in ("a. ", "i dont ", "To get no more of these mails, ", "\n \n", "please " * 9, "ﷺ"):
        text = piece * (100_000 // len(piece))
        asks_to_stop(text)
        spoken(text, [text] * 5)


# -- addresses


@pytest.mark.parametrize(
    "headers",
    [
        {"To": f"Unsubscribe <Unsubscribe+{TOKEN}@Example.com>"},
        {"To": f"Ana <ana@example.com>, =?utf-8?q?S=C3=BC?= <unsubscribe+{TOKEN}@example.com>"},
        {"To": f"list: x@y.example, unsubscribe+{TOKEN}@example.com;"},
        {"Cc": f"unsubscribe+{TOKEN}@example.com"},
        {"Delivered-To": f"unsubscribe+{TOKEN}@example.com"},
        {"X-Original-To": f"unsubscribe+{TOKEN}@example.com"},
        {"Resent-To": f"unsubscribe+{TOKEN}@example.com"},
        {"To": f"a b c <<unsubscribe+{TOKEN}@example.com>"},
        {"To": f'"unsubscribe+{TOKEN}"@example.com'},
        {"To": f"<unsubscribe%2B{TOKEN}@example.com>"},
    ],
    ids=[
        "To", "several", "group", "Cc", "Delivered-To", "X-Original-To", "Resent-To", "broken",
        "quoted", "encoded",
    ],
)  # fmt: skip
def test_a_token_is_found_wherever_the_address_is(headers: dict[str, str]) -> None:
    lines = {"From": STRANGER, "To": "ana@example.com", "Subject": "Re: Hello", **headers}
    content = "".join(f"{name}: {text}\r\n" for name, text in lines.items()) + "\r\nHi\r\n"
    found = parse(content.encode(), LEAVE)
    assert (found.kind, found.tokens) == ("unsubscribe", [TOKEN])


@pytest.mark.parametrize(
    ("recipient", "kind", "tokens"),
    [
        (f"unsubscribe+{TOKEN}@example.com", "unsubscribe", [TOKEN]),
        (f"replies+{TOKEN}@campaign.invalid", "unsubscribe", [TOKEN]),
        (f'"unsubscribe+{TOKEN}"@example.com', "unsubscribe", [TOKEN]),
        (f"unsubscribe%2B{TOKEN}@example.com", "unsubscribe", [TOKEN]),
        ("unsubscribe@example.com", "unsubscribe", []),
        ("unsubscribe+what@example.com", "unsubscribe", []),
        ("replies+what@campaign.invalid", "reply", []),
        (f"unsubscribe+{TOKEN}@else.example", "unsubscribe", [TOKEN]),
        ("ana@example.com", "reply", []),
    ],
)
def test_an_address_only_in_the_envelope_counts(
    recipient: str, kind: str, tokens: list[str]
) -> None:
    found = parse(reply().as_bytes(), LEAVE, [recipient])
    assert (found.kind, found.tokens) == (kind, tokens)


def test_an_attached_mail_is_answered_and_its_words_are_not_the_authors() -> None:
    ours = EmailMessage()
    ours["Message-ID"] = "<touch@example.com>"
    ours.set_content("unsubscribe")
    outer = reply()
    outer.clear_content()
    outer.add_attachment(ours)
    found = parse(outer.as_bytes(), LEAVE)
    assert (found.kind, found.text, found.in_reply_to) == ("reply", "", ["<touch@example.com>"])


# -- what goes out

LETTER = Letter("ana@example.com", BO, "Bo", "Hi", "Dear Bo\n", "<a@example.com>", LEAVE)
DATE = datetime(2030, 1, 7, 9, tzinfo=UTC)


def test_a_letter_says_how_to_unsubscribe_to_programs_and_people() -> None:
    here = Settings(unsubscribe=LEAVE, web_url="https://mail.example.com/")
    mail = compose(replace(LETTER, **unsubscribe_of(here, TOKEN)), DATE)
    lines = mail.as_bytes().decode().split("\r\n")
    address = f"<mailto:unsubscribe+{TOKEN}@example.com?subject=unsubscribe>"
    assert f"List-Unsubscribe: {address}, <{LINK}>" in lines
    assert "List-Unsubscribe-Post: List-Unsubscribe=One-Click" in lines
    assert mail.get_content() == f"Dear Bo\n\n{footer(LINK)}\n"
    without = compose(replace(LETTER, **unsubscribe_of(Settings(unsubscribe=LEAVE), TOKEN)), DATE)
    assert without["List-Unsubscribe"] == address
    assert without["List-Unsubscribe-Post"] is None
    assert without.get_content() == f"Dear Bo\n\n{footer('')}\n"


@pytest.mark.parametrize(
    "link", ["x", "javascript:x", f"{LINK}>, <https://evil", f"{LINK}\r\nX: y"]
)
def test_an_invalid_link_is_refused(link: str) -> None:
    with pytest.raises(BadLetter, match="unsubscribe_link"):
        compose(replace(LETTER, unsubscribe_link=link), DATE)


# -- whom it stops


def suppressed(office: World, person: str) -> bool:
    hashed = hashlib.sha256(person.encode()).hexdigest()
    return bool(office.rows("SELECT 1 FROM suppressions WHERE hash = :hash", hash=hashed))


def token(office: World, address: str) -> str:
    [row] = office.rows("SELECT token FROM contacts WHERE address = :address", address=address)
    return str(row["token"])


def statuses(office: World) -> dict[str, str]:
    found = office.rows("SELECT address, status FROM contacts ORDER BY id")
    return {row["address"]: row["status"] for row in found}


def test_an_unsubscription_stops_the_writer_and_the_recipient_everywhere(office: World) -> None:
    office.campaign(PLAN, INFO, BO, LABEL, CY)
    office.campaign(name="autumn", sequence="other", auto_approve=False)
    office.drive()
    mail = reply(office.message_id(1, address=INFO), "Hi Ana, please take me off your list. Thanks")
    assert office.receive(mail)["contact_id"] == office.contact(INFO)
    for address in (INFO, BO, LABEL):
        ends(office, "unsubscribed", 1, address)
        assert statuses(office)[address] == "unsubscribed"
    ends(office, "unsubscribed", 2)
    assert office.run(address=CY).state is State.WAITING
    assert [suppressed(office, one) for one in (INFO, BO, CY)] == [True, True, False]
    before = len(office.office.log)
    office.sleep_through()
    assert {mail.recipient for mail in office.office.log[before:]} == {CY}


@pytest.mark.parametrize(
    ("make", "stopped"),
    [
        (lambda to: {"to": to(INFO), "sender": STRANGER, "text": "unsubscribe"}, {INFO}),
        (lambda to: {"sender": BO, "text": "unsubscribe"}, {BO, LABEL}),
        (lambda to: {"sender": STRANGER, "To": f"unsubscribe+{to('t')}@example.com"}, {INFO}),
        (lambda to: {"sender": BO, "Cc": f"unsubscribe+{to('t')}@example.com"}, {INFO, BO, LABEL}),
        (lambda to: {"sender": BO, "To": f"unsubscribe+{TOKEN}@example.com"}, {BO, LABEL}),
        (lambda to: {"sender": STRANGER, "Reply-To": BO, "text": "unsubscribe"}, {BO, LABEL}),
        (lambda to: {"sender": "bo+other@example.org", "text": "stop"}, {BO, LABEL}),
    ],
    ids=[
        "for another",
        "by address",
        "by token",
        "for both",
        "unknown token",
        "Reply-To",
        "other label",
    ],
)
def test_everyone_involved_is_stopped(sqlite_office: World, make: Any, stopped: set[str]) -> None:
    office = sqlite_office
    office.campaign(PLAN, INFO, BO, LABEL, CY)
    office.drive()

    def of(what: str) -> str:
        return token(office, INFO) if what == "t" else office.message_id(1, address=what)

    assert office.receive(reply(**make(of)))["kind"] == "unsubscribe"
    assert {one for one, how in statuses(office).items() if how == "unsubscribed"} == stopped
    for address in stopped:
        ends(office, "unsubscribed", address=address)


ROBERT = "robert@example.org"


@pytest.mark.parametrize(
    ("writer", "headers"),
    [(BO, {"To": LEAVE}), (BO, {"text": "stop"}), (ROBERT, {"text": "please unsubscribe me"})],
    ids=["to the unsubscribe address", "old address", "new address"],
)
@pytest.mark.parametrize("known_only", [False, True], ids=["handed over", "over IMAP"])
def test_who_unsubscribes_under_a_replaced_address_or_its_successor_is_stopped_under_both(
    sqlite_office: World, writer: str, headers: dict[str, str], known_only: bool
) -> None:
    office = sqlite_office
    office.campaign(PLAN, BO, CY)
    office.drive()
    people.update(office.app, BO, new_address=ROBERT)
    mail = reply(sender=writer, **headers).as_bytes()
    row = office.inbound.receive_known(mail) if known_only else office.inbound.receive(mail)
    assert row is not None
    assert (row["kind"], row["contact_id"]) == ("unsubscribe", office.contact(ROBERT))
    office.drive()
    ends(office, "unsubscribed", address=ROBERT)
    assert office.member(address=CY) == "active"
    office.app.create(replace(PLAN, name="autumn"))
    for address in (BO, ROBERT):
        with pytest.raises(Refused, match="unsubscribed"):
            office.enrol(2, address)


def test_everybody_whom_replaced_addresses_connect_is_one_person(office: World) -> None:
    """bo@ became robert@ and was imported again; robert@ became rob@; and bo@, then, bob@."""
    office.campaign(PLAN, BO, CY)
    people.update(office.app, BO, new_address=ROBERT)
    office.campaign(HELD, BO, name="autumn", sequence="other")
    people.update(office.app, ROBERT, new_address="rob@example.org")
    people.update(office.app, BO, new_address="bob@example.org")
    office.drive()
    assert office.receive(reply(sender="rob@example.org", text="stop"))["kind"] == "unsubscribe"
    ends(office, "unsubscribed", 1, "rob@example.org")
    ends(office, "unsubscribed", 2, "bob@example.org")
    names = ("bo", "robert", "rob", "bob", "cy")
    assert [suppressed(office, f"{one}@example.org") for one in names] == [True] * 4 + [False]


def test_a_click_in_a_forwarded_mail_counts_for_the_original_recipient(
    sqlite_office: World,
) -> None:
    office = sqlite_office
    office.campaign(PLAN, INFO, BO)
    office.drive()
    mail = email.message_from_string(office.sent(INFO)[0].content)
    found = re.fullmatch(r"<mailto:(.+)\?subject=unsubscribe>", mail["List-Unsubscribe"])
    assert found is not None
    office.receive(reply(sender=STRANGER, subject="unsubscribe", text="", To=found[1]))
    ends(office, "unsubscribed", address=INFO)
    assert office.member() == "active"
    with pytest.raises(Refused, match="has unsubscribed"):
        office.campaign(PLAN, STRANGER, name="autumn", sequence="other")


def test_a_stranger_who_unsubscribes_is_not_written_to_later(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign()
    for mail in (
        reply(sender="x+y@else.example", text="unsubscribe"),
        reply(sender="z@else.example", To=f"unsubscribe+{TOKEN}@example.com"),
    ):
        assert office.receive(mail)["kind"] == "stray"
    assert [suppressed(office, f"{one}@else.example") for one in "xz"] == [True, True]
    assert not suppressed(office, BO)


def test_our_own_returned_mail_suppresses_no_one(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    ours = reply(sender="ana@example.com", text="unsubscribe", Message_ID=office.message_id(1))
    assert office.receive(ours)["kind"] == "stray"
    assert office.rows("SELECT * FROM suppressions") == []


def test_a_bounce_does_not_undo_an_unsubscription(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign()
    office.drive()
    office.receive(reply(text="unsubscribe"))
    assert office.receive(bounce(office.message_id(1)))["kind"] == "bounce"
    assert statuses(office) == {BO: "unsubscribed"}


def test_a_reply_ends_the_campaigns_of_the_writer_as_well(office: World) -> None:
    office.campaign(PLAN, INFO, BO, CY)
    office.drive()
    office.receive(reply(office.message_id(1, address=INFO)))
    for address in (INFO, BO):
        ends(office, "replied", address=address)
    assert office.scores(address=INFO) == {"touch 1": 1.0}
    assert office.scores(address=BO) == {"touch 1": 0.0}
    assert set(statuses(office).values()) == {"active"}
    assert office.member(address=CY) == "active"


def test_concurrent_mails_that_stop_the_same_people_are_all_stored(office: World) -> None:
    everybody = [BO, INFO, CY]
    office.campaign(PLAN, *everybody)
    office.campaign(HELD, *everybody, name="autumn", sequence="other")
    office.drive()
    ids = {one: office.message_id(1, address=one) for one in everybody}
    mails = [
        reply(ids[to], text, sender=sender).as_bytes()
        for text in ("unsubscribe", "Call me")
        for to in everybody
        for sender in everybody
    ]
    with ThreadPoolExecutor(6) as pool:
        kinds = [row["kind"] for row in pool.map(office.inbound.receive, mails)]
    assert kinds == ["unsubscribe"] * 9 + ["reply"] * 9
    office.drive()
    for address in everybody:
        for campaign_id in (1, 2):
            assert office.run(campaign_id, address).state is State.DONE
    assert set(statuses(office).values()) == {"unsubscribed"}


def test_a_token_in_the_envelope_counts_over_the_wire(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(PLAN, INFO)
    office.drive()
    to = f"replies+{token(office, INFO)}@campaign.invalid"
    with listening(office, lmtp=True) as port, smtplib.LMTP(HOST, port, "localhost") as client:
        client.send_message(reply(sender=STRANGER), STRANGER, [to])
    office.drive()
    ends(office, "unsubscribed", address=INFO)
    nothing_more(office, sent=1)


def test_everyone_is_signalled_although_the_receiver_died(url: str, workers: Workers) -> None:
    with world(url) as office:
        office.campaign(HELD, INFO, BO)
        office.drive()
        for question in office.questions():
            office.app.runtime.blocking.answer(question.id, {"action": "approve"})
        mail = reply(sender=BO, To=f"unsubscribe+{token(office, INFO)}@example.com")
        workers.receive_and_die(office, mail)
        office.drive()  # nobody told the threads, but they ask
        assert office.office.log == []
        assert statuses(office) == {INFO: "unsubscribed", BO: "unsubscribed"}
        assert suppressed(office, INFO)
        assert office.inbound.sweep() == 1
        assert office.inbound.sweep() == 0
        office.drive()
        for address in (INFO, BO):
            ends(office, "unsubscribed", address=address)


def test_everyone_is_signalled_although_the_signaller_died_halfway(sqlite_office: World) -> None:
    office = sqlite_office
    office.campaign(HELD, INFO, BO)
    office.drive()
    told: list[str] = []
    signal = office.app.runtime.blocking.signal
    inbound = office.inbound

    class Halfway(Exception):
        pass

    class Telling:
        """A client that breaks after the first signal."""

        def __getattr__(self, name: str) -> Any:
            return getattr(office.app.runtime.blocking, name)

        def signal(self, *args: Any, **more: Any) -> None:
            if told:
                raise Halfway
            told.append(args[0])
            signal(*args, **more)

    inbound._client = type("Client", (), {"blocking": Telling()})()
    mail = reply(sender=BO, To=f"unsubscribe+{token(office, INFO)}@example.com").as_bytes()
    with pytest.raises(Halfway):
        inbound.receive(mail)
    assert office.inbound.receive(mail)["kind"] == "unsubscribe"
    office.drive()
    for address in (INFO, BO):
        ends(office, "unsubscribed", address=address)


def test_the_copy_of_a_mail_that_unsubscribes_counts(sqlite_office: World) -> None:
    """The unsubscribe address was in Bcc: only the envelope of one copy has it."""
    office = sqlite_office
    office.campaign(PLAN, BO, CY)
    office.drive()
    [row] = office.rows("SELECT token FROM contacts WHERE address = :address", address=CY)
    mail = reply(None, "Not now.").as_bytes()
    hidden = unsubscribe_of(office.app.settings, row["token"])["unsubscribe"]
    received = [office.inbound.receive(mail, to) for to in ([], [hidden], [hidden], [])]
    assert [one["kind"] for one in received] == ["reply", "unsubscribe", "unsubscribe", "reply"]
    assert len(office.rows("SELECT * FROM messages")) == 2
    assert {row["status"] for row in office.rows("SELECT * FROM contacts")} == {"unsubscribed"}
    office.drive()
