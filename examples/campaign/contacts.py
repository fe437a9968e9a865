"""Contacts from a CSV file, into one campaign: all of them, or none and a list of the bad lines.

The batch that writes them leaves out what is there already. So a kill leaves nothing behind, an
import may be repeated, and two concurrent ones take turns.
"""

from __future__ import annotations

import contextlib
import csv
import json
import secrets
import zoneinfo
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from email_validator import EmailNotValidError, validate_email

from .database import Conflict, Database, Row, sql

COLUMNS = ("email", "name", "company", "zone")
_AT_ONCE = 2000
"""Rows of one statement: a parameter may have 2 MB on D1."""
_ADD = """INSERT INTO contacts (id, address, person, token, name, company, zone, status)
SELECT (SELECT COALESCE(MAX(id), 0) FROM contacts) + CAST(value->>'number' AS BIGINT),
  value->>'address', value->>'person', value->>'token', value->>'name', value->>'company',
  value->>'zone', 'active'
FROM json_each(:rows) WHERE 1 = 1 ON CONFLICT (address) DO NOTHING"""
_ENROL = """INSERT INTO members (campaign_id, contact_id, status)
SELECT CAST(:campaign_id AS BIGINT), c.id, 'active'
FROM json_each(:rows), contacts c WHERE c.address = value->>'address' AND c.status = 'active'
AND NOT EXISTS (SELECT 1 FROM suppressions s WHERE s.person = c.person)
AND EXISTS (SELECT 1 FROM campaigns WHERE id = :campaign_id AND state <> 'stopped')
ON CONFLICT (campaign_id, contact_id) DO NOTHING RETURNING contact_id"""
_FOUND = """SELECT value->>'address' AS address, c.status, m.status AS member, s.at AS opted_out
FROM json_each(:rows) LEFT JOIN contacts c ON c.address = value->>'address'
LEFT JOIN members m ON m.contact_id = c.id AND m.campaign_id = :campaign_id
LEFT JOIN suppressions s ON s.person = value->>'person'"""


class BadSheet(ValueError):
    """A file with bad lines, or that cannot be read. Nothing was imported."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n  ".join(["Nothing was imported:", *problems]))
        self.problems = problems


@dataclass(frozen=True)
class Line:
    """A contact in a file."""

    number: int
    address: str
    person: str
    name: str
    company: str
    zone: str
    token: str = field(default_factory=lambda: secrets.token_hex(10))


def normalise(address: str) -> str:
    """One spelling per mailbox. Raises `ValueError` if mail cannot be sent to it.

    The local part is lower-cased too: no mail provider distinguishes Ana@ from ana@, and one person
    must not count as two.
    """
    try:
        found = validate_email(address.strip(), check_deliverability=False, allow_smtputf8=False)
    except EmailNotValidError as error:
        raise ValueError(f"{address.strip()[:80]!r} is not an address: {error}") from None
    assert found.ascii_email is not None
    return found.ascii_email.lower()


def person_of(address: str) -> str:
    """The mailbox behind a normalised address: what follows a plus is a label."""
    local, _, domain = address.rpartition("@")
    return f"{local.partition('+')[0] or local}@{domain}"


def read(sheet: Path | str, zone: str) -> list[Line]:
    """The contacts of a file, or of its text. A line without a zone gets this one."""
    text = sheet.read_text(encoding="utf-8-sig") if isinstance(sheet, Path) else sheet
    reader = csv.DictReader(text.splitlines())
    reader.fieldnames = [name.strip().lower() for name in reader.fieldnames or ()]
    if "email" not in reader.fieldnames:
        raise BadSheet([f"the first line names the columns: {', '.join(COLUMNS)}"])
    lines: dict[str, Line] = {}
    problems: list[str] = []
    for cells in reader:
        try:
            line = _line(reader.line_num, cells, zone)
            if line.address in lines:
                raise ValueError(f"{line.address} is already on line {lines[line.address].number}")
            lines[line.address] = line
        except ValueError as error:
            problems.append(f"line {reader.line_num}: {error}")
    if problems:
        raise BadSheet(problems)
    return list(lines.values())


def _line(number: int, cells: dict[str, str | None], default: str) -> Line:
    values = {name: (cells.get(name) or "").strip() for name in COLUMNS}
    for name, value in values.items():  # a line break would let a cell write headers into a mail
        if not value.isprintable():
            raise ValueError(f"{name} contains a control character")
    zone = values["zone"] or default
    if zone not in zoneinfo.available_timezones():
        raise ValueError(f"{zone!r} is not a time zone such as Europe/Berlin")
    address = normalise(values["email"])
    return Line(number, address, person_of(address), values["name"], values["company"], zone)


def import_lines(database: Database, campaign_id: int, lines: list[Line]) -> int:
    """Make these contacts members of a campaign, all at once. Returns how many were added.

    Contacts that the database has are not changed. One that bounced, opted out or was removed is a
    bad line, unless it is a member already: then `BadSheet` is raised, and nothing is written.
    """
    batches = list(_batches(lines))
    found = database.read(*(sql(_FOUND, rows=rows, campaign_id=campaign_id) for rows in batches))
    problems = []
    for row in (row for page in found for row in page if row["member"] is None):
        if row["opted_out"] is not None:
            problems.append(f"{row['address']} has opted out")
        elif row["status"] not in (None, "active"):
            problems.append(f"{row['address']} is {row['status']}")
    if problems:
        raise BadSheet(problems)
    known = sum(row["member"] is not None for page in found for row in page)
    while True:
        with contextlib.suppress(Conflict):  # another import took these ids: it is done by now
            database.write(
                *(sql(_ADD, rows=rows) for rows in batches),
                *(sql(_ENROL, rows=rows, campaign_id=campaign_id) for rows in batches),
            )
            return len(lines) - known


def _batches(lines: list[Line]) -> Iterator[str]:
    for first in range(0, len(lines), _AT_ONCE):
        rows: list[Row] = [asdict(line) for line in lines[first : first + _AT_ONCE]]
        for number, row in enumerate(rows, 1):
            row["number"] = number
        yield json.dumps(rows)
