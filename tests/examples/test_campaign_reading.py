"""Reading mail that came in: whose it is, what it answers, and what it means."""

from __future__ import annotations

from email.message import EmailMessage

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from examples.campaign.quoting import spoken
from examples.campaign.reading import Incoming, parse

OURS = "<touch-1-2-3@example.com>"
LEAVE = "unsubscribe@example.com"


def mail(*headers: str, body: str = "Yes, please call me.\n") -> bytes:
    """A mail from Bo that answers ours, with more headers before its own."""
    own = [
        "From: Bo Li <Bo@Example.org>",
        "To: Ana Ruiz <ana@example.com>",
        "Subject: Re: Hello",
        "Message-ID: <reply-1@example.org>",
        f"In-Reply-To: {OURS}",
        f"References: <touch-1-2-1@example.com> {OURS}",
    ]
    given = {line.partition(":")[0].lower() for line in headers}
    kept = [line for line in own if line.partition(":")[0].lower() not in given]
    return ("\r\n".join([*headers, *kept]) + "\r\n\r\n" + body.replace("\n", "\r\n")).encode()


def report(
    status: str, original: str = "", kind: str = "delivery-status", extra: str = ""
) -> bytes:
    """A report of a mail server."""
    returned = original or f"To: Bo Li <bo@example.org>\nMessage-ID: {OURS}\nSubject: Hello\n"
    text = f"""Return-Path: <>
From: Mail Delivery Subsystem <MAILER-DAEMON@mx.example.net>
To: ana@example.com
Subject: Delivery Status Notification
Message-ID: <dsn-1@mx.example.net>
Auto-Submitted: auto-replied
{extra}MIME-Version: 1.0
Content-Type: multipart/report; report-type={kind}; boundary="=b="

--=b=
Content-Type: text/plain; charset=utf-8

Your message could not be delivered to one or more recipients.

--=b=
Content-Type: message/{kind}

{status}
--=b=
Content-Type: message/rfc822

{returned}
Dear Bo

--=b=--
"""
    return text.replace("\n", "\r\n").encode()


def by_a_person(report: bytes) -> bytes:
    """A report without any other sign that a machine wrote it."""
    report = report.replace(b"Return-Path: <>\r\nFrom: Mail Delivery Subsystem ", b"From: ")
    report = report.replace(b"MAILER-DAEMON@mx.example.net", b"someone@isp.example")
    return report.replace(b"Auto-Submitted: auto-replied\r\n", b"")


POSTFIX = """Reporting-MTA: dns; mx.example.net
X-Postfix-Queue-ID: 4F1
Arrival-Date: Mon, 2 Mar 2026 09:30:05 +0100 (CET)

Final-Recipient: rfc822; bo@example.org
Original-Recipient: rfc822;Bo@example.org
Action: failed
Status: 5.1.1
Remote-MTA: dns; mx.example.org
Diagnostic-Code: smtp; 550 5.1.1 <bo@example.org>: Recipient address rejected
"""
FORWARDED = POSTFIX.replace("rfc822; bo@example.org", "rfc822; bo@elsewhere.example")
DELAYED = POSTFIX.replace("failed", "delayed").replace("5.1.1", "4.4.1")
ONE_OF_TWO = """Reporting-MTA: dns; mx.example.net

Final-Recipient: rfc822; cy@example.org
Action: delivered
Status: 2.0.0

Final-Recipient: rfc822; bo@example.org
Action: Failed
Status: 5.2.2
"""
COMPLAINT = """Feedback-Type: abuse
User-Agent: SomeISP/1.0
Version: 1
Original-Rcpt-To: <bo@example.org>
"""


def test_a_reply_is_read_whole() -> None:
    assert parse(mail()) == Incoming(
        message_id="<reply-1@example.org>",
        address="bo@example.org",
        kind="reply",
        in_reply_to=[OURS, "<touch-1-2-1@example.com>"],
        subject="Re: Hello",
        text="Yes, please call me.",
    )


@pytest.mark.parametrize(
    "content",
    [report(POSTFIX), report(FORWARDED), report(ONE_OF_TWO)],
    ids=["postfix", "forwarded", "one of two"],
)
def test_a_bounce_names_our_mail_and_its_recipient(content: bytes) -> None:
    found = parse(content)
    assert (found.kind, found.address, found.in_reply_to) == ("bounce", "bo@example.org", [OURS])
    assert found.message_id == "<dsn-1@mx.example.net>"


def test_a_report_that_returns_only_headers_names_ours_too() -> None:
    content = report(POSTFIX).replace(b"message/rfc822", b"text/rfc822-headers")
    assert parse(content).in_reply_to == [OURS]


def test_a_report_that_does_not_name_the_recipient_is_read_from_what_it_returns() -> None:
    found = parse(report("Reporting-MTA: dns; mx.example.net\n\nAction: failed\nStatus: 5.0.0\n"))
    assert (found.kind, found.address, found.in_reply_to) == ("bounce", "bo@example.org", [OURS])


QMAIL = f"""Hi. This is the qmail-send program at mx.example.net.
I'm afraid I wasn't able to deliver your message to the following addresses.

<bo@example.org>:
192.0.2.1 does not like recipient.

--- Below this line is a copy of the message.

Return-Path: <ana@example.com>
Message-ID: {OURS}
Subject: Hello
"""


@pytest.mark.parametrize(
    ("headers", "kind", "address"),
    [
        (["From: MAILER-DAEMON@mx.example.net", "Subject: failure notice"], "bounce", ""),
        (["From: Mailer-Daemon@mx.example.net", "Subject: Mail System"], "bounce", ""),
        (
            [
                "From: Mail Delivery System <Mailer-Daemon@mx.example.net>",
                "Subject: Mail delivery failed: returning message to sender",
                "Auto-Submitted: auto-replied",
                "X-Failed-Recipients: bo@example.org",
            ],
            "bounce",
            "bo@example.org",
        ),
        (
            ["Return-Path: <>", "From: postmaster@x.y", "Subject: Undeliverable: Hello"],
            "bounce",
            "",
        ),
        (
            [
                "From: Mailer-Daemon@mx.example.net",
                "Subject: Warning: message 1abc delayed 24 hours",
                "X-Failed-Recipients: bo@example.org",
            ],
            "automatic",
            "bo@example.org",
        ),
    ],
    ids=["qmail", "daemon", "exim", "empty return path", "exim delay"],
)
def test_an_old_style_bounce_is_recognised(headers: list[str], kind: str, address: str) -> None:
    content = mail(*headers, "In-Reply-To: <x@y>", "References: <x@y>", body=QMAIL)
    found = parse(content)
    assert (found.kind, found.address, found.in_reply_to) == (kind, address, [OURS])


@pytest.mark.parametrize(
    "content",
    [
        report(DELAYED),
        report(POSTFIX.replace("failed", "relayed")),
        by_a_person(report("Disposition: x; displayed\n", kind="disposition-notification")),
        mail("Auto-Submitted: auto-replied", "Subject: Out of office: Hello"),
        mail("Auto-Submitted: auto-generated; owner-email=x"),
        mail("Return-Path: <>", "Subject: Out of office"),
        mail("X-Autoreply: yes"),
        mail("X-Autorespond: Abwesend"),
        mail("Precedence: auto_reply"),
        mail("Precedence: Bulk"),
        mail("Precedence: junk"),
        mail("Auto-Submitted: auto-replied", body="Stop.\n"),
        mail("Precedence: auto-reply"),
        mail("X-Precedence: auto_reply"),
        mail("X-Autoresponder: yes"),
        mail("X-Autogenerated: Reply"),
        mail("X-Auto-Response-Suppress: All", "Subject: Automatic reply: Hello"),
        mail("Subject: Automatische Antwort: Hello"),
        mail("Subject: Out of Office: Hello"),
        mail("Subject: Out of Office"),
        mail("Subject: Out of office until 5 May"),
        mail("Subject: Out of Office Re: Hello"),
        mail("Subject: =?utf-8?q?R=C3=A9ponse_automatique?= : Hello"),
        mail("Subject: Respuesta automática: Hello"),
        mail("Subject: Abwesenheitsnotiz"),
        mail("Subject: Abwesenheit vom 3. bis 5. Mai", body="Ich bin weg, keine Mails.\n"),
    ],
    ids=[
        "delayed", "relayed", "receipt", "out of office", "generated", "empty return path",
        "autoreply", "autorespond", "auto_reply", "bulk", "junk", "automatic stop", "auto-reply",
        "x-precedence", "autoresponder", "autogenerated", "Exchange", "German", "office", "alone",
        "until", "vacation", "French", "Spanish", "note", "absence",
    ],
)  # fmt: skip
def test_automatic_mail_ends_nothing(content: bytes) -> None:
    assert parse(content, LEAVE).kind == "automatic"


def test_an_out_of_office_note_names_its_author() -> None:
    found = parse(mail("Return-Path: <>", "Auto-Submitted: auto-replied"))
    assert (found.address, found.in_reply_to[0]) == ("bo@example.org", OURS)


@pytest.mark.parametrize(
    "content",
    [
        mail("Subject: unsubscribe"),
        mail("Subject: Please unsubscribe me from your mailing list!"),
        mail("Subject: UNSUBSCRIBE", "Auto-Submitted: auto-generated"),
        mail("To: Unsubscribe <Unsubscribe@example.com>", "Subject: (no subject)", body=""),
        mail("To: unsubscribe@example.com", "Auto-Submitted: auto-generated"),
        mail(body="STOP\n\nOn Mon, 2 Mar 2026, Ana wrote:\n> Dear Bo\n"),
        mail(body="> Dear Bo\n\nStop.\n"),
        mail(body="\n\n  Remove me, please.\nBo\n"),
        mail(body="Please remove me from this list. Thanks, Bo\n"),
        mail(body="Stop e-mailing me or I will complain.\n"),
        mail(body="take me off your list\n"),
        mail(body="opt out\n"),
    ],
)
def test_a_request_in_words_unsubscribes(content: bytes) -> None:
    found = parse(content, LEAVE)
    assert (found.kind, found.address) == ("unsubscribe", "bo@example.org")


def test_a_spam_complaint_unsubscribes() -> None:
    found = parse(by_a_person(report(COMPLAINT, kind="feedback-report")))
    assert (found.kind, found.address) == ("unsubscribe", "bo@example.org")
    assert found.in_reply_to == [OURS]


@pytest.mark.parametrize(
    "content",
    [
        mail("Auto-Submitted: no"),
        mail("X-Autoreply: no"),
        mail("X-Autoresponder: no"),
        mail("X-Auto-Response-Suppress: All"),
        mail("Subject: Re: Automatic reply: Hello"),
        mail("Subject: Automatic replies, and how you do them"),
        mail("Subject: Out of office soon, so call today"),
        mail("Subject: Re: unsubscribe rates in your newsletter"),
        mail("Subject: Unsubscribe rates"),
        mail("Return-Path: <bo@example.org>"),
        mail("Precedence: list"),
        mail(body="Stop by on Tuesday!\n"),
        mail(body="Yes!\n\n> To unsubscribe:\n> unsubscribe\n"),
        mail(body="I got this:\nAction: failed\nFinal-Recipient: rfc822; cy@example.org\n"),
        mail("X-Failed-Recipients: cy@example.org"),
        mail("Subject: Undeliverable: Hello"),
        mail("X-From: mailer-daemon@example.org", "Sender: mailer-daemon@example.org"),
        mail("Content-Type: message/delivery-status", body=POSTFIX),
    ],
)
def test_everything_else_is_a_reply_from_its_author(content: bytes) -> None:
    found = parse(content, LEAVE)
    assert (found.kind, found.address) == ("reply", "bo@example.org")
    assert found.in_reply_to[0] == OURS


def test_a_report_inside_a_reply_is_not_a_report() -> None:
    outer = EmailMessage()
    outer["From"] = "bo@example.org"
    outer["Subject"] = "Fwd: what is this?"
    outer.set_content("I got this about you.")
    outer.add_attachment(report(POSTFIX.replace("bo@", "cy@")), maintype="application", subtype="x")
    content = outer.as_bytes()
    found = parse(content)
    assert (found.kind, found.address, found.in_reply_to) == ("reply", "bo@example.org", [])


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        (["From: =?utf-8?q?cy=40example=2Ecom?= <bo@example.org>"], "bo@example.org"),
        (['From: "cy@example.com" <bo@example.org>'], "bo@example.org"),
        (["From: bo@example.org", "From: cy@example.com"], "bo@example.org"),
        (["Reply-To: cy@example.com", "Sender: cy@example.com"], "bo@example.org"),
        (["From:"], ""),
        (["From: undisclosed"], ""),
        (["From: <>"], ""),
        (["From: bo@example.org <bo@example.org>"], "bo@example.org"),
        (["From: cy@example.com <bo@example.org>"], "bo@example.org"),
        (["From: Bo [Acme] <bo@example.org>"], "bo@example.org"),
        (["From: Bo @ Acme <bo@example.org>"], "bo@example.org"),
        (["From: Bo <bo@example.org>;"], "bo@example.org"),
        (["From: Bo <bo@example.org"], "bo@example.org"),
        (["From: Li, Bo <bo@example.org>"], "bo@example.org"),
        (['From: "Li, Bo \\"cy@example.com\\"" <bo@example.org>'], "bo@example.org"),
        (["From: bo@example.org (Li, Bo (cy@example.com))"], "bo@example.org"),
        (["From: (cy@example.com) bo@example.org"], "bo@example.org"),
        (['From: "bo"@example.org'], "bo@example.org"),
        (['From: "bo@example.org"'], "bo@example.org"),
        (["From: 'bo@example.org'"], "bo@example.org"),
        (["From: <mailto:bo@example.org>"], "bo@example.org"),
        (["From: staff: Bo <bo@example.org>;"], "bo@example.org"),
        (["From: undisclosed", "Reply-To: Bo @ Acme <bo@example.org>"], ""),
        ([f"From: {'x' * 300}@example.org"], ""),
    ],
)
def test_a_mail_is_from_its_from_address(headers: list[str], address: str) -> None:
    assert parse(mail(*headers)).address == address


def test_every_address_in_from_is_an_author_except_in_a_report() -> None:
    found = parse(mail("From: Al <al@example.org>, Bo <Bo@Example.org>"))
    assert (found.address, found.others) == ("al@example.org", ["bo@example.org"])
    found = parse(mail("From: Al <al@example.org>", "Reply-To: Bo @ Acme <bo@example.org>"))
    assert (found.address, found.others) == ("al@example.org", ["bo@example.org"])
    several = b"From: cy@example.com, "
    assert parse(report(POSTFIX).replace(b"From: ", several, 1)).others == []


def test_non_ascii_headers_are_read_encoded_or_not() -> None:
    assert parse(mail("Subject: =?iso-8859-1?q?Gr=FC=DFe?=")).subject == "Grüße"
    assert parse(mail("Subject: Grüße")).subject == "Grüße"
    assert parse(mail("Subject: =?no-such-charset?q?x?=")).subject == "=?no-such-charset?q?x?="


@pytest.mark.parametrize(
    "header",
    ["Message-ID:", "Message-ID: none", "Message-ID: <a b@c>", f"Message-ID: <{'a' * 600}>"],
)
def test_a_mail_without_a_usable_id_always_gets_the_same_one(header: str) -> None:
    first, again, other = parse(mail(header)), parse(mail(header)), parse(mail(header, body="x"))
    assert first.message_id == again.message_id != other.message_id
    assert first.message_id.endswith("@no-message-id.invalid>")
    assert len(first.message_id) < 100


def test_a_folded_chain_of_references_is_read_from_its_end() -> None:
    chain = "References: <a@x>\r\n <b@x>\r\n\t<c@x> <a@x>"
    assert parse(mail(chain, "In-Reply-To: none")).in_reply_to == ["<a@x>", "<c@x>", "<b@x>"]


def both(plain: str, marked: str) -> bytes:
    message = EmailMessage()
    message["From"] = "bo@example.org"
    message.set_content(plain or "-")
    if marked:
        message.add_alternative(marked, subtype="html")
    return message.as_bytes()


def mixed(*parts: str, kind: str = "mixed") -> bytes:
    """A mail of several parts, each with its own headers."""
    body = "".join(f"--b\n{part}\n" for part in parts) + "--b--\n"
    return mail(f"Content-Type: multipart/{kind}; boundary=b", body=body)


PLAIN, HTML = "Content-Type: text/plain\n\n", "Content-Type: text/html\n\n"
IMAGE = "Content-Type: image/png\nContent-Disposition: inline\n\nx"


def html(text: str) -> bytes:
    return mail("Content-Type: text/html; charset=utf-8", body=text)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (both("Grüße, 你好\n", "<p>other</p>"), "Grüße, 你好"),
        (html("<p>Yes &amp; no</p><p>Bo</p>"), "Yes & no\n\nBo"),
        (html("<style>p {}</style>Hi<br>Bo<blockquote>Dear Bo</blockquote>"), "Hi\nBo"),
        (html("<p>5 < 6 <b>bold</b>"), "5 < 6 bold"),
        (html("<!DOCTYPE html><title>x</title>Hi <!-- Stop <p> -->Bo"), "Hi Bo"),
        (html("Hi<!-- Stop"), "Hi"),
        (html("<title/><script/>Hi"), "Hi"),
        (html("<script>'<blockquote>'</script><style><!-- p {} --></style>Hi"), "Hi"),
        (html("<h3>Stop</h3>Best"), "Stop\nBest"),
        (html("<tr><td>Stop</td><td>Bo</td></tr>"), "Stop\n\nBo"),
        (html("<p>Please\nstop\nby</p>"), "Please stop by"),
        (html("<pre>a\n&gt; b\nc</pre>"), "a\nc"),
        (html("<div style='display: none'>Stop<div>x</div>y</div>Hi"), "Hi"),
        (html("<span style=mso-hide:all>Stop</span>Hi<img style='display:none'> Bo"), "Hi Bo"),
        (html("<blockquote>a<blockquote>b</blockquote>c</blockquote>Hi"), "Hi"),
        (html("Hi\u200b&nbsp;Bo\u200c"), "Hi Bo"),
        (mixed(f"{PLAIN}Caution!", f"{PLAIN}Stop"), "Caution!\n\nStop"),
        (mixed(f"{PLAIN}Look:", IMAGE, f"{PLAIN}Stop"), "Look:\n\nStop"),
        (mixed(f"{PLAIN}Hi", f"{HTML}<p>Stop</p>"), "Hi\n\nStop"),
        (mixed(f"{PLAIN}\u200b \u200c", f"{HTML}Stop", kind="alternative"), "Stop"),
        (mixed(f"{HTML}<p>Stop</p>", f"{PLAIN}Hi", kind="alternative"), "Hi"),
        (
            mixed(f"{PLAIN}Hi", "Content-Disposition: attachment\n" + f"{PLAIN}Stop"),
            "Hi",
        ),
        (
            mail("Content-Transfer-Encoding: BASE64 ", body="U3RvcA=="),
            "Stop",
        ),
        (mail("Content-Type: text/plain; charset=no-such", body="Grüße"), "Grüße"),
        (
            mail(
                "Content-Type: text/plain; charset=iso-8859-1",
                "Content-Transfer-Encoding: base64",
                body="R3L832U=",
            ),
            "Grüße",
        ),
        (mail("Content-Type: image/png", body="x"), ""),
        (mail(body="a\x00b"), "ab"),
        (mail("Content-Type: text/plain; charset=utf-7", body="a+2AA-b"), "a?b"),
    ],
)
def test_the_text_is_what_a_person_sees(content: bytes, text: str) -> None:
    assert parse(content).text == text


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ("Yes.\n\nOn Mon, 2 Mar 2026 at 09:30, Ana <a@b.c> wrote:\n> Dear Bo\n> Hi\n", "Yes."),
        ("Yes.\n\nOn Mon, 2 Mar 2026 at 09:30, Ana Ruiz\n<a@b.c> wrote:\n\n> Dear Bo\n", "Yes."),
        ("> How are you?\nWell.\n> And then?\nCall.\n", "Well.\nCall."),
        ("Yes.\n\n-----Original Message-----\nFrom: Ana\n\nDear Bo\n", "Yes."),
        ("Yes.\n________________________________\nFrom: Ana\nDear Bo\n", "Yes."),
        ("On Monday I can.\n\nBo", "On Monday I can.\n\nBo"),
        ("On my way\n\nwrote:", "On my way\n\nwrote:"),
        ("a > b\n", "a > b"),
        ("", ""),
    ],
)
def test_quotations_are_left_out(text: str, own: str) -> None:
    assert spoken(text) == own


# -- garbage

PIECES = [
    b"From: ", b"To: ", b"Subject: ", b"Message-ID: ", b"References: ", b"Content-Type: ",
    b"Content-Transfer-Encoding: base64\r\n", b"multipart/report; report-type=delivery-status; ",
    b"multipart/mixed; ", b"boundary=b\r\n", b"--b\r\n", b"--b--\r\n", b"message/rfc822\r\n",
    b"message/delivery-status\r\n", b"text/plain; charset=", b"text/html\r\n", b"utf-16\r\n",
    b"unknown-8bit\r\n", b"Action: failed\r\n", b"Final-Recipient: rfc822;", b"=?utf-8?b?", b"?=",
    b"=?utf-8?q?=00=ff?=", b"a@b.c", b"<a@b>", b"<", b">", b'"', b"(", b"\r\n", b"\n", b" ",
    b"\x00", b"Return-Path: <>",
    b"\xff\xfe", "ü".encode(), b"\xed\xa0\x80", b"charset*=utf-8''%ff", b"name*0=x; ",
]  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.one_of(st.binary(max_size=300), st.lists(st.sampled_from(PIECES)).map(b"".join)))
@example(b"")
@example(b"Content-Type: multipart/mixed; boundary=b\r\n\r\n" + b"--b\r\n" * 500)
def test_garbage_is_read_as_something_that_can_be_stored(content: bytes) -> None:
    found = parse(content, LEAVE)
    assert found.kind in ("reply", "bounce", "unsubscribe", "automatic")
    for text in (found.message_id, found.address, found.subject, found.text, *found.in_reply_to):
        assert text.encode("utf-8").count(0) == 0
    assert 0 < len(found.message_id) <= 502
    assert len(found.address) <= 401
    assert parse(content, LEAVE) == found


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2000), st.binary(max_size=30))
def test_a_damaged_report_is_read(position: int, damage: bytes) -> None:
    whole = report(POSTFIX)
    at = position % len(whole)
    parse(whole[:at] + damage + whole[at + len(damage) :])


def nested(depth: int) -> bytes:
    parts = [
        f"Content-Type: multipart/mixed; boundary=b{level}\r\n\r\n--b{level}\r\n".encode()
        for level in range(depth)
    ]
    return b"From: bo@example.org\r\n" + b"".join(parts)


@pytest.mark.parametrize(
    "content",
    [
        nested(3000),
        mail("Content-Type: text/html", body="<" * 1_000_000),
        mail("Content-Type: text/html", body="<style" * 100_000),
        mail("Content-Type: text/html", body="<style>" * 100_000),
        mail("Content-Type: text/html", body="<!--" * 100_000),
        mail("Content-Type: text/html", body="<p style='display:none'>" * 100_000),
        mail("Content-Type: text/html", body="<" + "a" * 1_000_000),
        mail(body="On x\n" * 200_000),
        mail(body="-" * 1_000_000),
        mail(f"References: {'<a@b> ' * 100_000}"),
        mail(f"From: {'(' * 100_000}"),
        mail(*[f"To: {chr(34)}{chr(92) + chr(34)}" + "(<a@" * 2_500] * 10),
        mail(body="On 9:30 <a@b " * 100_000),
        mail(body="From: <a@b>\n" * 100_000),
        mail(f"Subject: {'=?utf-8?q?a?= ' * 50_000}"),
        mail("Return-Path: <>", body="message-id:" + " " * 1_000_000),
    ],
    ids=[
        "nested", "tags", "styles", "open styles", "remarks", "hidden", "one tag", "attributions",
        "dashes", "references", "comments", "names", "addresses", "headers", "words", "spaces",
    ],
)  # fmt: skip
@pytest.mark.timeout(30)
def test_a_mail_made_to_take_long_does_not(content: bytes) -> None:
    found = parse(content)
    assert len(found.text) <= 100_000
    assert len(found.in_reply_to) <= 100


# -- what machines on the way do to an unsubscription

TOKEN = "0123456789abcdef0123"


def test_an_undecodable_header_does_not_affect_the_rest_of_a_mail() -> None:
    broken = mail("Subject: =?utf-8?b?a?=", body="Please unsubscribe me.\n")
    read = parse(broken, LEAVE)
    assert (read.kind, read.address) == ("unsubscribe", "bo@example.org")
    assert read.in_reply_to[0] == OURS


def test_a_token_counts_without_a_return_path_and_in_an_unreadable_mail() -> None:
    left = mail("Return-Path: <>", f"To: unsubscribe+{TOKEN}@example.com", "Subject: unsubscribe")
    boxes = (f"Content-Type: multipart/mixed; boundary=b{n}\r\n\r\n--b{n}\r\n" for n in range(2000))
    garbage = "".join(boxes).encode()
    assert parse(left, LEAVE).tokens == [TOKEN]
    read = parse(garbage, LEAVE, [f"unsubscribe+{TOKEN}@example.com"])
    assert (read.kind, read.tokens) == ("unsubscribe", [TOKEN])


def test_a_complaint_without_a_return_path_is_a_complaint() -> None:
    complaint = report("Feedback-Type: abuse\n", kind="feedback-report")
    read = parse(complaint, LEAVE)
    assert (read.kind, read.address, read.in_reply_to) == ("unsubscribe", "bo@example.org", [OURS])


def test_html_text_counts_if_the_plain_text_is_empty() -> None:
    both = mail(
        "Content-Type: multipart/alternative; boundary=b",
        body="--b\nContent-Type: text/plain\n\n \n"
        "--b\nContent-Type: text/html\n\n<p>Stop</p>\n--b--\n",
    )
    assert parse(both, LEAVE).kind == "unsubscribe"
