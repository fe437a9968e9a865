"""Contacts: change them, stop writing to them, write to them again.

What each crash leaves behind:

    update     nothing, or the contact changed and a thread asleep, which looks by itself when it is
               due; repeating it wakes all of them
    unbounce   nothing, or all contacts active and a thread without a run: repeating it starts it
    remove     nothing, or the contact removed and a thread asleep, which ends when it is due

Each is one batch, which decides, and then wakes the threads. `erase` has a module of its own.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.times import moment
from perdure.types import ENDED, State

from . import records, turns
from .agent import thread_of
from .database import Conflict, Row, Statement, sql
from .erasure import Erased, StillDriven, erase
from .errors import Unknown
from .sheet import check_zone, hash_of, normalise, person_of, plain

if TYPE_CHECKING:
    from .app import App

__all__ = [
    "Erased",
    "Person",
    "StillDriven",
    "bounced",
    "erase",
    "find",
    "remove",
    "show",
    "unbounce",
    "update",
]

PATIENCE = 5.0
"""Seconds that `unbounce` waits for a thread that is being driven."""


def find(app: App, address: str) -> Row:
    """The contact of an address. Raises `Unknown`."""
    row = app.database.one(
        "SELECT * FROM contacts WHERE address = :address", address=normalise(address)
    )
    if row is None:
        raise Unknown(f"There is no contact {address!r}. Check the spelling, or import it first.")
    return row


# -- looking


@dataclass(frozen=True)
class Person:
    """A contact, with their campaigns, touches and messages."""

    contact: Row
    campaigns: list[Row]
    touches: list[Row]
    messages: list[Row]


def show(app: App, address: str) -> Person:
    """Everything about a contact."""
    contact = find(app, address)
    campaigns, touches, messages = app.database.read(
        sql(
            """SELECT p.name, p.state, m.status FROM members m
               JOIN campaigns p ON p.id = m.campaign_id
               WHERE m.contact_id = :id ORDER BY p.id""",
            id=contact["id"],
        ),
        sql(
            """SELECT p.name, t.step, t.status, t.subject, t.sent_at, t.problem, t.said
               FROM touches t JOIN campaigns p ON p.id = t.campaign_id
               WHERE t.contact_id = :id ORDER BY p.id, t.step""",
            id=contact["id"],
        ),
        sql(
            """SELECT kind, address, subject, received_at FROM messages
               WHERE contact_id = :id ORDER BY received_at""",
            id=contact["id"],
        ),
    )
    return Person(contact, campaigns, touches, messages)


# -- changing


def update(
    app: App,
    address: str,
    *,
    name: str | None = None,
    company: str | None = None,
    zone: str | None = None,
    new_address: str | None = None,
) -> Row:
    """Change a contact; None leaves a value as it is. Returns the changed contact.

    If the name, the company or the address changes, unsent texts are written and approved again:
    their approver saw the old ones. A mail already on its way goes to the old address.

    Raises `Unknown`, and `ValueError` if the address is taken or must not be written to.
    """
    row = find(app, address)
    changed: Row = {
        "name": row["name"] if name is None else plain("the name", name),
        "company": row["company"] if company is None else plain("the company", company),
        "zone": row["zone"] if zone is None else check_zone(zone),
        "address": row["address"] if new_address is None else normalise(new_address),
    }
    changed["person"] = person_of(changed["address"])
    if changed["address"] != row["address"]:
        _refuse_suppressed(app, changed["address"])
    is_other = any(changed[one] != row[one] for one in ("name", "company", "address"))
    try:
        app.database.write(*_changes(row, changed, is_other=is_other))
    except Conflict:
        _refuse_suppressed(app, changed["address"])
        raise ValueError(f"Contact {changed['address']} already exists.") from None
    for campaign_id in records.campaigns_of(app.database, row["id"]):
        app.wake(campaign_id, row["id"], f"contact {uuid.uuid4().hex}")
    return row | changed


def _changes(row: Row, changed: Row, *, is_other: bool) -> list[Statement]:
    contact_id = row["id"]
    statements = []
    if changed["address"] != row["address"]:
        hashes = json.dumps([{"hash": hash_of(changed["person"])}])
        statements.append(sql(records.NONE_SUPPRESSED, rows=hashes))
    statements += [
        sql(
            """UPDATE contacts SET name = :name, company = :company, zone = :zone,
                 address = :address, person = :person WHERE id = :id""",
            id=contact_id,
            **changed,
        )
    ]
    if is_other:
        statements += [
            sql(
                f"""UPDATE touches SET status = 'stopped', said = 'the contact was changed'
                    WHERE contact_id = :id AND sent_at IS NULL
                    AND status IN {records.UNSENT}""",  # noqa: S608 (our own words)
                id=contact_id,
            ),
            turns.release({"contact_id": contact_id}),
            sql(
                "UPDATE bookings SET person = :person WHERE contact_id = :id",
                id=contact_id,
                person=changed["person"],
            ),
        ]
    if changed["address"] != row["address"]:  # tries are counted for an address
        statements += [
            sql(
                """INSERT INTO former_addresses (person, contact_id) VALUES (:person, :id)
                   ON CONFLICT (person, contact_id) DO NOTHING""",
                person=row["person"],
                id=contact_id,
            ),
            sql(
                """UPDATE touches SET tries = 0, attempt = NULL
                   WHERE contact_id = :id AND sent_at IS NULL""",
                id=contact_id,
            ),
        ]
    return statements


def _refuse_suppressed(app: App, address: str) -> None:
    row = app.database.one(
        "SELECT why FROM suppressions WHERE hash = :hash", hash=hash_of(person_of(address))
    )
    if row is not None:
        raise ValueError(f"{address} {records.SUPPRESSED[row['why']]}, and is not written to.")


# -- ending, and going on


def remove(app: App, address: str) -> list[int]:
    """Stop writing to a contact. Returns the campaigns that this ended."""
    contact_id = find(app, address)["id"]
    before = records.campaigns_of(app.database, contact_id)
    app.database.write(*records.end_contact(contact_id, "removed"))
    after = records.campaigns_of(app.database, contact_id)
    for campaign_id in after:  # also those that an earlier attempt did not reach
        app.wake(campaign_id, contact_id, "removed")
    return [
        campaign_id
        for campaign_id, status in after.items()
        if status == "removed" and before.get(campaign_id) == "active"
    ]


def bounced(app: App, campaign_id: int, since: int = 0) -> list[str]:
    """The addresses that bounced in a campaign, by a refusal or a report since then."""
    found = app.database.rows(
        """SELECT c.address FROM members m JOIN contacts c ON c.id = m.contact_id
           WHERE m.campaign_id = :campaign_id AND m.status = 'bounced' AND c.status = 'bounced'
           AND (EXISTS (SELECT 1 FROM touches t WHERE t.contact_id = c.id
                        AND t.status = 'refused' AND COALESCE(t.attempt_at, 0) >= :since)
             OR EXISTS (SELECT 1 FROM messages g WHERE g.contact_id = c.id
                        AND g.kind = 'bounce' AND g.received_at >= :since))
           ORDER BY c.address""",
        campaign_id=campaign_id,
        since=since,
    )
    return [row["address"] for row in found]


def unbounce(app: App, *addresses: str) -> int:
    """Write again to contacts that bounced by mistake. Returns how many threads go on.

    A refused touch is retried with its approved text; one that was sent and bounced later is not:
    the next one follows. Raises `ValueError` if a contact unsubscribed, was removed or is
    suppressed.
    """
    rows = [find(app, address) for address in dict.fromkeys(addresses)]
    for row in rows:
        _refuse_suppressed(app, row["address"])
        if row["status"] not in ("active", "bounced"):
            raise ValueError(f"{row['address']} is {row['status']}, not bounced.")
    started = 0
    for row in rows:
        app.database.write(*_going_on(row["id"]))
        for campaign_id, status in records.campaigns_of(app.database, row["id"]).items():
            if status == "active":
                started += _start(app, campaign_id, row["id"])
    return started


def _going_on(contact_id: int) -> list[Statement]:
    """Make a bounced contact active, in all campaigns that are not stopped. Another status stays:
    the contact may have unsubscribed meanwhile."""
    running = "campaign_id IN (SELECT id FROM campaigns WHERE state <> 'stopped')"
    theirs = (
        "contact_id = :id AND EXISTS (SELECT 1 FROM contacts WHERE id = :id AND status = 'active')"
    )
    return [
        sql(
            "UPDATE contacts SET status = 'active' WHERE id = :id AND status = 'bounced'",
            id=contact_id,
        ),
        sql(
            f"""UPDATE touches SET status = 'approved', said = '', {records.UNREFUSED}
                WHERE {theirs} AND status = 'refused' AND EXISTS
                  (SELECT 1 FROM members m WHERE m.campaign_id = touches.campaign_id
                   AND m.contact_id = :id AND m.status = 'bounced')
                AND {running}""",  # noqa: S608 (our own words)
            id=contact_id,
        ),
        sql(
            f"""UPDATE members SET status = 'active'
                WHERE {theirs} AND status = 'bounced' AND {running}""",  # noqa: S608 (our own words)
            id=contact_id,
        ),
    ]


def _start(app: App, campaign_id: int, contact_id: int) -> int:
    """Let the thread of an active member go on, if its last run has ended."""
    thread_id = thread_of(campaign_id, contact_id)
    runs = app.runtime.blocking.runs(thread_id=thread_id, output=False)
    patience = time.monotonic() + PATIENCE
    while any(run.state is State.RUNNING for run in runs) and time.monotonic() < patience:
        time.sleep(0.05)  # it may be about to end by what was undone
        runs = app.runtime.blocking.runs(thread_id=thread_id, output=False)
    if any(run.state not in ENDED for run in runs):
        return 0
    touches = app.database.rows(
        """SELECT step, status, sent_at FROM touches WHERE campaign_id = :campaign_id
           AND contact_id = :contact_id ORDER BY step""",
        campaign_id=campaign_id,
        contact_id=contact_id,
    )
    if not runs and not touches:  # `launch` starts it
        return 0
    unsent = [touch["step"] for touch in touches if touch["status"] in ("approved", "stopped")]
    step = min(unsent, default=len(touches) + 1)
    sent = [touch["sent_at"] for touch in touches if touch["sent_at"] is not None]
    last_at = moment(max(sent, default=app.clock.now()))
    state: dict[str, Any] = {
        "step": step,
        "last_at": last_at,
        "not_before": last_at,
        "comment": "",
        "ended": "",
    }
    app.begin(
        campaign_id, contact_id, key=f"unbounce after {runs[0].id if runs else 'none'}", **state
    )
    return 1
