"""Drives an engine through the month of the demo: time, incoming mail, people, and kills.

The mail server reports every moment of every conversation, and waits: so a process can be killed,
or a reply can arrive, exactly there.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

from ..clock import SharedClock
from ..faults import Fault, Mail, Moment
from ..postoffice import PostOffice
from .engine import Month, Seen, letter
from .plan import PERSON, Contact, Plan, Says
from .screen import Screen

PATIENCE = 150.0
"""Seconds after which a month that does not end is given up."""
PACE = 0.4
"""Seconds before the clock is moved, so that a viewer can follow."""
AT = {
    Moment.BEGAN: "has begun",
    Moment.DATA: "has arrived, and is not accepted yet",
    Moment.ACCEPTED: "is accepted, and not answered yet",
    Moment.ANSWERED: "is answered",
}
FAULTS = {
    Fault.GREYLIST: "is greylisted",
    Fault.DROP_AFTER: "is accepted, and the connection drops",
    Fault.DROP_BEFORE: "is lost, as the connection drops",
}
CAME_IN = {
    "reply": "replies",
    "unsubscribe": "unsubscribes",
    "bounce": "bounces",
    "automatic": "is out of office",
}

Action = tuple[int, tuple[Any, ...], Callable[[], bool]]
"""When, what it is, and how to do it."""


class Conductor:
    """Drives an engine through the month: time, incoming mail, people, kills."""

    def __init__(
        self, plan: Plan, month: Month, office: PostOffice, clock: SharedClock, screen: Screen
    ) -> None:
        self._plan, self._month, self._office = plan, month, office
        self._clock, self._screen = clock, screen
        self._by_address = {one.address: one for one in plan.contacts}
        self._lock = threading.Lock()
        self._points = set(plan.kills)
        self._done: set[tuple[Any, ...]] = set()
        self.decided: Counter[tuple[int, int]] = Counter()
        """Number of decisions on drafts."""
        self._conversations: dict[int, tuple[int, int | None]] = {}
        self.ended_at: dict[int, float] = {}
        """The time after which each contact must get no more mail, by `time.monotonic()`."""
        self.by_plan = 0
        """How many processes were killed where the plan said."""
        self.over = False
        """Whether the kills are over."""
        self.seen: dict[int, Seen] = {}

    # -- the mail server tells

    def reached(self, moment: Moment, mail: Mail) -> None:
        """A conversation reached a moment: at some of them its process is killed."""
        if self.over:
            return
        contact = self._by_address[mail.recipient]
        if moment is Moment.BEGAN:
            touch, pid = self._month.sending(contact), self._month.driver(contact)
            self._conversations[mail.conversation] = touch, pid
            if mail.fault is not None:
                what = f"touch {touch} to {contact.name} {FAULTS[mail.fault]}"
                self._tell("mail", what)
            for says in contact.manner.says:
                if says.when == "sending" and says.touch == touch:
                    self._once(("says", contact.id, says), partial(self._write, contact, says))
        touch, pid = self._conversations[mail.conversation]
        if moment is Moment.ACCEPTED:
            self._watch(contact, touch, mail)
        point = (contact.id, touch, moment)
        with self._lock:
            if point not in self._points or pid is None:
                return
            self._points.remove(point)
        if self._month.bears(pid) and self._month.crew.kill(pid):
            with self._lock:
                self.by_plan += 1
            what = f"touch {touch} to {contact.name} {AT[moment]}"
            self._tell("kill", f"{self._month.crew.name(pid)} killed: {what}")

    def _watch(self, contact: Contact, touch: int, mail: Mail) -> None:
        """Report a mail that should not have been sent."""
        times = sum(one.message_id == mail.message_id for one in self._office.log)
        if times > 1:
            self._screen.mark(contact.id, touch, str(times))
            self._tell("bad", f"{contact.name} gets touch {touch}, and now has it {times} times")
        elif contact.id in self.ended_at:
            self._screen.mark(contact.id, touch, "!")
            self._tell("bad", f"{contact.name} gets touch {touch} after a reply")

    # -- the month

    def play(self) -> None:
        """Run from the first touch until nothing is left to happen."""
        chance = self._plan.chance()
        next_kill = time.monotonic() + chance.uniform(*self._month.pause)
        while self._screen.seconds < PATIENCE:
            self.look()
            self._month.crew.check()
            if time.monotonic() >= next_kill:
                self._kill_one(chance)
                next_kill = time.monotonic() + chance.uniform(*self._month.pause)
            if not self._go_on():
                return
            time.sleep(0.05)

    def _go_on(self) -> bool:
        """Do what is due, or move the clock to what is next. False: there is nothing left."""
        now = self._clock.now()
        actions = list(self._actions())
        due = [action for action in actions if action[0] <= now]
        for _, key, act in due:
            self._once(key, act)
        if due or any(seen.busy for seen in self.seen.values()):
            return True
        ahead = [action[0] for action in actions]
        asleep = [seen for seen in self.seen.values() if not seen.over]
        ahead += [seen.due for seen in asleep if seen.due is not None]
        if not ahead:
            return False
        time.sleep(PACE)
        self._clock.advance(timedelta(milliseconds=max(0, min(ahead) - now)))
        return True

    def look(self) -> None:
        """Read the state of each contact, and show what is new."""
        before, self.seen = self.seen, self._month.look()
        self._screen.show(self._clock.now(), self._month.crew.killed, self.seen)
        for contact in self._plan.contacts:
            old, new = before.get(contact.id), self.seen[contact.id]
            for step in sorted(new.sent.keys() - (old.sent.keys() if old else set())):
                self._tell("sent", f"touch {step} to {contact.name} is sent")
            if new.held is not None and (old is None or old.held != new.held):
                self._tell("person", f"draft {new.held} to {contact.name} is held for a person")
            if new.over and not (old and old.over):
                self._tell("mail", f"the thread of {contact.name} ends: {new.status}")

    def _actions(self) -> Iterator[Action]:
        """What people are about to do."""
        for contact in self._plan.contacts:
            seen, manner = self.seen[contact.id], contact.manner
            for says in manner.says:
                key: tuple[Any, ...] = ("says", contact.id, says)
                since = seen.sent.get(says.touch) if says.when == "sent" else None
                if says.when == "held" and seen.held == says.touch:
                    since = seen.since
                if since is not None and key not in self._done:
                    at = since + round(says.after.total_seconds() * 1000)
                    yield at, key, partial(self._write, contact, says)
            if seen.held is not None:
                turn = self.decided[contact.id, seen.held]
                decisions = manner.decisions.get(seen.held, ())
                if turn < len(decisions):
                    at = seen.since + round(PERSON.total_seconds() * 1000)
                    key = ("decides", contact.id, seen.held, turn)
                    yield at, key, partial(self._decide, contact, seen.held)

    def _once(self, key: tuple[Any, ...], act: Callable[[], bool]) -> None:
        with self._lock:
            if key in self._done:
                return
            self._done.add(key)
        if not act():
            self._done.discard(key)

    def _write(self, contact: Contact, says: Says) -> bool:
        """A contact, or the contact's mail server, writes to us."""
        touch = says.touch if says.when == "sent" else says.touch - 1
        self._tell("in", f"{contact.name} {CAME_IN[says.kind]}")
        answered = self._month.message_id(contact, touch)
        self._month.receive(letter(says.kind, contact, answered))
        if says.kind != "automatic":
            self.ended_at[contact.id] = time.monotonic()
        return True

    def _decide(self, contact: Contact, touch: int) -> bool:
        decision = contact.manner.decisions[touch][self.decided[contact.id, touch]]
        if not self._month.decide(contact, touch, decision):
            return False
        self.decided[contact.id, touch] += 1
        self._tell("person", f"draft {touch} to {contact.name}: a person says {decision['action']}")
        return True

    def _kill_one(self, chance: random.Random) -> None:
        pid = chance.choice(self._month.crew.pids)
        if self._month.bears(pid) and self._month.crew.kill(pid):
            self._tell("kill", f"{self._month.crew.name(pid)} killed, at random")

    def _tell(self, kind: str, text: str) -> None:
        self._screen.event(self._clock.now(), kind, text)
