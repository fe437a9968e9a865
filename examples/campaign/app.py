"""The application: a runtime with the agent, and operations on campaigns.

Each operation is one batch, which decides; then the threads are told, one by one. A command that
was killed halfway is finished by repeating it: threads are started and signalled under a key, and
one that was not told yet finds out by itself within six hours.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import dataclass, field
from email.headerregistry import Address
from email.utils import parseaddr
from pathlib import Path
from typing import Any

import perdure
from perdure.journal.clock import Clock, JournalClock

from . import contacts, records, writer
from .agent import Agent, thread_of
from .cadence import Cadence
from .database import Conflict, Database, Row, sql
from .settings import Settings

GRAPH = "campaign"


class Unknown(LookupError):
    """There is no such campaign or contact."""


class WrongState(ValueError):
    """The campaign was stopped for good. Nothing was changed."""


@dataclass(frozen=True)
class Plan:
    """A campaign as a person describes it."""

    name: str
    brief: str
    sender: str
    """`Ana Ruiz <ana@example.com>`"""
    cadence: Cadence = field(default_factory=Cadence)
    auto_approve: bool = False


class App:
    """Campaigns, contacts, and the runtime that drives their threads."""

    def __init__(
        self, settings: Settings | None = None, *, clock: Clock | None = None, observe: Any = None
    ) -> None:
        self.settings = settings or Settings.read()
        self.runtime = perdure.Runtime(self.settings.url, clock=clock, observe=observe)
        self.database = Database(self.settings.url, keep=True)
        self._clock = clock
        model = writer.model_for(self.settings.model)
        agent = Agent(self.settings, self.runtime, self.database, model, lambda: self.clock.now())
        self.runtime.register(agent.graph(), name=GRAPH, hold=True)

    @property
    def clock(self) -> Clock:
        """The journal's time, which everything here uses."""
        if self._clock is None:
            self._clock = JournalClock(self.runtime.journal)
        return self._clock

    def setup(self) -> None:
        """Create the journal and the tables if they do not exist."""
        self.runtime.setup()
        self.database.create()

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
        """Add a campaign, unless the same one exists. Returns its id. Raises `ValueError` if its
        name is taken, or its sender is invalid."""
        row: Row = {
            "name": plan.name,
            "sender": _sender(plan.sender),
            "brief": plan.brief,
            "auto_approve": int(plan.auto_approve),
            **plan.cadence.columns(),
        }
        while True:
            with contextlib.suppress(Conflict):  # another process took the id
                _, [found] = self.database.write(
                    sql(
                        """INSERT INTO campaigns (id, name, sender, brief, gaps, days, opens,
                             closes, auto_approve, state, trouble)
                           SELECT COALESCE(MAX(id), 0) + 1, CAST(:name AS TEXT),
                             CAST(:sender AS TEXT), CAST(:brief AS TEXT), CAST(:gaps AS TEXT),
                             CAST(:days AS TEXT), CAST(:opens AS TEXT), CAST(:closes AS TEXT),
                             CAST(:auto_approve AS INTEGER), 'running', ''
                           FROM campaigns WHERE 1 = 1 ON CONFLICT (name) DO NOTHING""",
                        **row,
                    ),
                    sql("SELECT * FROM campaigns WHERE name = :name", name=plan.name),
                )
                if not found.items() >= row.items():
                    raise ValueError(f"Campaign {plan.name!r} already exists; choose another name.")
                return int(found["id"])

    def campaign(self, name: str) -> Row:
        row = self.database.one("SELECT * FROM campaigns WHERE name = :name", name=name)
        if row is None:
            raise Unknown(f"There is no campaign {name!r}; `status` lists them.")
        return row

    def import_contacts(self, campaign_id: int, sheet: Path | str) -> int:
        """Import contacts from CSV, all or none; a `Path` is a file, a text is the sheet itself.
        Returns how many were added."""
        self._unless_stopped(campaign_id)
        lines = contacts.read(sheet, self.settings.zone)
        return contacts.import_lines(self.database, campaign_id, lines)

    def launch(self, campaign_id: int) -> int:
        """Start a thread for each active member that has none; returns how many. May be repeated.
        Threads of a campaign that does not run wait until it is resumed."""
        self._unless_stopped(campaign_id)
        started = 0
        for contact_id in self._members(campaign_id, "active"):
            thread_id = thread_of(campaign_id, contact_id)
            if self.runtime.blocking.runs(thread_id=thread_id, limit=1, output=False):
                continue
            of = {"campaign_id": campaign_id, "contact_id": contact_id}
            self.runtime.blocking.start(
                GRAPH,
                of,
                thread_id=thread_id,
                key=GRAPH,  # another process may launch now
                metadata={**of, "sequence_step": 1},
                tags=[f"campaign:{campaign_id}"],
            )
            started += 1
        return started

    def pause(self, campaign_id: int) -> None:
        """Send nothing until `resume`. When this returns, no conversation that begins later sends.
        Drafts that wait stay open, and may be answered."""
        self._unless_stopped(campaign_id)
        self.database.write(
            sql(
                "UPDATE campaigns SET state = 'paused' WHERE id = :id AND state <> 'stopped'",
                id=campaign_id,
            )
        )

    def resume(self, campaign_id: int) -> None:
        """Send again, after a pause or a trouble, and wake every thread. Refused mails are tried
        again at once."""
        self._unless_stopped(campaign_id)
        self.database.write(
            records.forget_refusals({"campaign_id": campaign_id}),
            sql(
                """UPDATE campaigns SET state = 'running', trouble = ''
                   WHERE id = :id AND state <> 'stopped'""",
                id=campaign_id,
            ),
        )
        self._wake(campaign_id, "active", f"resumed {uuid.uuid4().hex}")

    def stop(self, campaign_id: int) -> None:
        """End a campaign for good: its members and its threads end, and drafts are withdrawn."""
        of = {"id": campaign_id}
        self.database.write(
            sql("UPDATE campaigns SET state = 'stopped' WHERE id = :id", **of),
            sql(
                """UPDATE members SET status = 'stopped'
                   WHERE campaign_id = :id AND status = 'active'""",
                **of,
            ),
        )
        self._wake(campaign_id, "stopped", "stopped")

    def remove(self, address: str) -> None:
        """Stop writing to a person, in all campaigns, later ones included."""
        address = contacts.normalise(address)
        person = contacts.person_of(address)
        found = self.database.rows("SELECT id FROM contacts WHERE person = :person", person=person)
        statements = [one for row in found for one in records.end_contact(row["id"], "removed")]
        suppress = """INSERT INTO suppressions (person, at) VALUES (:person, :at)
                      ON CONFLICT (person) DO NOTHING"""
        self.database.write(sql(suppress, person=person, at=self.clock.now()), *statements)
        for row in found:
            for member in self.database.rows(
                "SELECT campaign_id FROM members WHERE contact_id = :id", id=row["id"]
            ):
                thread_id = thread_of(member["campaign_id"], row["id"])
                self.runtime.blocking.signal(thread_id, "wake", key="removed")

    def status(self) -> list[dict[str, Any]]:
        """Each campaign, with members and touches by status, and what each prompt earned."""
        counts = "SELECT campaign_id, status, count(*) AS n FROM {} GROUP BY campaign_id, status"
        found, members, touches, prompts = self.database.read(
            sql("SELECT * FROM campaigns ORDER BY id"),
            sql(counts.format("members")),
            sql(counts.format("touches")),
            sql(
                """SELECT campaign_id, prompt_version, count(*) AS sent,
                     COALESCE(sum(outcome), 0) AS replies
                   FROM touches WHERE sent_at IS NOT NULL GROUP BY campaign_id, prompt_version"""
            ),
        )

        def of(rows: list[Row], campaign_id: int) -> dict[str, int]:
            return {row["status"]: row["n"] for row in rows if row["campaign_id"] == campaign_id}

        return [
            {
                **{name: row[name] for name in ("name", "state", "trouble")},
                "members": of(members, row["id"]),
                "touches": of(touches, row["id"]),
                "prompts": {
                    one["prompt_version"]: {"sent": one["sent"], "replies": round(one["replies"])}
                    for one in prompts
                    if one["campaign_id"] == row["id"]
                },
            }
            for row in found
        ]

    def _unless_stopped(self, campaign_id: int) -> None:
        row = self.database.one("SELECT * FROM campaigns WHERE id = :id", id=campaign_id)
        if row is None:
            raise Unknown(f"There is no campaign {campaign_id}; `status` lists them.")
        if row["state"] == "stopped":
            raise WrongState(f"Campaign {row['name']!r} is stopped for good; create another one.")

    def _members(self, campaign_id: int, status: str) -> list[int]:
        found = self.database.rows(
            """SELECT contact_id FROM members
               WHERE campaign_id = :id AND status = :status ORDER BY contact_id""",
            id=campaign_id,
            status=status,
        )
        return [row["contact_id"] for row in found]

    def _wake(self, campaign_id: int, status: str, key: str) -> None:
        """Wake threads, so that they read the tables now. One with an open draft looks again and
        asks the same question."""
        for contact_id in self._members(campaign_id, status):
            thread_id = thread_of(campaign_id, contact_id)
            self.runtime.blocking.signal(thread_id, "wake", key=key)


def _sender(sender: str) -> str:
    """A sender that a mail can be from: one address, with or without a name."""
    name, address = parseaddr(sender)
    try:
        return str(Address(name, addr_spec=contacts.normalise(address)))
    except ValueError as error:
        raise ValueError(
            f"{sender!r} is not a sender such as 'Ana <ana@example.com>': {error}"
        ) from None
