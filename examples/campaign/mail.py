"""Outgoing mail: a letter, the mail it becomes, and the conversation with the mail server.

A conversation ends in one of three ways, and the caller can always tell which:

- the server took the mail: `send` returns `"sent"`;
- it did not: `send` returns `"stopped"`, or raises one of the kinds of refusals.py;
- the outcome is unknown: the content went out and no answer came. That is `NoAnswer`; only the
  provider's look-up by Message-ID (`accepted`), or a person, can tell.
"""

from __future__ import annotations

import contextlib
import re
import smtplib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, formataddr, parseaddr
from typing import Literal
from urllib.parse import quote

import httpx

import perdure

from .refusals import (
    LetterRefused,
    SenderRefused,
    Stage,
    TemporaryTrouble,
    refusal,
    without_addresses,
)
from .settings import Settings

FOOTER = "To get no more of these mails, {link}answer with the one word stop."
_UNFOLDED = SMTP.clone(max_line_length=0)
"""Does not fold headers: folding a long Message-ID or link would encode it as words."""


class NoAnswer(Exception):
    """The content went out, and no answer came: the server has taken the mail, or has not."""


class LookupFailed(Exception):
    """The provider could not say whether it has a mail."""


@dataclass(frozen=True)
class Letter:
    """A mail to one person. `sender` may have a name: `Ana Ruiz <ana@example.com>`."""

    sender: str
    recipient: str
    recipient_name: str
    subject: str
    body: str
    message_id: str
    unsubscribe: str
    """A mail to this address unsubscribes."""
    in_reply_to: str | None = None
    """The Message-ID of the previous touch, so that the reader sees one thread."""
    unsubscribe_link: str = ""
    """URL at which a POST does the same with one click (RFC 8058)."""


def footer(unsubscribe_link: str) -> str:
    """The line below each mail; incoming.py leaves it out of replies that quote it."""
    return FOOTER.format(link=f"open {unsubscribe_link} or " if unsubscribe_link else "")


def compose(letter: Letter, date: datetime) -> bytes:
    """The mail of a letter, in ASCII: always the same, down to the last octet.

    Raises `LetterRefused` if a header cannot hold its value, such as one with a line break.
    """
    ways = [f"<mailto:{quote(letter.unsubscribe, safe='@+')}?subject=unsubscribe>"]
    message = EmailMessage()
    try:
        message["From"] = letter.sender
        message["To"] = formataddr((letter.recipient_name, letter.recipient))
        message["Subject"] = letter.subject
        message["Date"] = format_datetime(date)
        message["Message-ID"] = letter.message_id
        if letter.in_reply_to is not None:
            message["In-Reply-To"] = message["References"] = letter.in_reply_to
        if letter.unsubscribe_link:
            ways.append(f"<{letter.unsubscribe_link}>")
            message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
        message["List-Unsubscribe"] = ", ".join(ways)
        body = f"{letter.body.rstrip()}\n\n{footer(letter.unsubscribe_link)}\n"
        message.set_content(body, cte="quoted-printable")
        return message.as_bytes(policy=_UNFOLDED)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise LetterRefused(f"the letter cannot be written: {error}") from error


@dataclass(frozen=True)
class Outgoing:
    """The outgoing SMTP server, and the provider's look-up."""

    settings: Settings

    def send(
        self, letter: Letter, date: datetime, may_send: Callable[[], bool]
    ) -> Literal["sent", "stopped"]:
        """Send a letter, in a conversation of its own.

        `may_send` is called when the server has accepted the recipient, and again when it asks for
        the content, before any of it is sent: a process that was suspended in between finds out
        there. If it returns False, nothing is sent and `"stopped"` is returned.

        Raises `TemporaryTrouble` or `Rejected`, in the kinds that refusals.py has, if the server
        has not taken the mail, and `NoAnswer` if the outcome is unknown.
        """
        content = re.sub(rb"(?m)^\.", b"..", compose(letter, date)) + b".\r\n"
        smtp = self._connect()
        can_quit = True
        try:
            address = parseaddr(letter.sender)[1]
            _command(lambda: smtp.mail(address), Stage.SENDER, about=address)
            _command(lambda: smtp.rcpt(letter.recipient), Stage.RECIPIENT)
            if not may_send():
                return "stopped"
            _command(lambda: smtp.docmd("DATA"), Stage.DATA, hoped=354)
            can_quit = False  # from here on it would be content; without its last dot that is void
            if not may_send():
                return "stopped"
            _hand_over(smtp, content)
            can_quit = True
            return "sent"
        finally:
            # Do not wait for the answer: the outcome of the mail should be on disk soon.
            with contextlib.suppress(OSError):
                if can_quit:
                    smtp.putcmd("QUIT")
            smtp.close()

    def accepted(self, message_id: str) -> bool:
        """Ask the provider over HTTP whether it accepted a mail that it did not acknowledge.

        It answers with JSON that names the `message_id`, 200 if it accepted that mail and 404 if
        not. A 404 that does not name it, from a wrong address or a proxy, does not count. Raises
        `LookupFailed` if the provider cannot say.
        """
        url = self.settings.lookup_url.replace("{message_id}", quote(message_id, safe=""))
        try:
            response = httpx.get(url, timeout=10.0, trust_env=False)
            named = response.status_code in (200, 404) and response.json()["message_id"]
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
            raise LookupFailed(f"{url}: {type(error).__name__}: {error}") from error
        if named != message_id:
            raise LookupFailed(f"{url}: {response.status_code} says nothing about the mail")
        return response.status_code == 200

    def _connect(self) -> smtplib.SMTP:
        """A connection on which the server knows us."""
        settings, name, trust = self.settings, socket.getfqdn(), ssl.create_default_context()
        host, port, timeout = settings.smtp_host, settings.smtp_port, settings.smtp_timeout
        with _not_done(Stage.CONNECT):
            smtp: smtplib.SMTP = (
                smtplib.SMTP_SSL(host, port, name, timeout=timeout, context=trust)
                if settings.smtp_security == "tls"
                else smtplib.SMTP(host, port, name, timeout)
            )
        try:
            with _not_done(Stage.HELLO):
                smtp.ehlo_or_helo_if_needed()
            if settings.smtp_security == "starttls":
                with _not_done(Stage.TLS):
                    smtp.starttls(context=trust)
                    smtp.ehlo_or_helo_if_needed()
            if settings.smtp_user:
                with _not_done(Stage.LOGIN):
                    smtp.login(settings.smtp_user, settings.smtp_password)
        except BaseException:
            smtp.close()
            raise
        return smtp


def _command(
    command: Callable[[], tuple[int, bytes]], stage: Stage, *, about: str = "", hoped: int = 0
) -> None:
    """Send a command and expect an answer: by default any 2xx."""
    with _not_done(stage):
        code, text = command()
    if code != hoped if hoped else not 200 <= code < 300:
        raise refusal(stage, code, text, about)


def _hand_over(smtp: smtplib.SMTP, content: bytes) -> None:
    """From the first octet of the content on, only the server's answer says what happened."""
    try:
        smtp.send(content)
        code, text = smtp.getreply()
    except OSError as error:  # also all of smtplib
        raise NoAnswer(f"no answer to the content: {without_addresses(str(error))}") from error
    if 400 <= code < 600:
        raise refusal(Stage.CONTENT, code, text)
    if not 200 <= code < 300:
        raise NoAnswer(f"no valid answer to the content: {code}")


@contextlib.contextmanager
def _not_done(stage: Stage) -> Iterator[None]:
    """Whatever fails inside, the server has not taken the mail.

    Waiting fixes a lost connection. It does not fix a server without STARTTLS or AUTH, an invalid
    certificate, or a password that cannot be sent: before a recipient is named these are ours.
    """
    lost = (
        smtplib.SMTPServerDisconnected,
        smtplib.SMTPResponseException,  # an answer that made no sense
        ssl.SSLEOFError,
        ssl.SSLZeroReturnError,
    )
    try:
        yield
    except (OSError, ValueError) as error:  # also all of smtplib
        if isinstance(error, smtplib.SMTPResponseException) and isinstance(error.smtp_error, bytes):
            raise refusal(stage, error.smtp_code, error.smtp_error) from error
        ours = isinstance(error, (smtplib.SMTPException, ssl.SSLError, ValueError))
        is_ours = stage.is_ours and ours and not isinstance(error, lost)
        kind: type[perdure.NotDone] = SenderRefused if is_ours else TemporaryTrouble
        what = f"{type(error).__name__}: {without_addresses(str(error))}"
        raise kind(f"{stage}: {what}"[:500]) from error
