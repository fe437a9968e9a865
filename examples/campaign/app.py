"""The application put together: a runtime with the agent, and what its people can ask of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import perdure
from perdure.journal.clock import Clock, JournalClock
from perdure.types import Run, State

from . import contacts, records, writer
from .agent import Agent, thread_of
from .cadence import Cadence, due, hours, weekdays
from .contacts import Report
from .database import Conflict, Database, Row, sql
from .settings import Settings

GRAPH = "campaign"
PAGE = 500
STUCK = (State.HELD, State.PAUSED, State.CANCELLED)
_CREATE = """INSERT INTO campaigns (id, name, sequence, sender, brief, gaps, days, opens, closes,
  auto_approve, per_day, state, trouble, troubles, version)
VALUES (:id, :name, :sequence, :sender, :brief, :gaps, :days, :opens, :closes, :auto_approve,
  :per_day, 'running', '', 0, :version)"""
_CHANGE = """UPDATE campaigns SET gaps = :gaps, days = :days, opens = :opens, closes = :closes,
  version = :version
WHERE id = :id AND version = :version - 1"""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Unknown(LookupError):
    """There is no campaign, or no contact, of this name."""


@dataclass(frozen=True)
class Plan:
    """A campaign as a person describes it. Campaigns of one `sequence` never send a contact the
    same step twice; by default a campaign has a sequence of its own. `per_day` is the most that its
    sender's address sends in a day, 0 for any number."""

    name: str
    brief: str
    sender: str
    sequence: str = ""
    cadence: Cadence = field(default_factory=Cadence)
    auto_approve: bool = False
    per_day: int = 0


@dataclass(frozen=True)
class Launched:
    """What a launch started: so many threads, and when, and where, the first touch may go out."""

    threads: int = 0
    due: datetime | None = None
    zone: str = ""
    is_due: bool = False
    """Whether that is now."""


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
        agent = Agent(self.settings, self.runtime, self.database, model)
        self.runtime.register(agent.graph(), name=GRAPH, hold=True)

    def setup(self) -> None:
        """Make the journal and the tables, if they are not there."""
        self.runtime.setup()
        self.database.create()

    @property
    def clock(self) -> Clock:
        """The time of the journal, by which everything here goes."""
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
        """Add a campaign, and give its id."""
        row: Row = {
            "name": plan.name,
            "sequence": plan.sequence or plan.name,
            "sender": plan.sender,
            "brief": plan.brief,
            "auto_approve": int(plan.auto_approve),
            "per_day": plan.per_day,
            "version": 1,
            **plan.cadence.to_columns(),
        }
        perhaps_ours = False
        while True:
            there, [last] = self.database.read(
                sql("SELECT * FROM campaigns WHERE name = :name", name=plan.name),
                sql("SELECT COALESCE(MAX(id), 0) AS id FROM campaigns"),
            )
            if there and perhaps_ours and there[0].items() >= row.items():
                return int(there[0]["id"])
            if there:
                raise ValueError(f"There is a campaign {plan.name!r} already; choose another name.")
            try:
                self.database.write(sql(_CREATE, id=last["id"] + 1, **row))
                return int(last["id"]) + 1
            except Conflict as conflict:  # somebody else was faster; or it is this one
                perhaps_ours = conflict.perhaps_ours

    def campaign(self, name: str) -> Row:
        row = self.database.one("SELECT * FROM campaigns WHERE name = :name", name=name)
        if row is None:
            raise Unknown(f"There is no campaign {name!r}; `status` lists them.")
        return row

    def bring(self, campaign_id: int, sheet: str | Path, *, skip_bad: bool = False) -> Report:
        """Import contacts from CSV, all or none; a `Path` is a file, a text is the sheet itself."""
        read = contacts.read(sheet, zone=self.settings.zone)
        return contacts.bring(self.database, campaign_id, read, skip_bad=skip_bad)

    def launch(self, campaign_id: int) -> Launched:
        """Start the threads of a campaign. Who has one keeps it: this may be said again."""
        started = 0
        zones: set[str] = set()
        for contact_id, zone in self._members(campaign_id):
            thread_id = thread_of(campaign_id, contact_id)
            if self.runtime.blocking.runs(thread_id=thread_id, limit=1, output=False):
                continue
            self.runtime.blocking.start(
                GRAPH,
                {"campaign_id": campaign_id, "contact_id": contact_id},
                thread_id=thread_id,
                key=GRAPH,  # somebody else may launch right now
                metadata={
                    "campaign_id": campaign_id,
                    "contact_id": contact_id,
                    "sequence_step": 1,
                },
                tags=[f"campaign:{campaign_id}"],
            )
            started += 1
            zones.add(zone)
        if not started:
            return Launched()
        row = self.database.one("SELECT * FROM campaigns WHERE id = :id", id=campaign_id)
        assert row is not None
        now = _EPOCH + timedelta(milliseconds=self.clock.now())
        first, zone = min((due(Cadence.of(row), 1, now, zone), zone) for zone in zones)
        return Launched(started, first, zone, first <= now)

    def set_cadence(self, campaign_id: int, cadence: Cadence) -> int:
        """Change when touches go out, for threads that sleep, too. Gives the new version."""
        columns = cadence.to_columns()
        while True:
            row = self.database.one("SELECT version FROM campaigns WHERE id = :id", id=campaign_id)
            if row is None:
                raise Unknown(f"There is no campaign {campaign_id}.")
            version = int(row["version"]) + 1
            _, [found] = self.database.write(
                sql(_CHANGE, id=campaign_id, version=version, **columns),
                sql("SELECT * FROM campaigns WHERE id = :id", id=campaign_id),
            )
            if found.items() >= {"version": version, **columns}.items():
                break  # else somebody else changed it meanwhile
        for contact_id, _ in self._members(campaign_id, without_draft=True):
            self.wake(campaign_id, contact_id, f"cadence {version}")
        return version

    def remove(self, address: str) -> list[int]:
        """Write to a contact no more. Gives the campaigns that end by that."""
        row = self.database.one(
            "SELECT id FROM contacts WHERE address = :address",
            address=contacts.normalise(address),
        )
        if row is None:
            raise Unknown(f"There is no contact {address!r}.")
        before = records.campaigns_of(self.database, row["id"])
        self.database.write(*records.end_contact(row["id"], "removed"))
        after = records.campaigns_of(self.database, row["id"])
        for campaign_id in after:  # also those that an attempt before this one did not come to
            self.wake(campaign_id, row["id"], "removed")
        return [
            campaign_id
            for campaign_id, status in after.items()
            if status == "removed" and before.get(campaign_id) == "active"
        ]

    def wake(self, campaign_id: int, contact_id: int, key: str) -> None:
        """Let a thread look at reality now."""
        thread_id = thread_of(campaign_id, contact_id)
        self.runtime.blocking.signal(thread_id, "wake", key=key)

    def _members(
        self, campaign_id: int, *, without_draft: bool = False
    ) -> Iterator[tuple[int, str]]:
        """Those who are written to, with their time zones."""
        last = 0
        held = """AND NOT EXISTS (SELECT 1 FROM touches t WHERE t.campaign_id = m.campaign_id
                    AND t.contact_id = m.contact_id AND t.status = 'draft_pending')"""
        while True:
            page = self.database.rows(
                f"""SELECT m.contact_id, c.zone FROM members m
                    JOIN contacts c ON c.id = m.contact_id
                    WHERE m.campaign_id = :campaign_id AND m.contact_id > :last
                    AND m.status = 'active' {held if without_draft else ""}
                    ORDER BY m.contact_id LIMIT {PAGE}""",  # noqa: S608 (our own words)
                campaign_id=campaign_id,
                last=last,
            )
            yield from ((row["contact_id"], row["zone"]) for row in page)
            if len(page) < PAGE:
                return
            last = page[-1]["contact_id"]

    # -- looking

    def status(self) -> list[dict[str, Any]]:
        """Each campaign, with how many members and touches are how, and how many threads do not go
        on: the tables do not know of those."""
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
        threads = self._troubled()
        return [
            {
                "id": row["id"],
                "name": row["name"],
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

    def _troubled(self) -> dict[int, dict[str, int]]:
        """How many threads of each campaign a person has to look after, or has cancelled."""
        found: dict[int, dict[str, int]] = {}
        last: Run | None = None
        while True:
            page = self.runtime.blocking.runs(
                graph=GRAPH, state=STUCK, after=last, limit=PAGE, output=False
            )
            for run in page:
                of = found.setdefault(run.metadata.get("campaign_id", 0), {})
                of[run.state.value] = of.get(run.state.value, 0) + 1
            if len(page) < PAGE:
                return found
            last = page[-1]
