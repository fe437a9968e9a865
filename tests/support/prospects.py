"""Who is written to in the month of tests/support/month.py, and what each of them will do.

Everything is drawn from a seed: what a contact does and when, what the person at the desk says to
the drafts for him, and how the mail server fails when a mail for him comes.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from examples.campaign.postoffice import USUAL, Fault, Faults, Moment, random_faults

ZONES = ("Europe/Berlin", "Europe/Madrid", "America/New_York")
TOUCHES = 6
BRIEFS = {
    "auto": "Better tables",
    "held": "Better tables",
    "again": "Better tables",
    "second": "Faster forms",
    "ended": "Old news",
}
"""What each campaign is about, so that a mail shows whose it is. `auto` and `again` are one
sequence. `second` has a sender, a sequence and a daily limit of its own, `ended` is stopped for
good in the middle."""

ENDS = {
    "reply": "replied",
    "reply too": "replied",
    "bounce": "bounced",
    "unsubscribe": "unsubscribed",
}
"""How a thread ends by what came in. `reply too` is one from another address of the person."""
HOOKED = tuple(Moment)
"""Moments of a conversation, as the post office sees it."""
WHEN = ("early", *HOOKED, "asleep", "asleep", "held", "late")
WAYS = ("subject", "token", "click", "cc", "answer")
"""How somebody unsubscribes: by a mail that says so, by a mail to the address in ours, by one
click; by a mail of a colleague, to whom ours was forwarded, with that address in Cc; by the
colleague's answer to it."""
CAST: dict[int, dict[str, Any]] = {
    1: {"act": "unsubscribe", "how": "answer", "when": "asleep", "nth": 1},
    2: {"act": "unsubscribe", "how": "cc", "when": "asleep", "nth": 2},
    3: {"act": "reply", "stray": True, "when": "asleep", "nth": 2},
    4: {"act": "unsubscribe", "how": "click", "when": "asleep", "nth": 1},
    5: {"act": "bounce", "mended": True, "when": "asleep", "nth": 1},
}
"""Those who are in every month, by their numbers."""


@dataclass(frozen=True)
class Prospect:
    """What a contact does, once, and what a person says to the drafts for him."""

    address: str
    zone: str
    campaigns: tuple[str, ...]
    act: str
    """`reply`, `bounce`, `unsubscribe`, `removed`, `automatic` or `nothing`."""
    when: str
    nth: int
    """About which mail he gets, from 1."""
    listener: bool
    """Whether his mail is handed to the listener."""
    twice: bool
    """Whether it is handed over twice."""
    decisions: dict[int, list[str]] = field(hash=False)
    """By touch, what is said to one draft after the other; nothing more is said in the end."""
    how: str = "subject"
    """One of `WAYS`."""
    stray: bool = False
    """Whether he writes from an address that nobody knows, until a person says whose it is."""
    mended: bool = False
    """Whether a person writes to him again when he bounced."""
    mate: str = ""
    """A contact whom his mail ends, too: a colleague, or himself at another address."""
    of: str = ""
    """Whose mate it is."""

    @property
    def person(self) -> str:
        local, _, domain = self.address.partition("@")
        return f"{local.partition('+')[0]}@{domain}"

    @property
    def private(self) -> str:
        """The address from which he writes if it is a stray."""
        return f"{self.person.partition('@')[0]}@elsewhere.example"

    @classmethod
    def draw(cls, seed: int, n: int) -> Prospect:
        dice = random.Random(f"{seed}/prospect/{n}")
        campaigns = dice.choices(
            [("auto",), ("held",), ("auto", "again"), ("auto", "second"), ("ended",)],
            [45, 25, 10, 14, 6],
        )[0]
        act = dice.choices(
            ["reply", "bounce", "unsubscribe", "removed", "automatic", "nothing"],
            [46, 6, 12, 6, 5, 25],
        )[0]
        when = dice.choice(WHEN if "held" in campaigns else [w for w in WHEN if w != "held"])
        # A few firms have more than one contact, so that mails to one domain wait for each other.
        firm = f"firm{n // 20}" if dice.random() < 0.15 else f"d{n}"
        drawn = cls(
            f"p{n}@{firm}.example",
            dice.choice(ZONES),
            campaigns,
            act,
            when,
            dice.randint(1, 3 if dice.random() < 0.5 else TOUCHES),
            dice.random() < 0.5,
            dice.random() < 0.25,
            {step: _decisions(dice) for step in range(1, TOUCHES + 1)},
            how=dice.choice(WAYS),
            stray=dice.random() < 0.2,
            mended=dice.random() < 0.5,
        )
        drawn = replace(drawn, **CAST.get(n, {}))
        if drawn.act == "bounce":  # of a mail that was sent
            drawn = replace(drawn, when="asleep")
        if drawn.act != "reply" or drawn.when != "asleep":
            drawn = replace(drawn, stray=False)
        if drawn.act == "unsubscribe" and drawn.how in ("cc", "answer"):
            return replace(drawn, mate=f"c{n}@{firm}.example")
        if drawn.act in ("reply", "unsubscribe") and dice.random() < 0.15:
            return replace(drawn, mate=f"p{n}+news@{firm}.example")
        return drawn

    def with_mate(self) -> Iterator[Prospect]:
        yield self
        if self.mate:
            campaigns = ("auto",) if self.mate.startswith("c") else ("second",)
            yield replace(
                self,
                address=self.mate,
                campaigns=campaigns,
                act="nothing",
                mate="",
                of=self.address,
            )


def _decisions(dice: random.Random) -> list[str]:
    says = dice.choices(["approve", "edit", "skip", "slowly", "never"], [70, 12, 7, 10, 1])[0]
    return ["reject", says] if dice.random() < 0.1 else [says]


OFTEN = (
    *USUAL,
    *(one for one in USUAL if not one.startswith("reject")),
    Fault.MAILBOX_FULL,
    Fault.TOO_LARGE,
    Fault.REJECT_BARE,
)
"""A rejection is half as frequent as the others: it ends a month early, or needs a person. What
stops a whole campaign is planned: see `faults_of`."""
FULL_FOR = 6
"""A mailbox that is full for so many mails in a row is asked about."""


def faults_of(seed: int, prospects: list[Prospect]) -> Faults:
    """A tenth of all conversations fails. Every fault there is comes once in a hundred contacts at
    least, to the first mail for somebody, and somebody's mailbox is full for days."""
    plan: dict[tuple[str, int], Fault] = {}
    drawn = random_faults(seed, 0.1, OFTEN)
    asleep = [p for p in prospects if not p.of and p.when in ("asleep", "held", "late")]
    others = [
        p for p in prospects if not p.of and p.when not in ("asleep", "held", "late", "early")
    ]
    waiting = iter([p.address for p in asleep + others])
    for _ in range(1 + len(prospects) // 200):
        for fault, address in zip([Fault.MAILBOX_FULL, *reversed(Fault)], waiting, strict=False):
            stubborn = fault is Fault.MAILBOX_FULL and fault not in plan.values()
            for attempt in range(1, (FULL_FOR if stubborn else 1) + 1):
                plan[address, attempt] = fault

    return lambda recipient, attempt: plan.get((recipient, attempt)) or drawn(recipient, attempt)
