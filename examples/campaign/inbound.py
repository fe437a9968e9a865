"""Mail that comes in: matched to a contact, stored, and told to the threads it ends.

A mail is answered with 250 only when all of that is on disk, so whoever hands it over keeps it
until then, and hands it over again if this process dies. What each crash leaves behind:

    before the message is stored   nothing; it is handed over again
    stored, threads not told       `told = 0`: `sweep` tells them, and so does the second hand-over
    told                           the signal's key is the message's id: telling again is no harm

From the moment it is stored nothing more is sent: `members.status` says so in the same transaction.

A thread that is held is tried again, so that it comes to its end: there is nothing to send any
more. Not so if nobody knows what became of a mail of it: a person has to settle that first, and
then the thread ends by itself.

Message-IDs are what others say they are. A mail is one and the same if its Message-ID and its
author are; a mail with a Message-ID of ours is ours, come back; and an answer or a bounce is about
a mail of ours only if we have begun to send that one.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP

from perdure import Client, errors
from perdure.types import State

from . import records
from .agent import thread_of
from .app import App
from .database import Row, Session
from .reading import Incoming, parse
from .sheet import normalise

log = logging.getLogger("campaign")

_LARGEST = 25 * 1024 * 1024


class Inbound:
    """Receives mail for an application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._client: Client = app.runtime

    def receive(self, content: bytes) -> Row:
        """Take a mail in for good, and tell its threads. Gives its row of `messages`."""
        mail = parse(content, self._app.settings.unsubscribe)
        with self._app.database.transaction() as session:
            session.lock("messages")
            message = self._message(session, _id(mail)) or self._store(session, mail)
        if not message["told"]:
            self._tell(message)
        return message

    def sweep(self) -> int:
        """Tell the threads of messages whose receiver died before it could, or came too early."""
        with self._app.database.reading() as session:
            waiting = session.run("SELECT * FROM messages WHERE told = 0 ORDER BY received_at")
        return sum(self._tell(message) for message in waiting)

    def _message(self, session: Session, id: str) -> Row | None:
        return session.one("SELECT * FROM messages WHERE id = :id", id=id)

    def _store(self, session: Session, mail: Incoming) -> Row:
        now = self._app.clock.now()
        touch, contact_id = self._match(session, mail)
        message: Row = {
            "id": _id(mail),
            "kind": mail.kind if contact_id is not None else "stray",
            "address": mail.address,
            "contact_id": contact_id,
            "run_id": None,
            "step": None,
            "late": 0,
            "received_at": now,
            "text": mail.text[:10_000],
            "told": 1,
        }
        status = records.ENDED_BY.get(message["kind"])
        if status is not None and contact_id is not None:
            message["told"] = 0
            self._end(session, message, status, touch)
        session.run(
            """INSERT INTO messages (id, kind, address, contact_id, run_id, step, late,
                 received_at, text, told)
               VALUES (:id, :kind, :address, :contact_id, :run_id, :step, :late, :received_at,
                 :text, :told)""",
            **message,
        )
        return message

    def _match(self, session: Session, mail: Incoming) -> tuple[Row | None, int | None]:
        """The touch that a mail answers, and the contact it is from.

        A bounce has to name one of our mails; anybody else is known by his address, too.
        """
        if session.run("SELECT 1 FROM touches WHERE message_id = :id", id=mail.message_id):
            return None, None
        for answered in mail.in_reply_to:
            touch = session.one(
                """SELECT * FROM touches WHERE message_id = :id AND attempt IS NOT NULL
                   ORDER BY CASE WHEN sent_at IS NULL THEN 1 ELSE 0 END LIMIT 1""",
                id=answered,
            )
            if touch is not None:
                return touch, touch["contact_id"]
        if mail.kind == "bounce":
            return None, None
        for address in (mail.address, *mail.others):
            contact = session.one(
                "SELECT id FROM contacts WHERE address = :address", address=_spelling(address)
            )
            if contact is not None:
                touch = session.one(
                    """SELECT * FROM touches WHERE contact_id = :id AND sent_at IS NOT NULL
                       ORDER BY sent_at DESC LIMIT 1""",
                    id=contact["id"],
                )
                return touch, contact["id"]
        return None, None

    def _end(self, session: Session, message: Row, status: str, touch: Row | None) -> None:
        """End every campaign of the contact, and note the touch that earned its first reply."""
        contact_id = message["contact_id"]
        if status != "replied":
            records.end_contact(session, contact_id, status)
            return
        ended = session.run(
            """UPDATE members SET status = 'replied' WHERE contact_id = :id AND status = 'active'
               RETURNING campaign_id""",
            id=contact_id,
        )
        if touch is None or records.has_reply(session, touch["campaign_id"], contact_id):
            return
        campaign_id = touch["campaign_id"]
        message["run_id"], message["step"] = touch["run_id"], touch["step"]
        message["late"] = int(campaign_id not in [row["campaign_id"] for row in ended])
        session.run(
            """UPDATE members SET status = 'replied' WHERE campaign_id = :campaign_id
               AND contact_id = :contact_id AND status = 'finished'""",
            campaign_id=campaign_id,
            contact_id=contact_id,
        )
        place = {name: touch[name] for name in ("campaign_id", "contact_id", "step")}
        records.change_touch(session, place, outcome=1.0)

    def _tell(self, message: Row) -> bool:
        """Signal the threads of a contact; of one that is over, say what its touch earned.

        False if that is to be said later: whoever ends a thread may be about to say what it knows.
        """
        with self._app.database.reading() as session:
            members = session.run(
                "SELECT campaign_id FROM members WHERE contact_id = :id", id=message["contact_id"]
            )
        for member in members:
            thread_id = thread_of(member["campaign_id"], message["contact_id"])
            self._client.blocking.signal(thread_id, "wake", key=message["id"])
            self._release(thread_id)
        if message["run_id"]:
            with contextlib.suppress(errors.NotFound):  # pruned
                if self._client.blocking.get(message["run_id"]).ended:
                    about = f"touch {message['step']}"
                    self._client.blocking.score(message["run_id"], "reply", 1.0, about=about)
                elif message["late"]:
                    return False
        with self._app.database.transaction() as session:
            session.run("UPDATE messages SET told = 1 WHERE id = :id", id=message["id"])
        return True

    def _release(self, thread_id: str) -> None:
        """Let a held thread come to its end, unless a person has to settle something first."""
        client = self._client.blocking
        for run in client.runs(thread_id=thread_id, state=State.HELD, output=False):
            if not client.effects(run.id, state="unknown", limit=1):
                with contextlib.suppress(errors.WrongState, errors.NotFound):  # no longer held
                    client.retry(run.id)


def _id(mail: Incoming) -> str:
    """Machines that write `<1@localhost>` into every mail must not make two people one."""
    return f"{mail.message_id} {hashlib.sha256(mail.address.encode()).hexdigest()[:16]}"


def _spelling(address: str) -> str:
    """An address as it is in `contacts`."""
    try:
        return normalise(address)
    except ValueError:
        return address


class Handler:
    """For aiosmtpd: takes a mail, or asks for it again."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        content = envelope.content
        if envelope.mail_from in (None, "", "<>"):  # of a bounce, or of a machine that wants none
            content = b"Return-Path: <>\r\n" + content
        try:
            message = await asyncio.to_thread(self._inbound.receive, content)
        except Exception:
            log.exception("a mail could not be taken in")
            return "451 4.3.0 Try again later"
        log.info("%s from %s", message["kind"], message["address"])
        return "250 2.0.0 Taken in"


class _SMTP(SMTP):
    line_length_limit = _LARGEST
    """Mail programs that write a paragraph as one line are many; the limit of the RFC is theirs."""


class _LMTP(LMTP):
    """Says after the content what became of it once per recipient, as RFC 2033 asks."""

    line_length_limit = _LARGEST
    _answers = 1

    async def smtp_DATA(self, arg: str) -> None:  # noqa: N802
        try:
            await super().smtp_DATA(arg)
        finally:
            self._answers = 1

    async def push(self, status: Any) -> None:
        for _ in range(self._answers):
            await super().push(status)
        if str(status).startswith("354 ") and self.envelope is not None:
            self._answers = len(self.envelope.rcpt_tos)


class Listener(Controller):
    """An LMTP or SMTP server for the mail server in front of us."""

    def __init__(self, inbound: Inbound, host: str, port: int, *, lmtp: bool = False) -> None:
        self._lmtp = lmtp
        super().__init__(Handler(inbound), hostname=host, port=port, ready_timeout=30)

    def factory(self) -> SMTP:
        kind = _LMTP if self._lmtp else _SMTP
        return kind(self.handler, data_size_limit=_LARGEST)
