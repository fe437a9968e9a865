"""Contacts from a CSV file, into one campaign: all of them, or none and a list of the bad lines.

`read` judges a file by itself, `bring` judges it against the database and writes, in one batch. A
kill leaves nothing behind, and an import may be repeated: contacts already in the campaign are
counted and not changed. Of two concurrent imports, one finds its ids, or its places in the
campaign, taken; it reads again, and runs after the other. The same happens if a contact
unsubscribes or is erased in between; and every send checks once more.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from .database import Conflict, Database, Row, Statement, sql
from .errors import Unknown, refuse_stopped
from .records import NONE_SUPPRESSED, SUPPRESSED
from .sheet import (
    Bad,
    BadSheet,
    Line,
    NoAddressColumn,
    Sheet,
    hash_of,
    normalise,
    person_of,
    read,
)

__all__ = [
    "Bad",
    "BadSheet",
    "Line",
    "NoAddressColumn",
    "Refused",
    "Report",
    "Sheet",
    "bring",
    "normalise",
    "person_of",
    "read",
]

SHOWN = 20
"""Maximum number of bad lines in the message; the report has all."""

_FOUND = """SELECT c.id, c.address, c.name, c.company, c.zone, c.status, m.status AS member
FROM contacts c
LEFT JOIN members m ON m.contact_id = c.id AND m.campaign_id = :campaign_id
WHERE c.address IN (SELECT value->>'address' FROM json_each(:rows))"""
_SUPPRESSED = """SELECT hash, why FROM suppressions
WHERE hash IN (SELECT value->>'hash' FROM json_each(:rows))"""
_ADD = """INSERT INTO contacts (id, address, person, token, name, company, zone, status)
SELECT CAST(value->>'id' AS BIGINT), value->>'address', value->>'person', value->>'token',
  value->>'name', value->>'company', value->>'zone', 'active' FROM json_each(:rows)"""
_ENROL = """INSERT INTO members (campaign_id, contact_id, status)
SELECT CAST(:campaign_id AS BIGINT), CAST(value->>'id' AS BIGINT), 'active'
FROM json_each(:rows)"""
_LAST = """SELECT COALESCE(MAX(id), 0) AS id FROM (SELECT MAX(id) AS id FROM contacts
UNION ALL SELECT MAX(contact_id) FROM members) AS given"""
_AT_ONCE = 2000
"""Rows of one statement: a parameter may have 2 MB on D1."""
_TRIES = 100


class Refused(Exception):
    """A sheet with bad lines; nothing was imported. `report` has all bad lines."""

    def __init__(self, report: Report) -> None:
        count = len(report.bad)
        lines = [f"Nothing was imported: {count} bad line{'s' if count != 1 else ''}."]
        lines += [f"  line {bad.number}: {bad.reason}" for bad in report.bad[:SHOWN]]
        if count > SHOWN:
            lines.append(f"  and {count - SHOWN} more")
        lines.append(
            "Correct the file and import it again, or import the good lines with --skip-bad."
        )
        super().__init__("\n".join(lines))
        self.report = report


@dataclass(frozen=True)
class Report:
    """The result of an import: contacts added, contacts the campaign knew, and the bad lines."""

    added: int
    known: int
    bad: list[Bad]
    ignored_columns: list[str] = field(default_factory=list)
    without_zone: int = field(default=0, compare=False)
    """Contacts that were added with the default zone."""
    differing: dict[str, dict[str, str]] = field(default_factory=dict, compare=False)
    """By address: names, companies and zones in the file that a known contact does not have."""


def bring(database: Database, campaign_id: int, sheet: Sheet, *, skip_bad: bool = False) -> Report:
    """Make the contacts of a sheet members of a campaign, all at once.

    A contact the database already has, from any campaign, is not changed. One that has bounced,
    unsubscribed or been removed is a bad line, unless it is already a member; so is a person who
    unsubscribed or was erased under another address. If there are bad lines, `Refused` is raised
    and nothing is written; with `skip_bad` the good ones are.
    """
    perhaps: _Import | None = None
    for _ in range(_TRIES):
        found = _judge(database, campaign_id, sheet)
        if perhaps is not None and perhaps.is_in(found):
            return perhaps.report
        if found.report.bad and not skip_bad:
            raise Refused(replace(found.report, added=0))
        try:
            database.write(
                *_each(NONE_SUPPRESSED, [_hash(row["address"]) for row in found.members]),
                *_each(_ADD, found.new),
                *_each(_ENROL, found.members, campaign_id=campaign_id),
            )
            return found.report
        except Conflict as conflict:
            perhaps = found if conflict.perhaps_ours else None
    raise TimeoutError(f"Other imports were faster {_TRIES} times; try again.")


@dataclass(frozen=True)
class _Import:
    """The rows to write, and the report if they are written."""

    report: Report
    new: list[Row]
    members: list[Row]
    """By their ids."""
    there: dict[str, Row]

    def is_in(self, now: _Import) -> bool:
        """Whether the database already has these rows, under the same ids."""
        return all(
            (row := now.there.get(one["address"])) is not None
            and row["id"] == one["id"]
            and row["member"] is not None
            for one in self.members
        )


def _judge(database: Database, campaign_id: int, sheet: Sheet) -> _Import:
    hashes = [_hash(line.address) for line in sheet.rows]
    looked_for = _each(_FOUND, [asdict(line) for line in sheet.rows], campaign_id=campaign_id)
    campaigns, last, *pages = database.read(
        sql("SELECT id, name, state FROM campaigns WHERE id = :id", id=campaign_id),
        sql(_LAST),
        *looked_for,
        *_each(_SUPPRESSED, hashes),
    )
    if not campaigns:
        raise Unknown(f"There is no campaign {campaign_id}; nothing was imported.")
    refuse_stopped(campaigns[0], "imported into")
    there = {row["address"]: row for page in pages[: len(looked_for)] for row in page}
    suppressed = {row["hash"]: row["why"] for page in pages[len(looked_for) :] for row in page}
    new: list[Row] = []
    members: list[Row] = []
    known, bad = 0, list(sheet.bad)
    differing: dict[str, dict[str, str]] = {}
    for line, of in zip(sheet.rows, hashes, strict=True):
        contact = there.get(line.address)
        if contact is not None and (differs := _difference(line, contact)):
            differing[line.address] = differs
        if contact is not None and contact["member"] is not None:
            known += 1
        elif (why := suppressed.get(of["hash"])) is not None:
            bad.append(Bad(line.number, f"{line.address} {SUPPRESSED[why]}"))
        elif contact is None:
            new.append(
                asdict(line)
                | {
                    "id": last[0]["id"] + len(new) + 1,
                    "person": person_of(line.address),
                    "token": secrets.token_hex(10),
                }
            )
            members.append(new[-1])
        elif contact["status"] != "active":
            bad.append(Bad(line.number, f"{line.address} is {contact['status']}"))
        else:
            members.append(contact)
    bad.sort(key=lambda line: line.number)
    members.sort(key=lambda row: int(row["id"]))
    without_zone = sum(not row["has_zone"] for row in new)
    report = Report(len(members), known, bad, sheet.ignored_columns, without_zone, differing)
    return _Import(report, new, members, there)


def _difference(line: Line, contact: Row) -> dict[str, str]:
    """What the line says of a contact, and the database does not. An empty cell says nothing."""
    said = {"name": line.name, "company": line.company, "zone": line.zone * line.has_zone}
    return {what: text for what, text in said.items() if text and text != contact[what]}


def _hash(address: str) -> Row:
    return {"hash": hash_of(person_of(address))}


def _each(text: str, rows: list[Row], **params: Any) -> list[Statement]:
    """One statement for many rows, not one for each."""
    return [
        sql(text, rows=json.dumps(rows[first : first + _AT_ONCE]), **params)
        for first in range(0, len(rows), _AT_ONCE)
    ]
