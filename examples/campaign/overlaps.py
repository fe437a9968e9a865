"""How other campaigns affect the members of one: whose mails are kept apart, and which steps are
left out.

`import` and `launch` print it, before a person wonders why nothing is sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass

from .database import Database, sql
from .turns import DAY

_SHARED = """SELECT count(*) AS n FROM members m JOIN contacts c ON c.id = m.contact_id
WHERE m.campaign_id = :id AND m.status = 'active' AND c.status = 'active' AND (EXISTS
  (SELECT 1 FROM bookings b WHERE b.person = c.person AND b.at > :since
   AND b.sequence <> :sequence)
  OR EXISTS
  (SELECT 1 FROM contacts same JOIN members other ON other.contact_id = same.id
   JOIN campaigns k ON k.id = other.campaign_id
   WHERE same.person = c.person AND same.status = 'active' AND other.status = 'active'
   AND k.state <> 'stopped' AND k.sequence <> :sequence))"""
_REPEATED = """SELECT count(*) AS steps, count(DISTINCT m.contact_id) AS contacts
FROM campaigns k JOIN touches t ON t.campaign_id = k.id AND t.status = 'sent' AND t.step <= :steps
JOIN members m ON m.campaign_id = :id AND m.contact_id = t.contact_id AND m.status = 'active'
WHERE k.sequence = :sequence AND k.id <> :id AND NOT EXISTS
  (SELECT 1 FROM touches mine WHERE mine.campaign_id = :id AND mine.contact_id = t.contact_id
   AND mine.step = t.step)"""


@dataclass(frozen=True)
class Overlap:
    """`shared` members are in another campaign as well, or had its mail lately. `steps` of
    `contacts` members were sent already, by another campaign of the same sequence."""

    shared: int
    apart: int
    """Days between mails to one person."""
    steps: int
    contacts: int
    sequence: str

    def lines(self) -> Iterator[str]:
        if self.shared:
            yield (
                f"{self.shared} of its active members {'is' if self.shared == 1 else 'are'} in "
                "another campaign too, or had its mail lately: its mails and these are kept "
                f"{self.apart} day{'s' * (self.apart != 1)} apart (CAMPAIGN_APART)."
            )
        if self.steps:
            yield (
                f"{self.steps} touch{'es' * (self.steps != 1)} to {self.contacts} of its active "
                "members will be left out as duplicates: another campaign of the sequence "
                f"{self.sequence!r} has sent the same step. A campaign created without --sequence "
                "has its own sequence."
            )


def find(database: Database, campaign_id: int, apart: int, now: int) -> Overlap:
    """Count overlaps; `apart` is in days, `now` in milliseconds."""
    row = database.one("SELECT * FROM campaigns WHERE id = :id", id=campaign_id)
    assert row is not None
    of = {"id": campaign_id, "sequence": row["sequence"]}
    [shared], [repeated] = database.read(
        sql(_SHARED, since=now - apart * DAY, **of),
        sql(_REPEATED, steps=len(json.loads(row["gaps"])), **of),
    )
    return Overlap(shared["n"] if apart else 0, apart, **repeated, sequence=row["sequence"])
