"""Outgoing mail: a letter, and the mail it becomes."""

from __future__ import annotations

import email
import re
import unicodedata
from dataclasses import dataclass
from datetime import datetime
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, EmailPolicy, default
from email.utils import format_datetime, parseaddr
from typing import Any
from urllib.parse import quote

from .quoting import FOOTER
from .refusals import Rejected
from .settings import Settings

_ADDRESS = re.compile(r'[^\s<>()\[\],;:\\"@]+@[^\s<>()\[\],;:\\"@]+', re.ASCII)
_MESSAGE_ID = re.compile(r"<[^\s<>@]+@[^\s<>@]+>", re.ASCII)
_LINK = re.compile(r"https?://[^\s<>,\"]{1,300}", re.ASCII)
_LONGEST = 254
"""Maximum for an address or a Message-ID: their headers are never folded, and a line has 998
octets."""


class BadLetter(Rejected, ValueError):
    """A letter that cannot be written as a mail."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field
        """The field of the letter that is bad, where one is."""

    @property
    def is_ours(self) -> bool:
        """Whether it is not about this letter: no letter of the campaign can be written."""
        return self.field in ("sender", "unsubscribe", "unsubscribe_link")


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


def unsubscribe_of(settings: Settings, token: str) -> dict[str, str]:
    """The `unsubscribe` and the `unsubscribe_link` of letters to the contact with this token."""
    root = settings.web_url.rstrip("/")
    return {
        "unsubscribe": settings.unsubscribe.replace("@", f"+{token}@"),
        "unsubscribe_link": f"{root}/unsubscribe/{token}" if root else "",
    }


def footer(unsubscribe_link: str) -> str:
    """The line below each mail, as `compose` writes it and as the approver of a draft sees it.

    `quoting.py` leaves it out of replies that quote it.
    """
    return FOOTER.format(link=f"open {unsubscribe_link} or " if unsubscribe_link else "")


_AS_THEY_ARE = (
    "Message-ID",
    "In-Reply-To",
    "References",
    "List-Unsubscribe",
    "List-Unsubscribe-Post",
)


class _Policy(EmailPolicy):
    """Does not fold headers that programs read: folding a long one would encode it as words, and
    lose the quotes around a name."""

    def fold_binary(self, name: str, value: Any) -> bytes:
        if name in _AS_THEY_ARE or (
            name in ("From", "To") and len(value) < 900 and value.isascii()
        ):
            return f"{name}: {value}\r\n".encode("ascii")
        return super().fold_binary(name, value)


_POLICY = _Policy(linesep=SMTP.linesep, cte_type="7bit", max_line_length=78)


def compose(letter: Letter, date: datetime) -> EmailMessage:
    """The mail of a letter: always the same, down to the last octet.

    Raises `BadLetter`, a `ValueError`, if a header would hold a line break or another control
    character, if an address or a Message-ID is invalid, or if a name or the subject would decode to
    another text, as `=?utf-8?q?Hi?=` does. Its octets are all ASCII, so it passes through any
    server. The `footer` follows the body.
    """
    name, sender = parseaddr(_printable("sender", letter.sender))
    if letter.sender.strip() != sender and not letter.sender.strip().endswith(f"<{sender}>"):
        raise BadLetter(
            f"sender is not one address, with or without a name: {letter.sender!r}", "sender"
        )
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
        ways = [f"<mailto:{unsubscribe}?subject=unsubscribe>"]
        if letter.unsubscribe_link:
            ways.append(f"<{_matching(_LINK, 'unsubscribe_link', letter.unsubscribe_link, 310)}>")
        message["List-Unsubscribe"] = ", ".join(ways)
        if letter.unsubscribe_link:
            message["List-Unsubscribe-Post"] = "List-Unsubscribe=One-Click"
        message.set_content(_with_footer(letter), cte="quoted-printable")
        _read_back(message, {"From": name, "To": letter.recipient_name, "Subject": letter.subject})
    except BadLetter:
        raise
    except Exception as error:  # the email package has many ways to refuse a value
        raise BadLetter(f"the letter {letter.message_id!r} cannot be written: {error}") from error
    return message


def _with_footer(letter: Letter) -> str:
    body = letter.body
    if body and not body.endswith("\n"):
        body += "\n"
    return f"{body}\n{footer(letter.unsubscribe_link)}\n"


def _read_back(message: EmailMessage, given: dict[str, str]) -> None:
    """The email package decodes what looks encoded, line breaks and all: what counts is what the
    reader of the mail gets."""
    read = email.message_from_bytes(message.as_bytes(), policy=default)
    if read.keys() != message.keys():
        raise BadLetter(f"the headers would be {read.keys()}, and not {message.keys()}")
    for header, text in given.items():
        value = read[header]
        found = value if header == "Subject" else value.addresses[0].display_name
        if "".join(found.split()) != "".join(text.split()):  # folding does not matter
            raise BadLetter(
                f"{header} would be read as {str(found)!r}, and not as {text!r}",
                "sender" if header == "From" else "",
            )


def _printable(name: str, value: str) -> str:
    if any(unicodedata.category(one) in ("Cc", "Cs", "Zl", "Zp") for one in value):
        raise BadLetter(f"{name} holds a line break or another control character: {value!r}", name)
    return value


def _matching(pattern: re.Pattern[str], name: str, value: str, longest: int = _LONGEST) -> str:
    if (
        len(value) > longest
        or not value.isascii()
        or not pattern.fullmatch(_printable(name, value))
    ):
        raise BadLetter(f"{name} is invalid: {value!r}", name)
    return value


def on_the_wire(message: EmailMessage) -> bytes:
    """What is sent after DATA: CRLF after each line, a dot before each dot, and the last dot."""
    return re.sub(rb"(?m)^\.", b"..", message.as_bytes()) + b".\r\n"
