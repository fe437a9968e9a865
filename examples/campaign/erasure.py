"""Erasing a person: only a hash is left, so that a later import does not write to them again.

A person is all addresses that belong together (identity.py). What each crash leaves behind:

    before the first batch     nothing has happened
    suppressed                 nothing more is sent; the threads and rows are still there
    some threads ended         `cancelled`; they cannot go on
    some threads erased        the others; the rows still say which they are
    rows deleted               bytes in the free pages of a SQLite file, which `scrub` removes; a
                               signal to an erased thread, without an address; and other threads
                               whose unsent text named the person: it is withdrawn, and they find
                               that when they are due, or answered

In each case, erasing again finishes the work: the rows that lead to everything else are deleted in
one batch, and last. The Message-IDs are announced before that. A later mail from the person is a
new stray, kept until the person is erased again.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from perdure.types import ENDED, Run

from . import records
from .agent import thread_of
from .database import Statement, json_list, sql
from .identity import together
from .mentions import Addresses
from .sheet import hash_of, normalise, person_of

if TYPE_CHECKING:
    from .app import App

OUTSIDE = (
    "the mail provider's own log and copies (ask it to delete these Message-IDs)",
    "the mailboxes of the people who sent or received these mails",
    "backups of the database, and on D1 its Time Travel (30 days)",
    "exported traces and tables, and logs: `inbound` logs senders",
    "the journal of other people's threads, where our text to them named the address",
    "other people's texts: the person's name, and what may be another address (jim-bo@ for bo@)",
)
"""What erasing cannot reach."""
PATIENCE = 30.0
"""Seconds to wait for a worker to release a thread."""
_PAUSE = 0.05
_PERSONS = "(SELECT value->>'is' FROM json_each(:persons))"
_CONTACTS = f"""(SELECT id FROM contacts WHERE person IN {_PERSONS}
  UNION SELECT contact_id FROM former_addresses WHERE person IN {_PERSONS})"""  # noqa: S608
"""Each statement finds them anew: a batch may run a second time, when their ids are others'."""
_OWNED = ("touches", "bookings", "members")


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


def erase(
    app: App,
    address: str,
    *,
    patience: float = PATIENCE,
    announce: Callable[[list[str]], object] = lambda message_ids: None,
) -> Erased:
    """Delete everything about a person, and keep a hash. May be repeated, also after a crash.

    `announce` gets the Message-IDs before anything is deleted: after that nothing has them.
    Raises `StillDriven` if a worker does not release one of the threads within `patience` seconds.
    """
    persons = _stop(app, person_of(normalise(address)))
    threads, message_ids = _threads(app, persons), _sent(app, persons)
    announce(message_ids)
    for thread_id in threads:
        _end(app, thread_id, patience)
    deleted: Counter[str] = Counter()
    for thread_id in threads:
        deleted.update(app.runtime.blocking.erase(thread_id))
    deleted.update(_delete_rows(app, persons))
    for thread_id in threads:  # a mail that arrived meanwhile may have signalled them
        deleted.update(app.runtime.blocking.erase(thread_id))
    return Erased(dict(deleted), message_ids, app.runtime.blocking.scrub())


def _stop(app: App, person: str) -> list[str]:
    """From here on nothing is sent to the person, and no import adds them again. Returns all who
    belong together with them, also by a change that was faster."""
    persons = together(app.database, [person]).persons
    while True:
        app.database.write(
            *(records.suppress(one, "erased", app.clock.now()) for one in persons),
            sql(
                """UPDATE suppressions SET why = 'erased' WHERE hash IN
                     (SELECT value->>'is' FROM json_each(:hashes))""",
                hashes=json_list([hash_of(one) for one in persons]),
            ),
            _about(persons, "UPDATE contacts SET status = 'removed' WHERE id IN {}"),
            _about(
                persons,
                """UPDATE members SET status = 'removed' WHERE contact_id IN {}
                   AND status = 'active'""",
            ),
        )
        stopped, persons = persons, together(app.database, persons).persons
        if persons == stopped:
            return persons


def _about(persons: list[str], text: str) -> Statement:
    """A statement in which `{}` is the ids of these persons' contacts."""
    return sql(text.replace("{}", _CONTACTS), persons=json_list(persons))


def _threads(app: App, persons: list[str]) -> list[str]:
    [found] = app.database.read(
        _about(
            persons,
            """SELECT campaign_id, contact_id FROM members WHERE contact_id IN {}
               UNION SELECT campaign_id, contact_id FROM touches WHERE contact_id IN {}
               ORDER BY 1, 2""",
        )
    )
    return [thread_of(row["campaign_id"], row["contact_id"]) for row in found]


def _sent(app: App, persons: list[str]) -> list[str]:
    """The Message-IDs of the mails that the person was sent, or perhaps was."""
    [found] = app.database.read(
        _about(
            persons,
            """SELECT message_id FROM touches WHERE contact_id IN {}
               AND attempt IS NOT NULL ORDER BY attempt_at""",
        )
    )
    return [row["message_id"] for row in found]


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


def _delete_rows(app: App, persons: list[str]) -> Counter[str]:
    """Delete a person's rows in one batch, and remove their addresses from other rows."""
    addresses, contacts = Addresses(persons), together(app.database, persons).contacts
    own, *counts = app.database.read(
        _about(persons, "SELECT id FROM messages WHERE contact_id IN {}"),
        *(
            _about(persons, f"SELECT count(*) AS n FROM {one} WHERE contact_id IN {{}}")  # noqa: S608
            for one in _OWNED
        ),
    )
    messages = sorted({row["id"] for row in own} | set(addresses.messages(app.database)))
    mentions = list(addresses.mentions(app.database, contacts, messages))
    these = "IN (SELECT value->>'is' FROM json_each(:ids))"
    app.database.write(
        # first, so that no mail of the person is taken in meanwhile: on PostgreSQL it is a lock
        _about(persons, "UPDATE contacts SET status = 'removed' WHERE id IN {}"),
        sql(f"DELETE FROM message_contacts WHERE message_id {these}", ids=json_list(messages)),  # noqa: S608
        _about(persons, "DELETE FROM message_contacts WHERE contact_id IN {}"),
        sql(f"DELETE FROM messages WHERE id {these}", ids=json_list(messages)),  # noqa: S608
        _about(persons, "DELETE FROM messages WHERE contact_id IN {}"),
        *(_about(persons, f"DELETE FROM {one} WHERE contact_id IN {{}}") for one in _OWNED),  # noqa: S608
        _about(persons, "DELETE FROM contacts WHERE id IN {}"),
        sql("DELETE FROM former_addresses WHERE contact_id NOT IN (SELECT id FROM contacts)"),
        *(one.erased() for one in mentions),
    )
    for one in mentions:
        if one.is_text_of_ours:  # so that a text that was not sent is written again
            app.wake(one.key["campaign_id"], one.key["contact_id"], f"erased {uuid.uuid4().hex}")
    found = Counter({one: rows[0]["n"] for one, rows in zip(_OWNED, counts, strict=True)})
    found.update(contacts=len(contacts), messages=len(messages), mentions=len(mentions))
    return +found
