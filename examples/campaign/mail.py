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
import email
import re
import smtplib
import socket
import ssl
import unicodedata
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy, default
from email.utils import format_datetime, parseaddr
from typing import Any, Literal
from urllib.parse import quote

import perdure

_ADDRESS = re.compile(r'[^\s<>()\[\],;:\\"@]+@[^\s<>()\[\],;:\\"@]+', re.ASCII)
_MESSAGE_ID = re.compile(r"<[^\s<>@]+@[^\s<>@]+>", re.ASCII)
_STATUS = re.compile(rb"\s*5\.(\d+)\.\d+")
_LONGEST = 254
"""Of an address or a Message-ID: their headers are never folded, and a line has 998 octets."""


class TemporaryTrouble(perdure.NotDone):
    """The server did not take the mail, and may take it later."""


class Rejected(perdure.NotDone):
    """The server will not take this mail, now or later."""


class NoSuchRecipient(Rejected):
    """The server says that nobody has this address."""


class BadLetter(Rejected, ValueError):
    """A letter that cannot be written as a mail."""


class NoAnswer(Exception):
    """The content went out, and no answer came: the server has taken the mail, or has not."""


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
    """Who writes to this address gets no more mail."""
    in_reply_to: str | None = None
    """The Message-ID of the touch before, so that all of them are one thread of the reader's."""


class _Policy(EmailPolicy):
    """Leaves headers alone that programs read: folding a long one would encode it as words, and
    lose the quotes around a name."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        if name in ("Message-ID", "In-Reply-To", "References", "List-Unsubscribe") or (
            name in ("From", "To") and len(value) < 900 and value.isascii()
        ):
            return f"{name}: {value}\r\n".encode("ascii")
        return super().fold_binary(name, value)


_POLICY = _Policy(linesep=SMTP.linesep, cte_type="7bit", max_line_length=78)


def compose(letter: Letter, date: datetime) -> EmailMessage:
    """The mail of a letter: always the same, down to the last octet.

    Raises `BadLetter`, a `ValueError`, if a header would hold a line break or another control
    character, if an address or a Message-ID is not one, or if a name or the subject would be read
    as another than it is, as `=?utf-8?q?Hi?=` is. Its octets are all ASCII, so it passes through
    any server.
    """
    name, sender = parseaddr(_printable("sender", letter.sender))
    if letter.sender.strip() != sender and not letter.sender.strip().endswith(f"<{sender}>"):
        raise BadLetter(f"sender is not one address, with or without a name: {letter.sender!r}")
    message = EmailMessage(_POLICY)
    try:
        message["From"] = Address(name, addr_spec=_matching(_ADDRESS, "sender", sender))
        message["To"] = Address(
            _printable("recipient_name", letter.recipient_name),
            addr_spec=_matching(_ADDRESS, "recipient", letter.recipient),
        )
        message["Subject"] = _printable("subject", letter.subject)
        message["Date"] = format_datetime(date)
        message["Message-ID"] = _matching(_MESSAGE_ID, "message_id", letter.message_id)
        if letter.in_reply_to is not None:
            previous = _matching(_MESSAGE_ID, "in_reply_to", letter.in_reply_to)
            message["In-Reply-To"] = message["References"] = previous
        unsubscribe = quote(_matching(_ADDRESS, "unsubscribe", letter.unsubscribe), safe="@+")
        message["List-Unsubscribe"] = f"<mailto:{unsubscribe}?subject=unsubscribe>"
        message.set_content(letter.body, cte="quoted-printable")
        _read_back(message, {"From": name, "To": letter.recipient_name, "Subject": letter.subject})
    except BadLetter:
        raise
    except Exception as error:  # the email package has many ways to refuse a value
        raise BadLetter(f"the letter {letter.message_id!r} cannot be written: {error}") from error
    return message


def _read_back(message: EmailMessage, given: dict[str, str]) -> None:
    """The email package decodes what looks encoded, line breaks and all: what counts is what the
    reader of the mail gets."""
    read = email.message_from_bytes(message.as_bytes(), policy=default)
    if read.keys() != message.keys():
        raise BadLetter(f"the headers would be {read.keys()}, and not {message.keys()}")
    for header, text in given.items():
        value = read[header]
        found = value if header == "Subject" else value.addresses[0].display_name
        if "".join(found.split()) != "".join(text.split()):  # where lines are folded is no matter
            raise BadLetter(f"{header} would be read as {str(found)!r}, and not as {text!r}")


def _printable(name: str, value: str) -> str:
    if any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in value):
        raise BadLetter(f"{name} holds a line break or another control character: {value!r}")
    return value


def _matching(pattern: re.Pattern[str], name: str, value: str) -> str:
    if (
        len(value) > _LONGEST
        or not value.isascii()
        or not pattern.fullmatch(_printable(name, value))
    ):
        raise BadLetter(f"{name} is not what it should be: {value!r}")
    return value


def on_the_wire(message: EmailMessage) -> bytes:
    """What is sent after DATA: CRLF after each line, a dot before each dot, and the last dot."""
    return re.sub(rb"(?m)^\.", b"..", message.as_bytes()) + b".\r\n"


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
                raise _refusal("DATA", code, text)
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
            raise _refusal(f"RCPT TO {letter.recipient}", code, text, _unknown(code, text))


def _hand_over(smtp: smtplib.SMTP, content: bytes) -> None:
    """From the first octet of the content on, only an answer of the server says what happened."""
    try:
        smtp.send(content)
        code, text = smtp.getreply()
    except OSError as error:  # also all of smtplib, which takes an endless line for a 500
        raise NoAnswer(f"no answer to the content: {error}") from error
    if 400 <= code < 600:
        raise _refusal("the content", code, text)
    if not 200 <= code < 300:
        raise NoAnswer(f"no answer that makes sense to the content: {_words(code, text)}")


@contextlib.contextmanager
def _not_done(what: str) -> Iterator[None]:
    """Whatever fails inside, the server has not taken the mail."""
    try:
        yield
    except smtplib.SMTPResponseException as error:
        text = _words(error.smtp_code, error.smtp_error)
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


def _unknown(code: int, text: bytes) -> type[Rejected]:
    """What a 5xx to a recipient means. A server that is not ours to use, or does not like us, says
    550 and 554 too: only its status tells the one from the other (RFC 3463: x.1 the address, x.2
    the mailbox, x.7 a policy)."""
    if status := _STATUS.match(text):
        return NoSuchRecipient if status[1] in (b"1", b"2") else Rejected
    return NoSuchRecipient if code in (550, 551, 553) else Rejected


def _refusal(
    what: str, code: int, text: bytes, final: type[Rejected] = Rejected
) -> perdure.NotDone:
    kind = final if 500 <= code < 600 else TemporaryTrouble
    return kind(f"{what}: {_words(code, text)}")


def _words(code: int, text: bytes | str) -> str:
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return f"{code} {' '.join(said.split())}"[:500]
