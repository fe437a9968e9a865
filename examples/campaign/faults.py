"""The ways in which a mail provider fails, and what it remembers of a mail.

What fails is decided by the recipient and the number of the attempt alone, so it does not depend
on which of many senders is faster.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Fault(StrEnum):
    """A way to fail."""

    REJECT_RECIPIENT = "reject_recipient"  # 550 to RCPT
    GREYLIST = "greylist"  # 451 to RCPT
    BUSY = "busy"  # 421 to RCPT, and the end of the connection
    HANG_UP = "hang_up"  # the end of the connection in place of an answer to DATA
    REJECT_DATA = "reject_data"  # 554 to the content
    DROP_BEFORE = "drop_before"  # the content arrived, is not accepted, and not answered
    DROP_AFTER = "drop_after"  # the content is accepted, and not answered
    LATE = "late"  # the content is accepted, and answered after `late` seconds


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
    """The how manieth conversation about a mail to this recipient it is, from 1."""
    fault: Fault | None = None
    reached: Moment | None = None
    message_id: str = ""
    subject: str = ""
    content: str = ""
    accepted: float | None = None
    accepted_at: float | None = None
    """By the wall clock."""


Faults = Callable[[str, int], Fault | None]
"""From a recipient and the number of the attempt, from 1."""


def scripted(plan: Mapping[tuple[str, int], Fault]) -> Faults:
    """Fails as planned by recipient and attempt."""
    return lambda recipient, attempt: plan.get((recipient, attempt))


def random_faults(seed: int, rate: float, kinds: Sequence[Fault] = tuple(Fault)) -> Faults:
    """Fails at this rate; an attempt's fate depends on its recipient and number, not on others."""

    def draw(recipient: str, attempt: int) -> Fault | None:
        chance = random.Random(f"{seed}/{recipient}/{attempt}")  # noqa: S311
        return chance.choice(kinds) if chance.random() < rate else None

    return draw
