"""The application: a runtime with the agent, and operations on campaigns."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import perdure
from perdure.journal.clock import Clock, JournalClock
from perdure.times import moment
from perdure.types import Run, State

from . import contacts, control, overlaps, trouble, writer
from .agent import Agent, thread_of
from .cadence import Cadence, due, hours, weekdays
from .contacts import Report
from .database import Conflict, Database, Row, sql
from .errors import Unknown, refuse_stopped
from .preview import check_sender
from .settings import Settings

GRAPH = "campaign"
PAGE = 500
STUCK = (State.HELD, State.PAUSED, State.CANCELLED)
_CREATE = """INSERT INTO campaigns (id, name, sequence, sender, brief, gaps, days, opens, closes,
  auto_approve, per_day, state, trouble, troubles, version)
VALUES (:id, :name, :sequence, :sender, :brief, :gaps, :days, :opens, :closes, :auto_approve,
  :per_day, 'running', '', 0, :version)"""


@dataclass(frozen=True)
class Plan:
    """A campaign as a person describes it. Campaigns of one `sequence` never send a contact the
    same step twice; by default each campaign has its own sequence. It sends nothing more on a day
    on which its sender's address has sent `per_day` mails, over all campaigns; 0 is no limit."""

    name: str
    brief: str
    sender: str
    sequence: str = ""
    cadence: Cadence = field(default_factory=Cadence)
    auto_approve: bool = False
    per_day: int = 0


@dataclass(frozen=True)
class Launched:
    """What a launch started: the number of threads, how many are due now, and when and in which
    zone the first touch of the others may go out."""

    threads: int = 0
    now: int = 0
    due: datetime | None = None
    zone: str = ""
    state: str = "running"
    """The campaign's state. Unless it is running, the threads wait until it is resumed."""


class App:
    """Campaigns, contacts, and the runtime that drives their threads."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        observe: Any = None,
    ) -> None:
        self.settings = settings or Settings.read()
        self.runtime = perdure.Runtime(self.settings.url, clock=clock, observe=observe)
        self._clock = clock
        model = writer.model_for(self.settings.model)
        self.database = Database(self.settings.url, keep=True)
        agent = Agent(self.settings, self.runtime, self.database, model, lambda: self.clock.now())
        self.runtime.register(agent.graph(), name=GRAPH, hold=True)
        question = trouble.Question(
            self.database,
            lambda campaign_id, number: control.resume(self, campaign_id, number=number),
            lambda campaign_id, number: control.resume(
                self, campaign_id, number=number, keep_bounced=True
            ),
            lambda campaign_id, number: control.stop(self, campaign_id),
        )
        self.runtime.register(question.graph(), name=trouble.GRAPH, hold=True)

    def setup(self) -> None:
        """Create the journal and the tables if they do not exist."""
        self.runtime.setup()
        self.database.create()

    @property
    def clock(self) -> Clock:
        """The journal's time, which everything here uses."""
        if self._clock is None:
            self._clock = JournalClock(self.runtime.journal)
        return self._clock

    def close(self) -> None:
        self.runtime.close()
        self.database.close()

    def __enter__(self) -> App:
        self.setup()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- campaigns

    def create(self, plan: Plan) -> int:
        """Add a campaign. Returns its id. Raises `ValueError` if its name is taken, or is the
        sequence of another campaign, which it would share without `plan.sequence`."""
        row: Row = {
            "name": plan.name,
            "sequence": plan.sequence or plan.name,
            "sender": check_sender(plan.sender),
            "brief": plan.brief,
            "auto_approve": int(plan.auto_approve),
            "per_day": plan.per_day,
            "version": 1,
            **plan.cadence.to_columns(),
        }
        perhaps_ours = False
        while True:
            there, sharing, [last] = self.database.read(
                sql("SELECT * FROM campaigns WHERE name = :name", name=plan.name),
                sql("SELECT name FROM campaigns WHERE sequence = :name", name=plan.name),
                sql("SELECT COALESCE(MAX(id), 0) AS id FROM campaigns"),
            )
            if there and perhaps_ours and there[0].items() >= row.items():
                return int(there[0]["id"])
            if there:
                raise ValueError(f"Campaign {plan.name!r} already exists; choose another name.")
            if sharing and not plan.sequence:
                raise ValueError(
                    f"{plan.name!r} is the sequence of campaign {sharing[0]['name']!r}. Choose "
                    "another name, or pass it as the sequence too, to send no step twice."
                )
            try:
                self.database.write(sql(_CREATE, id=last["id"] + 1, **row))
                return int(last["id"]) + 1
            except Conflict as conflict:  # another process was faster, or this is ours
                perhaps_ours = conflict.perhaps_ours

    def campaign(self, name: str) -> Row:
        row = self.database.one("SELECT * FROM campaigns WHERE name = :name", name=name)
        if row is None:
            raise Unknown(f"There is no campaign {name!r}; `status` lists them.")
        return row

    def row(self, campaign_id: int) -> Row:
        """A campaign by its id."""
        row = self.database.one("SELECT * FROM campaigns WHERE id = :id", id=campaign_id)
        if row is None:
            raise Unknown(f"There is no campaign {campaign_id}; `status` lists them.")
        return row

    def bring(self, campaign_id: int, sheet: str | Path, *, skip_bad: bool = False) -> Report:
        """Import contacts from CSV, all or none; a `Path` is a file, a text is the sheet itself."""
        read = contacts.read(sheet, zone=self.settings.zone)
        report = contacts.bring(self.database, campaign_id, read, skip_bad=skip_bad)
        self._unless_stopped(campaign_id, "imported into")
        return report

    def overlap(self, campaign_id: int) -> overlaps.Overlap:
        """How other campaigns affect the members of this one."""
        return overlaps.find(self.database, campaign_id, self.settings.apart, self.clock.now())

    def _unless_stopped(self, campaign_id: int, verb: str) -> Row:
        """If the campaign was stopped during the import, stop the new members too."""
        row = self.row(campaign_id)
        if row["state"] == "stopped":
            control.stop(self, campaign_id)
            refuse_stopped(row, verb)
        return row

    def launch(self, campaign_id: int) -> Launched:
        """Start a thread for each active member that has none. May be repeated. Threads of a paused
        campaign wait until it is resumed."""
        refuse_stopped(self.row(campaign_id), "launched")
        started = Counter[str]()  # by time zone
        for contact_id, zone in self.members(campaign_id):
            thread_id = thread_of(campaign_id, contact_id)
            if self.runtime.blocking.runs(thread_id=thread_id, limit=1, output=False):
                continue
            self.begin(campaign_id, contact_id, key=GRAPH)  # another process may launch now
            started[zone] += 1
        row = self._unless_stopped(campaign_id, "launched")
        now = moment(self.clock.now())
        dates = sorted((due(Cadence.of(row), 1, now, zone), zone) for zone in started)
        are_due = sum(started[zone] for at, zone in dates if at <= now)
        first, zone = next(((at, zone) for at, zone in dates if at > now), (None, ""))
        return Launched(started.total(), are_due, first, zone, row["state"])

    def begin(self, campaign_id: int, contact_id: int, *, key: str, **state: Any) -> None:
        """Start a run of a thread, once per key; with `state`, where an earlier one ended."""
        self.runtime.blocking.start(
            GRAPH,
            {"campaign_id": campaign_id, "contact_id": contact_id, **state},
            thread_id=thread_of(campaign_id, contact_id),
            key=key,
            metadata={
                "campaign_id": campaign_id,
                "contact_id": contact_id,
                "sequence_step": state.get("step", 1),
            },
            tags=[f"campaign:{campaign_id}"],
        )

    def wake(self, campaign_id: int, contact_id: int, key: str) -> None:
        """Wake a thread, so that it reads the tables now."""
        thread_id = thread_of(campaign_id, contact_id)
        self.runtime.blocking.signal(thread_id, "wake", key=key)

    def members(
        self, campaign_id: int, *, status: str = "active", without_draft: bool = False
    ) -> Iterator[tuple[int, str]]:
        """Contacts with this status in a campaign, and their time zones. `without_draft` leaves out
        those with a draft that waits for a person."""
        last = 0
        held = """AND NOT EXISTS (SELECT 1 FROM touches t WHERE t.campaign_id = m.campaign_id
                    AND t.contact_id = m.contact_id AND t.status = 'draft_pending')"""
        while True:
            page = self.database.rows(
                f"""SELECT m.contact_id, c.zone FROM members m
                    JOIN contacts c ON c.id = m.contact_id
                    WHERE m.campaign_id = :campaign_id AND m.contact_id > :last
                    AND m.status = :status {held if without_draft else ""}
                    ORDER BY m.contact_id LIMIT {PAGE}""",  # noqa: S608 (our own words)
                campaign_id=campaign_id,
                last=last,
                status=status,
            )
            yield from ((row["contact_id"], row["zone"]) for row in page)
            if len(page) < PAGE:
                return
            last = page[-1]["contact_id"]

    # -- looking

    def status(self) -> list[dict[str, Any]]:
        """Each campaign: members and touches by status, and stuck threads, which only the journal
        knows."""
        by_status = "SELECT campaign_id, status, count(*) AS n FROM {} GROUP BY campaign_id, status"
        found, members, touches, replies = self.database.read(
            sql("SELECT * FROM campaigns ORDER BY id"),
            sql(by_status.format("members")),
            sql(by_status.format("touches")),
            sql(
                """SELECT campaign_id, prompt_version, count(*) AS sent,
                     COALESCE(sum(outcome), 0) AS replies
                   FROM touches WHERE sent_at IS NOT NULL GROUP BY campaign_id, prompt_version"""
            ),
        )
        counts: dict[int, dict[str, dict[str, int]]] = {
            row["id"]: {"members": {}, "touches": {}} for row in found
        }
        for name, rows in (("members", members), ("touches", touches)):
            for row in rows:
                counts[row["campaign_id"]][name][row["status"]] = row["n"]
        threads = self._stuck()
        return [
            {
                "id": row["id"],
                "name": row["name"],
                "state": row["state"],
                "trouble": row["trouble"],
                "per_day": row["per_day"],
                "gaps": json.loads(row["gaps"]),
                "window": hours(Cadence.of(row).window),
                "days": weekdays(Cadence.of(row).window.days),
                **counts[row["id"]],
                "threads": threads.get(row["id"], {}),
                "prompts": {
                    one["prompt_version"]: {"sent": one["sent"], "replies": round(one["replies"])}
                    for one in replies
                    if one["campaign_id"] == row["id"]
                },
            }
            for row in found
        ]

    def _stuck(self) -> dict[int, dict[str, int]]:
        """How many threads of each campaign are held, paused or cancelled."""
        found: dict[int, dict[str, int]] = {}
        for run in self.threads(*STUCK):
            of = found.setdefault(run.metadata.get("campaign_id", 0), {})
            of[run.state.value] = of.get(run.state.value, 0) + 1
        return found

    def threads(self, *states: State) -> Iterator[Run]:
        """The threads of all campaigns that are in one of these states."""
        last: Run | None = None
        while True:
            page = self.runtime.blocking.runs(
                graph=GRAPH, state=states, after=last, limit=PAGE, output=False
            )
            yield from page
            if len(page) < PAGE:
                return
            last = page[-1]
