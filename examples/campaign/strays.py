"""Mail that matches nothing: list it, assign it to a contact, dismiss it.

A stray is named by its `code`, the first letters of a hash of its id, short enough to type.
`assign` takes it in as if it had just arrived, in one batch: it deletes the row if it is still a
stray, and stores it again as the contact's. If another process was faster, the key is taken and the
batch has no effect. A crash leaves the same behind as for any mail (inbound.py): not assigned, or
assigned and told by the next sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

from perdure.times import moment

from . import people
from .app import App
from .database import Conflict, Row, sql
from .errors import Unknown
from .inbound import Inbound
from .messages import Match, last_touch, take_in
from .sheet import normalise, person_of

KINDS = ("reply", "bounce", "unsubscribe")
_PAGE = 1000


class NotAStray(ValueError):
    """The message has been assigned or dismissed."""


def code_of(message_id: str) -> str:
    return hashlib.sha256(message_id.encode()).hexdigest()[:8]


def strays(app: App, limit: int = 100) -> list[dict[str, Any]]:
    """The last mails that match nothing, the newest first."""
    found = app.database.rows(
        """SELECT * FROM messages WHERE kind = 'stray'
           ORDER BY received_at DESC, id LIMIT :limit""",
        limit=limit,
    )
    return [
        {
            "id": code_of(row["id"]),
            "at": moment(row["received_at"]).isoformat(" ", "minutes"),
            "from": row["address"],
            "read_as": row["read_as"],
            "subject": row["subject"],
            "text": " ".join(row["text"].split())[:200],
        }
        for row in found
    ]


def count(app: App) -> int:
    [row] = app.database.rows("SELECT count(*) AS n FROM messages WHERE kind = 'stray'")
    return int(row["n"])


def assign(app: App, code: str, address: str, kind: str = "") -> Row:
    """Take in a stray as a mail of the contact with this address, and tell the contact's threads.

    By default its content decides the kind. May be repeated: for the same contact and kind it tells
    the threads again. Returns its row of `messages`.
    """
    contact = people.find(app, address)
    message = _find(app, code)
    kind = kind or message["read_as"]
    wanted = {"kind": kind, "contact_id": contact["id"]}
    if message["kind"] == "stray":
        touch = next(iter(app.database.read(last_touch([contact["id"]]))[0]), None)
        persons = [contact["person"], *_writer(message)]
        match = Match(contact["id"], touch, list(dict.fromkeys(persons)))
        kept = ("id", "read_as", "address", "received_at", "subject", "text")
        row = {name: message[name] for name in kept} | {"kind": kind, "read_as": kind}
        with contextlib.suppress(Conflict):  # another was faster, or this is ours, sent again
            app.database.write(
                sql("DELETE FROM messages WHERE id = :id AND kind = 'stray'", id=message["id"]),
                *take_in(row, match),
            )
        message = _find(app, code)
    if not message.items() >= wanted.items():
        raise NotAStray(_whose(app, code, message))
    Inbound(app).tell(message)
    return message


def dismiss(app: App, code: str) -> None:
    """Dismiss a stray: only its id is kept, so that it is not taken in again."""
    message = _find(app, code)
    app.database.write(
        sql(
            """UPDATE messages SET kind = 'dismissed', address = '', subject = '', text = ''
               WHERE id = :id AND kind = 'stray'""",
            id=message["id"],
        )
    )
    message = _find(app, code)
    if message["kind"] != "dismissed":
        raise NotAStray(_whose(app, code, message))


def _writer(message: Row) -> list[str]:
    try:
        return [person_of(normalise(message["address"]))]
    except ValueError:
        return []


def _find(app: App, code: str) -> Row:
    found = [id for id in _ids(app) if code_of(id).startswith(code.lower())] if code else []
    if not found:
        raise Unknown(f"There is no message {code!r}; `strays` lists those that match nothing.")
    if len(found) > 1:
        raise Unknown(f"{len(found)} messages begin with {code!r}; type more of it.")
    row = app.database.one("SELECT * FROM messages WHERE id = :id", id=found[0])
    assert row is not None
    return row


def _ids(app: App) -> Iterator[str]:
    """The ids of all messages, so that a former stray is found too."""
    last = ""
    while True:
        page = app.database.rows(
            f"SELECT id FROM messages WHERE id > :last ORDER BY id LIMIT {_PAGE}",  # noqa: S608
            last=last,
        )
        yield from (row["id"] for row in page)
        if len(page) < _PAGE:
            return
        last = page[-1]["id"]


def _whose(app: App, code: str, message: Row) -> str:
    if message["contact_id"] is None:
        return f"Message {code} is no longer a stray: it was dismissed."
    contact = app.database.one(
        "SELECT address FROM contacts WHERE id = :id", id=message["contact_id"]
    )
    owner = contact["address"] if contact else "a deleted contact"
    return f"Message {code} is no longer a stray: it is the {message['kind']} of {owner}."
