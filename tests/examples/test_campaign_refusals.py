"""What a mail server's refusal means: real answers of well-known servers."""

from __future__ import annotations

import pytest

from examples.campaign.refusals import (
    LetterRefused,
    NoSuchRecipient,
    SenderRefused,
    Stage,
    TemporaryTrouble,
    meaning,
    refusal,
)

NO_SUCH = [
    "550 5.1.1 <{}>: Recipient address rejected: User unknown in local ",
    "550-5.1.1 The email account that you tried to reach does not exist.\r\n550 5.1.1 Learn",
    "550 5.2.1 The email account that you tried to reach is inactive.",
    "550 5.1.10 RESOLVER.ADR.RecipientNotFound; Recipient {} not found",
    "556 5.1.10 Recipient address has null MX",
    "550 5.1.2 <{}>: Recipient address rejected: Domain not found",
    "553 5.1.3 The recipient address is not a valid RFC-5321 address.",
    "551 5.1.6 The recipient has moved",
    "550 sorry, no mailbox here by that name. (#5.1.1)",
    "550 No Such User Here",
    "550 Unknown user",
    "550 5.0.0 <{}>... User unknown",
    "550 5.1.0 <{}>: mailbox does not exist",
    "552 1 Requested mail action aborted, mailbox not found",
    "550-5.1.1 double-checking the recipient's email address for typos or\r\n550 5.1.1 spaces",
    "550 5.1.1 RESOLVER.ADR.ExRecipNotFound; not found",
    "550 5.1.1 <{}>: undeliverable address: host mx.example.org[192.0.2.1] said: 550 5.1.1 No",
    "550 5.1.1 <{}>: Email address could not be found, or was misspelled",
    "550 5.1.1 <spf-dkim-relay@example.org>: no such user",
]
"""Nobody has this address."""
PERHAPS_OURS = [
    "550 user unknown: login required",
    "550 invalid recipient: relaying is disabled",
    "550 5.1.8 <ana@example.com>: Sender address rejected: Domain not found",
    "550 5.1.8 Access denied, bad outbound sender AS(4)",
    "553 5.1.7 The sender address is not a valid address",
    "550 relay not permitted",
    "550 host is not permitted to relay through this server without login",
    "554 5.7.1 <{}>: Relay access denied",
    "550 5.7.1 Unable to relay for {}",
    "550 5.7.64 TenantAttribution; Relay Access Denied",
    "550 5.7.54 SMTP; Unable to relay recipient in non-accepted domain",
    "553 sorry, that domain isn't in my list of allowed rcpthosts (#5.7.1)",
    "553 5.7.1 <ana@x.com>: Sender address rejected: not owned by user ana",
    "504 5.5.2 <box>: Helo command rejected: need fully-qualified hostname",
    "554 5.7.1 <box[192.0.2.1]>: Client host rejected: Access denied",
    "554 5.7.1 Service unavailable; Client host [192.0.2.1] blocked using zen.spamhaus.org",
    "550 5.7.1 Connections not accepted: your IP is on our block list",
    "550 5.7.23 <{}>: Recipient address rejected: SPF fail",
    "550 Sender verify failed",
    "530 5.7.0 Must issue a STARTTLS command first",
    "530-5.5.1 Authentication Required.\r\n530 5.5.1 Learn more",
    "550 5.4.5 Daily user sending limit exceeded.",
    "550 5.7.705 Access denied, tenant has exceeded threshold",
    "550-5.7.26 Unauthenticated email from example.com is not accepted due\r\n550 5.7.26 to",
    "550 5.7.1 Email rejected per DMARC policy for example.com",
    "554 5.2.252 SendAsDenied; ana@example.com not allowed to send as",
    "550 The from address does not match a verified Sender Identity.",
    "554 Message rejected: Email address is not verified.",
    "554 5.2.0 STOREDRV.Submission; SubmissionQuotaExceededException",
    "554 5.2.0 STOREDRV.Submission.Exception:SendAsDeniedException",
    "554 Transaction failed Unauthorized sender address.",
    "554 Access denied: User is not authorized to perform ses:Send",
    "554 Message rejected: Sending paused for this account.",
    "550 Domain x.com is not allowed to send: it is unverified",
    "550 5.7.1 Unable to send email. Your SMTP account is not yet activated",
    '550 Outgoing mail from "ana@example.com" has been suspended.',
    "550 5.7.60 Client does not have permissions to send as this sender",
    "552 5.2.3 Message length exceeds administrative limit",
    "552 5.3.4 Message size exceeds fixed limit",
    "552 Message size exceeds maximum permitted",
    "552 5.3.4 Error: message file too big",
    "550 5.6.0 Lone CR or LF in body",
    "554 5.7.1 Message contains a URL listed at dbl.spamhaus.org",
    "550-5.7.1 Our system has detected that this message is\r\n550 5.7.1 likely unsolicited",
    "554 Transaction failed",
    "550 High probability of spam",
    "552 5.2.2 Mailbox full",
    "552-5.2.2 The recipient's inbox is out of storage space.\r\n552 5.2.2 More",
    "552 5.2.2 <{}>: Over quota",
    "552 Quota exceeded",
    "550 5.2.1 The user is receiving mail at a rate that prevents delivery",
    "550 Requested action not taken: mailbox unavailable",
    "550 Rejected",
    "550 5.1.1 Service refused, please try later. OFR006_102",
    "550 5.1.1 Not accepting mail from your domain",
    "550 5.2.1 <{}>: mailbox temporarily disabled",
    "550 5.7.1 You are not allowed to send mail to this recipient",
    "554 5.2.122 The recipient has exceeded their limit for messages per hour",
    "551 User not local; please try another path",
    "553 Requested action not taken",
    "550 5.7.1 Message rejected",
    "550 5.1.0 Address rejected",
    "550 5.2.0 Mailbox problem",
    "550 5.4.1 Recipient address rejected: Access denied.",
    "550 Unrouteable address",
    "550 Administrative prohibition",
    "550 5.7.133 RESOLVER.RST.SenderNotAuthenticatedForGroup; authentication",
    "550 5.7.1 Blocked by the recipient's block list",
    "550 The domain of the sender does not exist",
    "550 Account disabled",
    "550 No such address: your domain has no MX",
    "550 5.1.1 Relaying denied",
    "550 5.1.2 Sender domain does not exist",
    "550 5.1.1 Sender unknown",
    "553 5.1.3 Invalid sender address",
    "550 5.1.6 Sender has moved",
    "550 5.1.10 Sender domain has null MX",
    "550 5.1.2 The domain of your return path cannot be resolved",
    "550 5.1.1 invalid MAIL FROM",
    "550 5.1.1 Envelope sender could not be verified",
    "550 5.2.1 Sender account is locked",
    "550 5.2.1 Account suspended",
    "550 5.1.1 rate limit exceeded",
    "550 5.1.2 TLS required",
    "550 5.1.1 invalid credentials",
    "550 5.1.1 Your mail was refused",
    "550 5.1.1 Message rejected as spam",
    "550 no such user ana, authorization failed",
    "550 5.1.1 Sender address rejected: no such user",
    "554 5.5.1 Error: no valid recipients",
]
"""About us, about the text, or not clear: no contact is given up for these."""
LETTER = [
    (Stage.RECIPIENT, "552 5.2.3 Message length exceeds administrative limit"),
    (Stage.RECIPIENT, "552 5.3.4 Message size exceeds fixed limit"),
    (Stage.CONTENT, "552 5.3.4 Error: message file too big"),
    (Stage.CONTENT, "550 5.6.0 Lone CR or LF in body"),
    (
        Stage.CONTENT,
        "550-5.7.1 Our system has detected that this message is\r\n550 5.7.1 likely unsolicited",
    ),
    (Stage.CONTENT, "554 Transaction failed"),
]
LATER = [
    (Stage.RECIPIENT, "450 4.2.0 <{}>: Recipient address rejected: Greylisted"),
    (Stage.RECIPIENT, "451 4.7.500 Server busy. Please try again later"),
    (Stage.RECIPIENT, "452 4.2.2 The recipient's inbox is out of storage space"),
    (Stage.RECIPIENT, "450 5.1.1 confused"),
    (Stage.DATA, "451 4.3.0 Temporary failure"),
    (Stage.CONTENT, "451 4.7.1 Try again later"),
    (Stage.RECIPIENT, "421 4.7.0 Too many connections"),
    (Stage.CONTENT, "421-4.7.28 unusual rate of unsolicited mail\r\n421 4.7.28 from us"),
    (Stage.SENDER, "451 4.3.5 Server configuration problem"),
    (Stage.SENDER, "452 4.3.1 Insufficient system resources"),
    (Stage.LOGIN, "454 4.7.0 Temporary authentication failure"),
    (Stage.HELLO, "451 4.3.2 Shutting down"),
    (Stage.CONNECT, "421 4.3.2 Service not available"),
]
ABOUT_US = (
    "relay not permitted",
    "Sender address rejected",
    "authentication required",
    "listed on a blacklist",
    "blocked using zen.spamhaus.org",
    "SPF check failed",
    "no DKIM signature",
    "rejected by DMARC policy",
    "the return path cannot be resolved",
    "not logged in",
    "not authorised",
    "rate limit exceeded",
    "TLS required",
    "invalid credentials",
)


def kind(stage: Stage, answer: str) -> type[Exception]:
    return meaning(stage, int(answer[:3]), answer[4:].replace("{}", "bo@example.org"))


@pytest.mark.parametrize("answer", NO_SUCH)
def test_an_address_that_is_not_there_is_recognised(answer: str) -> None:
    assert kind(Stage.RECIPIENT, answer) is NoSuchRecipient
    for words in ABOUT_US:  # whatever else the server says
        assert kind(Stage.RECIPIENT, f"{answer} {words}") is not NoSuchRecipient


@pytest.mark.parametrize("answer", PERHAPS_OURS)
@pytest.mark.parametrize("stage", [Stage.RECIPIENT, Stage.DATA, Stage.CONTENT], ids=str)
def test_a_refusal_that_may_be_about_us_gives_up_no_contact(stage: Stage, answer: str) -> None:
    assert kind(stage, answer) is not NoSuchRecipient


@pytest.mark.parametrize("stage", [one for one in Stage if one.is_ours], ids=str)
def test_what_is_refused_before_a_recipient_is_named_is_about_us(stage: Stage) -> None:
    for answer in [*NO_SUCH, *PERHAPS_OURS]:
        assert kind(stage, answer) is SenderRefused


def test_a_refused_text_and_a_deferred_mail_are_recognised() -> None:
    assert {kind(*one) for one in LETTER} == {LetterRefused}
    assert {kind(*one) for one in LATER} == {TemporaryTrouble}


def test_a_long_answer_is_read_in_a_moment() -> None:
    for text in ("mailbox " * 20_000, "contains " * 20_000, "user unknown " * 20_000):
        meaning(Stage.RECIPIENT, 550, text)


def test_addresses_are_cut_out_of_a_servers_words() -> None:
    for said, kept in (
        ("5.1.1 <bo@x.example>: unknown", "5.1.1 <address>: unknown"),
        ("rfc822;Bo+x@X.example, sorry", "rfc822;<address>, sorry"),
        ("see https://x.example/?to=bo%40x.example now", "see https:<address> now"),
        ("user 'bo@x.example'\r\n is unknown", "user <address> is unknown"),
        ("try again at 9", "try again at 9"),
    ):
        assert str(refusal(Stage.RECIPIENT, 550, said.encode())) == f"RCPT TO: 550 {kept}"
