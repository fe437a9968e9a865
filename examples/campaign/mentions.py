"""The address of an erased person in other people's texts: mails, drafts, briefs.

An address is found with any label and in any spelling of its domain, whatever marks are around it.
What may be part of somebody else's address stays: jim-bo@example.org is not bo@example.org, and
bo@example.org.au is not either.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from .database import Database, Row, Statement, sql
from .records import UNSENT

ERASED = "[erased]"
_TEXTS = (
    ("messages", ("id",), ("subject", "text")),
    ("touches", ("campaign_id", "contact_id", "step"), ("subject", "body", "said")),
    ("campaigns", ("id",), ("brief", "trouble")),
)
"""The tables with such texts, their keys, and the columns."""
_BEFORE = r"(?:(?<![\w.+'-])[_.'-]*|\.{3})"
"""Marks that begin a word, or an ellipsis. After a letter they may be part of a local part."""
_AFTER = r"(?!-*[^\W_]|\.[^\W_])"
"""No more of a domain."""
_NAMES = """EXISTS (SELECT 1 FROM json_each(:parts)
  WHERE REPLACE(LOWER({0}), value->>'local', '') <> LOWER({0})
  AND REPLACE(LOWER({0}), value->>'domain', '') <> LOWER({0}))"""
"""Not LIKE: its patterns have at most 50 bytes on D1."""


class Mention(NamedTuple):
    """A row that names the person."""

    table: str
    key: Row
    was: Row
    """The columns that do."""
    becomes: Row

    @property
    def is_text_of_ours(self) -> bool:
        return self.table == "touches" and self.was.keys() != {"said"}

    def erased(self) -> Statement:
        """Replace the texts, if they are still the same. An unsent touch is written again, since no
        person has approved its new text."""
        sets = [f"{name} = :{name}" for name in self.becomes]
        if self.is_text_of_ours:
            unsent = f"sent_at IS NULL AND status IN {UNSENT}"
            sets.append(f"status = CASE WHEN {unsent} THEN 'stopped' ELSE status END")
        where = [f"{name} = :{name}" for name in self.key]
        where += [f"{name} = :was_{name}" for name in self.was]
        return sql(
            f"UPDATE {self.table} SET {', '.join(sets)} WHERE {' AND '.join(where)}",  # noqa: S608
            **self.key,
            **self.becomes,
            **{f"was_{name}": text for name, text in self.was.items()},
        )


class Addresses:
    """All addresses of some persons."""

    def __init__(self, persons: Sequence[str]) -> None:
        spelled = "|".join(map(_spelled, persons))
        self._exact = re.compile(spelled, re.IGNORECASE)
        self._mention = re.compile(f"{_BEFORE}(?:{spelled}){_AFTER}", re.IGNORECASE)
        self._parts = json.dumps([_parts(person) for person in persons])

    def messages(self, database: Database) -> list[str]:
        """The ids of the messages from one of these addresses."""
        found = self._rows(database, "messages", ("id", "address"), ("address",))
        return [row["id"] for row in found if self._exact.fullmatch(row["address"])]

    def mentions(
        self, database: Database, contacts: Collection[int], messages: Collection[str]
    ) -> Iterator[Mention]:
        """The rows that name one of them, without those of these contacts and messages."""
        for table, key, columns in _TEXTS:
            for row in self._rows(database, table, (*key, *columns), columns):
                if row.get("contact_id") in contacts or row.get("id") in messages:
                    continue
                texts = {name: self._mention.sub(ERASED, row[name]) for name in columns}
                becomes = {name: text for name, text in texts.items() if text != row[name]}
                if becomes:
                    was = {name: row[name] for name in becomes}
                    yield Mention(table, {name: row[name] for name in key}, was, becomes)

    def _rows(
        self, database: Database, table: str, read: Sequence[str], columns: Sequence[str]
    ) -> list[Row]:
        """The rows that may name one of them in these columns."""
        names = _NAMES.format(f"({' || '.join(columns)})")
        return database.rows(
            f"SELECT {', '.join(read)} FROM {table} WHERE {names}",  # noqa: S608 (our own words)
            parts=self._parts,
        )


def _spelled(person: str) -> str:
    """A pattern for an address of the person, also as a link has it (bo%40example.org)."""
    local, _, domain = person.rpartition("@")
    spellings = {domain}
    with contextlib.suppress(UnicodeError):
        spellings.add(domain.encode().decode("idna"))
    domains = "|".join(map(re.escape, sorted(spellings)))
    return rf"{re.escape(local)}(?:(?:\+|%2B)[^\s@<>]{{0,64}})?(?:@|%40)(?:{domains})"


def _parts(person: str) -> dict[str, str]:
    """What a text with an address of the person has in it. A domain beyond ASCII has several
    spellings, and SQLite does not know its capitals: then only the local part is looked for."""
    local, _, domain = person.rpartition("@")
    return {"local": local, "domain": local if "xn--" in domain else domain}
