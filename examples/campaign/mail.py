"""Sending mail.

A conversation over SMTP ends in one of three ways, and the caller can always tell which:

- the server took the mail: `send` returns `"sent"`;
- it did not: `send` returns `"stopped"`, or raises `TemporaryTrouble`, `Rejected` or
  `NoSuchRecipient`, which are `perdure.NotDone`;
- nobody knows: the content went out and no answer came back. That is `NoAnswer`, and only the
  provider's look-up by Message-ID (lookup.py), or a person, can tell.
"""

from __future__ import annotations

import contextlib
import smtplib
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parseaddr
from typing import Literal

import perdure

from .letter import Letter, compose, on_the_wire
from .refusals import TemporaryTrouble, meaning, refusal, words


class NoAnswer(Exception):
    """The content went out, and no answer came: the server has taken the mail, or has not."""


@dataclass(frozen=True)
class Outgoing:
    """An SMTP server that takes our mail. `timeout` is for each answer of it, in seconds."""

    host: str
    port: int
    timeout: float = 30.0
    starttls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """To trust other certificates than the machine does."""
    hello: str = field(default_factory=socket.getfqdn)
    """The name of this machine."""

    def send(
        self, letter: Letter, date: datetime, before_data: Callable[[], bool]
    ) -> Literal["sent", "stopped"]:
        """Send a letter, in a conversation of its own.

        `before_data` is called when the server agreed to the recipient, and again when it asks for
        the content, of which it has nothing then: whoever stood still for long is told by it. If it
        says no, nothing is sent and `"stopped"` is returned.

        Raises `TemporaryTrouble` or `Rejected` if the server has not taken the mail, of which
        `NoSuchRecipient` is about the address, and `NoAnswer` if nobody knows. An exception of
        `before_data` is `TemporaryTrouble`, since nothing was sent.
        """
        content = on_the_wire(compose(letter, date))
        with _not_done(f"connecting to {self.host}:{self.port}"):
            smtp = smtplib.SMTP(self.host, self.port, self.hello, self.timeout)
        can_quit = True
        try:
            self._introduce(smtp)
            self._address(smtp, letter)
            if not _allowed(before_data):
                return "stopped"
            with _not_done("DATA"):
                code, text = smtp.docmd("DATA")
            if code != 354:
                raise refusal("DATA", code, text)
            can_quit = False  # from here on it would be content; without its last dot that is void
            if not _allowed(before_data):
                return "stopped"
            _hand_over(smtp, content)
            can_quit = True
            return "sent"
        finally:
            # Its answer is not waited for: what became of the mail should be on disk soon.
            with contextlib.suppress(OSError):
                if can_quit:
                    smtp.putcmd("QUIT")
            smtp.close()

    def _introduce(self, smtp: smtplib.SMTP) -> None:
        """What goes wrong here is not the letter's fault, whatever the server says."""
        with _not_done("greeting the server"):
            smtp.ehlo_or_helo_if_needed()
            if self.starttls:
                smtp.starttls(context=self.tls or ssl.create_default_context())
                smtp.ehlo_or_helo_if_needed()
            if self.user is not None:
                smtp.login(self.user, self.password or "")

    def _address(self, smtp: smtplib.SMTP, letter: Letter) -> None:
        with _not_done("MAIL FROM"):
            code, text = smtp.mail(parseaddr(letter.sender)[1])
            if not 200 <= code < 300:
                raise smtplib.SMTPResponseException(code, text)
        with _not_done(f"RCPT TO {letter.recipient}"):
            code, text = smtp.rcpt(letter.recipient)
        if not 200 <= code < 300:
            raise refusal(f"RCPT TO {letter.recipient}", code, text, meaning(code, text))


def _hand_over(smtp: smtplib.SMTP, content: bytes) -> None:
    """From the first octet of the content on, only an answer of the server says what happened."""
    try:
        smtp.send(content)
        code, text = smtp.getreply()
    except OSError as error:  # also all of smtplib, which takes an endless line for a 500
        raise NoAnswer(f"no answer to the content: {error}") from error
    if 400 <= code < 600:
        raise refusal("the content", code, text)
    if not 200 <= code < 300:
        raise NoAnswer(f"no answer that makes sense to the content: {words(code, text)}")


@contextlib.contextmanager
def _not_done(what: str) -> Iterator[None]:
    """Whatever fails inside, the server has not taken the mail."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        text = words(error.smtp_code, error.smtp_error)
        raise TemporaryTrouble(f"{what}: {text}") from error
    except (OSError, ValueError) as error:
        raise TemporaryTrouble(f"{what}: {type(error).__name__}: {error}") from error


def _allowed(before_data: Callable[[], bool]) -> bool:
    try:
        return before_data()
    except perdure.NotDone:
        raise
    except Exception as error:
        raise TemporaryTrouble(f"before DATA: {type(error).__name__}: {error}") from error
