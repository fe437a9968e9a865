"""The two engines that live through the month: perdure, and stock LangGraph."""

from __future__ import annotations

import contextlib
import smtplib
import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Self

from perdure.commands.health import examine
from perdure.errors import AlreadyAnswered, WaitClosed
from perdure.testing.local_server import free_port
from perdure.times import milliseconds
from perdure.types import Run, State

from .. import agent, app
from ..database import sql
from ..inbound import Inbound, Listener
from ..settings import Settings
from . import stock
from .clock import SharedClock
from .crew import Crew, campaign, cron
from .plan import APPROVE, Contact, Decision, Plan
from .postoffice import HOST, PostOffice

BRIEF = "A quieter kitchen"
LOOKUP_AFTER = 1.5
"""Seconds after which a mail unknown to our post office counts as not accepted."""
ALL = 100_000
"""More rows than there are."""


@dataclass(frozen=True)
class Seen:
    """The state of one contact."""

    status: str
    """`active`, or how it ended."""
    sent: dict[int, int]
    """When each was sent, as the engine noted it."""
    held: int | None
    """The touch whose draft waits for a person, and since when."""
    since: int
    busy: bool
    """Whether it is being driven, or should be."""
    due: int | None
    """When the clock wakes it."""
    over: bool
    trouble: str = ""
    """Why a run is held, if not for a draft."""


class Campaign:
    """The campaign application: two campaigns, one of them with a person who approves drafts."""

    pause = (0.5, 1.5)
    """Seconds between two kills at random, at least and at most."""

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        office: PostOffice,
        clock: SharedClock,
        *,
        url: str | None = None,
        workers: int = 2,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`environment` is that of the workers: where their traces go."""
        self._plan, self._folder, self._workers = plan, folder, workers
        self.office, self.clock = office, clock
        self._settings = Settings(
            url=url or f"sqlite:///{folder}/campaign.db",
            smtp_port=office.smtp_port,
            smtp_timeout=1.0,
            lookup_url=office.lookup_url,
            lookup_after=LOOKUP_AFTER,
            inbound_port=free_port(),
        )
        self._order = {"settings": asdict(self._settings), "clock": f"{folder}/clock"}
        self._environment = dict(environment or {})
        self.resumed: Counter[str] = Counter()
        """How often a campaign in trouble was resumed, by its reason."""

    def staff(self) -> None:
        """Begin to work."""
        order = {**self._order, "environment": self._environment}
        self.crew = Crew(self._folder, self._workers, campaign, **order)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.app = stack.enter_context(app.App(self._settings, clock=self.clock))
            self._launch()
            self._inbound = Inbound(self.app)
            listener = Listener(self._inbound, HOST, self._settings.inbound_port)
            listener.start()
            stack.callback(listener.stop)
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _launch(self) -> None:
        self._ids: dict[int, tuple[int, int]] = {}
        for name, reviewed in (("hotels", False), ("key accounts", True)):
            chosen = [one for one in self._plan.contacts if one.manner.reviewed is reviewed]
            plan = app.Plan(name, BRIEF, stock.SENDER, auto_approve=not reviewed)
            campaign_id = self.app.create(plan)
            lines = [f"{one.address},{one.name},{one.company},{one.zone}" for one in chosen]
            sheet = "\n".join(["email,name,company,zone", *lines]) + "\n"
            self.app.import_contacts(campaign_id, sheet)
            self.app.launch(campaign_id)
            rows = self.app.database.rows("SELECT id, address FROM contacts")
            ids = {row["address"]: row["id"] for row in rows}
            self._ids |= {one.id: (campaign_id, ids[one.address]) for one in chosen}
        self._threads = {agent.thread_of(*ids): number for number, ids in self._ids.items()}

    def look(self) -> dict[int, Seen]:
        """The state of each contact, by id."""
        client = self.app.runtime.blocking
        found = client.runs(graph=app.GRAPH, limit=ALL, output=False)
        runs = {self._threads[run.thread_id]: run for run in found}
        questions = client.waits(kind="human", limit=ALL)
        waits = {self._threads[wait.thread_id]: wait for wait in questions}
        members, touches = self.app.database.read(
            sql("SELECT * FROM members"),
            sql("SELECT campaign_id, contact_id, step, status, sent_at FROM touches"),
        )
        status = {(row["campaign_id"], row["contact_id"]): row["status"] for row in members}
        mine: dict[tuple[int, int], list[dict[str, Any]]] = {ids: [] for ids in status}
        for row in touches:
            mine[row["campaign_id"], row["contact_id"]].append(row)
        seen = {}
        for number, ids in self._ids.items():
            run, wait = runs[number], waits.get(number)
            seen[number] = Seen(
                status=status[ids],
                sent={
                    row["step"]: row["sent_at"] for row in mine[ids] if row["sent_at"] is not None
                },
                held=wait.value["touch"] if wait else None,
                since=milliseconds(wait.created_at) if wait else 0,
                busy=self._is_busy(run),
                due=milliseconds(run.due_at) if run.due_at else None,
                over=run.ended,
                trouble=str(run.reason) if run.state is State.HELD else "",
            )
        return seen

    def _is_busy(self, run: Run) -> bool:
        is_due = run.due_at is not None and milliseconds(run.due_at) <= self.clock.now()
        return run.state in (State.PENDING, State.RUNNING) or is_due

    def mend(self) -> int:
        """What a person does about refusals: resume a campaign in trouble, once the cause is fixed,
        and have a refused mail tried again. Returns how much there was to do."""
        done = 0
        for row in self.app.database.rows("SELECT * FROM campaigns WHERE state = 'trouble'"):
            self.office.refuses = None
            self.resumed[row["trouble"]] += 1
            self.app.resume(row["id"])
            done += 1
        for wait in self.app.runtime.blocking.waits(kind="human", limit=ALL):
            if wait.value["kind"] == "refusal" or "problem" in wait.value:
                again = {"action": "again"} if wait.value["kind"] == "refusal" else APPROVE
                with contextlib.suppress(AlreadyAnswered, WaitClosed):
                    self.app.runtime.blocking.answer(wait.id, again, by="lea@sender.example")
                    done += 1
        return done

    def receive(self, content: bytes) -> None:
        """Receive a mail. It is on disk when this returns."""
        with smtplib.SMTP(HOST, self._settings.inbound_port, "localhost", 30) as smtp:
            smtp.sendmail("somebody@example.net", ["replies@sender.example"], content)

    def decide(self, contact: Contact, touch: int, decision: Decision) -> bool:
        """Apply a person's decision on a draft. False: it is no longer held."""
        calls = self.app.runtime.blocking
        for wait in calls.waits(kind="human", thread_id=agent.thread_of(*self._ids[contact.id])):
            if wait.value["touch"] == touch and "problem" not in wait.value:
                with contextlib.suppress(AlreadyAnswered, WaitClosed):
                    calls.answer(wait.id, decision, by="lea@sender.example")
                    return True
        return False

    def message_id(self, contact: Contact, touch: int) -> str:
        """The Message-ID of a touch; empty if it has no draft."""
        found = self._touch(contact, "step = :step", step=touch)
        return str(found[0]["message_id"]) if found else ""

    def sending(self, contact: Contact) -> int:
        """The touch that is on its way to a contact."""
        found = self._touch(contact, "status = 'approved'")
        return int(found[0]["step"]) if found else 0

    def _touch(self, contact: Contact, which: str, **params: Any) -> list[dict[str, Any]]:
        campaign_id, contact_id = self._ids[contact.id]
        return self.app.database.rows(
            f"SELECT * FROM touches WHERE campaign_id = :a AND contact_id = :b AND {which}",
            a=campaign_id,
            b=contact_id,
            **params,
        )

    def driver(self, contact: Contact) -> int | None:
        """The process that drives a contact's thread."""
        [run] = self.app.runtime.blocking.runs(
            thread_id=agent.thread_of(*self._ids[contact.id]), output=False
        )
        for event in reversed(self.app.runtime.blocking.events(run.id)):
            if event.kind in ("claimed", "recovered"):
                return int(event.data["worker"].split(":")[1])
        return None

    def problems(self) -> list[str]:
        """Problems in its database."""
        return [str(one) for one in self.app.runtime.journal.do(examine())]

    def bears(self, pid: int) -> bool:
        """Whether that process may be killed. perdure holds a run for a person when five workers in
        a row have died with it."""
        running = self.app.runtime.blocking.runs(state=State.RUNNING, output=False)
        return all(run.attempts < 4 for run in running)


class Stock:
    """The same with stock LangGraph, and one cron."""

    pause = (0.5, 1.5)

    def __init__(self, plan: Plan, folder: Path, office: PostOffice, clock: SharedClock) -> None:
        self._plan, self._folder, self._clock = plan, folder, clock
        self._path = f"{folder}/stock.db"
        self._order = {
            "path": self._path,
            "smtp_port": office.smtp_port,
            "clock": f"{folder}/clock",
        }

    def staff(self) -> None:
        self.crew = Crew(self._folder, 1, cron, **self._order)

    def __enter__(self) -> Self:
        self._tables = stock.Tables(self._path)
        self._tables.create()
        for one in self._plan.contacts:
            self._tables.run(
                """INSERT INTO contacts (id, address, name, company, zone, brief, reviewed, due_at)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
                *(one.id, one.address, one.name, one.company, one.zone, BRIEF),
                *(int(one.manner.reviewed), self._clock.now()),
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._tables.close()

    def look(self) -> dict[int, Seen]:
        due = set(self._tables.due(self._clock.now()))
        touches = self._tables.run("SELECT * FROM touches")
        seen = {}
        for row in self._tables.run("SELECT * FROM contacts"):
            mine = [touch for touch in touches if touch["contact_id"] == row["id"]]
            held = [
                touch
                for touch in mine
                if touch["status"] == "draft_pending" and touch["decision"] is None
            ]
            seen[row["id"]] = Seen(
                status=row["status"],
                sent={t["step"]: t["sent_at"] for t in mine if t["sent_at"] is not None},
                held=held[0]["step"] if held and row["due_at"] is None else None,
                since=held[0]["drafted_at"] if held else 0,
                busy=row["id"] in due,
                due=row["due_at"],
                over=bool(row["done"]),
            )
        return seen

    def mend(self) -> int:
        return 0

    def receive(self, content: bytes) -> None:
        self._tables.receive(content)

    def decide(self, contact: Contact, touch: int, decision: Decision) -> bool:
        self._tables.decide(contact.id, touch, decision)
        return True

    def message_id(self, contact: Contact, touch: int) -> str:
        found = self._tables.touch(contact.id, touch)
        return str(found["message_id"]) if found else ""

    def sending(self, contact: Contact) -> int:
        found = self._tables.run(
            "SELECT step FROM touches WHERE contact_id = ? AND status = 'approved'", contact.id
        )
        return int(found[0]["step"]) if found else 0

    def driver(self, contact: Contact) -> int | None:
        return self.crew.pids[0]

    def problems(self) -> list[str]:
        return []

    def bears(self, pid: int) -> bool:
        return True


Month = Campaign | Stock
"""An engine with its database and its processes, as the conductor sees it."""


def incoming_mail(kind: str, contact: Contact, answered: str) -> bytes:
    """An incoming mail about one of ours."""
    mail = EmailMessage()
    mail["From"], mail["To"] = contact.address, "ana@sender.example"
    mail["Message-ID"] = f"<{uuid.uuid4().hex}@{contact.address.partition('@')[2]}>"
    mail["In-Reply-To"] = answered
    text = {
        "reply": "Thank you, let us talk next week.",
        "unsubscribe": "Unsubscribe me, please.",
        "automatic": "I am out of office until Monday.",
        "bounce": "The mail could not be delivered.",
    }[kind]
    mail["Subject"] = "Unsubscribe" if kind == "unsubscribe" else f"Re: {BRIEF}"
    if kind == "automatic":
        mail["Auto-Submitted"] = "auto-replied"
    if kind != "bounce":
        mail.set_content(text)
        return mail.as_bytes()
    return (
        f"From: MAILER-DAEMON@sender.example\nTo: ana@sender.example\nSubject: Undelivered\n"
        f"Message-ID: {mail['Message-ID']}\nMIME-Version: 1.0\n"
        "Content-Type: multipart/report; report-type=delivery-status; boundary=line\n\n"
        f"--line\nContent-Type: text/plain\n\n{text}\n\n"
        "--line\nContent-Type: message/delivery-status\n\nReporting-MTA: dns; sender.example\n\n"
        f"Final-Recipient: rfc822; {contact.address}\nAction: failed\nStatus: 5.1.1\n\n"
        f"--line\nContent-Type: text/rfc822-headers\n\nMessage-ID: {answered}\n"
        f"To: {contact.address}\n\n--line--\n"
    ).encode()
