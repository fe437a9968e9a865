"""Why a mail server did not take a mail, and what that means for us.

Where the conversation was decides first: before a recipient is named, every refusal is about us.
Then the enhanced status code (RFC 3463), then the server's words. Only a clear answer counts
against the contact: where code or words may be about us, no contact is given up because of them.
"""

from __future__ import annotations

import re
from enum import StrEnum

import perdure


class TemporaryTrouble(perdure.NotDone):
    """The server did not take the mail, and may take it later."""


class Rejected(perdure.NotDone):
    """The server will not take this mail, for a reason that is not clear."""


class NoSuchRecipient(Rejected):
    """The server says that there is no such address."""


class SenderRefused(Rejected):
    """The server takes no mail from us: our address, our account, or how we use it."""


class LetterRefused(Rejected):
    """The server does not want this text: it is too large, or looks like spam."""


class Stage(StrEnum):
    """Where a conversation is."""

    CONNECT = "connecting"
    HELLO = "greeting the server"
    TLS = "STARTTLS"
    LOGIN = "logging in"
    SENDER = "MAIL FROM"
    RECIPIENT = "RCPT TO"
    DATA = "DATA"
    CONTENT = "the content"

    @property
    def is_ours(self) -> bool:
        """Whether no recipient has been named yet: what fails here fails every mail."""
        return self not in (Stage.RECIPIENT, Stage.DATA, Stage.CONTENT)


_NO_SUCH = re.compile(r"5\.(1\.(1|2|3|6|10)|2\.1)")
_OURS = re.compile(r"5\.(1\.[78]|2\.252|7\.(3|8|9|1[0-4]|2\d|57|60|64|5[01]\d|[67]\d\d))")
_LETTER = re.compile(r"5\.(2\.3|3\.4|6\.\d+)")
_STATUS = re.compile(r"(?:^\s*|\(#)(5\.\d{1,3}\.\d{1,3})\b")
_ABOUT_US = re.compile(
    r"later|temporar|at a rate|sender|sending|mail from|return.path|client|\b(he|eh)lo\b|your|relay"
    r"|log(ged)?[ -]?in\b|authenti|authori[sz]|credential|\btls\b|encrypt|rate.?limit|too many"
    r"|\b(spf|dkim|dmarc|ptr|rdns|[rd]nsbl)\b|list(ed|ing)|reputation|spam|polic(y|ies)|denied"
    r"|\bip\b|blocked|suspend"
)
_UNKNOWN = re.compile(
    r"no such (user|mailbox|recipient)|(user|recipient|mailbox) (is )?(unknown|not found)"
    r"|unknown (user|recipient|mailbox)|(user|recipient|mailbox)\b.* (does not|doesn.t) exist"
)
_ADDRESS = re.compile(r"<?[^\s<>(),;:]*(?:@|%40)[^\s<>(),;:]*>?")


def meaning(stage: Stage, code: int, text: str) -> type[perdure.NotDone]:
    """The kind of a server's refusal."""
    if not 500 <= code < 600:  # later; or no SMTP at all
        return TemporaryTrouble
    if stage.is_ours or code in (530, 534, 535, 538):  # log in, or encrypt, first
        return SenderRefused
    found = _STATUS.search(text)
    status = found[1] if found else ""
    words = without_addresses(text[:2000]).lower()
    about_us = _ABOUT_US.search(words)
    if _OURS.fullmatch(status):
        return SenderRefused
    if _NO_SUCH.fullmatch(status) or _UNKNOWN.search(words):
        return Rejected if about_us else NoSuchRecipient
    if _LETTER.fullmatch(status) or (stage is Stage.CONTENT and not about_us):
        return LetterRefused
    return Rejected


def is_no_such_recipient(status: str) -> bool:
    """Whether a status code in a bounce says that there is no such address."""
    return bool(_NO_SUCH.fullmatch(status))


def refusal(stage: Stage, code: int, text: bytes, about: str = "") -> perdure.NotDone:
    """The exception for a server's answer: the stage, and the server's words."""
    words = text.decode("utf-8", "replace")
    where = f"{stage} {about}".strip()
    return meaning(stage, code, words)(f"{where}: {code} {without_addresses(words)}"[:500])


def without_addresses(text: str) -> str:
    """A text as one line, with `<address>` for each address: a server may name anybody, and its
    words are kept."""
    return _ADDRESS.sub("<address>", " ".join(text.split()))
