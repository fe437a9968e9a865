"""The ways in which a mail provider fails, and what it remembers of a mail.

The recipient and the attempt number alone decide what fails, so it does not matter which of many
senders is faster.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from .refusals import Stage


class Fault(StrEnum):
    """A way to fail."""

    REJECT_RECIPIENT = "reject_recipient"  # 550 5.1.1 to RCPT
    GREYLIST = "greylist"  # 451 to RCPT
    BUSY = "busy"  # 421 to RCPT, and the end of the connection
    HANG_UP = "hang_up"  # the end of the connection in place of an answer to DATA
    REJECT_DATA = "reject_data"  # 554 to the content
    DROP_BEFORE = "drop_before"  # the content arrived, is not accepted, and not answered
    DROP_AFTER = "drop_after"  # the content is accepted, and not answered
    LATE = "late"  # the content is accepted, and answered after `late` seconds
    SENDER_REFUSED = "sender_refused"  # 550 5.1.8 to RCPT
    RELAY_DENIED = "relay_denied"  # 550 to RCPT, and only the words tell why
    MAILBOX_FULL = "mailbox_full"  # 552 5.2.2 to RCPT
    TOO_LARGE = "too_large"  # 552 5.2.3 to RCPT
    REJECT_BARE = "reject_bare"  # 550 to RCPT, and nothing tells why


USUAL = (
    Fault.REJECT_RECIPIENT,
    Fault.GREYLIST,
    Fault.BUSY,
    Fault.HANG_UP,
    Fault.REJECT_DATA,
    Fault.DROP_BEFORE,
    Fault.DROP_AFTER,
    Fault.LATE,
)
"""The faults of a provider that is used correctly."""


@dataclass(frozen=True)
class Reply:
    """A refusal, word for word. After a 421 the server hangs up."""

    text: str
    at: Stage = Stage.RECIPIENT
    """To a single mail, also DATA or CONTENT. What `PostOffice.refuses` says to all may come at any
    stage but STARTTLS."""


REPLIES = {
    Fault.REJECT_RECIPIENT: Reply("550 5.1.1 No such mailbox"),
    Fault.GREYLIST: Reply("451 4.7.1 Greylisted, come again later"),
    Fault.BUSY: Reply("421 4.3.2 Too busy, come again later"),
    Fault.REJECT_DATA: Reply("554 5.7.1 Not wanted here", Stage.CONTENT),
    Fault.SENDER_REFUSED: Reply("550 5.1.8 Sender address rejected: domain not found"),
    Fault.RELAY_DENIED: Reply("550 relay not permitted"),
    Fault.MAILBOX_FULL: Reply("552 5.2.2 Mailbox full"),
    Fault.TOO_LARGE: Reply("552 5.2.3 Message too large"),
    Fault.REJECT_BARE: Reply("550 Requested action not taken"),
}
"""The faults that are answers."""


class Moment(StrEnum):
    """How far a conversation has come."""

    BEGAN = "began"  # the recipient is named, and not answered
    DATA = "data"  # the content is there, and not accepted
    ACCEPTED = "accepted"  # it is in the log, and not answered
    ANSWERED = "answered"  # the sender has been told


@dataclass(frozen=True)
class Mail:
    """A conversation about one mail. Times are of `time.monotonic()`, which processes share."""

    conversation: int
    sender: str
    began: float
    """When MAIL FROM came."""
    recipient: str = ""
    attempt: int = 0
    """Number of the conversation about a mail to this recipient, from 1."""
    fault: Fault | None = None
    reply: Reply | None = None
    """The refusal to answer with, if any."""
    reached: Moment | None = None
    message_id: str = ""
    subject: str = ""
    content: str = ""
    accepted: float | None = None
    accepted_at: float | None = None
    """By the wall clock."""


Faults = Callable[[str, int], Fault | Reply | None]
"""From a recipient and the number of the attempt, from 1."""


def scripted(plan: Mapping[tuple[str, int], Fault | Reply]) -> Faults:
    """Fails as planned by recipient and attempt."""
    return lambda recipient, attempt: plan.get((recipient, attempt))


def random_faults(seed: int, rate: float, kinds: Sequence[Fault] = USUAL) -> Faults:
    """Fails at this rate; an attempt's fate depends on its recipient and number, not on others."""

    def draw(recipient: str, attempt: int) -> Fault | None:
        chance = random.Random(f"{seed}/{recipient}/{attempt}")  # noqa: S311
        return chance.choice(kinds) if chance.random() < rate else None

    return draw
