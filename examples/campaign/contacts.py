"""Contacts from a CSV file, into one campaign: all of them, or none and a list of the bad lines.

`read` judges a file by itself, `bring` judges it against the database and writes, in one
transaction. Killed in the middle it leaves nothing, and an import may be repeated: who is in the
campaign already is counted, and left as he is. Two imports at once take turns.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from .database import Database, Row, Session
from .sheet import Bad, BadSheet, Line, NoAddressColumn, Sheet, normalise, read

__all__ = [
    "Bad",
    "BadSheet",
    "Line",
    "NoAddressColumn",
    "Refused",
    "Report",
    "Sheet",
    "UnknownCampaign",
    "bring",
    "normalise",
    "read",
]

SHOWN = 20
"""So many bad lines are in the message; the report has all."""

_FOUND = """SELECT c.id, c.address, c.status, m.status AS member FROM contacts c
LEFT JOIN members m ON m.contact_id = c.id AND m.campaign_id = :campaign_id
WHERE c.address IN (SELECT value->>'address' FROM each)"""
_ADD = """INSERT INTO contacts (id, address, name, company, zone, status)
SELECT CAST(value->>'id' AS BIGINT), value->>'address', value->>'name', value->>'company',
  value->>'zone', 'active' FROM each"""
_ENROL = """INSERT INTO members (campaign_id, contact_id, status)
SELECT :campaign_id, CAST(value->>'id' AS BIGINT), 'active' FROM each"""


class UnknownCampaign(LookupError):
    """There is no campaign of this id."""


class Refused(Exception):
    """A sheet with bad lines: nothing of it was imported. `report` has all of them."""

    def __init__(self, report: Report) -> None:
        count = len(report.bad)
        lines = [f"Nothing was imported: {count} bad line{'s' if count != 1 else ''}."]
        lines += [f"  line {bad.number}: {bad.reason}" for bad in report.bad[:SHOWN]]
        if count > SHOWN:
            lines.append(f"  and {count - SHOWN} more")
        super().__init__("\n".join(lines))
        self.report = report


@dataclass(frozen=True)
class Report:
    """What became of a sheet: contacts added, contacts the campaign knew, and the bad lines."""

    added: int
    known: int
    bad: list[Bad]
    ignored_columns: list[str] = field(default_factory=list)


def bring(database: Database, campaign_id: int, sheet: Sheet, *, skip_bad: bool = False) -> Report:
    """Make the contacts of a sheet members of a campaign, in one transaction.

    A contact the database has, from whatever campaign, stays as it is there. One that has bounced,
    unsubscribed or was removed is a bad line, unless it is a member already. If there are bad
    lines, `Refused` is raised and nothing is written; with `skip_bad` the good ones are.
    """
    with database.transaction() as session:
        session.lock("contacts")
        if not session.one("SELECT 1 FROM campaigns WHERE id = :id", id=campaign_id):
            raise UnknownCampaign(f"There is no campaign {campaign_id}; nothing was imported.")
        there = {
            row["address"]: row
            for row in _each(session, _FOUND, map(asdict, sheet.rows), campaign_id=campaign_id)
        }
        last = session.run("SELECT COALESCE(MAX(id), 0) AS id FROM contacts")[0]["id"]
        new: list[Row] = []
        members: list[Row] = []
        known, bad = 0, list(sheet.bad)
        for line in sheet.rows:
            contact = there.get(line.address)
            if contact is None:
                new.append(asdict(line) | {"id": last + len(new) + 1})
                members.append(new[-1])
            elif contact["member"] is not None:
                known += 1
            elif contact["status"] != "active":
                bad.append(Bad(line.number, f"{line.address} is {contact['status']}"))
            else:
                members.append(contact)
        bad.sort(key=lambda line: line.number)
        if bad and not skip_bad:
            raise Refused(Report(0, known, bad, sheet.ignored_columns))
        _each(session, _ADD, new)
        _each(session, _ENROL, members, campaign_id=campaign_id)
    return Report(len(members), known, bad, sheet.ignored_columns)


def _each(session: Session, sql: str, rows: Iterable[Row], **params: Any) -> list[Row]:
    """One statement for all rows, not a round trip for each."""
    each = "json_array_elements(CAST(:each AS json))" if session.is_postgres else "json_each(:each)"
    return session.run(sql.replace("each", each), each=json.dumps(list(rows)), **params)
