"""Why a mail server did not take a mail: what its answer means for us."""

from __future__ import annotations

import re

import perdure

_STATUS = re.compile(rb"\s*5\.(\d+)\.\d+")


class TemporaryTrouble(perdure.NotDone):
    """The server did not take the mail, and may take it later."""


class ServerTrouble(TemporaryTrouble):
    """The server itself is in trouble, for every mail: it is down, or busy."""


class Rejected(perdure.NotDone):
    """The server will not take this mail, now or later."""


class NoSuchRecipient(Rejected):
    """The server says that nobody has this address."""


class SenderRefused(Rejected):
    """The server will take no mail from us: our address, our account, or how we use it."""


class LetterRefused(Rejected):
    """The server does not want this text: it is too large, or looks like spam."""


class Doubtful(Rejected):
    """A refusal that may be about the recipient, or about us, or pass."""


def meaning(code: int, text: bytes) -> type[Rejected]:
    """What a 5xx to a recipient means. A server that is not ours to use, or does not like us, says
    550 and 554 too: only its status tells the one from the other (RFC 3463: x.1 the address, x.2
    the mailbox, x.7 a policy)."""
    if status := _STATUS.match(text):
        return NoSuchRecipient if status[1] in (b"1", b"2") else Rejected
    return NoSuchRecipient if code in (550, 551, 553) else Rejected


def refusal(what: str, code: int, text: bytes, final: type[Rejected] = Rejected) -> perdure.NotDone:
    kind = final if 500 <= code < 600 else TemporaryTrouble
    return kind(f"{what}: {words(code, text)}")


def words(code: int, text: bytes | str) -> str:
    said = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    return f"{code} {' '.join(said.split())}"[:500]
