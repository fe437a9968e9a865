"""Check: try the mail account and the settings before any contact is written to."""

from __future__ import annotations

import contextlib
import re
import smtplib
import ssl
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parseaddr
from typing import Annotated

import typer

import perdure

from ..app import App
from ..imap import Account, Connection, MailboxTrouble
from ..letter import Letter
from ..mail import NoAnswer, Outgoing
from ..refusals import (
    Doubtful,
    LetterRefused,
    NoSuchRecipient,
    SenderRefused,
    TemporaryTrouble,
)
from ..settings import Settings
from . import commands

_HOST_AND_PORT = "check CAMPAIGN_SMTP_HOST and CAMPAIGN_SMTP_PORT (587: STARTTLS, 465: TLS)"
_USER = "CAMPAIGN_SMTP_USER and CAMPAIGN_SMTP_PASSWORD"
_TO_DO = {
    r"^connecting .*ConnectionRefused": f"nothing listens there: {_HOST_AND_PORT}",
    r"^connecting .*gaierror": "there is no such host: check CAMPAIGN_SMTP_HOST",
    r"CERTIFICATE_VERIFY_FAILED": "the server's certificate is invalid: CAMPAIGN_SMTP_HOST must be "
    "the name in it, and this machine must trust its issuer (SSL_CERT_FILE names others)",
    r"^connecting .*SSL": "the server does not encrypt from the start on this port: set "
    "CAMPAIGN_SMTP_STARTTLS=yes instead of CAMPAIGN_SMTP_TLS, or try port 465",
    r"^connecting .*(timed out|Disconnected|Reset)": "no greeting: on port 465, set "
    "CAMPAIGN_SMTP_TLS=yes; otherwise the server is down, or a firewall is in between",
    r"^STARTTLS: SMTPNotSupported": "the server offers no STARTTLS on this port: remove "
    "CAMPAIGN_SMTP_STARTTLS, or use port 465 with CAMPAIGN_SMTP_TLS=yes",
    r"^logging in: 53[45]": f"the user or password is wrong: check {_USER}. Some providers want "
    "an app password",
    r"^logging in: SMTPNotSupported": "the server offers no login here: encrypt "
    "(CAMPAIGN_SMTP_STARTTLS=yes), or remove CAMPAIGN_SMTP_USER if it needs none",
    r": 530 .*TLS": "the server wants encryption: set CAMPAIGN_SMTP_STARTTLS=yes",
    r": 530 ": f"the server wants a login: set {_USER}",
    r"^MAIL FROM .*: 5": "the account may not send from this address: use one that the provider "
    "knows as yours",
}
"""What a failed step says, and what to do about it: the first match counts."""
_BY_KIND: tuple[tuple[type[Exception], str], ...] = (
    (NoSuchRecipient, "the server does not know the address of --to"),
    (SenderRefused, "the server takes no mail from you: fix what it complains about"),
    (LetterRefused, "the server refuses the text of the test mail: ask your provider why"),
    (Doubtful, "the server does not say why: try another --to, and ask your provider"),
    (TemporaryTrouble, "the server is in trouble, or defers the mail: try again later"),
    (NoAnswer, "the mail was handed over, and no answer came: check whether it arrived"),
)


class _Failed(Exception):
    """A step that failed, and what to do about it."""


@commands.command()
def check(
    to: Annotated[str, typer.Option(help="Send one test mail to this address.")] = "",
    sender: Annotated[
        str, typer.Option(help="Try this sender instead of those of the campaigns.")
    ] = "",
) -> None:
    """Try the mail account: connect, encrypt, log in, name the sender. Sends nothing without --to.
    Also the mailbox, if there is one to read: log in, open the folder.

    Exit code 2 if a step failed. Warnings do not count.
    """
    settings = Settings.read()
    server = Outgoing.of(settings)
    if sender and "@" not in parseaddr(sender)[1]:
        raise ValueError(
            f"{sender!r} is not an address. Pass --sender 'Ana Ruiz <ana@example.com>'."
        )
    senders = [sender] if sender else _senders(settings)
    failed = False
    try:
        _try_account(server, senders)
        _try_mail(server, senders, to, settings.unsubscribe)
    except _Failed as error:
        failed = True
        print(f"FAIL  {error}")
    if settings.imap_host:
        try:
            _try_mailbox(Account.of(settings))
        except MailboxTrouble as trouble:
            failed = True
            print(f"FAIL  {trouble}")
            if str(trouble).startswith("connecting"):
                print("      look at CAMPAIGN_IMAP_HOST and CAMPAIGN_IMAP_PORT (993: TLS).")
    for warning in _warnings(settings, senders):
        print(f"WARN  {warning}")
    if failed:
        raise typer.Exit(2)


def _senders(settings: Settings) -> list[str]:
    with App(settings) as app:
        rows = app.database.rows(
            "SELECT sender, MIN(id) FROM campaigns WHERE state <> 'stopped' "
            "GROUP BY sender ORDER BY MIN(id)"
        )
    return [row["sender"] for row in rows]


def _try_account(server: Outgoing, senders: list[str]) -> None:
    with _step(f"connected to {server.host}:{server.port}"):
        smtp = server.connect()
    with contextlib.closing(smtp):
        with _step(f"introduced as {server.hello}"):
            server.greet(smtp)
        _say_encryption(server, smtp)
        if server.user:
            with _step(f"logged in as {server.user}"):
                server.login(smtp)
        elif smtp.has_extn("auth"):
            print("WARN  not logged in, although the server offers it: set CAMPAIGN_SMTP_USER")
        for sender in senders:
            with _step(f"may send from {parseaddr(sender)[1]}"):
                server.mail_from(smtp, sender)
                smtp.rset()
        with contextlib.suppress(smtplib.SMTPException, OSError):
            smtp.quit()


def _try_mailbox(account: Account) -> None:
    with contextlib.closing(Connection(account)) as connection:
        print(f"OK    connected to {account.host}:{account.port} for incoming mail")
        if not account.encrypted:
            print("WARN  not encrypted, so the password can be read on the way: CAMPAIGN_IMAP_TLS")
        connection.login()
        print(f"OK    logged in as {account.user}")
        _, mails = connection.examine()
        print(f"OK    {account.folder} has {mails} mails; reading them changes nothing")


def _say_encryption(server: Outgoing, smtp: smtplib.SMTP) -> None:
    if isinstance(smtp.sock, ssl.SSLSocket):
        print(f"OK    encrypted with {smtp.sock.version()}")
        return
    offered = smtp.has_extn("starttls")
    if offered and server.user:
        raise _Failed(
            "not encrypted, so the password is not sent. The server offers STARTTLS: set "
            "CAMPAIGN_SMTP_STARTTLS=yes"
        )
    what = "your mails and the password" if server.user else "your mails"
    offer = ". The server offers STARTTLS: set CAMPAIGN_SMTP_STARTTLS=yes" if offered else ""
    print(f"WARN  not encrypted: {what} can be read on the way{offer}")


def _try_mail(server: Outgoing, senders: list[str], to: str, unsubscribe: str) -> None:
    if not senders:
        ask = "name one with --sender 'Ana Ruiz <ana@example.com>'"
        if to:
            raise _Failed(f"there is no campaign, and so no sender: {ask}")
        print(f"WARN  no sender was tried, as there is no campaign: {ask}")
    if not to:
        print("OK    nothing was sent; --to you@example.com sends a test mail")
        return
    letter = Letter(
        sender=senders[0],
        recipient=to,
        recipient_name="",
        subject="Test of the campaign's mail account",
        body="If you read this, the account works.\n\nCheck that it did not arrive as spam.\n",
        message_id=f"<check-{uuid.uuid4()}@{parseaddr(senders[0])[1].rpartition('@')[2]}>",
        unsubscribe=unsubscribe,
    )
    with _step(f"sent a test mail to {to}: check that it arrived, and not as spam"):
        server.send(letter, datetime.now(UTC), lambda: True)


@contextlib.contextmanager
def _step(done: str) -> Iterator[None]:
    try:
        yield
    except (perdure.NotDone, NoAnswer, smtplib.SMTPException, OSError) as error:
        text = str(error)
        by_kind = next((advice for kind, advice in _BY_KIND if isinstance(error, kind)), None)
        by_words = next(
            (advice for pattern, advice in _TO_DO.items() if re.search(pattern, text)), None
        )
        advice = by_words or by_kind
        raise _Failed(f"{text}\n      {advice}." if advice else text) from error
    print(f"OK    {done}")


def _warnings(settings: Settings, senders: list[str]) -> Iterator[str]:
    own = [settings.imap_user, *(parseaddr(sender)[1] for sender in senders)]
    if settings.unsubscribe.lower() in [one.lower() for one in own]:
        local, _, domain = settings.unsubscribe.partition("@")
        yield (
            f"CAMPAIGN_UNSUBSCRIBE is {settings.unsubscribe}, which people reply to: each reply "
            f"would be an unsubscription. Set {local}+unsubscribe@{domain}, if your provider "
            "delivers that to you, or another address"
        )
    if not settings.imap_host:
        yield (
            "CAMPAIGN_IMAP_HOST is not set: unless a mail server hands its mail to `inbound`, a "
            'reply, a bounce or a "stop" ends nothing'
        )
    if not settings.lookup_url:
        yield (
            "CAMPAIGN_LOOKUP_URL is not set: a mail whose answer is lost is held until a person "
            "checks the provider's log, and settles it"
        )
    if settings.unsubscribe == Settings.unsubscribe:
        yield (
            f"CAMPAIGN_UNSUBSCRIBE is still {settings.unsubscribe}: unsubscriptions are lost. "
            "Set an address whose mail `inbound` receives"
        )
    if not settings.web_url:
        yield (
            "CAMPAIGN_WEB_URL is not set: mails have no one-click unsubscribe link, which "
            "Gmail and Yahoo require of bulk senders"
        )
    if not settings.model:
        yield "CAMPAIGN_MODEL is not set: a script writes the drafts, not a model"
