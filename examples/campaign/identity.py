"""Which addresses are one person's.

A *person* is an address without its label, which follows a plus. A contact whose address was
replaced has had several, and they stand for one human being. So do the contacts of each of them, if
one was imported again. Erasing or unsubscribing one of them affects them all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .database import Database, json_list

_HELD = """SELECT person, id FROM contacts
  WHERE person IN (SELECT value->>'is' FROM json_each(:persons))
UNION SELECT person, id FROM contacts
  WHERE id IN (SELECT CAST(value->>'is' AS BIGINT) FROM json_each(:contacts))
UNION SELECT person, contact_id FROM former_addresses
  WHERE person IN (SELECT value->>'is' FROM json_each(:persons))
UNION SELECT person, contact_id FROM former_addresses
  WHERE contact_id IN (SELECT CAST(value->>'is' AS BIGINT) FROM json_each(:contacts))"""


@dataclass(frozen=True)
class Together:
    """Persons and contacts, by id, that belong together."""

    persons: list[str]
    contacts: list[int]


def together(database: Database, persons: Iterable[str], contacts: Iterable[int] = ()) -> Together:
    """These persons and contacts, and all that share a present or former address with them,
    directly or through others."""
    found = Together(sorted(set(persons)), sorted(set(contacts)))
    while True:
        held = database.rows(
            _HELD, persons=json_list(found.persons), contacts=json_list(found.contacts)
        )
        wider = Together(
            sorted({*found.persons, *(row["person"] for row in held)}),
            sorted({*found.contacts, *(row["id"] for row in held)}),
        )
        if wider == found:
            return found
        found = wider
