"""A month of the campaign, with everything that can happen in it, at moments that a seed decides.

`Prospect` is what one contact, and the person who approves his drafts, will do. `Month` makes it
happen: it moves the clock that all processes share, kills them, takes their mail in a post office
that fails, and lets prospects write at the moments planned, through `Inbound.receive` or through a
listener in a process of its own that is killed, too. It judges nothing: it keeps what was seen from
outside, for test_campaign_month.py.
"""

from __future__ import annotations

import contextlib
import random
import smtplib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

from examples.campaign import people
from examples.campaign.app import App, Plan
from examples.campaign.clock import SharedClock
from examples.campaign.inbound import Inbound
from examples.campaign.postoffice import USUAL, Mail, Moment, PostOffice, random_faults
from examples.campaign.settings import Settings
from perdure import errors
from tests.support.campaigns import bounce, reply
from tests.support.fork_server import Child, ForkServer

SUNDAY = datetime(2026, 10, 11, 20, tzinfo=UTC)
"""Two weeks before Europe changes its clocks, three before America does."""
ZONES = ("Europe/Berlin", "Europe/Madrid", "America/New_York")
TOUCHES = 6
FAULTS = (*USUAL, *(one for one in USUAL if not one.startswith("reject")))
"""A rejection is half as frequent as the others: it ends a month early, or needs a person."""

ENDS = {"reply": "replied", "bounce": "bounced", "unsubscribe": "unsubscribed"}
"""How a thread ends by what came in."""
HOOKED = tuple(Moment)
"""Moments of a conversation, as the post office sees it."""
WHEN = ("early", *HOOKED, "asleep", "asleep", "held", "late")


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

    @classmethod
    def draw(cls, seed: int, n: int) -> Prospect:
        dice = random.Random(f"{seed}/prospect/{n}")
        campaigns = dice.choices([("auto",), ("held",), ("auto", "again")], [60, 30, 10])[0]
        act = dice.choices(
            ["reply", "bounce", "unsubscribe", "removed", "automatic", "nothing"],
            [50, 6, 8, 6, 5, 25],
        )[0]
        when = dice.choice(WHEN if "held" in campaigns else [w for w in WHEN if w != "held"])
        if act == "bounce":  # of a mail that was sent
            when = "asleep"
        return cls(
            f"p{n}@example.org",
            dice.choice(ZONES),
            campaigns,
            act,
            when,
            dice.randint(1, 3 if dice.random() < 0.5 else TOUCHES),
            dice.random() < 0.5,
            dice.random() < 0.25,
            {step: _decisions(dice) for step in range(1, TOUCHES + 1)},
        )


def _decisions(dice: random.Random) -> list[str]:
    says = dice.choices(["approve", "edit", "skip", "slowly", "never"], [70, 12, 7, 10, 1])[0]
    return ["reject", says] if dice.random() < 0.1 else [says]


class Crew:
    """The processes, and who kills them."""

    def __init__(
        self,
        server: ForkServer,
        settings: Settings,
        clock: Path,
        log: Path,
        environment: Mapping[str, str],
    ) -> None:
        self._server, self._lock = server, threading.Lock()
        self._order: dict[str, Any] = {
            "settings": asdict(settings),
            "clock": str(clock),
            "log": str(log),
            "environment": dict(environment),
        }
        self._children: dict[Child, str] = {}
        self.killed: Counter[str] = Counter()

    def keep(self, what: str, count: int) -> None:
        """Have so many of these processes."""
        with self._lock:
            for child, known in list(self._children.items()):
                if known.startswith("tick") and child.is_over():
                    del self._children[child]
            for _ in range(count - sum(known == what for known in self._children.values())):
                child = self._server.start("month_child:be", what=what, limit=3600, **self._order)
                self._children[child] = what

    def kill(self, *kinds: str, dice: random.Random | None = None) -> None:
        """All processes of these kinds, or one of them."""
        with self._lock:
            victims = [c for c, what in self._children.items() if what.partition(" ")[0] in kinds]
            for child in victims if dice is None else dice.sample(victims, min(1, len(victims))):
                child.kill()
                self.killed[self._children.pop(child).partition(" ")[0]] += 1

    def close(self) -> None:
        for child in self._children:
            child.kill()


@dataclass
class Happened:
    """What a prospect did, in seconds of `time.monotonic()`."""

    act: str
    answered: int
    """The mail he answered, from 1; 0 for none."""
    began: float
    done: float


class Month:
    """The month itself. After `run`, what was seen is in its attributes."""

    def __init__(
        self,
        server: ForkServer,
        url: str,
        folder: Path,
        contacts: int,
        seed: int = 7,
        *,
        outage: Callable[[], None] | None = None,
        environment: Mapping[str, str] | None = None,
        deaths: float = 0.02,
    ) -> None:
        """`outage` kills what the processes need, and has it back when it returns. `environment`
        is theirs: who gets their traces. `deaths` is the share of mails whose sender is killed."""
        self.seed, self.url, self._outage = seed, url, outage
        self.dice = random.Random(seed)
        self.prospects = {p.address: p for p in (Prospect.draw(seed, n) for n in range(contacts))}
        self.happened: dict[str, Happened] = {}
        self.released: dict[int, float] = {}
        """When the post office let a conversation go on behind RCPT, by its number."""
        self.virtual: dict[int, datetime] = {}
        """The time of the month at which a conversation began."""
        self.said: dict[tuple[str, int], list[tuple[str, float]]] = defaultdict(list)
        """What was said to drafts, by address and touch, and when."""
        self.counts: Counter[str] = Counter()
        self.held_by: Counter[str] = Counter()
        """Why threads were held, until a person tried them again."""
        self.accepted: dict[str, list[Mail]] = defaultdict(list)
        self._kills = self._plan_kills(deaths)
        self._lock = threading.RLock()
        self._patience: dict[str, datetime] = {}
        self.clock = SharedClock(folder / "clock")
        self.clock.move_to(SUNDAY)
        faults = random_faults(seed, 0.1, FAULTS)
        self.office = PostOffice(faults, self._on, late=1.2)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.office)
            self.settings = Settings(
                url=url,
                smtp_port=self.office.smtp_port,
                smtp_timeout=1.0,
                lookup_url=self.office.lookup_url,
                lookup_after=1.0,
                inbound_port=port,
            )
            self.app = stack.enter_context(App(self.settings, clock=self.clock))
            self.inbound = Inbound(self.app)
            crew_log = folder / "crew.log"
            self.crew = Crew(server, self.settings, folder / "clock", crew_log, environment or {})
            stack.callback(self.crew.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> Month:
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def _plan_kills(self, deaths: float) -> dict[tuple[str, int], Moment]:
        """By address and number of the mail: the moment at which whoever sends it is killed."""
        planned = {}
        for address in self.prospects:
            dice = random.Random(f"{self.seed}/kills/{address}")
            for nth in range(1, TOUCHES + 1):
                if dice.random() < deaths:
                    planned[address, nth] = dice.choice(HOOKED)
        return planned

    # -- what happens while a mail is sent

    def _on(self, moment: Moment, mail: Mail) -> None:
        """Called by the post office in the middle of a conversation, in a thread of its own."""
        prospect = self.prospects[mail.recipient]
        with self._lock:
            if moment is Moment.BEGAN:
                self.virtual[mail.conversation] = self.clock.time
            if moment is Moment.ACCEPTED:
                self.accepted[mail.recipient].append(mail)
            nth = len(self.accepted[mail.recipient])
            nth += moment in (Moment.BEGAN, Moment.DATA)
            dies = self._kills.get((mail.recipient, nth)) is moment
            if dies:
                del self._kills[mail.recipient, nth]
                self.counts[f"killed at {moment}"] += 1
        acts = prospect.act not in ("bounce", "nothing")
        if acts and prospect.when == moment and prospect.nth == nth:
            self.act(prospect)
        if dies:
            self.crew.kill("work", "tick")
        if moment is Moment.BEGAN:
            self.released[mail.conversation] = time.monotonic()

    # -- what prospects do

    def act(self, prospect: Prospect) -> None:
        """Do what he does, unless he has. When this returns, it was taken in."""
        with self._lock:
            if prospect.address in self.happened:
                return
            answered = len(self.accepted[prospect.address])
            happened = Happened(prospect.act, answered, time.monotonic(), float("inf"))
            self.happened[prospect.address] = happened
            self.counts[f"{prospect.act} {prospect.when}"] += 1
        mail = b"" if prospect.act == "removed" else self._mail(prospect, answered)
        if mail:
            self._hand_over(mail, prospect.listener)
        else:
            people.remove(self.app, prospect.address)
        happened.done = time.monotonic()
        if prospect.twice and mail:
            self._hand_over(mail, prospect.listener)

    def _mail(self, prospect: Prospect, answered: int) -> bytes:
        id = self.accepted[prospect.address][answered - 1].message_id if answered else None
        if prospect.act == "bounce":
            assert id is not None
            return bounce(id, prospect.address)
        mail: EmailMessage = reply(id, sender=prospect.address)
        if prospect.act == "unsubscribe":
            del mail["Subject"]
            mail["Subject"] = "unsubscribe"
        if prospect.act == "automatic":
            mail["Auto-Submitted"] = "auto-replied"
        return mail.as_bytes()

    def _hand_over(self, mail: bytes, listener: bool) -> None:
        """As a mail server does: until it is taken in."""
        if not listener:
            self.inbound.receive(mail)
            return
        deadline = time.monotonic() + 60
        host, port = self.settings.inbound_host, self.settings.inbound_port
        while True:
            try:
                with smtplib.SMTP(host, port, "localhost", 10) as smtp:
                    smtp.sendmail("mx@example.org", "ana@example.com", mail)
                    return
            except (OSError, smtplib.SMTPException):
                self.counts["handed over again"] += 1
                assert time.monotonic() < deadline, "nobody takes mail in"
                threading.Event().wait(0.05)

    # -- what the person at the desk does

    def decide(self) -> int:
        """Answer the drafts that are due to be answered. Gives how many were."""
        done = 0
        for wait in self._questions():
            prospect, step = self.prospects[wait.value["to"]], wait.value["touch"]
            is_next = len(self.accepted[prospect.address]) + 1 == prospect.nth
            acts = prospect.act != "nothing" and prospect.address not in self.happened
            if prospect.when == "held" and is_next and acts:
                self.act(prospect)
                done += 1
                continue
            said = self.said[prospect.address, step]
            says = prospect.decisions[step][len(said)]
            if says == "never":
                continue
            if says == "slowly":  # not before tomorrow
                since = self._patience.setdefault(wait.id, self.clock.time)
                if self.clock.time < since + timedelta(hours=20):
                    continue
            said.append((says, time.monotonic()))
            with contextlib.suppress(errors.WaitClosed):  # the prospect was faster
                self.app.runtime.blocking.answer(wait.id, _answer(says), by="Eva")
                done += 1
                self.counts[f"draft {says}"] += 1
        for run in self.app.runtime.blocking.runs(state="held", limit=1000, output=False):
            self.held_by[str(run.error or run.reason)] += 1
            unknown = self.app.runtime.blocking.effects(run.id, state="unknown")
            for effect in unknown:
                self.app.runtime.blocking.settle(effect.key, "retry", by="Eva")
            if not unknown:
                self.app.runtime.blocking.retry(run.id)
            done += 1
        return done

    def _questions(self) -> Iterator[Any]:
        after = None
        while page := self.app.runtime.blocking.waits(kind="human", after=after, limit=500):
            yield from page
            after = page[-1]

    # -- the month

    def run(self, seconds: float) -> None:
        """From the import of the contacts until nothing more can happen."""
        self.began = time.monotonic()
        self._launch()
        self._act_all("early")
        self._have_outage()
        wave = 0
        while True:
            self._drive(seconds, by_cron=wave % 4 == 3)
            wave += 1
            if self._act_all("asleep") + self.decide():
                continue
            dues = self._look()[1]
            if not dues:
                break
            self._jump(dues)
        self.counts["waves"] = wave
        self._act_all("late")
        self._drive(seconds, by_cron=False)
        while self.inbound.sweep():
            pass
        self.crew.kill("work", "tick", "listen")
        self.took = time.monotonic() - self.began

    def _launch(self) -> None:
        base = Plan("", "Better tables", "Ana Ruiz <ana@example.com>")
        for name, auto in (("auto", True), ("held", False), ("again", True)):
            sequence = "held" if name == "held" else "default"
            made = replace(base, name=name, sequence=sequence, auto_approve=auto)
            lines = [
                f"{p.address},{p.address.partition('@')[0]},Ltd,{p.zone}"
                for p in self.prospects.values()
                if name in p.campaigns
            ]
            campaign_id = self.app.create(made)
            self.app.bring(campaign_id, "\n".join(["email,name,company,zone", *lines]) + "\n")
            self.app.launch(campaign_id)

    def _act_all(self, when: str) -> int:
        """Those who do something now, when everything rests."""
        acting = []
        for prospect in self.prospects.values():
            if prospect.when != when or prospect.address in self.happened:
                continue
            if prospect.act == "nothing" or (prospect.act == "bounce" and when != "asleep"):
                continue
            if when == "asleep" and len(self.accepted[prospect.address]) != prospect.nth:
                continue
            acting.append(prospect)
        if any(prospect.listener for prospect in acting):
            self.crew.keep("listen", 1)
        for prospect in acting:
            self.act(prospect)
        return len(acting)

    def _look(self) -> tuple[int, list[datetime]]:
        """How many threads are driven, and when the others are due, the next first."""
        rows = self.app.database.rows(
            "SELECT state, due_at FROM perdure_runs WHERE due_at IS NOT NULL ORDER BY due_at"
        )
        running = sum(row["state"] == "running" for row in rows)
        dues = [row["due_at"] / 1000 for row in rows if row["state"] != "running"]
        return running, [datetime.fromtimestamp(due, UTC) for due in dues]

    def _drive(self, seconds: float, *, by_cron: bool) -> None:
        """Until nothing is driven, or due within a moment. Meanwhile things go wrong."""
        ticks = self.dice.choice(["tick", "tick 1"])
        if by_cron:
            self.crew.kill("work")
        soon = timedelta(seconds=1.5)
        while True:
            self.crew.keep(ticks if by_cron else "work", 2)
            self.crew.keep("listen", 1)
            threading.Event().wait(0.05)
            running, dues = self._look()
            if not running and (not dues or dues[0] > self.clock.time + soon):
                break
            assert time.monotonic() < self.began + seconds, f"{running} run, {dues[:1]} is next"
            self._trouble()
        self.office.lookup_down = self.office.busy = False

    def _trouble(self) -> None:
        """About every half minute each, whatever else is planned."""
        if self.dice.random() < 0.3:
            self.office.lookup_down = self.office.busy = False
        match self.dice.randrange(500):
            case 0 | 1 | 2 | 3 | 4:
                self.crew.kill("work", "tick", dice=self.dice)
            case 5 | 6:
                self.crew.kill("listen")
            case 7:
                self.office.lookup_down = True
            case 8:
                self.office.busy = True
            case 9 | 10 | 11 | 12:
                self._have_outage()

    def _have_outage(self) -> None:
        if self._outage is not None:
            self._outage()
            self.counts["outages"] += 1

    def _jump(self, dues: list[datetime]) -> None:
        """To what is tried again soon, or else to the next wave: when an eighth of all threads is
        due, or after four days in which nobody drove."""
        if dues[0] < self.clock.time + timedelta(hours=1):
            self.clock.move_to(dues[0] + timedelta(seconds=2))
            return
        wave = min(dues[len(dues) // 8], dues[0] + timedelta(days=4))
        self.clock.move_to(wave + timedelta(minutes=30))


def _answer(says: str) -> dict[str, str]:
    if says == "edit":
        return {"action": "edit", "body": "Edited by Eva."}
    if says == "reject":
        return {"action": "reject", "comment": "Shorter, please."}
    return {"action": "skip" if says == "skip" else "approve"}
