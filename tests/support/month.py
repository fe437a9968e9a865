"""A month of the campaign, with everything that can happen in it, at moments that a seed decides.

`Month` makes happen what tests/support/prospects.py has drawn: it moves the clock that all
processes share, kills them, takes their mail in a post office that fails, presses the buttons of a
campaign, and lets prospects write at the moments planned, through `Inbound.receive` or through a
listener in a process of its own that is killed, too. tests/support/month_desk.py is the person who
is asked. It judges nothing: it keeps what was seen from outside, for test_campaign_month.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import smtplib
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from examples.campaign import control, people
from examples.campaign.app import App, Plan
from examples.campaign.clock import SharedClock
from examples.campaign.inbound import Inbound
from examples.campaign.postoffice import Mail, Moment, PostOffice, Reply, Stage
from examples.campaign.settings import Settings
from examples.campaign.web import Unsubscribe
from tests.support.campaigns import bounce, reply
from tests.support.fork_server import Child, ForkServer
from tests.support.month_desk import Desk
from tests.support.prospects import BRIEFS, HOOKED, TOUCHES, Prospect, faults_of

SUNDAY = datetime(2026, 10, 11, 20, tzinfo=UTC)
"""Two weeks before Europe changes its clocks, three before America does."""
APART = 3
"""Days between mails to one person from different sequences."""
PAUSE = timedelta(minutes=30)
"""Between two mails to one domain."""
OUTAGES = (
    Reply("550 5.1.8 Sender address rejected: domain not found"),
    Reply("553 5.7.1 Sender address rejected: not owned by user", Stage.SENDER),
)
"""What the mail server says to everybody, until the sender is mended."""
STRANGERS = ("nobody@elsewhere.example", "crank@elsewhere.example")
"""Who write, and are nobody we know; a person dismisses what the second one wrote."""


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
    undone: float = float("inf")
    """When a person wrote to him again."""


@dataclass
class Rest:
    """A time in which a campaign was not to send: from when the button had been pressed until it
    was pressed again."""

    campaign: str
    since: float
    at: datetime
    until: float = float("inf")


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
        drawn = (Prospect.draw(seed, n).with_mate() for n in range(contacts))
        self.prospects = {p.address: p for pair in drawn for p in pair}
        second = sum("second" in p.campaigns for p in self.prospects.values())
        self.per_day = max(2, second // 2)
        """Most mails of the second campaign in a day."""
        self.happened: dict[str, Happened] = {}
        self.released: dict[int, float] = {}
        """When the post office let a conversation go on behind RCPT, by its number."""
        self.virtual: dict[int, datetime] = {}
        """The time of the month at which that was."""
        self.rests: list[Rest] = []
        """When campaigns were paused, or stopped."""
        self.counts: Counter[str] = Counter()
        self.accepted: dict[str, list[Mail]] = defaultdict(list)
        self._kills = self._plan_kills(deaths)
        self._lock = threading.RLock()
        self._outages = list(OUTAGES)
        self.clock = SharedClock(folder / "clock")
        self.clock.move_to(SUNDAY)
        faults = faults_of(seed, list(self.prospects.values()))
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
                web_url="https://mail.example.com",
                apart=APART,
                domain_pause=PAUSE.total_seconds(),
            )
            self.app = stack.enter_context(App(self.settings, clock=self.clock))
            self.inbound = Inbound(self.app)
            self.web = Starlette(routes=Unsubscribe(self.inbound).routes())
            self.desk = Desk(self)
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
            self.virtual[mail.conversation] = self.clock.time
            self.released[mail.conversation] = time.monotonic()

    # -- what prospects do

    def act(self, prospect: Prospect) -> None:
        """Do what he does, unless he has. When this returns, it was taken in."""
        with self._lock:
            if prospect.address in self.happened or prospect.address in self.desk.strays:
                return
            answered = len(self.accepted[prospect.address])
            self.counts[f"{prospect.act} {prospect.when}"] += 1
            told = [] if prospect.stray else self.tell_of(prospect, answered)
            if prospect.stray:
                self.desk.strays[prospect.address] = prospect.private
        if prospect.stray:
            self._hand_over(reply(None, sender=prospect.private).as_bytes(), prospect.listener)
            return
        for _ in range(1 + prospect.twice):
            if prospect.act == "removed":
                people.remove(self.app, prospect.address)
            elif prospect.act == "unsubscribe" and prospect.how == "click":
                self._click(self._token(prospect))
            else:
                self._hand_over(self._mail(prospect, answered), prospect.listener)
            for happened in told:
                happened.done = min(happened.done, time.monotonic())

    def tell_of(self, prospect: Prospect, answered: int) -> list[Happened]:
        """Note that he acts now, and his mate, whom it ends too."""
        self.happened[prospect.address] = Happened(
            prospect.act, answered, time.monotonic(), float("inf")
        )
        told = [self.happened[prospect.address]]
        if prospect.mate:
            act = "reply too" if prospect.act == "reply" else prospect.act
            told.append(Happened(act, 0, time.monotonic(), float("inf")))
            self.happened[prospect.mate] = told[-1]
            self.counts[
                f"{act} with {'another address' if '+' in prospect.mate else 'a colleague'}"
            ] += 1
        if prospect.act == "unsubscribe":
            self.counts[f"unsubscribed by {prospect.how}"] += 1
        return told

    def _mail(self, prospect: Prospect, answered: int) -> bytes:
        id = self.accepted[prospect.address][answered - 1].message_id if answered else None
        if prospect.act == "bounce":
            assert id is not None
            return bounce(id, prospect.address)
        mail: EmailMessage = reply(id, sender=prospect.address)
        if prospect.act == "automatic":
            mail["Auto-Submitted"] = "auto-replied"
        if prospect.act != "unsubscribe":
            return mail.as_bytes()
        token = f"unsubscribe+{self._token(prospect)}@example.com"
        match prospect.how:
            case "token":
                mail = reply(None, sender=prospect.address, To=token)
            case "answer" if id:  # the colleague's, to whom our mail was forwarded
                mail = reply(id, "Please unsubscribe me.", sender=prospect.mate)
            case "answer" | "cc":
                mail = reply(None, "See below.", sender=prospect.mate, Cc=token)
            case _:
                mail = reply(id, sender=prospect.address, subject="unsubscribe")
        return mail.as_bytes()

    def _token(self, prospect: Prospect) -> str:
        """What his last mail has in its unsubscribe address; before the first, what it will."""
        if mails := self.accepted[prospect.address]:
            found = re.search(
                r"^List-Unsubscribe: .*/unsubscribe/(\w{20})>", mails[-1].content, re.M
            )
            assert found, mails[-1].content
            return found[1]
        return str(people.find(self.app, prospect.address)["token"])

    def _click(self, token: str) -> None:
        """As a mail program does, until it is told that it worked."""

        async def post() -> int:
            transport = httpx.ASGITransport(self.web)
            async with httpx.AsyncClient(transport=transport, base_url="http://web") as client:
                form = {"List-Unsubscribe": "One-Click"}
                return (await client.post(f"/unsubscribe/{token}", data=form)).status_code

        while (code := asyncio.run(post())) != 200:
            assert code == 503, code

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

    # -- the month

    def run(self, seconds: float) -> None:
        """From the import of the contacts until nothing more can happen."""
        self.began = time.monotonic()
        self._launch()
        for stranger in STRANGERS:
            self._hand_over(reply(None, sender=stranger).as_bytes(), listener=False)
        self._act_all("early")
        self._have_outage()
        wave = 0
        while True:
            self._drive(seconds, by_cron=wave % 6 == 5)
            wave += 1
            if self._act_all("asleep") + self.desk.decide():
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
        self.campaigns: dict[str, int] = {}
        for name, brief in BRIEFS.items():
            is_second = name == "second"
            plan = Plan(
                name,
                brief,
                "Bea Lind <bea@example.com>" if is_second else "Ana Ruiz <ana@example.com>",
                "default" if name in ("auto", "again") else "",
                auto_approve=name != "held",
                per_day=self.per_day if is_second else 0,
            )
            lines = [
                f"{p.address},{p.address.partition('@')[0]},Ltd,{p.zone}"
                for p in self.prospects.values()
                if name in p.campaigns
            ]
            self.campaigns[name] = self.app.create(plan)
            if lines:
                sheet = "\n".join(["email,name,company,zone", *lines]) + "\n"
                self.app.bring(self.campaigns[name], sheet)
            self.app.launch(self.campaigns[name])

    def _act_all(self, when: str) -> int:
        """Those who do something now, when everything rests."""
        acting = []
        for prospect in self.prospects.values():
            if prospect.when != when or prospect.address in self.happened:
                continue
            if prospect.address in self.desk.strays:
                continue
            if prospect.act == "nothing" or (prospect.act == "bounce" and when != "asleep"):
                continue
            if when == "asleep" and len(self.accepted[prospect.address]) < prospect.nth:
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
            self._press_buttons()
        self.office.lookup_down = self.office.busy = self.office.down = False

    def _press_buttons(self) -> None:
        """Pause a campaign, and stop one, while mails are sent; and have the sender refused."""
        taken = sum(map(len, self.accepted.values())) / len(self.prospects)
        if taken > 0.4 and not self.rests:
            self._press(control.pause, "auto")
        if taken > 0.8 and len(self.rests) == 1:
            self._press(control.stop, "ended")
        if self._outages and taken > (1.0, 2.0)[-len(self._outages)]:
            self.office.refuses = self._outages.pop(0)
            self.counts["sender refused"] += 1

    def _press(self, button: Callable[[App, int], object], campaign: str) -> None:
        button(self.app, self.campaigns[campaign])
        self.rests.append(Rest(campaign, time.monotonic(), self.clock.time))

    def resume(self) -> int:
        """Half a day after a campaign was paused it goes on."""
        for rest in self.rests:
            is_over = rest.campaign != "ended" and rest.until == float("inf")
            if is_over and self.clock.time > rest.at + timedelta(hours=12):
                rest.until = time.monotonic()
                control.resume(self.app, self.campaigns[rest.campaign])
                return 1
        return 0

    def _trouble(self) -> None:
        """About every half minute each, whatever else is planned."""
        if self.dice.random() < 0.3:
            self.office.lookup_down = self.office.busy = self.office.down = False
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
            case 13:
                self.office.down = True

    def _have_outage(self) -> None:
        if self._outage is not None:
            self._outage()
            self.counts["outages"] += 1

    def _jump(self, dues: list[datetime]) -> None:
        """To what is tried again soon, or else to the next wave: when a third of all threads is
        due, or after four days in which nobody drove."""
        if dues[0] < self.clock.time + timedelta(hours=1):
            soon = dues[0] + PAUSE - timedelta(minutes=1)
            last = max(due for due in dues if due <= soon)
            self.clock.move_to(last + timedelta(seconds=10))
            return
        wave = min(dues[len(dues) // 3], dues[0] + timedelta(days=4))
        self.clock.move_to(wave + timedelta(minutes=40))
