"""The statements that store an incoming mail and end what it ends: one batch.

One of them stores the message, under a key that only one batch can take. So of two batches with the
same mail, one takes full effect and the other none. If the contact was erased after the mail was
matched, the mail is a stray, as it would be a moment later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from . import records
from .database import Row, Statement, json_list, sql

_STORE = """INSERT INTO messages (id, kind, read_as, address, contact_id, late, received_at,
  subject, text, told)
VALUES (:id,
  CASE WHEN CAST(:kind AS TEXT) = 'dismissed' OR EXISTS (SELECT 1 FROM contacts
    WHERE id = :contact_id) THEN :kind ELSE 'stray' END,
  :read_as, :address, (SELECT id FROM contacts WHERE id = :contact_id), 0, :received_at, :subject,
  :text, :told)"""
_WHOM = "WHERE id = :contact_id OR person IN (SELECT value->>'is' FROM json_each(:persons))"
_LOCK = f"UPDATE contacts SET status = status {_WHOM}"  # noqa: S608
_CONCERNS = f"""INSERT INTO message_contacts (message_id, contact_id)
SELECT CAST(:id AS TEXT), id FROM contacts {_WHOM}"""  # noqa: S608
_THESE = "IN (SELECT contact_id FROM message_contacts WHERE message_id = :id)"
_END_CONTACTS = {
    "bounced": f"UPDATE contacts SET status = :status WHERE id {_THESE} AND status = 'active'",  # noqa: S608
    "unsubscribed": f"UPDATE contacts SET status = :status WHERE id {_THESE}",  # noqa: S608
}
"""A later bounce does not undo an unsubscription."""
_END_MEMBERS = f"""UPDATE members SET status = :status WHERE contact_id {_THESE}
AND (status = 'active' OR (status = 'bounced' AND CAST(:status AS TEXT) = 'replied'))"""  # noqa: S608


@dataclass(frozen=True)
class Match:
    """The people a message is about."""

    contact_id: int | None = None
    """Whose mail it answers, or who wrote it."""
    touch: Row | None = None
    """The mail that it answers."""
    persons: list[str] = field(default_factory=list)
    """The contact, the writer and the owner of its token, with all who belong together with them
    (identity.py)."""
    is_copy: bool = False
    """We wrote it ourselves, and it asks for nothing: there is nothing to assign."""


def take_in(message: Row, match: Match) -> Iterator[Statement]:
    """Store a message, and end what it ends.

    A bounce ends one address. A reply ends the running campaigns of everyone it is about, an
    unsubscription all later ones too, even for people who are not contacts yet.
    """
    status = records.ENDED_BY.get(message["kind"])
    persons = json_list([] if status == "bounced" else match.persons)
    whom = {"contact_id": match.contact_id, "persons": persons}
    if message["read_as"] == "unsubscribe":
        for person in sorted(match.persons):  # in one order, so that batches do not deadlock
            yield records.suppress(person, "unsubscribed", message["received_at"])
    if match.contact_id is not None:  # from here on they cannot be erased
        yield sql(_LOCK, **whom)
    yield sql(_STORE, **message, contact_id=match.contact_id, told=int(status is None))
    if status is None or match.contact_id is None:
        return
    of = {"id": message["id"], "status": status}
    yield sql(_CONCERNS, id=message["id"], **whom)
    if status == "replied":
        yield from records.reply(message["id"], match.contact_id, match.touch)
    else:
        yield sql(_END_CONTACTS[status], **of)
    yield sql(_END_MEMBERS, **of)


def threads_of(message_id: str) -> Statement:
    """Each member that a message ends: `campaign_id` and `contact_id`."""
    return sql(
        """SELECT m.campaign_id, m.contact_id FROM message_contacts c
           JOIN members m ON m.contact_id = c.contact_id WHERE c.message_id = :id
           ORDER BY m.contact_id, m.campaign_id""",
        id=message_id,
    )


def last_touch(contact_ids: Sequence[int]) -> Statement:
    """The touch that was sent last to any of these contacts."""
    return sql(
        """SELECT t.* FROM members m JOIN touches t
           ON t.campaign_id = m.campaign_id AND t.contact_id = m.contact_id
           WHERE m.contact_id IN (SELECT CAST(value->>'is' AS BIGINT) FROM json_each(:ids))
             AND t.sent_at IS NOT NULL
           ORDER BY t.sent_at DESC LIMIT 1""",
        ids=json_list(contact_ids),
    )
