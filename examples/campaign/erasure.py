"""Erasing a person: only a hash is left, so that a later import does not write to them again.

A person is all addresses that differ only in what follows a plus. What each crash leaves behind:

    before the first batch     nothing has happened
    suppressed                 nothing more is sent; the threads and rows are still there
    some threads ended         `cancelled`; they cannot go on
    some threads erased        the others; the rows still say which they are
    rows deleted               bytes in the free pages of a SQLite file, which `scrub` removes

In each case, erasing again finishes the work: the rows that lead to everything else are deleted in
one batch, and last. A later mail from the person is a new stray, kept until the person is erased
again.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.types import ENDED, Run

from . import records
from .agent import thread_of
from .database import Row, Statement, sql
from .sheet import hash_of, normalise, person_of

if TYPE_CHECKING:
    from .app import App

ERASED = "[erased]"
OUTSIDE = (
    "the mail provider's own log and copies (ask it to delete these Message-IDs)",
    "the mailboxes of the people who sent or received these mails",
    "backups of the database, and on D1 its Time Travel (30 days)",
    "exported traces and tables, and logs: `inbound` logs senders",
    "the person's name in other people's texts",
)
"""What erasing cannot reach."""
PATIENCE = 30.0
"""Seconds to wait for a worker to release a thread."""
_PAUSE = 0.05
_CONTACTS = """(SELECT id FROM contacts WHERE person = :person
  UNION SELECT contact_id FROM former_addresses WHERE person = :person)"""
_OWNED = ("touches", "bookings", "members")
_MENTIONS = (
    ("messages", "id", ("address", "subject", "text")),
    ("campaigns", "id", ("trouble",)),
    ("touches", "campaign_id, contact_id, step", ("said",)),
)
"""Other people's texts that may mention the address: the table, its key, the columns."""


class StillDriven(Exception):
    """A worker holds a thread of the person: nothing more is sent, but not everything is deleted
    yet."""


@dataclass(frozen=True)
class Erased:
    """What was deleted: rows by table, those of the journal too, and the Message-IDs of the mails
    that were, or may have been, sent to the person."""

    rows: dict[str, int]
    message_ids: list[str]
    scrubbed: bool
    """Whether the deleted bytes were removed from the files. False: the database does that."""


def erase(app: App, address: str, *, patience: float = PATIENCE) -> Erased:
    """Delete everything about a person, and keep a hash. May be repeated, also after a crash.

    Raises `StillDriven` if a worker does not release one of the threads within `patience` seconds.
    """
    person = person_of(normalise(address))
    persons = _persons(app, person)
    for one in persons:
        _stop(app, one)
    threads = _threads(app, person)
    for thread_id in threads:
        _end(app, thread_id, patience)
    deleted: Counter[str] = Counter()
    for thread_id in threads:
        deleted.update(app.runtime.blocking.erase(thread_id))
    message_ids = [
        row["message_id"]
        for row in app.database.rows(
            f"""SELECT message_id FROM touches WHERE contact_id IN {_CONTACTS}
                AND attempt IS NOT NULL ORDER BY attempt_at""",  # noqa: S608 (our own words)
            person=person,
        )
    ]
    for one in persons:  # the first deletes the contacts
        deleted.update(_delete_rows(app, one))
    for thread_id in threads:  # a mail that arrived meanwhile may have signalled them
        deleted.update(app.runtime.blocking.erase(thread_id))
    return Erased(dict(deleted), message_ids, app.runtime.blocking.scrub())


def _persons(app: App, person: str) -> list[str]:
    """Everyone whose address the person's contacts have or had, the person last."""
    found = app.database.rows(
        f"""SELECT person FROM contacts WHERE id IN {_CONTACTS}
            UNION SELECT person FROM former_addresses WHERE contact_id IN {_CONTACTS}""",  # noqa: S608
        person=person,
    )
    return [*({row["person"] for row in found} - {person}), person]


def _stop(app: App, person: str) -> None:
    """From here on nothing is sent to the person, and no import adds them again."""
    app.database.write(
        records.suppress(person, "erased", app.clock.now()),
        sql("UPDATE suppressions SET why = 'erased' WHERE hash = :hash", hash=hash_of(person)),
        sql(f"UPDATE contacts SET status = 'removed' WHERE id IN {_CONTACTS}", person=person),  # noqa: S608
        sql(
            f"""UPDATE members SET status = 'removed' WHERE contact_id IN {_CONTACTS}
                AND status = 'active'""",  # noqa: S608 (our own words)
            person=person,
        ),
    )


def _threads(app: App, person: str) -> list[str]:
    found = app.database.rows(
        f"""SELECT campaign_id, contact_id FROM members WHERE contact_id IN {_CONTACTS}
            UNION SELECT campaign_id, contact_id FROM touches WHERE contact_id IN {_CONTACTS}
            ORDER BY 1, 2""",  # noqa: S608 (our own words)
        person=person,
    )
    return [thread_of(row["campaign_id"], row["contact_id"]) for row in found]


def _end(app: App, thread_id: str, patience: float) -> None:
    """Cancel the runs of a thread, and wait for the worker that drives one."""
    client, give_up = app.runtime.blocking, time.monotonic() + patience
    asked: set[str] = set()
    while going := [run for run in client.runs(thread_id=thread_id) if run.state not in ENDED]:
        for run in going:
            if run.id not in asked:
                client.cancel(run.id, grace=timedelta(seconds=1), reason="the contact is erased")
                asked.add(run.id)
        if time.monotonic() > give_up:
            raise StillDriven(_still_driven(going[0], thread_id))
        time.sleep(_PAUSE)


def _still_driven(run: Run, thread_id: str) -> str:
    return (
        f"Run {run.id} of thread {thread_id} is still being driven, or its worker died. Nothing is "
        "sent to the person any more. Let a worker or a tick end the run, then erase again."
    )


def _delete_rows(app: App, person: str) -> Counter[str]:
    """Delete a person's rows in one batch, and remove their address from other rows."""
    messages = _messages_of(app, person)
    mentioning = list(_without_address(app, person, messages))
    count = "SELECT count(*) AS n FROM {} WHERE contact_id IN " + _CONTACTS  # noqa: S608
    *owned, contacts = app.database.read(
        *(sql(count.format(table), person=person) for table in _OWNED),
        sql(f"SELECT count(*) AS n FROM contacts WHERE id IN {_CONTACTS}", person=person),  # noqa: S608
    )
    app.database.write(
        # first, so that no mail of the person is taken in meanwhile: on PostgreSQL it is a lock
        sql(f"UPDATE contacts SET status = 'removed' WHERE id IN {_CONTACTS}", person=person),  # noqa: S608
        *(sql("DELETE FROM message_contacts WHERE message_id = :id", id=id) for id in messages),
        sql(f"DELETE FROM message_contacts WHERE contact_id IN {_CONTACTS}", person=person),  # noqa: S608
        *(sql("DELETE FROM messages WHERE id = :id", id=id) for id in messages),
        sql(f"DELETE FROM messages WHERE contact_id IN {_CONTACTS}", person=person),  # noqa: S608
        *mentioning,
        *(
            sql(f"DELETE FROM {table} WHERE contact_id IN {_CONTACTS}", person=person)  # noqa: S608
            for table in _OWNED
        ),
        sql(f"DELETE FROM contacts WHERE id IN {_CONTACTS}", person=person),  # noqa: S608
        sql("DELETE FROM former_addresses WHERE contact_id NOT IN (SELECT id FROM contacts)"),
    )
    found = Counter({table: n[0]["n"] for table, n in zip(_OWNED, owned, strict=True)})
    found.update(contacts=contacts[0]["n"], messages=len(messages), mentions=len(mentioning))
    return +found


def _messages_of(app: App, person: str) -> list[str]:
    """The ids of messages that the person wrote, or that are about them."""
    found = app.database.rows(
        f"""SELECT id, address, CASE WHEN contact_id IN {_CONTACTS} THEN 1 ELSE 0 END AS own
            FROM messages WHERE contact_id IN {_CONTACTS}
            OR LOWER(address) LIKE :pattern ESCAPE '!'""",  # noqa: S608 (our own words)
        person=person,
        pattern=_pattern(person),
    )
    address = _address_of(person)
    return [row["id"] for row in found if row["own"] or address.fullmatch(row["address"])]


def _without_address(app: App, person: str, deleted: list[str]) -> Iterator[Statement]:
    """Statements that replace the address, with any label, in other people's rows."""
    address, pattern = _address_of(person), f"%{_pattern(person)}%"
    for table, key, columns in _MENTIONS:
        mentions = " OR ".join(f"LOWER({column}) LIKE :pattern ESCAPE '!'" for column in columns)
        found = app.database.rows(
            f"SELECT {key}, {', '.join(columns)} FROM {table} WHERE {mentions}",  # noqa: S608
            pattern=pattern,
        )
        for row in found:
            changed = {column: address.sub(ERASED, row[column]) for column in columns}
            if table == "messages" and row["id"] in deleted:
                continue  # it is deleted
            if any(changed[column] != row[column] for column in columns):
                yield _replace(table, key.split(", "), row, changed)


def _pattern(person: str) -> str:
    """A LIKE pattern for the person's addresses, which also matches some others. A non-ASCII domain
    has several spellings, and SQLite compares its letters case-sensitively."""
    local, _, domain = person.rpartition("@")
    return f"{_escaped(local)}%@" + ("%" if "xn--" in domain else _escaped(domain))


def _address_of(person: str) -> re.Pattern[str]:
    """Any address of the person: with any label, and any spelling of the domain."""
    local, _, domain = person.rpartition("@")
    spellings = {domain}
    with contextlib.suppress(UnicodeError):
        spellings.add(domain.encode().decode("idna"))
    domains = "|".join(map(re.escape, sorted(spellings)))
    return re.compile(
        rf"(?<![\w.+-]){re.escape(local)}(\+[^\s@<>]*)?@({domains})(?![\w-])", re.IGNORECASE
    )


def _replace(table: str, key: list[str], row: Row, changed: Row) -> Statement:
    sets = ", ".join(f"{column} = :{column}" for column in changed)
    where = " AND ".join(f"{column} = :{column}" for column in key)
    found = {column: row[column] for column in key}
    return sql(f"UPDATE {table} SET {sets} WHERE {where}", **found, **changed)  # noqa: S608


def _escaped(text: str) -> str:
    return re.sub(r"([!%_])", r"!\1", text)
