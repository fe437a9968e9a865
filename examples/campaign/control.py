"""The stop button of a campaign, and changes to it while it runs.

One statement on the campaign's row decides each of them; then its threads are told, one by one.
What a kill leaves behind, and what mends it:

    pause    nothing in between: the row says so, and a thread reads it before each mail
    resume   contacts that a trouble bounced are unbounced first; `resume` again takes the rest.
             Then the campaign runs, and threads that were not told yet sleep on: `resume` again
             tells them, and each looks by itself every six hours
    stop     no member is active, so nothing is sent. Threads that were not told yet, and their
             drafts in the inbox, are there until their next look; `stop` again tells them
    edit     the new version holds for every thread that wakes. One that was not told yet sleeps
             until it was due before; the same `edit` again tells it

A signal's key has the version, so a thread is told once however often a command is repeated.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from . import people, records, trouble
from .database import Row, Statement, sql
from .errors import ChangedMeanwhile, Unknown, WrongState, refuse_stopped
from .preview import Changes, Preview, preview

if TYPE_CHECKING:
    from .app import App

__all__ = [
    "ChangedMeanwhile",
    "Changes",
    "Preview",
    "Switched",
    "WrongState",
    "edit",
    "pause",
    "preview",
    "resume",
    "stop",
]

RECENT = 5 * 60_000
"""Milliseconds for which a conversation with the mail server may go on."""
_SWITCH = """UPDATE campaigns SET state = :state, version = :version,
  trouble = CASE WHEN CAST(:state AS TEXT) = 'paused' THEN trouble ELSE '' END
WHERE id = :id AND version = :version - 1 AND state = :was"""
_TRY_AGAIN = f"""UPDATE touches SET {records.UNREFUSED} WHERE campaign_id = :id
AND sent_at IS NULL AND problem <> ''
AND EXISTS (SELECT 1 FROM campaigns WHERE id = :id AND state = 'running')"""  # noqa: S608
_END = """UPDATE members SET status = 'stopped' WHERE campaign_id = :id AND status = 'active'
AND EXISTS (SELECT 1 FROM campaigns WHERE id = :id AND state = 'stopped')"""
_REDRAFT = """DELETE FROM touches WHERE campaign_id = :id AND status = 'draft_pending'
AND attempt IS NULL AND drafted_at <= :now
AND EXISTS (SELECT 1 FROM campaigns WHERE id = :id AND version = :version)"""
_BOUNCED = """SELECT c.address FROM touches t JOIN contacts c ON c.id = t.contact_id
WHERE t.campaign_id = :id AND t.problem = :kind AND c.status = 'bounced' AND t.attempt_at >=
  (SELECT COALESCE(MAX(sent_at), 0) FROM touches WHERE campaign_id = :id AND sent_at <
    (SELECT MAX(attempt_at) FROM touches WHERE campaign_id = :id AND problem = :kind))
ORDER BY t.attempt_at, c.id"""
"""Contacts whose mails were refused in a trouble: all since the last mail sent before it."""


@dataclass(frozen=True)
class Switched:
    """A campaign's new state, and what it affects."""

    state: str
    was: str
    threads: int
    """Active members; after a stop, the members that it ended."""
    drafts: int
    """Drafts that wait for a person."""
    on_their_way: int
    """Mails with a conversation in the last five minutes and no outcome yet. The last check before
    the content still reads the campaign's state."""


def pause(app: App, campaign_id: int) -> Switched:
    """Send nothing until `resume`. When this returns, no conversation that begins later sends.

    Drafts that wait stay open, and may be answered. A question about a trouble is withdrawn.
    """
    row, was = _switch(app, campaign_id, "paused", ("running", "trouble"), "paused")
    _withdraw_question(app, row)
    return _report(app, row, was, "active")


def resume(
    app: App, campaign_id: int, *, number: int | None = None, keep_bounced: bool = False
) -> Switched:
    """Send again, and wake every thread. Contacts that bounced because of a trouble are active
    again, unless `keep_bounced`: then their addresses really are wrong, and no longer count towards
    the next trouble. With the `number` of a trouble, resume only if that trouble stopped the
    campaign: a later pause is not overruled."""
    if number is not None:
        found = app.row(campaign_id)
        if found["troubles"] != number or found["state"] not in ("trouble", "running"):
            return _report(app, found, found["state"], "active")
    if not keep_bounced:
        _take_back(app, app.row(campaign_id))
    again = sql(_TRY_AGAIN, id=campaign_id)
    row, was = _switch(app, campaign_id, "running", ("paused", "trouble"), "resumed", again)
    _withdraw_question(app, row)
    for contact_id, _ in app.members(campaign_id, without_draft=True):
        app.wake(campaign_id, contact_id, f"resumed {row['version']}")
    return _report(app, row, was, "active")


def stop(app: App, campaign_id: int) -> Switched:
    """End a campaign for good: its members and its threads end."""
    states = ("running", "paused", "trouble")
    row, was = _switch(app, campaign_id, "stopped", states, "stopped", sql(_END, id=campaign_id))
    _withdraw_question(app, row)
    for contact_id, _ in app.members(campaign_id, status="stopped"):
        app.wake(campaign_id, contact_id, "stopped")
    return _report(app, row, was, "stopped")


def edit(
    app: App, campaign_id: int, changes: Changes, *, seen: int | None = None, redraft: bool = False
) -> int:
    """Change a campaign, also for threads that sleep. Returns its new version.

    `seen` is the version whose preview a person has agreed to; if the campaign has another by now,
    `ChangedMeanwhile` is raised. With `redraft`, waiting drafts are withdrawn and written again,
    also those whose approval no worker has taken up yet.
    """
    now = app.clock.now() if redraft else 0
    while True:
        row = app.row(campaign_id)
        refuse_stopped(row, "changed")
        columns = changes.columns(row)
        version = int(row["version"]) + 1
        if seen is not None and row["version"] != seen:
            raise ChangedMeanwhile(row, seen)
        if row.items() >= columns.items() and not redraft:
            version -= 1
            break
        *_, [found] = app.database.write(
            _change(campaign_id, version, columns),
            *([sql(_REDRAFT, id=campaign_id, version=version, now=now)] if redraft else []),
            sql("SELECT * FROM campaigns WHERE id = :id", id=campaign_id),
        )
        if found.items() >= {"version": version, **columns}.items():
            break  # else another process changed it
    if changes.moves or redraft:
        for contact_id, _ in app.members(campaign_id, without_draft=True):
            app.wake(campaign_id, contact_id, f"edit {version}")
    return version


def _switch(
    app: App,
    campaign_id: int,
    state: str,
    allowed: tuple[str, ...],
    verb: str,
    *more: Statement,
) -> tuple[Row, str]:
    """Move a campaign to a state from one of those `allowed`. Returns its row and the state before.
    The version decides, so a batch that arrives late changes nothing."""
    was = ""
    while True:
        row = app.row(campaign_id)
        if state != "stopped":
            refuse_stopped(row, verb)
        was = was or row["state"]
        if row["state"] == state and not more:
            return row, was
        assert row["state"] in (state, *allowed)
        *_, [found] = app.database.write(
            sql(_SWITCH, id=campaign_id, version=row["version"] + 1, state=state, was=row["state"])
            if row["state"] != state
            else sql("SELECT 1"),
            *more,
            sql("SELECT * FROM campaigns WHERE id = :id", id=campaign_id),
        )
        if found["state"] == state:
            return found, was


def _change(campaign_id: int, version: int, columns: Row) -> Statement:
    words = "".join(f"{name} = :{name}, " for name in columns)
    return sql(
        f"""UPDATE campaigns SET {words}version = :version
            WHERE id = :id AND version = :version - 1 AND state <> 'stopped'""",  # noqa: S608
        id=campaign_id,
        version=version,
        **columns,
    )


def _take_back(app: App, row: Row) -> None:
    """Unbounce contacts that bounced because of a trouble, not because of their addresses.

    The oldest comes first. After a kill the next `resume` finds the rest: the campaign does not run
    yet, and its trouble is still known.
    """
    kind = row["trouble"].partition(":")[0]
    for bounced in app.database.rows(_BOUNCED, id=row["id"], kind=kind) if kind else []:
        with contextlib.suppress(ValueError, Unknown):  # unsubscribed, removed or erased meanwhile
            people.unbounce(app, bounced["address"])


def _withdraw_question(app: App, row: Row) -> None:
    """Withdraw the question about the last trouble, if it is open."""
    if row["troubles"]:
        name = trouble.resumed(row["troubles"])
        app.runtime.blocking.signal(trouble.thread_of(row["id"]), name, key=name)


def _report(app: App, row: Row, was: str, status: str) -> Switched:
    of: dict[str, Any] = {"id": row["id"]}
    [counts] = app.database.rows(
        """SELECT
             (SELECT count(*) FROM members WHERE campaign_id = :id AND status = :status) AS threads,
             (SELECT count(*) FROM touches WHERE campaign_id = :id
              AND status = 'draft_pending') AS drafts,
             (SELECT count(*) FROM touches WHERE campaign_id = :id AND status = 'approved'
              AND attempt_at > :since) AS on_their_way""",
        status=status,
        since=app.clock.now() - RECENT,
        **of,
    )
    return Switched(row["state"], was, **counts)
