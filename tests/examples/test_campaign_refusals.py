"""What a mail server's refusal means: real answers of well-known servers, in real conversations."""

from __future__ import annotations

from dataclasses import replace

import pytest

import perdure
from examples.campaign.mail import Outgoing
from examples.campaign.postoffice import Fault, PostOffice, Reply, Stage, scripted
from examples.campaign.refusals import (
    Doubtful,
    LetterRefused,
    NoSuchRecipient,
    SenderRefused,
    ServerTrouble,
    TemporaryTrouble,
    meaning,
    refusal,
)
from tests.examples.test_campaign_mail import BO, DATE, HOST, LETTER, outgoing, yes

CONNECT, HELLO, LOGIN, SENDER = Stage.CONNECT, Stage.HELLO, Stage.LOGIN, Stage.SENDER
RCPT, DATA, CONTENT = Stage.RECIPIENT, Stage.DATA, Stage.CONTENT

SAID: list[tuple[type[perdure.NotDone], Stage, str]] = [
    # nobody has this address
    (NoSuchRecipient, RCPT, "550 5.1.1 <{}>: Recipient address rejected: User unknown in local "),
    (
        NoSuchRecipient,  # Gmail
        RCPT,
        "550-5.1.1 The email account that you tried to reach does not exist.\r\n550 5.1.1 Learn",
    ),
    (NoSuchRecipient, RCPT, "550 5.2.1 The email account that you tried to reach is inactive."),
    (NoSuchRecipient, RCPT, "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient {} not found"),
    (NoSuchRecipient, RCPT, "556 5.1.10 Recipient address has null MX"),
    (NoSuchRecipient, RCPT, "550 5.1.2 <{}>: Recipient address rejected: Domain not found"),
    (NoSuchRecipient, RCPT, "553 5.1.3 The recipient address is not a valid RFC-5321 address."),
    (NoSuchRecipient, RCPT, "551 5.1.6 The recipient has moved"),
    (NoSuchRecipient, RCPT, "550 sorry, no mailbox here by that name. (#5.1.1)"),  # qmail
    (NoSuchRecipient, RCPT, "550 No Such User Here"),  # cPanel
    (NoSuchRecipient, RCPT, "550 Unknown user"),
    (NoSuchRecipient, RCPT, "550 5.0.0 <{}>... User unknown"),
    (NoSuchRecipient, RCPT, "550 5.1.0 <{}>: mailbox does not exist"),
    (NoSuchRecipient, RCPT, "552 1 Requested mail action aborted, mailbox not found"),  # Yahoo
    (NoSuchRecipient, CONTENT, "554 delivery error: dd This user doesn't have a yahoo.com account"),
    (NoSuchRecipient, CONTENT, "550 5.1.1 User unknown"),
    (NoSuchRecipient, CONTENT, "554 delivery error: dd Not a valid recipient"),  # Yahoo
    (
        NoSuchRecipient,  # Gmail
        RCPT,
        "550-5.1.1 double-checking the recipient's email address for typos or\r\n550 5.1.1 spaces",
    ),
    (NoSuchRecipient, RCPT, "550 5.1.1 RESOLVER.ADR.ExRecipNotFound; not found"),  # Exchange
    (NoSuchRecipient, RCPT, "550 5.1.1 <{}>: Recipient address rejected: User unknown in relay "),
    (
        NoSuchRecipient,  # Postfix, which has asked another server
        RCPT,
        "550 5.1.1 <{}>: undeliverable address: host mx.example.org[192.0.2.1] said: 550 5.1.1 No",
    ),
    (NoSuchRecipient, RCPT, "550 5.1.1 <{}>: Email address could not be found, or was misspelled"),
    (NoSuchRecipient, RCPT, "550 Message was not accepted -- invalid mailbox."),  # mail.ru
    (
        NoSuchRecipient,  # Yahoo
        CONTENT,
        "554 30 Sorry, your message to <{}> cannot be delivered. This mailbox is disabled (554.30)",
    ),
    # about us
    (SenderRefused, RCPT, "550 user unknown: login required"),
    (SenderRefused, RCPT, "550 invalid recipient: relaying is disabled"),
    (SenderRefused, RCPT, "550 5.1.8 <ana@example.com>: Sender address rejected: Domain not found"),
    (SenderRefused, RCPT, "550 5.1.8 Access denied, bad outbound sender AS(4)"),
    (SenderRefused, RCPT, "553 5.1.7 The sender address is not a valid address"),
    (SenderRefused, RCPT, "550 relay not permitted"),  # Exim
    (SenderRefused, RCPT, "550 host is not permitted to relay through this server without login"),
    (SenderRefused, RCPT, "554 5.7.1 <{}>: Relay access denied"),  # Postfix
    (SenderRefused, RCPT, "550 5.7.1 Unable to relay for {}"),
    (SenderRefused, RCPT, "550 5.7.64 TenantAttribution; Relay Access Denied"),
    (SenderRefused, RCPT, "550 5.7.54 SMTP; Unable to relay recipient in non-accepted domain"),
    (SenderRefused, RCPT, "553 sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)"),
    (SenderRefused, RCPT, "553 5.7.1 <ana@x.com>: Sender address rejected: not owned by user ana"),
    (SenderRefused, RCPT, "504 5.5.2 <box>: Helo command rejected: need fully-qualified hostname"),
    (SenderRefused, RCPT, "554 5.7.1 <box[192.0.2.1]>: Client host rejected: Access denied"),
    (
        SenderRefused,
        RCPT,
        "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
    ),
    (SenderRefused, RCPT, "550 5.7.1 Connections not accepted: your IP is on our block list"),
    (SenderRefused, RCPT, "550 5.7.23 <{}>: Recipient address rejected: SPF fail"),
    (SenderRefused, RCPT, "550 Sender verify failed"),
    (SenderRefused, RCPT, "530 5.7.0 Must issue a STARTTLS command first"),
    (SenderRefused, RCPT, "530-5.5.1 Authentication Required.\r\n530 5.5.1 Learn more"),
    (SenderRefused, RCPT, "550 5.4.5 Daily user sending limit exceeded."),
    (SenderRefused, RCPT, "550 5.7.705 Access denied, tenant has exceeded threshold"),
    (
        SenderRefused,
        CONTENT,
        "550-5.7.26 Unauthenticated email from example.com is not accepted due\r\n550 5.7.26 to",
    ),
    (SenderRefused, CONTENT, "550 5.7.1 Email rejected per DMARC policy for example.com"),
    (SenderRefused, CONTENT, "554 5.2.252 SendAsDenied; ana@example.com not allowed to send as"),
    (SenderRefused, CONTENT, "550 The from address does not match a verified Sender Identity."),
    (SenderRefused, CONTENT, "554 Message rejected: Email address is not verified."),
    (SenderRefused, CONTENT, "554 5.2.0 STOREDRV.Submission; SubmissionQuotaExceededException"),
    (SenderRefused, CONTENT, "554 5.2.0 STOREDRV.Submission.Exception:SendAsDeniedException"),
    (SenderRefused, CONTENT, "554 Transaction failed Unauthorized sender address."),  # GMX
    (SenderRefused, CONTENT, "554 Access denied: User is not authorized to perform ses:Send"),
    (SenderRefused, CONTENT, "554 Message rejected: Sending paused for this account."),  # SES
    (
        SenderRefused,
        CONTENT,
        "550 Domain x.com is not allowed to send: it is unverified",
    ),  # Mailgun
    (SenderRefused, RCPT, "550 5.7.1 Unable to send email. Your SMTP account is not yet activated"),
    (SenderRefused, RCPT, '550 Outgoing mail from "ana@example.com" has been suspended.'),  # cPanel
    (SenderRefused, DATA, "550 5.7.60 Client does not have permissions to send as this sender"),
    (SenderRefused, SENDER, "550 5.1.1 Unknown user"),
    (SenderRefused, SENDER, "553 5.7.1 <ana@example.com>: Sender address rejected: not logged in"),
    (SenderRefused, SENDER, "530 5.7.57 Client not authenticated to send mail"),
    (SenderRefused, LOGIN, "535 5.7.8 Username and Password not accepted."),
    (SenderRefused, LOGIN, "535 5.7.139 Authentication unsuccessful, the user credentials were"),
    (SenderRefused, LOGIN, "534-5.7.9 Application-specific password required.\r\n534 5.7.9 More"),
    (SenderRefused, HELLO, "550 5.7.1 Bad HELO"),
    (SenderRefused, CONNECT, "554 5.7.1 You are not welcome: blocked using bl.example.net"),
    # about this text
    (LetterRefused, RCPT, "552 5.2.3 Message length exceeds administrative limit"),
    (LetterRefused, RCPT, "552 5.3.4 Message size exceeds fixed limit"),
    (LetterRefused, RCPT, "552 Message size exceeds maximum permitted"),
    (LetterRefused, CONTENT, "552 5.3.4 Error: message file too big"),
    (LetterRefused, CONTENT, "550 5.6.0 Lone CR or LF in body"),
    (LetterRefused, CONTENT, "554 5.7.1 Message contains a URL listed at dbl.spamhaus.org"),
    (
        LetterRefused,
        CONTENT,
        "550-5.7.1 Our system has detected that this message is\r\n550 5.7.1 likely unsolicited",
    ),
    (LetterRefused, CONTENT, "554 Transaction failed"),
    (LetterRefused, CONTENT, "550 High probability of spam"),
    # about the recipient, or us, or soon over
    (Doubtful, RCPT, "552 5.2.2 Mailbox full"),
    (Doubtful, RCPT, "552-5.2.2 The recipient's inbox is out of storage space.\r\n552 5.2.2 More"),
    (Doubtful, CONTENT, "552 5.2.2 <{}>: Over quota"),
    (Doubtful, CONTENT, "552 Quota exceeded"),
    (Doubtful, RCPT, "550 5.2.1 The user is receiving mail at a rate that prevents delivery"),
    (Doubtful, RCPT, "550 Requested action not taken: mailbox unavailable"),
    (Doubtful, RCPT, "550 Rejected"),
    (Doubtful, RCPT, "550 5.1.1 Service refused, please try later. OFR006_102"),  # Orange
    (Doubtful, RCPT, "550 5.1.1 Not accepting mail from your domain"),
    (Doubtful, RCPT, "550 5.2.1 <{}>: mailbox temporarily disabled"),
    (Doubtful, RCPT, "550 5.7.1 You are not allowed to send mail to this recipient"),
    (Doubtful, CONTENT, "554 5.2.122 The recipient has exceeded their limit for messages per hour"),
    (Doubtful, RCPT, "551 User not local; please try another path"),
    (Doubtful, RCPT, "553 Requested action not taken"),
    (Doubtful, RCPT, "554 Transaction failed"),
    (Doubtful, RCPT, "550 5.7.1 Message rejected"),
    (Doubtful, RCPT, "550 5.1.0 Address rejected"),
    (Doubtful, RCPT, "550 5.2.0 Mailbox problem"),
    (Doubtful, RCPT, "550 5.4.1 Recipient address rejected: Access denied."),  # Microsoft 365
    (Doubtful, RCPT, "550 Unrouteable address"),
    (Doubtful, RCPT, "550 Administrative prohibition"),
    (Doubtful, RCPT, "550 5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup; authentication"),
    (Doubtful, RCPT, "550 5.7.1 Blocked by the recipient's block list"),
    # words that may be about us, or contradict the code, condemn nobody
    (Doubtful, RCPT, "550 The domain of the sender does not exist"),
    (Doubtful, RCPT, "550 Account disabled"),
    (Doubtful, RCPT, "550 No such address: your domain has no MX"),
    (Doubtful, RCPT, "550 5.1.1 Relaying denied"),
    (Doubtful, RCPT, "550 5.1.2 Sender domain does not exist"),
    (Doubtful, RCPT, "550 5.1.1 Sender unknown"),
    (Doubtful, RCPT, "553 5.1.3 Invalid sender address"),
    (Doubtful, RCPT, "550 5.1.6 Sender has moved"),
    (Doubtful, RCPT, "550 5.1.10 Sender domain has null MX"),
    (Doubtful, RCPT, "550 5.1.2 The domain of your return path cannot be resolved"),
    (Doubtful, RCPT, "550 5.1.1 invalid MAIL FROM"),
    (Doubtful, RCPT, "550 5.1.1 Envelope sender could not be verified"),
    (Doubtful, RCPT, "550 5.2.1 Sender account is locked"),
    (Doubtful, RCPT, "550 5.2.1 Account suspended"),
    (Doubtful, RCPT, "550 5.1.1 rate limit exceeded"),
    (Doubtful, RCPT, "550 5.1.2 TLS required"),
    (Doubtful, RCPT, "550 5.1.1 invalid credentials"),
    (Doubtful, RCPT, "550 5.1.1 Your mail was refused"),
    (Doubtful, RCPT, "550 5.1.1 Message rejected as spam"),
    (Doubtful, RCPT, "550 no such user ana, authorization failed"),
    (Doubtful, RCPT, "550 5.1.1 Sender address rejected: no such user"),
    (NoSuchRecipient, RCPT, "550 5.1.1 <spf-dkim-relay@example.org>: no such user"),
    (Doubtful, DATA, "554 5.5.1 Error: no valid recipients"),
    # later
    (TemporaryTrouble, RCPT, "450 4.2.0 <{}>: Recipient address rejected: Greylisted"),
    (TemporaryTrouble, RCPT, "451 4.7.500 Server busy. Please try again later"),
    (TemporaryTrouble, RCPT, "452 4.2.2 The recipient's inbox is out of storage space"),
    (TemporaryTrouble, RCPT, "450 5.1.1 confused"),
    (TemporaryTrouble, DATA, "451 4.3.0 Temporary failure"),
    (TemporaryTrouble, CONTENT, "451 4.7.1 Try again later"),
    (ServerTrouble, RCPT, "421 4.7.0 Too many connections"),
    (ServerTrouble, CONTENT, "421-4.7.28 unusual rate of unsolicited mail\r\n421 4.7.28 from us"),
    (ServerTrouble, SENDER, "451 4.3.5 Server configuration problem"),
    (ServerTrouble, SENDER, "452 4.3.1 Insufficient system resources"),
    (ServerTrouble, LOGIN, "454 4.7.0 Temporary authentication failure"),
    (ServerTrouble, HELLO, "451 4.3.2 Shutting down"),
    (ServerTrouble, CONNECT, "421 4.3.2 Service not available"),
]


def test_server_answers_are_classified() -> None:
    people = [f"c{number}@example.org" for number in range(len(SAID))]
    replies = [
        Reply(said.replace("{}", to), at) for to, (_, at, said) in zip(people, SAID, strict=True)
    ]
    numbered = list(zip(people, replies, strict=True))
    plan = {(to, 1): reply for to, reply in numbered if not reply.at.is_ours}
    options = {"auth_require_tls": False, "authenticator": lambda *_: pytest.fail("logged in")}
    read = []
    with PostOffice(scripted(plan), smtp_options=options) as office:
        for to, reply in numbered:
            office.refuses = reply if reply.at.is_ours else None
            out = outgoing(office)
            if reply.at is LOGIN:
                out = replace(out, user="ana", password="secret")
            with pytest.raises(perdure.NotDone) as caught:
                out.send(replace(LETTER, recipient=to), DATE, yes)
            read.append((type(caught.value), reply.at, reply.text))
            [text] = caught.value.args
            assert text.startswith(reply.at)
            assert f": {reply.text[:3]} " in text
            assert "\n" not in text
        assert office.log == []
    expected = [
        (kind, reply.at, reply.text) for (kind, *_), reply in zip(SAID, replies, strict=True)
    ]
    assert [one for one in zip(read, expected, strict=True) if one[0] != one[1]] == []


ABOUT_US = (
    "relay not permitted",
    "Relay access denied",
    "Sender address rejected",
    "Sender verify failed",
    "authentication required",
    "listed on a blacklist",
    "blocked using zen.spamhaus.org",
    "SPF check failed",
    "no DKIM signature",
    "rejected by DMARC policy",
    "cannot find your reverse hostname",
    "sender unknown",
    "the return path cannot be resolved",
    "not logged in",
    "not authorised",
    "relaying is disabled",
    "rate limit exceeded",
    "TLS required",
    "invalid credentials",
)


def test_a_refusal_that_may_be_about_us_gives_up_no_contact() -> None:
    """Whatever else the server says, and even if its code is about the address."""
    for _, stage, said in (one for one in SAID if one[0] is NoSuchRecipient):
        code, text = int(said[:3]), said[4:]
        for words in ABOUT_US:
            for both in (f"{text} {words}", f"{text}\n{words.upper()}"):
                assert meaning(stage, code, both) is not NoSuchRecipient, both
    for stage in Stage:
        if stage.is_ours:
            assert meaning(stage, 550, "5.1.1 User unknown") is SenderRefused


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (Fault.SENDER_REFUSED, SenderRefused),
        (Fault.RELAY_DENIED, SenderRefused),
        (Fault.MAILBOX_FULL, Doubtful),
        (Fault.TOO_LARGE, LetterRefused),
        (Fault.REJECT_BARE, Doubtful),
    ],
)
def test_each_refusal_of_the_post_office_has_its_kind(fault: Fault, kind: type[Exception]) -> None:
    with PostOffice(scripted({(BO, 1): fault})) as office:
        with pytest.raises(kind) as caught:
            outgoing(office).send(LETTER, DATE, yes)
        assert type(caught.value) is kind
        assert (office.conversations[0].fault, office.log) == (fault, [])
        assert outgoing(office).send(LETTER, DATE, yes) == "sent"


def test_a_server_that_is_down_is_in_trouble_and_refuses_no_contact() -> None:
    with PostOffice() as office:
        office.down = True
        with pytest.raises(ServerTrouble, match=r"connecting to 127\.0\.0\.1"):
            outgoing(office).send(LETTER, DATE, yes)
        office.down = False
        assert outgoing(office).send(LETTER, DATE, yes) == "sent"
        port = office.smtp_port
    with pytest.raises(ServerTrouble, match=f"connecting to {HOST}:{port}: ConnectionRefused"):
        Outgoing(HOST, port, hello="localhost").send(LETTER, DATE, yes)
    with pytest.raises(ServerTrouble, match="gaierror"):
        Outgoing("no-such-host.invalid", 25, hello="localhost").send(LETTER, DATE, yes)


def test_a_password_that_cannot_be_sent_is_our_error_and_is_not_shown() -> None:
    options = {"auth_require_tls": False, "authenticator": lambda *_: pytest.fail("logged in")}
    with PostOffice(smtp_options=options) as office:
        out = outgoing(office, user="ana", password="gehäim")
        with pytest.raises(SenderRefused, match=r"logging in: ValueError: .* ASCII") as caught:
            out.send(LETTER, DATE, yes)
    assert "ä" not in str(caught.value)


def test_a_long_answer_is_read_in_a_moment() -> None:
    for text in ("mailbox " * 20_000, "contains " * 20_000, "daily sending " * 20_000):
        assert meaning(RCPT, 550, text) is Doubtful


def test_addresses_are_cut_out_of_a_servers_words() -> None:
    for said, kept in (
        ("5.1.1 <bo@x.example>: unknown", "5.1.1 <address>: unknown"),
        ("rfc822;Bo+x@X.example, sorry", "rfc822;<address>, sorry"),
        ("see https://x.example/?to=bo%40x.example now", "see https:<address> now"),
        ("user 'bo@x.example'\r\n is unknown", "user <address> is unknown"),
        ("try again at 9", "try again at 9"),
    ):
        assert str(refusal(RCPT, 550, said.encode())) == f"RCPT TO: 550 {kept}"
    assert "bo" not in str(refusal(RCPT, 550, b"x" * 490 + b" bo@x.example"))
