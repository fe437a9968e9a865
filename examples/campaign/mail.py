"""Sending mail.

A conversation over SMTP ends in one of three ways, and the caller can always tell which:

- the server took the mail: `send` returns `"sent"`;
- it did not: `send` returns `"stopped"`, or raises `TemporaryTrouble` or `Rejected`, which are
  `perdure.NotDone`; refusals.py has their kinds;
- the outcome is unknown: the content went out and no answer came. That is `NoAnswer`; only the
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
from .refusals import (
    SenderRefused,
    ServerTrouble,
    Stage,
    TemporaryTrouble,
    place,
    refusal,
    without_addresses,
    words,
)
from .settings import Settings

LONGEST = 86_400
"""Most seconds that a server may take for an answer."""


class NoAnswer(Exception):
    """The content went out, and no answer came: the server has taken the mail, or has not."""


@dataclass(frozen=True)
class Outgoing:
    """The outgoing SMTP server. `timeout` is in seconds, for each answer."""

    host: str
    port: int
    timeout: float = 30.0
    starttls: bool = False
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    """Overrides which certificates are trusted."""
    hello: str = field(default_factory=socket.getfqdn)
    """The name of this machine."""
    implicit_tls: bool = False
    """Encrypt from the start, as on port 465, instead of with STARTTLS."""

    @classmethod
    def of(cls, settings: Settings) -> Outgoing:
        """The server that the settings name."""
        return cls(
            settings.smtp_host,
            settings.smtp_port,
            settings.smtp_timeout,
            settings.smtp_starttls,
            settings.smtp_user or None,
            settings.smtp_password or None,
            implicit_tls=settings.smtp_tls,
        )

    def send(
        self, letter: Letter, date: datetime, before_data: Callable[[], bool]
    ) -> Literal["sent", "stopped"]:
        """Send a letter, in a conversation of its own.

        `before_data` is called when the server has accepted the recipient, and again when it asks
        for the content, before any of it is sent: a process that was suspended in between finds out
        there. If it returns False, nothing is sent and `"stopped"` is returned.

        Raises `TemporaryTrouble` or `Rejected` if the server has not taken the mail, in the kinds
        that refusals.py has, and `NoAnswer` if the outcome is unknown. An exception of
        `before_data` is `TemporaryTrouble`, since nothing was sent.
        """
        content = on_the_wire(compose(letter, date))
        smtp = self.connect()
        can_quit = True
        try:
            self.greet(smtp)
            self.login(smtp)
            self.mail_from(smtp, letter.sender)
            _command(smtp.rcpt, letter.recipient, stage=Stage.RECIPIENT)
            if not asked(before_data):
                return "stopped"
            _command(smtp.docmd, "DATA", stage=Stage.DATA, hoped=354)
            can_quit = False  # from here on it would be content; without its last dot that is void
            if not asked(before_data):
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

    # -- the steps of a conversation; each raises `TemporaryTrouble` or `Rejected`

    def connect(self) -> smtplib.SMTP:
        """A new connection: encrypted already, with `implicit_tls`."""
        where = f"to {self.host}:{self.port}"
        with _not_done(Stage.CONNECT, where):
            if not 0 < self.timeout <= LONGEST:  # a socket would not take it, and stay open
                raise ValueError(f"a timeout of {self.timeout} seconds")
            if self.implicit_tls:
                smtp: smtplib.SMTP = smtplib.SMTP_SSL(
                    self.host, self.port, self.hello, timeout=self.timeout, context=self._trust()
                )
            else:
                smtp = smtplib.SMTP(self.host, self.port, self.hello, self.timeout)
        return smtp

    def greet(self, smtp: smtplib.SMTP) -> None:
        """Say who we are, and encrypt, with `starttls`."""
        with _not_done(Stage.HELLO):
            smtp.ehlo_or_helo_if_needed()
        if self.starttls:
            with _not_done(Stage.TLS):
                smtp.starttls(context=self._trust())
                smtp.ehlo_or_helo_if_needed()

    def login(self, smtp: smtplib.SMTP) -> None:
        """Log in, if there is a user."""
        if self.user is None:
            return
        with _not_done(Stage.LOGIN):
            if not f"{self.user}{self.password}".isascii():
                raise ValueError("user and password must be ASCII")
            smtp.login(self.user, self.password or "")

    def mail_from(self, smtp: smtplib.SMTP, sender: str) -> None:
        """Name the sender. `sender` may have a name."""
        address = parseaddr(sender)[1]
        _command(smtp.mail, address, stage=Stage.SENDER, about=address)

    def _trust(self) -> ssl.SSLContext:
        return self.tls or ssl.create_default_context()


def _command(
    command: Callable[[str], tuple[int, bytes]],
    argument: str,
    *,
    stage: Stage,
    about: str = "",
    hoped: int | None = None,
) -> None:
    """Send a command and expect an answer: by default any 2xx."""
    with _not_done(stage, about):
        code, text = command(argument)
    if code != hoped if hoped else not 200 <= code < 300:
        raise refusal(stage, code, text, about)


def _hand_over(smtp: smtplib.SMTP, content: bytes) -> None:
    """From the first octet of the content on, only the server's answer says what happened."""
    try:
        smtp.send(content)
        code, text = smtp.getreply()
    except OSError as error:  # also all of smtplib, which takes an endless line for a 500
        raise NoAnswer(f"no answer to the content: {error}") from error
    if 400 <= code < 600:
        raise refusal(Stage.CONTENT, code, text)
    if not 200 <= code < 300:
        raise NoAnswer(f"no valid answer to the content: {words(code, text)}")


@contextlib.contextmanager
def _not_done(stage: Stage, about: str = "") -> Iterator[None]:
    """Whatever fails inside, the server has not taken the mail."""
    try:
        yield
    except (OSError, ValueError, OverflowError) as error:  # also all of smtplib
        if isinstance(error, smtplib.SMTPResponseException) and isinstance(error.smtp_error, bytes):
            raise refusal(stage, error.smtp_code, error.smtp_error, about) from error
        kind = _trouble(error) if stage.is_ours else TemporaryTrouble
        what = f"{type(error).__name__}: {without_addresses(str(error))}"
        raise kind(f"{place(stage, about)}: {what}"[:600]) from error


_LOST = (
    smtplib.SMTPServerDisconnected,
    smtplib.SMTPResponseException,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
)
"""The connection is gone, or the answer made no sense."""


def _trouble(error: Exception) -> type[perdure.NotDone]:
    """An error before a recipient is named. What waiting does not fix is ours to fix: a server
    without STARTTLS or AUTH, a port that does not speak TLS, an invalid certificate, a value that
    cannot be sent or is out of range."""
    lost = isinstance(error, _LOST)
    ours = isinstance(error, (smtplib.SMTPException, ssl.SSLError, ValueError, OverflowError))
    return SenderRefused if ours and not lost else ServerTrouble


def asked(before_data: Callable[[], bool]) -> bool:
    """Whether a mail may go out. If the check fails, nothing was sent: it is retried later."""
    try:
        return before_data()
    except perdure.NotDone:
        raise
    except Exception as error:
        raise TemporaryTrouble(
            f"asking whether it may go out: {type(error).__name__}: {error}"
        ) from error
