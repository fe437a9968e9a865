"""The two engines that live through the month of the demo: perdure, and stock LangGraph."""

from __future__ import annotations

import contextlib
import smtplib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from perdure.errors import AlreadyAnswered, WaitClosed
from perdure.operations.invariants import examine
from perdure.testing.ports import free_port
from perdure.times import milliseconds
from perdure.types import Run, State

from .. import agent, app
from ..clock import SharedClock
from ..database import sql
from ..inbound import Inbound, Listener
from ..postoffice import HOST, PostOffice
from ..settings import Settings
from . import stock
from .crew import Crew, Nursery
from .engine import BRIEF, Seen
from .plan import Contact, Decision, Plan

SENDER = stock.SENDER
LOOKUP_AFTER = 1.5
"""Seconds after which a mail unknown to our post office counts as not accepted."""


class Campaign:
    """The campaign application: two campaigns, one of them with a person who approves drafts."""

    pause = (0.5, 1.5)

    def __init__(
        self,
        plan: Plan,
        folder: Path,
        office: PostOffice,
        clock: SharedClock,
        *,
        url: str | None = None,
    ) -> None:
        self._plan, self._clock = plan, clock
        self._settings = Settings(
            url=url or f"sqlite:///{folder}/campaign.db",
            smtp_port=office.smtp_port,
            lookup_url=office.lookup_url,
            lookup_after=LOOKUP_AFTER,
            inbound_port=free_port(),
        )
        self._given = {"settings": asdict(self._settings), "clock": f"{folder}/clock"}

    def staff(self, nursery: Nursery) -> None:
        self.crew = Crew(nursery, 2, "campaign", **self._given)

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self._app = stack.enter_context(app.App(self._settings, clock=self._clock))
            self._launch()
            self._inbound = Inbound(self._app)
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
            plan = app.Plan(name, BRIEF, SENDER, name, auto_approve=not reviewed)
            campaign_id = self._app.create(plan)
            lines = [f"{one.address},{one.name},{one.company},{one.zone}" for one in chosen]
            self._app.bring(campaign_id, "\n".join(["email,name,company,zone", *lines]) + "\n")
            self._app.launch(campaign_id)
            rows = self._app.database.rows(
                """SELECT address, contact_id FROM members
                   JOIN contacts ON contacts.id = members.contact_id WHERE campaign_id = :id""",
                id=campaign_id,
            )
            by_address = {row["address"]: row["contact_id"] for row in rows}
            self._ids |= {one.id: (campaign_id, by_address[one.address]) for one in chosen}
        self._threads = {agent.thread_of(*ids): number for number, ids in self._ids.items()}

    def look(self) -> dict[int, Seen]:
        found = self._app.runtime.blocking.runs(graph=app.GRAPH, output=False)
        runs = {self._threads[run.thread_id]: run for run in found}
        asked = {
            self._threads[wait.thread_id]: wait
            for wait in self._app.runtime.blocking.waits(kind="human")
        }
        members, touches = self._app.database.read(
            sql("SELECT * FROM members"), sql("SELECT * FROM touches")
        )
        seen = {}
        for number, ids in self._ids.items():
            mine = [row for row in touches if (row["campaign_id"], row["contact_id"]) == ids]
            run, wait = runs[number], asked.get(number)
            [status] = [
                row["status"] for row in members if (row["campaign_id"], row["contact_id"]) == ids
            ]
            seen[number] = Seen(
                status=status,
                touches={row["step"]: row["status"] for row in mine},
                sent={row["step"]: row["sent_at"] for row in mine if row["sent_at"] is not None},
                held=wait.value["touch"] if wait else None,
                since=milliseconds(wait.created_at) if wait else 0,
                busy=self._is_busy(run),
                due=milliseconds(run.due_at) if run.due_at else None,
                over=run.ended,
                trouble=str(run.reason) if run.state is State.HELD else "",
            )
        return seen

    def _is_busy(self, run: Run) -> bool:
        is_due = run.due_at is not None and milliseconds(run.due_at) <= self._clock.now()
        return run.state in (State.PENDING, State.RUNNING) or is_due

    def receive(self, content: bytes) -> None:
        with smtplib.SMTP(HOST, self._settings.inbound_port, "localhost", 30) as smtp:
            smtp.sendmail("somebody@example.net", ["replies@sender.example"], content)

    def decide(self, contact: Contact, touch: int, decision: Decision) -> bool:
        calls = self._app.runtime.blocking
        for wait in calls.waits(kind="human", thread_id=agent.thread_of(*self._ids[contact.id])):
            if wait.value["touch"] == touch:
                with contextlib.suppress(AlreadyAnswered, WaitClosed):
                    calls.answer(wait.id, decision, by="lea@sender.example")
                    return True
        return False

    def message_id(self, contact: Contact, touch: int) -> str:
        found = self._touch(contact, "step = :step", step=touch)
        return str(found[0]["message_id"]) if found else ""

    def sending(self, contact: Contact) -> int:
        found = self._touch(contact, "status = 'approved'")
        return int(found[0]["step"]) if found else 0

    def _touch(self, contact: Contact, which: str, **params: Any) -> list[dict[str, Any]]:
        campaign_id, contact_id = self._ids[contact.id]
        return self._app.database.rows(
            f"SELECT * FROM touches WHERE campaign_id = :a AND contact_id = :b AND {which}",  # noqa: S608
            a=campaign_id,
            b=contact_id,
            **params,
        )

    def driver(self, contact: Contact) -> int | None:
        [run] = self._app.runtime.blocking.runs(
            thread_id=agent.thread_of(*self._ids[contact.id]), output=False
        )
        for event in reversed(self._app.runtime.blocking.events(run.id)):
            if event.kind in ("claimed", "recovered"):
                return int(event.data["worker"].split(":")[1])
        return None

    def problems(self) -> list[str]:
        return [str(one) for one in self._app.runtime.journal.do(examine())]

    def bears(self, pid: int) -> bool:
        running = self._app.runtime.blocking.runs(state=State.RUNNING, output=False)
        return all(run.attempts < 4 for run in running)


class Stock:
    """The same with stock LangGraph, and one cron."""

    pause = (0.5, 1.5)

    def __init__(self, plan: Plan, folder: Path, office: PostOffice, clock: SharedClock) -> None:
        self._plan, self._clock = plan, clock
        self._path = f"{folder}/stock.db"
        self._given = {
            "path": self._path,
            "smtp_port": office.smtp_port,
            "clock": f"{folder}/clock",
        }

    def staff(self, nursery: Nursery) -> None:
        self.crew = Crew(nursery, 1, "cron", **self._given)

    def __enter__(self) -> Self:
        self._tables = stock.Tables(self._path)
        self._tables.create()
        for one in self._plan.contacts:
            self._tables.run(
                """INSERT INTO contacts (id, address, name, company, zone, brief, reviewed, due_at)
                   VALUES (?, ?, ?, ?, ?, ?, ?, ?)""",
                one.id,
                one.address,
                one.name,
                one.company,
                one.zone,
                BRIEF,
                int(one.manner.reviewed),
                self._clock.now(),
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
                touches={touch["step"]: touch["status"] for touch in mine},
                sent={t["step"]: t["sent_at"] for t in mine if t["sent_at"] is not None},
                held=held[0]["step"] if held and row["due_at"] is None else None,
                since=held[0]["drafted_at"] if held else 0,
                busy=row["id"] in due,
                due=row["due_at"],
                over=bool(row["done"]),
            )
        return seen

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
