"""What is read from and written to the application's tables, each as one function of a session.

The row of `members` decides between those who would send and those who have heard from the contact:
a thread goes on only as long as it says `active`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .cadence import Cadence
from .database import Row, Session

ENDED_BY = {"reply": "replied", "bounce": "bounced", "unsubscribe": "unsubscribed"}
"""What becomes of a member by the kind of a message."""


@dataclass(frozen=True)
class Situation:
    """All that a thread asks of reality."""

    status: str
    """`active`, or why there is nothing more to do."""
    campaign: Row
    contact: Row
    cadence: Cadence
    touch: Row | None
    """The touch of the step it was asked for."""
    previous: str | None
    """The Message-ID of the last touch that was sent."""


def look(session: Session, campaign_id: int, contact_id: int, step: int) -> Situation:
    """How things are."""
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    campaign = session.one("SELECT * FROM campaigns WHERE id = :id", id=campaign_id)
    contact = session.one("SELECT * FROM contacts WHERE id = :id", id=contact_id)
    member = session.one(
        "SELECT status FROM members WHERE campaign_id = :campaign_id AND contact_id = :contact_id",
        **of,
    )
    if campaign is None or contact is None or member is None:
        gone: Row = {"id": contact_id, "zone": "UTC", "address": "", "name": "", "company": ""}
        return Situation("removed", campaign or {}, contact or gone, Cadence(), None, None)
    touches = session.run(
        """SELECT * FROM touches WHERE campaign_id = :campaign_id AND contact_id = :contact_id
           ORDER BY step""",
        **of,
    )
    sent = [touch["message_id"] for touch in touches if touch["sent_at"] is not None]
    status = member["status"] if contact["status"] == "active" else contact["status"]
    return Situation(
        status,
        campaign,
        contact,
        Cadence.of(campaign),
        next((touch for touch in touches if touch["step"] == step), None),
        sent[-1] if sent else None,
    )


def may_send(session: Session, campaign_id: int, contact_id: int) -> bool:
    """Whether nothing has come in that ends it."""
    return bool(
        session.run(
            """SELECT 1 FROM members m JOIN contacts c ON c.id = m.contact_id
               WHERE m.campaign_id = :campaign_id AND m.contact_id = :contact_id
                 AND m.status = 'active' AND c.status = 'active'""",
            campaign_id=campaign_id,
            contact_id=contact_id,
        )
    )


# -- touches


def store_draft(session: Session, touch: dict[str, Any]) -> None:
    """Keep a draft, in place of one that was not sent."""
    session.run(
        """INSERT INTO touches (campaign_id, contact_id, step, status, subject, body,
             prompt_version, run_id, message_id, drafted_at)
           VALUES (:campaign_id, :contact_id, :step, :status, :subject, :body,
             :prompt_version, :run_id, :message_id, :drafted_at)
           ON CONFLICT (campaign_id, contact_id, step) DO UPDATE
           SET status = excluded.status, subject = excluded.subject, body = excluded.body,
               prompt_version = excluded.prompt_version, run_id = excluded.run_id,
               drafted_at = excluded.drafted_at
           WHERE touches.sent_at IS NULL""",
        **touch,
    )


def change_touch(session: Session, place: dict[str, int], **columns: Any) -> None:
    """Change columns of a touch."""
    changes = ", ".join(f"{name} = :{name}" for name in columns)
    session.run(
        f"""UPDATE touches SET {changes} WHERE campaign_id = :campaign_id
            AND contact_id = :contact_id AND step = :step""",  # noqa: S608 (our own names)
        **place,
        **columns,
    )


def go_on(session: Session, place: dict[str, int], attempt: str, now: int) -> bool:
    """Note that a conversation goes on, if it is still the last one about its touch."""
    return bool(
        session.run(
            """UPDATE touches SET attempt_at = :now WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND step = :step AND attempt = :attempt
               RETURNING step""",
            **place,
            attempt=attempt,
            now=now,
        )
    )


# -- ends


def has_reply(session: Session, campaign_id: int, contact_id: int) -> bool:
    """Whether a touch has earned a reply."""
    return bool(
        session.run(
            """SELECT 1 FROM touches WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND outcome = 1.0""",
            campaign_id=campaign_id,
            contact_id=contact_id,
        )
    )


def close(
    session: Session, campaign_id: int, contact_id: int, status: str
) -> tuple[str, dict[str, float]]:
    """End a member, if nothing else has, and its open draft. Gives how it ended, and what each
    touch earned, by its step.

    Whoever hears of a reply after this has to tell that himself.
    """
    of = {"campaign_id": campaign_id, "contact_id": contact_id}
    session.run(
        """UPDATE members SET status = :status WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND status = 'active'""",
        status=status,
        **of,
    )
    session.run(
        """UPDATE touches SET status = 'stopped' WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND status IN ('draft_pending', 'approved')""",
        **of,
    )
    session.run(
        """UPDATE touches SET outcome = 0.0 WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND sent_at IS NOT NULL AND outcome IS NULL""",
        **of,
    )
    rows = session.run(
        """SELECT step, outcome FROM touches WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id AND outcome IS NOT NULL ORDER BY step""",
        **of,
    )
    member = session.one(
        "SELECT status FROM members WHERE campaign_id = :campaign_id AND contact_id = :contact_id",
        **of,
    )
    ended = status if member is None else member["status"]
    return ended, {str(row["step"]): row["outcome"] for row in rows}


def end_contact(session: Session, contact_id: int, status: str) -> list[int]:
    """Write to a contact no more, in any campaign. Gives the campaigns that end by that."""
    session.run("UPDATE contacts SET status = :status WHERE id = :id", id=contact_id, status=status)
    rows = session.run(
        """UPDATE members SET status = :status WHERE contact_id = :id AND status = 'active'
           RETURNING campaign_id""",
        id=contact_id,
        status=status,
    )
    return [row["campaign_id"] for row in rows]
