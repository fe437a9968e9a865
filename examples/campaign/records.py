"""Queries on the application's tables: reads return values, writes return statements for a batch.

The row of `members` decides between an outgoing mail and an incoming reply: a thread goes on only
while its status is `active`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .cadence import Cadence
from .database import Database, Row, Statement, sql

Place = dict[str, int]
"""`campaign_id`, `contact_id` and `step` of a touch."""
DAY = 86_400_000
MANY = 5
"""Mails that must be refused one after the other to stop the campaign."""
_HERE = "campaign_id = :campaign_id AND contact_id = :contact_id AND step = :step"
_MEMBER = "campaign_id = :campaign_id AND contact_id = :contact_id"


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


def look(database: Database, campaign_id: int, contact_id: int, step: int) -> Situation:
    """Read the situation of a member at one step."""
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    [campaign], [contact], [member], touches = database.read(
        sql("SELECT * FROM campaigns WHERE id = :campaign_id", **of),
        sql(
            """SELECT c.*, (SELECT s.at FROM suppressions s WHERE s.person = c.person) AS opted_out
               FROM contacts c WHERE c.id = :contact_id""",
            **of,
        ),
        sql(f"SELECT status FROM members WHERE {_MEMBER}", **of),
        sql(f"SELECT * FROM touches WHERE {_MEMBER} ORDER BY step", **of),
    )
    status = member["status"] if contact["status"] == "active" else contact["status"]
    if status == "active" and contact["opted_out"] is not None:  # while an import added the contact
        status = "unsubscribed"
    sent = [touch["message_id"] for touch in touches if touch["sent_at"] is not None]
    return Situation(
        status,
        campaign,
        contact,
        Cadence.of(campaign),
        next((touch for touch in touches if touch["step"] == step), None),
        sent[-1] if sent else None,
    )


def permission(place: Place) -> Statement:
    """Everything that decides whether a touch may go out now."""
    return sql(
        """SELECT m.status AS member, c.status AS contact, c.address, c.zone, p.state, p.sender,
             p.gaps, p.days, p.opens, p.closes, t.status, t.attempt,
             (SELECT s.at FROM suppressions s WHERE s.person = c.person) AS opted_out
           FROM members m JOIN contacts c ON c.id = m.contact_id
             JOIN campaigns p ON p.id = m.campaign_id
             JOIN touches t ON t.campaign_id = m.campaign_id AND t.contact_id = m.contact_id
               AND t.step = :step
           WHERE m.campaign_id = :campaign_id AND m.contact_id = :contact_id""",
        **place,
    )


# -- touches


def store_draft(touch: Row) -> Statement:
    """Store a draft in place of one that was not sent."""
    return sql(
        """INSERT INTO touches (campaign_id, contact_id, step, status, subject, body,
             prompt_version, run_id, message_id, drafted_at)
           VALUES (:campaign_id, :contact_id, :step, :status, :subject, :body,
             :prompt_version, :run_id, :message_id, :drafted_at)
           ON CONFLICT (campaign_id, contact_id, step) DO UPDATE
           SET status = excluded.status, subject = excluded.subject, body = excluded.body,
               run_id = excluded.run_id, problem = '', response = ''
           WHERE touches.sent_at IS NULL""",
        **touch,
    )


def change_touch(place: Place, **columns: Any) -> Statement:
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    return sql(f"UPDATE touches SET {changes} WHERE {_HERE}", **place, **columns)


def begin_attempt(place: Place, attempt: str, previous: str, now: int) -> Statement:
    """Begin a conversation about a touch, unless there was one after the `previous`."""
    return sql(
        f"""UPDATE touches SET attempt = :attempt, attempt_at = :now
            WHERE {_HERE} AND attempt = :previous""",
        **place,
        attempt=attempt,
        previous=previous,
        now=now,
    )


def continue_attempt(place: Place, attempt: str, now: int) -> Statement:
    """Note that a conversation goes on, if it is still the last one about its touch."""
    return sql(
        f"""UPDATE touches SET attempt_at = :now
            WHERE {_HERE} AND attempt = :attempt AND attempt_at < :now""",
        **place,
        attempt=attempt,
        now=now,
    )


def give_up_attempt(place: Place, since: int) -> Statement:
    """End a conversation that was cut off, unless it has gone on since. A process that wakes up in
    it finds that it is no longer the last one. Returns a row if it ended."""
    return sql(
        f"""UPDATE touches SET attempt = attempt || ' given up'
            WHERE {_HERE} AND attempt_at = :since RETURNING step""",
        **place,
        since=since,
    )


# -- refusals


def refused(place: Place, kind: str, response: str, tries: int, now: int) -> list[Statement]:
    """Record that the server refused the mail in this try, and what that leads to."""
    of: Row = {**place, "kind": kind, "response": response, "tries": tries, "now": now}
    note = sql(
        f"""UPDATE touches SET tries = :tries + 1, refusals = refusals + 1,
              refused_at = COALESCE(refused_at, :now),
              problem_at = CASE WHEN problem = :kind THEN problem_at ELSE attempt_at END,
              problem = :kind, response = :response
            WHERE {_HERE} AND tries = :tries""",
        **of,
    )
    if kind == "SenderRefused":
        return [note, stop_for_trouble(place["campaign_id"], response)]
    if kind == "LetterRefused":  # a person is asked for another text
        return [note, change_touch(place, status="draft_pending"), _many_refused(place, response)]
    if kind == "NoSuchRecipient":
        return [note, *_bounce_if_certain(place), _many_refused(place, response)]
    return [note, _many_refused(place, response)]


def stop_for_trouble(campaign_id: int, reason: str) -> Statement:
    """Stop a running campaign until a person resumes it."""
    return sql(
        """UPDATE campaigns SET state = 'trouble', trouble = :reason
           WHERE id = :campaign_id AND state = 'running'""",
        campaign_id=campaign_id,
        reason=reason,
    )


def _many_refused(place: Place, response: str) -> Statement:
    """Stop the campaign if many mails were refused since the last that was accepted. Of those that
    were deferred, only the ones that were tried for a day count."""
    return sql(
        """UPDATE campaigns SET state = 'trouble', trouble = :response
           WHERE id = :campaign_id AND state = 'running' AND :many <=
             (SELECT count(*) FROM touches WHERE campaign_id = :campaign_id AND sent_at IS NULL
              AND refusals > 0
              AND (problem <> 'TemporaryTrouble' OR attempt_at - refused_at >= :day)
              AND attempt_at >= (SELECT COALESCE(MAX(sent_at), 0) FROM touches
                                 WHERE campaign_id = :campaign_id))""",
        campaign_id=place["campaign_id"],
        response=response,
        many=MANY,
        day=DAY,
    )


def _bounce_if_certain(place: Place) -> list[Statement]:
    """Give up a contact whom the server does not know, once it has accepted another mail of the
    campaign between two such refusals. Until then the mistake may be ours."""
    certain = """EXISTS (SELECT 1 FROM touches t JOIN touches other
        ON other.campaign_id = t.campaign_id AND other.sent_at > t.problem_at
        AND other.sent_at <= t.attempt_at
      WHERE t.campaign_id = :campaign_id AND t.contact_id = :contact_id AND t.step = :step
      AND t.problem = 'NoSuchRecipient')"""
    return [
        sql(
            f"""UPDATE contacts SET status = 'bounced' WHERE id = :contact_id
                AND status = 'active' AND {certain}""",
            **place,
        ),
        sql(
            f"""UPDATE members SET status = 'bounced' WHERE contact_id = :contact_id
                AND status = 'active' AND {certain}""",
            **place,
        ),
        sql(f"UPDATE touches SET status = 'refused' WHERE {_HERE} AND {certain}", **place),
    ]


def forget_refusals(of: Row) -> Statement:
    """Start afresh with the touches that were not sent: of a campaign, or one touch."""
    where = " AND ".join(f"{name} = :{name}" for name in of)
    return sql(
        f"""UPDATE touches SET problem = '', refusals = 0, refused_at = NULL, problem_at = NULL
            WHERE sent_at IS NULL AND {where}""",
        **of,
    )


# -- ends


def end_contact(contact_id: int, status: str) -> list[Statement]:
    """Stop writing to a contact, in every campaign. A bounce does not undo an opt-out."""
    of = {"id": contact_id, "status": status}
    return [
        sql(
            """UPDATE contacts SET status = :status WHERE id = :id
               AND (status = 'active' OR CAST(:status AS TEXT) <> 'bounced')""",
            **of,
        ),
        sql(
            "UPDATE members SET status = :status WHERE contact_id = :id AND status = 'active'", **of
        ),
    ]


def close(campaign_id: int, contact_id: int, status: str) -> list[Statement]:
    """End a member, unless it has ended, and its open draft, and set the outcome of its touches. A
    later reply records its own outcome."""
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    return [
        sql(
            f"UPDATE members SET status = :status WHERE {_MEMBER} AND status = 'active'",
            status=status,
            **of,
        ),
        sql(
            f"""UPDATE touches SET status = 'stopped'
                WHERE {_MEMBER} AND status IN ('draft_pending', 'approved')""",
            **of,
        ),
        sql(
            f"""UPDATE touches SET outcome = 0.0
                WHERE {_MEMBER} AND sent_at IS NOT NULL AND outcome IS NULL""",
            **of,
        ),
    ]


def closed(database: Database, campaign_id: int, contact_id: int) -> tuple[str, list[Row]]:
    """How a member ended, and the touches that have an outcome."""
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    [member], touches = database.read(
        sql(f"SELECT status FROM members WHERE {_MEMBER}", **of),
        sql(
            f"""SELECT step, outcome FROM touches
                WHERE {_MEMBER} AND outcome IS NOT NULL ORDER BY step""",
            **of,
        ),
    )
    return str(member["status"]), touches
