"""Makes the month happen: time, incoming mail, people, and kills. Then judges it.

The mail server reports every moment of every conversation, and waits: so a process can be killed,
or a reply can arrive, exactly there. The mail server's own log is the judge.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from rich.console import Console
from rich.text import Text

from perdure.times import moment as moment_of

from ..refusals import Stage
from .clock import SharedClock
from .months import Campaign, Month, Seen, incoming_mail
from .plan import PERSON, Contact, Plan, Says
from .postoffice import Mail, Moment, PostOffice, Reply

CAME_IN = {
    "reply": "replies",
    "unsubscribe": "unsubscribes",
    "bounce": "bounces",
    "automatic": "is out of office",
}
OUTAGES = (
    Reply("550 5.1.8 Sender address rejected: domain not found"),
    Reply("553 5.7.1 Sender address rejected: not owned by user", Stage.SENDER),
)
"""What the mail server says to everybody, until a person has fixed it."""

MARKS = {
    "kill": ("✗", "red"),
    "sent": ("●", "green"),
    "bad": ("‼", "bold red"),
    "in": ("←", "magenta"),
    "person": ("◐", "yellow"),
    "mail": (" ", "dim"),
}
"""How a viewer sees what happens."""

Action = tuple[int, tuple[Any, ...], Callable[[], bool]]
"""When, what it is, and how to do it."""


@dataclass
class Result:
    """How a month went, by the mail server's own log."""

    plan: Plan
    sent: int = 0
    """Touches that should have been sent, and were."""
    duplicates: int = 0
    after_reply: int = 0
    while_paused: int = 0
    endings: int = 0
    """Replies, bounces, unsubscribes; and those after which nothing was sent."""
    honoured: int = 0
    held: int = 0
    """Drafts that still wait for a person."""
    decided: int = 0
    right: int = 0
    """Threads in the right final state."""
    unsound: int = 0
    """Complaints of the doctor."""
    killed: int = 0
    by_plan: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)
    """What went wrong, in sentences."""

    @property
    def touches(self) -> int:
        return sum(len(one.manner.touches) for one in self.plan.contacts)

    @property
    def should_be_held(self) -> int:
        return sum(one.manner.held is not None for one in self.plan.contacts)


class Conductor:
    """Drives an engine through the month.

    `pace` is the pause before the clock is moved, so that a viewer can follow; it is moved to
    whatever is due next, and `leap` further, so that much is due at once. A month that does not end
    is given up after `patience` seconds.
    """

    def __init__(
        self,
        plan: Plan,
        month: Month,
        office: PostOffice,
        clock: SharedClock,
        console: Console,
        *,
        pace: float = 0.4,
        leap: timedelta = timedelta(0),
        patience: float = 150.0,
    ) -> None:
        self._plan, self._month, self._office = plan, month, office
        self._clock, self._console, self._began = clock, console, time.monotonic()
        self._pace, self._leap, self._patience = pace, leap, patience
        self._by_address = {one.address: one for one in plan.contacts}
        self._lock = threading.Lock()
        self._points = set(plan.kills)
        self._done: set[tuple[Any, ...]] = set()
        self._decided: Counter[tuple[int, int]] = Counter()
        """Number of decisions on drafts."""
        self._conversations: dict[int, tuple[int, int | None]] = {}
        self._ended_at: dict[int, float] = {}
        """The time after which each contact must get no more mail, by `time.monotonic()`."""
        self._outages = list(OUTAGES) if plan.trouble else []
        self._paused = (0.0, 0.0)
        """When the first campaign was paused, and resumed."""
        self._by_plan = 0
        self.over = False
        """Whether the kills are over."""
        self.seen: dict[int, Seen] = {}

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

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
                self._report("mail", f"touch {touch} to {contact.name} {mail.fault}")
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
                self._by_plan += 1
            text = f"touch {touch} to {contact.name} {moment}"
            self._report("kill", f"{self._month.crew.name(pid)} killed: {text}")

    def _watch(self, contact: Contact, touch: int, mail: Mail) -> None:
        """Report a mail that should not have been sent."""
        times = sum(one.message_id == mail.message_id for one in self._office.log)
        if times > 1:
            self._report("bad", f"{contact.name} gets touch {touch}, and now has it {times} times")
        elif contact.id in self._ended_at:
            self._report("bad", f"{contact.name} gets touch {touch} after a reply")

    # -- the month

    def play(self) -> None:
        """Run from the first touch until nothing is left to happen."""
        chance = self._plan.chance()
        next_kill = time.monotonic() + chance.uniform(*self._month.pause)
        while self.seconds < self._patience:
            began = time.monotonic()
            self.look()
            self._month.crew.check()
            if time.monotonic() >= next_kill:
                self._kill_one(chance)
                next_kill = time.monotonic() + chance.uniform(*self._month.pause)
            if not self._go_on():
                return
            time.sleep(max(0.05, time.monotonic() - began))

    def _go_on(self) -> bool:
        """Do what is due, or move the clock to what is next. False: there is nothing left."""
        now = self._clock.now()
        self._make_trouble()
        actions = list(self._actions())
        due = [action for action in actions if action[0] <= now]
        for _, key, act in due:
            self._once(key, act)
        if due or any(seen.busy for seen in self.seen.values()) or self._month.mend():
            return True
        if self._paused[0] and not self._paused[1]:
            self._resume()
            return True
        ahead = [action[0] for action in actions]
        asleep = [seen for seen in self.seen.values() if not seen.over]
        ahead += [seen.due for seen in asleep if seen.due is not None]
        if not ahead:
            return False
        time.sleep(self._pace)
        next_at = timedelta(milliseconds=max(0, min(ahead) - now))
        self._clock.advance(next_at + self._leap)
        return True

    def _make_trouble(self) -> None:
        """In the middle of the month, have the sender refused twice, and pause a campaign."""
        if not self._plan.trouble or not isinstance(self._month, Campaign):
            return
        sent = sum(len(seen.sent) for seen in self.seen.values())
        share = sent / sum(len(one.manner.touches) for one in self._plan.contacts)
        if self._outages and share > (0.2, 0.6)[-len(self._outages)]:
            self._office.refuses = self._outages.pop(0)
        if share > 0.4 and not self._paused[0]:
            self._month.app.pause(1)
            self._paused = (time.monotonic(), 0.0)

    def _resume(self) -> None:
        assert isinstance(self._month, Campaign)
        self._paused = (self._paused[0], time.monotonic())
        self._month.app.resume(1)

    def look(self) -> None:
        """Read the state of each contact, and show what is new."""
        before, self.seen = self.seen, self._month.look()
        for contact in self._plan.contacts:
            old, new = before.get(contact.id), self.seen[contact.id]
            for step in sorted(new.sent.keys() - (old.sent.keys() if old else set())):
                self._report("sent", f"touch {step} to {contact.name} is sent")
            if new.held is not None and (old is None or old.held != new.held):
                self._report("person", f"draft {new.held} to {contact.name} is held for a person")
            if new.over and not (old and old.over):
                self._report("mail", f"the thread of {contact.name} ends: {new.status}")

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
                turn = self._decided[contact.id, seen.held]
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
        """A contact, or the contact's mail server, writes to us: twice, as mail servers may."""
        touch = says.touch if says.when == "sent" else says.touch - 1
        self._report("in", f"{contact.name} {CAME_IN[says.kind]}")
        answered = self._month.message_id(contact, touch)
        mail = incoming_mail(says.kind, contact, answered)
        self._month.receive(mail)
        if says.kind != "automatic":
            self._ended_at[contact.id] = time.monotonic()
        self._month.receive(mail)
        return True

    def _decide(self, contact: Contact, touch: int) -> bool:
        decision = contact.manner.decisions[touch][self._decided[contact.id, touch]]
        if not self._month.decide(contact, touch, decision):
            return False
        self._decided[contact.id, touch] += 1
        text = f"draft {touch} to {contact.name}: a person says {decision['action']}"
        self._report("person", text)
        return True

    def _kill_one(self, chance: random.Random) -> None:
        pid = chance.choice(self._month.crew.pids)
        if self._month.bears(pid) and self._month.crew.kill(pid):
            self._report("kill", f"{self._month.crew.name(pid)} killed, at random")

    def _report(self, kind: str, text: str) -> None:
        mark, style = MARKS[kind]
        line = Text(f"  {moment_of(self._clock.now()):%a %d %b %H:%M}  ", "dim")
        self._console.print(line.append(f"{mark} {text}", style), soft_wrap=True)

    # -- the judge

    def judge(self) -> Result:
        """Compare what happened with what the plan says."""
        self.look()
        found = Result(
            self._plan,
            decided=self._decided.total(),
            killed=self._month.crew.killed,
            by_plan=self._by_plan,
            seconds=self.seconds,
        )
        mails: dict[str, list[Mail]] = {one.address: [] for one in self._plan.contacts}
        for mail in self._office.log:
            mails[mail.recipient].append(mail)
        for contact in self._plan.contacts:
            self._judge_mails(contact, mails[contact.address], found)
            self._judge_end(contact, mails[contact.address], found)
        problems = self._month.problems()
        found.unsound, found.wrong = len(problems), [*found.wrong, *problems]
        return found

    def _judge_mails(self, contact: Contact, mails: list[Mail], found: Result) -> None:
        log = Counter(mail.message_id for mail in mails)
        wanted = {self._month.message_id(contact, step) for step in contact.manner.touches}
        sent, twice = len(log.keys() & wanted), log.total() - len(log)
        others = len(log.keys() - wanted)
        found.sent += sent
        found.duplicates += twice
        if sent != len(wanted) or others:
            of = f"{sent} of {len(wanted)} touches were sent, and {others} others"
            found.wrong.append(f"{contact.name}: {of}.")
        if twice:
            found.wrong.append(f"{contact.name}: {twice} mails too many.")
        paused, resumed = (0.0, 0.0) if contact.manner.reviewed else self._paused
        early = sum(paused < mail.began < resumed for mail in mails)
        found.while_paused += early
        if early:
            found.wrong.append(f"{contact.name}: {early} mails were sent by a paused campaign.")

    def _judge_end(self, contact: Contact, mails: list[Mail], found: Result) -> None:
        manner, seen = contact.manner, self.seen[contact.id]
        since = self._ended_at.get(contact.id, float("inf"))
        late = sum(mail.accepted is not None and mail.accepted > since for mail in mails)
        held = seen.held if not seen.over else None
        right = seen.status == manner.ends and held == manner.held and (seen.over or held)
        found.after_reply += late
        found.held += held is not None
        found.right += bool(right)
        if manner.ends in ("replied", "bounced", "unsubscribed"):
            found.endings += 1
            found.honoured += bool(right and not late)
        if late:
            found.wrong.append(f"{contact.name}: {late} mails were sent after the reply.")
        if not right:
            how = f"{seen.status} {seen.trouble}".strip()
            found.wrong.append(f"{contact.name}: the status is {how!r}, not {manner.ends!r}.")
