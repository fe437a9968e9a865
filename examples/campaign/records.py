"""Queries on the application's tables: reads return values, writes return statements for a batch.

The row of `members` decides between an outgoing mail and an incoming reply: a thread goes
on only while its status is `active`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import turns
from .cadence import Cadence
from .database import Database, Row, Statement, sql
from .sheet import hash_of, person_of

ENDED_BY = {"reply": "replied", "bounce": "bounced", "unsubscribe": "unsubscribed"}
"""The status of a member that a message of this kind ends."""
ENDED_AS = {"unsubscribed": "unsubscribed", "erased": "removed"}
"""The status of a contact who is suppressed for this reason."""
UNSENT = "('draft_pending', 'approved', 'refused')"
"""The status of a touch whose text may still go out."""
UNREFUSED = "refused = 0, refused_at = NULL, hopeless = 0, problem = ''"
"""Sets the columns of a touch to those of one without a refusal; the server's words stay."""

_ELSEWHERE = """FROM touches t JOIN campaigns k ON k.id = t.campaign_id
  JOIN campaigns own ON own.sequence = k.sequence AND own.id <> k.id
WHERE own.id = :campaign_id AND t.contact_id = :contact_id AND t.step = :step"""


@dataclass(frozen=True)
class Situation:
    """What a thread needs to know before it acts."""

    status: str
    """`active`, or why there is nothing more to do."""
    campaign: Row
    contact: Row
    cadence: Cadence
    touch: Row | None
    """The touch of the step that was asked for."""
    previous: str | None
    """The Message-ID of the last touch that was sent."""
    sent_elsewhere: int | None
    """When another campaign of the sequence sent this step, which this one has not, in
    milliseconds."""

    @property
    def may_send(self) -> bool:
        return self.status == "active" and self.sent_elsewhere is None


def look(database: Database, campaign_id: int, contact_id: int, step: int) -> Situation:
    """Read the situation of a member at one step."""
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    campaigns, contacts, members, touches, elsewhere = database.read(
        sql("SELECT * FROM campaigns WHERE id = :id", id=campaign_id),
        sql("SELECT * FROM contacts WHERE id = :id", id=contact_id),
        sql(
            """SELECT status FROM members
               WHERE campaign_id = :campaign_id AND contact_id = :contact_id""",
            **of,
        ),
        sql(
            """SELECT * FROM touches WHERE campaign_id = :campaign_id AND contact_id = :contact_id
               ORDER BY step""",
            **of,
        ),
        sql(
            f"SELECT t.sent_at {_ELSEWHERE} AND t.sent_at IS NOT NULL ORDER BY t.sent_at",
            step=step,
            **of,
        ),
    )
    if not (campaigns and contacts and members):
        gone: Row = dict.fromkeys(("address", "person", "token", "name", "company"), "")
        gone |= {"id": contact_id, "zone": "UTC"}
        campaign, contact = next(iter(campaigns), {}), next(iter(contacts), gone)
        return Situation("removed", campaign, contact, Cadence(), None, None, None)
    [campaign], [contact], [member] = campaigns, contacts, members
    sent = [touch["message_id"] for touch in touches if touch["sent_at"] is not None]
    status = member["status"] if contact["status"] == "active" else contact["status"]
    touch = next((touch for touch in touches if touch["step"] == step), None)
    is_sent = touch is not None and touch["sent_at"] is not None
    return Situation(
        status,
        campaign,
        contact,
        Cadence.of(campaign),
        touch,
        sent[-1] if sent else None,
        None if is_sent else next((row["sent_at"] for row in elsewhere), None),
    )


def asking_elsewhere(database: Database, place: dict[str, int]) -> list[int]:
    """Other campaigns of the sequence that have a text for this touch."""
    rows = database.rows(
        f"SELECT t.campaign_id {_ELSEWHERE} AND t.status IN {UNSENT}",
        **place,
    )
    return [row["campaign_id"] for row in rows]


def permission(place: dict[str, int], recipient: str) -> Statement:
    """Everything that decides whether a touch may go out now. No row: there is no such touch.

    A person who unsubscribes while an import adds them is only in `suppressions`.
    """
    return sql(
        """SELECT m.status AS member, c.status AS contact, c.address, c.zone, p.state, p.sender,
             p.gaps, p.days, p.opens, p.closes, t.status, t.attempt, b.until,
             (SELECT s.why FROM suppressions s WHERE s.hash = :hash) AS suppressed
           FROM members m JOIN contacts c ON c.id = m.contact_id
             JOIN campaigns p ON p.id = m.campaign_id
             JOIN touches t ON t.campaign_id = m.campaign_id AND t.contact_id = m.contact_id
               AND t.step = :step
             LEFT JOIN bookings b ON b.campaign_id = t.campaign_id
               AND b.contact_id = t.contact_id AND b.step = t.step
           WHERE m.campaign_id = :campaign_id AND m.contact_id = :contact_id""",
        hash=hash_of(person_of(recipient)),
        **place,
    )


# -- touches


def store_draft(touch: dict[str, Any]) -> Statement:
    """Store a draft in place of one that was not sent."""
    return sql(
        f"""INSERT INTO touches (campaign_id, contact_id, step, status, subject, body,
             prompt_version, run_id, message_id, drafted_at)
           VALUES (:campaign_id, :contact_id, :step, :status, :subject, :body,
             :prompt_version, :run_id, :message_id, :drafted_at)
           ON CONFLICT (campaign_id, contact_id, step) DO UPDATE
           SET status = excluded.status, subject = excluded.subject, body = excluded.body,
               prompt_version = excluded.prompt_version, run_id = excluded.run_id,
               drafted_at = excluded.drafted_at, said = '', {UNREFUSED}
           WHERE touches.sent_at IS NULL""",  # noqa: S608 (our own words)
        **touch,
    )


def change_touch(place: dict[str, int], **columns: Any) -> Statement:
    """Change columns of a touch."""
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    return sql(
        f"""UPDATE touches SET {changes} WHERE campaign_id = :campaign_id
            AND contact_id = :contact_id AND step = :step""",  # noqa: S608 (our own names)
        **place,
        **columns,
    )


def unrefuse(place: dict[str, int]) -> Statement:
    """Forget what a server said about a touch."""
    return sql(
        f"""UPDATE touches SET said = '', {UNREFUSED} WHERE campaign_id = :campaign_id
            AND contact_id = :contact_id AND step = :step""",  # noqa: S608 (our own words)
        **place,
    )


def approve(place: dict[str, int], subject: str, body: str) -> Statement:
    """Approve a draft with this text. A draft that was stopped meanwhile stays stopped: its
    approver has not seen the changed contact."""
    return sql(
        f"""UPDATE touches SET status = 'approved', subject = :subject, body = :body, said = '',
              {UNREFUSED}
            WHERE campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step
            AND status = 'draft_pending'""",  # noqa: S608 (our own words)
        subject=subject,
        body=body,
        **place,
    )


def begin(place: dict[str, int], attempt: str, previous: str | None, now: int) -> Statement:
    """Begin a conversation about a touch, unless there was one after the `previous`."""
    return sql(
        """UPDATE touches SET attempt = :attempt, attempt_at = :now
           WHERE campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step
           AND COALESCE(attempt, '') = :previous""",
        **place,
        attempt=attempt,
        previous=previous or "",
        now=now,
    )


def go_on(place: dict[str, int], attempt: str, now: int) -> Statement:
    """Note that a conversation goes on, if it is still the last one about its touch."""
    return sql(
        """UPDATE touches SET attempt_at = :now WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND step = :step AND attempt = :attempt
           AND attempt_at < :now""",
        **place,
        attempt=attempt,
        now=now,
    )


def give_up(place: dict[str, int], begun: int) -> Statement:
    """End a conversation that was cut off, unless it has gone on since `begun`. A process that
    wakes up in it finds that it is no longer the last one. Returns a row if it ended."""
    return sql(
        """UPDATE touches SET attempt = COALESCE(attempt, '') || ' given up'
           WHERE campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step
           AND COALESCE(attempt_at, 0) = :begun RETURNING step""",
        **place,
        begun=begun,
    )


def note_try(place: dict[str, int], tries: int) -> Statement:
    """Record a failed try."""
    return sql(
        """UPDATE touches SET tries = :tries + 1 WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND step = :step AND tries = :tries""",
        **place,
        tries=tries,
    )


def note_refusal(place: dict[str, int], kind: str, said: str, tries: int, now: int) -> Statement:
    """Record that the server refused the mail in this try, and its words."""
    return sql(
        """UPDATE touches SET tries = :tries + 1, problem = :kind, said = :said,
             refused = CASE WHEN problem = :kind THEN refused + 1 ELSE 1 END,
             refused_at = COALESCE(refused_at, :now)
           WHERE campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step
           AND tries = :tries""",
        **place,
        kind=kind,
        said=said,
        tries=tries,
        now=now,
    )


# -- ends


def bounce(place: dict[str, int]) -> list[Statement]:
    """Stop writing to a contact: the server does not know the address."""
    return [
        *end_contact(place["contact_id"], "bounced"),
        change_touch(place, status="refused"),
        turns.release(place),
    ]


def close(campaign_id: int, contact_id: int, status: str) -> list[Statement]:
    """End a member, unless it has ended, and its open draft, and set the outcome of its touches.
    What happened to the contact ends it only if that was not undone meanwhile.

    A later reply records its own outcome.
    """
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    return [
        sql(
            """UPDATE members SET status = :status WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND status = 'active'
               AND (CAST(:status AS TEXT) = 'finished' OR EXISTS
                 (SELECT 1 FROM contacts WHERE id = :contact_id AND status = :status))""",
            status=status,
            **of,
        ),
        sql(
            """UPDATE touches SET status = 'stopped' WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND status IN ('draft_pending', 'approved')""",
            **of,
        ),
        sql(
            """UPDATE touches SET outcome = 0.0 WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND sent_at IS NOT NULL AND outcome IS NULL""",
            **of,
        ),
        turns.release(of),
    ]


def closed(database: Database, campaign_id: int, contact_id: int) -> tuple[str | None, list[Row]]:
    """How a member ended, and the touches that have an outcome."""
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    members, touches = database.read(
        sql(
            """SELECT status FROM members
               WHERE campaign_id = :campaign_id AND contact_id = :contact_id""",
            **of,
        ),
        sql(
            """SELECT step, run_id, outcome FROM touches WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND outcome IS NOT NULL ORDER BY step""",
            **of,
        ),
    )
    return next((row["status"] for row in members), None), touches


def end_contact(contact_id: int, status: str) -> list[Statement]:
    """Stop writing to a contact, in every campaign. A bounce does not undo that the contact
    unsubscribed or was removed."""
    of = {"id": contact_id, "status": status}
    return [
        sql(
            """UPDATE contacts SET status = :status WHERE id = :id
               AND (status = 'active' OR CAST(:status AS TEXT) <> 'bounced')""",
            **of,
        ),
        sql(
            """UPDATE members SET status = :status WHERE contact_id = :id
               AND status = 'active'""",
            **of,
        ),
    ]


def campaigns_of(database: Database, contact_id: int) -> dict[int, str]:
    """A contact's status in each campaign."""
    found = database.rows(
        "SELECT campaign_id, status FROM members WHERE contact_id = :id ORDER BY campaign_id",
        id=contact_id,
    )
    return {row["campaign_id"]: row["status"] for row in found}


def reply(message_id: str, contact_id: int, touch: Row | None) -> list[Statement]:
    """End every campaign of a contact because of a stored reply. If the reply is the first of its
    campaign, record the touch that earned it: then the message has the touch's `run_id`. A bounce
    before it was a mistake; undoing that does not start the campaign again.

    The rows of `members` are locked first. So if a thread ends at the same time, it either ended
    before this, and the reply is `late`, or it ends after this, and sees the reply.
    """
    ended = sql(
        """UPDATE members SET status = 'replied' WHERE contact_id = :contact_id
           AND status IN ('active', 'bounced')""",
        contact_id=contact_id,
    )
    if touch is None:
        return [ended]
    of = {"id": message_id, "campaign_id": touch["campaign_id"], "contact_id": contact_id}
    earned = "EXISTS (SELECT 1 FROM messages WHERE id = :id AND run_id IS NOT NULL)"
    return [
        sql("UPDATE members SET status = status WHERE contact_id = :id", id=contact_id),
        sql(
            """UPDATE messages SET run_id = :run_id, step = :step, late = CASE WHEN EXISTS
                 (SELECT 1 FROM members WHERE campaign_id = :campaign_id
                  AND contact_id = :contact_id AND status = 'active') THEN 0 ELSE 1 END
               WHERE id = :id AND NOT EXISTS
                 (SELECT 1 FROM touches WHERE campaign_id = :campaign_id
                  AND contact_id = :contact_id AND outcome = 1.0)""",
            run_id=touch["run_id"],
            step=touch["step"],
            **of,
        ),
        ended,
        sql(
            f"""UPDATE members SET status = 'replied' WHERE campaign_id = :campaign_id
                AND contact_id = :contact_id AND status = 'finished' AND {earned}""",  # noqa: S608
            **of,
        ),
        sql(
            f"""UPDATE touches SET outcome = 1.0 WHERE campaign_id = :campaign_id
                AND contact_id = :contact_id AND step = :step AND {earned}""",  # noqa: S608
            step=touch["step"],
            **of,
        ),
    ]


SUPPRESSED = {"unsubscribed": "has unsubscribed", "erased": "was erased"}
"""`suppressions.why` in words."""
NONE_SUPPRESSED = """INSERT INTO suppressions (hash, why, at) SELECT hash, why, at FROM suppressions
WHERE hash IN (SELECT value->>'hash' FROM json_each(:rows))"""
"""Writes nothing, or is a `Conflict`: a person was suppressed after the caller checked."""


def suppressed(database: Database, person: str) -> str | None:
    """How a contact ends who must not be written to."""
    query = "SELECT why FROM suppressions WHERE hash = :hash"
    row = database.one(query, hash=hash_of(person))
    return ENDED_AS[row["why"]] if row else None


def suppress(person: str, why: str, at: int) -> Statement:
    """Record for good, as a hash, that a person must not be written to. `why` is `unsubscribed` or
    `erased`; the first reason stays."""
    return sql(
        """INSERT INTO suppressions (hash, why, at) VALUES (:hash, :why, :at)
           ON CONFLICT (hash) DO NOTHING""",
        hash=hash_of(person),
        why=why,
        at=at,
    )
