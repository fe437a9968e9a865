"""Why a mail server did not take a mail: what its answer means for us.

Three things decide, in this order. Where the conversation was: before a recipient is named, every
refusal is about us. The codes: the enhanced one (RFC 3463, and the registry of IANA), and a few
basic ones. The words, for codes that servers use for everything. Words are a hint: where they may
be about us, or contradict the code, no contact is given up because of them.
"""

from __future__ import annotations

import re
from enum import StrEnum

import perdure


class TemporaryTrouble(perdure.NotDone):
    """The server did not take the mail, and may take it later."""


class ServerTrouble(TemporaryTrouble):
    """The server itself is in trouble, for every mail: it is down, or busy."""


class Rejected(perdure.NotDone):
    """The server will not take this mail, now or later."""


class NoSuchRecipient(Rejected):
    """The server says that there is no such address."""


class SenderRefused(Rejected):
    """The server will take no mail from us: our address, our account, or how we use it."""


class LetterRefused(Rejected):
    """The server does not want this text: it is too large, or looks like spam."""


class Doubtful(Rejected):
    """A refusal that may be about the recipient, or about us, or pass."""


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


_BASIC: dict[int, type[Rejected]] = {
    530: SenderRefused,  # log in first, or encrypt first
    534: SenderRefused,  # log in in a safer way
    535: SenderRefused,  # wrong user or password
    538: SenderRefused,  # encrypt first
    556: NoSuchRecipient,  # the domain takes no mail (RFC 7504)
}
_ENHANCED: dict[str, type[Rejected]] = {
    "1.1": NoSuchRecipient,  # no such mailbox
    "1.2": NoSuchRecipient,  # no such domain
    "1.3": NoSuchRecipient,  # not an address
    "1.6": NoSuchRecipient,  # moved, without a new address
    "1.7": SenderRefused,  # our address is not one
    "1.8": SenderRefused,  # our domain is not one; Microsoft: a sender that was caught spamming
    "1.10": NoSuchRecipient,  # the domain takes no mail (RFC 7505); Microsoft: not in the directory
    "1.90": SenderRefused,  # Microsoft: the daily limit of our account
    "2.1": NoSuchRecipient,  # the mailbox is disabled
    "2.2": Doubtful,  # the mailbox is full
    "2.3": LetterRefused,  # too long for the mailbox
    "2.121": Doubtful,  # Microsoft: the recipient gets too many mails from us, or
    "2.122": Doubtful,  # from all
    "2.252": SenderRefused,  # Microsoft: our account may not send as this sender
    "3.4": LetterRefused,  # too big for the system
    **{f"6.{n}": LetterRefused for n in range(15)},  # the content, or its encoding
    "7.3": SenderRefused,  # Exchange: log in first
    **{f"7.{n}": SenderRefused for n in range(8, 15)},  # credentials, encryption, account, trust
    "7.16": LetterRefused,  # too big for its priority
    **{f"7.{n}": SenderRefused for n in range(20, 30)},  # DKIM, SPF, reverse DNS, flood, ARC
    # Microsoft's own: not logged in, send as, relay; spammer, IP address, DMARC; limits
    **{f"7.{n}": SenderRefused for n in (57, 60, 64, 501, 502, 503, 506, 508, 509, 511, 515)},
    **{f"7.{n}": SenderRefused for n in (*range(606, 650), *range(700, 751))},
    # and: this recipient, or this group, takes no mail from strangers, or not from us
    **{f"7.{n}": Doubtful for n in (124, *range(129, 137), 504, 505, 507, 513)},
}
"""By subject and detail, for what has one meaning. Whatever is not here (5.0.0, 5.1.0, 5.2.0,
5.4.x, 5.7.1, no code at all) is used for everything: the words count."""

_PERHAPS_OURS = re.compile(
    r"sender|sending|mail from|from address|return.path|client|\b(he|eh)lo\b"
    r"|your(?! (e-?mail|mail|message) (to|could|can))"  # that one was not delivered says no more
    r"|log(ged)?[ -]?in\b|authenticat|authori[sz]|credential|\btls\b|encrypt|relaying"
    r"|rate.?limit|too many|gr[ae]y.?list|spam|polic(y|ies)\b|access denied|\bip\b"
    r"|banned|blocked|suspend"
)
"""What may be about us: it is not the recipient's for certain, whatever the code says."""
_WORDS: tuple[tuple[type[Rejected] | None, str], ...] = (
    # the mailbox is full, or busy; its owner does not want us
    (Doubtful, r"(?<!submission)(?<!submission )(?<!sending )(?<!message )quota|storage"),
    (Doubtful, r"(mailbox|account|inbox)( is)? full|at a rate|too quickly"),
    (Doubtful, r"(blocked|rejected|refused|denied) by (the )?(recipient|user|owner)"),
    (LetterRefused, r"too (large|big)|(message|mail) (size|length)|virus|malware|attachment"),
    (LetterRefused, r"contains? .*\b(urls?|links?|spam)\b|uribl|surbl|content (rejected|filter)"),
    (SenderRefused, r"relay(ing)?( access)?( is)? (denied|not|prohibited|disabled)"),
    (SenderRefused, r"not (be )?relay|(login|log in|tls|encryption) (is )?(required|first)"),
    (SenderRefused, r"(unable|permitted|allowed) to relay|allowed rcpthosts"),
    (SenderRefused, r"authenticat|starttls|reverse (dns|host)"),
    (SenderRefused, r"\b(spf|dkim|dmarc|ptr|rdns|dnsbl|rbl)\b"),
    (SenderRefused, r"black ?list|block ?list|blocked using|spamhaus|reputation|your ip\b"),
    (SenderRefused, r"(sender|client host|helo command|from)( address)? (rejected|denied|verif)"),
    (SenderRefused, r"verified sender|(not |un)verified|send ?as(denied|\b)|not owned by"),
    (SenderRefused, r"un(authori[sz]ed|authenticated) sender|sender( address)? is not allowed"),
    (SenderRefused, r"not (allowed|permitted|authori[sz]ed) to (perform|send(?!( \w+)? to\b))"),
    (
        SenderRefused,
        r"your (smtp )?account|sending (is )?(suspended|paused)|outgoing mail|outbound",
    ),
    (SenderRefused, r"(submission|sending|message) ?quota|(sending|daily)\b.* limit"),
    # passes, or is about us, whatever the code says
    (Doubtful, r"temporar|try (again )?later|throttl|from your\b|your (domain|server|network)\b"),
    (None, rf"{_PERHAPS_OURS.pattern}|domain|host"),
    (NoSuchRecipient, r"no such (user|mailbox|recipient|person)|no mailbox here"),
    (NoSuchRecipient, r"(user|recipient|mailbox) (is )?(unknown|not found|invalid)"),
    (NoSuchRecipient, r"(unknown|invalid|nonexistent|not a valid) (user|recipient|mailbox)"),
    (NoSuchRecipient, r"(user|recipient|mailbox)\b.* (does not|doesn.t) exist"),
    (NoSuchRecipient, r"user doesn.t have an? .*account|mailbox (is )?(disabled|deleted)"),
)
"""The first match decides; None: nothing is certain."""
_STATUS = re.compile(r"(?:^\s*|\(#)5\.(\d{1,3}\.\d{1,3})\b")
_NAMES = re.compile(r"<\S*>|\S*@\S*|\S*://\S*|\[\S*\]")
"""Addresses and links: the words in them mean nothing."""
_ADDRESS = re.compile(r"<?[^\s<>(),;:]*(?:@|%40)[^\s<>(),;:]*>?")


def meaning(stage: Stage, code: int, text: str) -> type[perdure.NotDone]:
    """The kind of a server's refusal."""
    if code == 421:  # the server closes the connection, for every mail
        return ServerTrouble
    if not 500 <= code < 600:  # later; or no SMTP at all
        return ServerTrouble if stage.is_ours else TemporaryTrouble
    if stage.is_ours:
        return SenderRefused
    status = _STATUS.search(text)
    known = _BASIC.get(code) or (_ENHANCED.get(status[1]) if status else None)
    said = " ".join(_NAMES.sub(" ", text[:2000]).lower().split())
    spoken = next((kind for kind, pattern in _WORDS if re.search(pattern, said)), None)
    if known is NoSuchRecipient:
        contradicted = _PERHAPS_OURS.search(said) or spoken not in (None, NoSuchRecipient)
        return Doubtful if contradicted else known
    return known or spoken or (LetterRefused if stage is Stage.CONTENT else Doubtful)


def refusal(stage: Stage, code: int, text: bytes, about: str = "") -> perdure.NotDone:
    """The exception for a server's answer. It says the stage, and the server's words, in which each
    address is `<address>`."""
    kind = meaning(stage, code, text.decode("utf-8", "replace"))
    return kind(f"{place(stage, about)}: {words(code, text)}")


def place(stage: Stage, about: str) -> str:
    return f"{stage} {about}" if about else str(stage)


def words(code: int, text: bytes) -> str:
    """An answer as one line, not too long, without addresses."""
    return f"{code} {without_addresses(text.decode('utf-8', 'replace'))}"[:500]


def without_addresses(text: str) -> str:
    """A text as one line, with `<address>` for each address. A server may name anybody, such as
    those behind the address of a group, and its words are kept with the thread of another."""
    return _ADDRESS.sub("<address>", " ".join(text.split()))
