"""What happens in the month of the demo: the contacts, what each does, and what fails when.

One seed decides everything, so that two engines, or the same one tomorrow, get the same contacts
and the same mail server faults, and are killed at the same points: a contact, a touch, a moment of
the conversation with the mail server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from ..faults import Fault, Faults, Moment, scripted

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
PERSON = 3 * HOUR
"""How long a person needs to look at a draft."""

Decision = dict[str, str]
APPROVE: Decision = {"action": "approve"}
EDIT: Decision = {"action": "edit", "body": "Hello,\n\na person wrote this line.\n"}
REJECT: Decision = {"action": "reject", "comment": "too long"}
SKIP: Decision = {"action": "skip"}


@dataclass(frozen=True)
class Says:
    """An incoming mail: its kind, its touch, and how long after the touch was sent or its draft was
    held it arrives, or that it arrives during the send."""

    kind: Literal["reply", "unsubscribe", "bounce", "automatic"]
    touch: int
    when: Literal["sent", "held", "sending"] = "sent"
    after: timedelta = DAY


@dataclass(frozen=True)
class Manner:
    """What a contact does, and the required outcome."""

    does: str
    touches: tuple[int, ...]
    """Touches that have to be sent, each once."""
    ends: Literal["finished", "replied", "unsubscribed", "bounced", "active"]
    says: tuple[Says, ...] = ()
    decisions: dict[int, tuple[Decision, ...]] = field(default_factory=dict)
    """A person's decisions on the drafts of each touch, in turn. Other drafts get none."""
    reviewed: bool = False
    """Whether drafts to this contact are held for a person."""
    held: int | None = None
    """The touch whose draft is still held at the end."""


NEVER_ANSWERS = Manner("never answers", (1, 2, 3, 4, 5, 6), "finished")
REPLIES_MID_SEND = Manner(
    "replies while touch 3 is being sent",
    (1, 2),
    "replied",
    says=(Says("reply", 3, "sending"),),
)
NEVER_APPROVED = Manner(
    "draft 1 is approved, 2 edited, 3 left alone",
    (1, 2),
    "active",
    decisions={1: (APPROVE,), 2: (EDIT,)},
    reviewed=True,
    held=3,
)
REPLIES_WHILE_HELD = Manner(
    "replies while draft 2 is held",
    (1,),
    "replied",
    says=(Says("reply", 2, "held", 5 * HOUR),),
    decisions={1: (APPROVE,)},
    reviewed=True,
)
REPLIES_ASLEEP = Manner(
    "replies two days after touch 2", (1, 2), "replied", says=(Says("reply", 2, after=2 * DAY),)
)
UNSUBSCRIBES = Manner(
    "unsubscribes after touch 3", (1, 2, 3), "unsubscribed", says=(Says("unsubscribe", 3),)
)
BOUNCES = Manner("bounces", (1,), "bounced", says=(Says("bounce", 1, after=HOUR),))
READ_CLOSELY = Manner(
    "draft 2 is rejected, 3 skipped",
    (1, 2, 4, 5, 6),
    "finished",
    decisions={
        1: (APPROVE,),
        2: (REJECT, APPROVE),
        3: (SKIP,),
        4: (EDIT,),
        5: (APPROVE,),
        6: (APPROVE,),
    },
    reviewed=True,
)
OUT_OF_OFFICE = Manner(
    "is out of office, and replies to touch 5",
    (1, 2, 3, 4, 5),
    "replied",
    says=(Says("automatic", 1, after=HOUR), Says("reply", 5)),
)
REPLIES_AT_ONCE = Manner(
    "replies within the hour", (1,), "replied", says=(Says("reply", 1, after=HOUR),)
)

PEOPLE = (
    ("Ana", "Ruiz Hotels", "Europe/Madrid"),
    ("Chiyo", "Mori Foods", "Asia/Tokyo"),
    ("Dara", "Harbour Press", "Australia/Sydney"),
    ("Emil", "Nord Optik", "Europe/Berlin"),
    ("Fay", "Lakeside Labs", "America/Chicago"),
    ("Goran", "Adria Lines", "Europe/Zagreb"),
    ("Hina", "Karachi Looms", "Asia/Karachi"),
    ("Ines", "Casa Verde", "America/Sao_Paulo"),
    ("Jomo", "Rift Coffee", "Africa/Nairobi"),
    ("Kai", "Aotearoa Boats", "Pacific/Auckland"),
)


@dataclass(frozen=True)
class Contact:
    """A person whom the campaign writes to."""

    id: int
    name: str
    company: str
    zone: str
    manner: Manner

    @property
    def address(self) -> str:
        return f"{self.name.lower()}@{self.company.lower().replace(' ', '-')}.example"


Point = tuple[int, int, Moment]
"""A contact, a touch, and a moment of its sending."""


@dataclass(frozen=True)
class Plan:
    """A month."""

    seed: int
    contacts: tuple[Contact, ...]
    kills: frozenset[Point]
    failing: dict[tuple[str, int], Fault]

    @property
    def faults(self) -> Faults:
        return scripted(self.failing)

    def chance(self) -> random.Random:
        """For the kills that hit at random."""
        return random.Random(f"{self.seed} random kills")  # noqa: S311 (not a secret)


def draw(seed: int, count: int) -> Plan:
    """The month of a seed."""
    chance = random.Random(f"{seed} plan")  # noqa: S311
    turns = [REPLIES_ASLEEP, UNSUBSCRIBES, BOUNCES]
    chance.shuffle(turns)
    manners = [
        NEVER_ANSWERS,
        REPLIES_MID_SEND,
        NEVER_APPROVED,
        REPLIES_WHILE_HELD,
        *turns,
        READ_CLOSELY,
        OUT_OF_OFFICE,
        REPLIES_AT_ONCE,
    ]
    contacts = tuple(
        Contact(number, *who, manner)
        for number, (who, manner) in enumerate(zip(PEOPLE, manners[:count], strict=False), 1)
    )
    kills: set[Point] = set()
    for contact in contacts:
        for touch in contact.manner.touches:
            moments = list(Moment)
            weights = [1, 1, 2, 1]  # most of all where only the mail server knows
            for moment in chance.choices(moments, weights, k=chance.choice((0, 1, 1, 2))):
                kills.add((contact.id, touch, moment))
    patient = contacts[0]
    kills |= {(patient.id, touch, Moment.ACCEPTED) for touch in chance.sample(range(1, 7), 2)}
    failing = {
        (contacts[1].address, 1): Fault.GREYLIST,
        (patient.address, chance.randint(2, 4)): Fault.DROP_AFTER,
        (contacts[2].address, chance.randint(1, 2)): Fault.DROP_BEFORE,
    }
    return Plan(seed, contacts, frozenset(kills), failing)
