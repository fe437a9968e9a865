"""What happens in the month: the contacts, what each does, and what fails when.

One seed decides everything, so that two engines, or the same one tomorrow, get the same contacts
and the same mail server faults, and are killed at the same points: a contact, a touch, a moment of
the conversation with the mail server.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from .postoffice import Fault, Faults, Moment, random_faults, scripted

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

    touches: tuple[int, ...]
    """Touches that have to be sent, each once."""
    ends: Literal["finished", "replied", "unsubscribed", "bounced", "active"]
    says: tuple[Says, ...] = ()
    decisions: dict[int, tuple[Decision, ...]] = field(default_factory=dict)
    """A person's decisions on the drafts of each touch, in turn. Other drafts get none."""
    held: int | None = None
    """The touch whose draft is still held at the end."""

    @property
    def reviewed(self) -> bool:
        """Whether drafts to this contact are held for a person."""
        return bool(self.decisions)


NEVER_ANSWERS = Manner((1, 2, 3, 4, 5, 6), "finished")
REPLIES_MID_SEND = Manner((1, 2), "replied", (Says("reply", 3, "sending"),))
NEVER_APPROVED = Manner((1, 2), "active", decisions={1: (APPROVE,), 2: (EDIT,)}, held=3)
REPLIES_WHILE_HELD = Manner((1,), "replied", (Says("reply", 2, "held", 5 * HOUR),), {1: (APPROVE,)})
REPLIES_ASLEEP = Manner((1, 2), "replied", (Says("reply", 2, after=2 * DAY),))
UNSUBSCRIBES = Manner((1, 2, 3), "unsubscribed", (Says("unsubscribe", 3),))
BOUNCES = Manner((1,), "bounced", (Says("bounce", 1, after=HOUR),))
READ_CLOSELY = Manner(
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
)
OUT_OF_OFFICE = Manner(
    (1, 2, 3, 4, 5), "replied", (Says("automatic", 1, after=HOUR), Says("reply", 5))
)
REPLIES_AT_ONCE = Manner((1,), "replied", (Says("reply", 1, after=HOUR),))

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
        domain = self.company.lower().replace(" ", "-")
        return f"{self.name.lower().replace(' ', '')}@{domain}.example"


Point = tuple[int, int, Moment]
"""A contact, a touch, and a moment of its sending."""


@dataclass(frozen=True)
class Plan:
    """A month. With `trouble`, the sender is refused for a while, and a campaign is paused."""

    seed: int
    contacts: tuple[Contact, ...]
    kills: frozenset[Point]
    faults: Faults
    trouble: bool = False

    def chance(self) -> random.Random:
        """For the kills that hit at random."""
        return random.Random(f"{self.seed} random kills")


def draw(seed: int, count: int) -> Plan:
    """The month of the demo, for 3 to 10 contacts."""
    chance = random.Random(f"{seed} plan")
    contacts = _contacts(chance, count)
    kills: set[Point] = set()
    for contact in contacts:
        for touch in contact.manner.touches:
            weights = [1, 1, 2, 1]  # most of all where only the mail server knows
            for moment in chance.choices(list(Moment), weights, k=chance.choice((0, 1, 1, 2))):
                kills.add((contact.id, touch, moment))
    patient = contacts[0]
    kills |= {(patient.id, touch, Moment.ACCEPTED) for touch in chance.sample(range(1, 7), 2)}
    failing = {
        (contacts[1].address, 1): Fault.GREYLIST,
        (patient.address, chance.randint(2, 4)): Fault.DROP_AFTER,
        (contacts[2].address, chance.randint(1, 2)): Fault.DROP_BEFORE,
    }
    return Plan(seed, contacts, frozenset(kills), scripted(failing))


def draw_many(seed: int, count: int, deaths: float) -> Plan:
    """A month in which everything goes wrong: one SMTP conversation in ten fails, and `deaths` is
    the share of mails whose sender is killed."""
    chance = random.Random(f"{seed} plan")
    contacts = _contacts(chance, count)
    kills = frozenset(
        (contact.id, touch, chance.choice(list(Moment)))
        for contact in contacts
        for touch in contact.manner.touches
        if chance.random() < deaths
    )
    return Plan(seed, contacts, kills, random_faults(seed, 0.1), trouble=True)


def _contacts(chance: random.Random, count: int) -> tuple[Contact, ...]:
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
    contacts = []
    for number in range(count):
        name, company, zone = PEOPLE[number % len(PEOPLE)]
        name = name if number < len(PEOPLE) else f"{name} {number // len(PEOPLE) + 1}"
        contacts.append(Contact(number + 1, name, company, zone, manners[number % len(manners)]))
    return tuple(contacts)
