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
import json
import logging
from collections.abc import Iterator
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP

from perdure import Client, errors
from perdure.types import State

from . import records
from .agent import MANY, sent_by, thread_of
from .app import App
from .database import Conflict, Row, Statement, sql
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
        message = self._message(_id(mail))
        if message is None:
            with contextlib.suppress(Conflict):  # it was handed over twice, at once
                self._app.database.write(*self._taking_in(mail))
            message = self._message(_id(mail))
            assert message is not None
        if not message["told"]:
            self._tell(message)
        return message

    def sweep(self) -> int:
        """Tell the threads of messages whose receiver died before it could, or came too early."""
        waiting = self._app.database.rows(
            "SELECT * FROM messages WHERE told = 0 ORDER BY received_at"
        )
        return sum(self._tell(message) for message in waiting)

    def _message(self, id: str) -> Row | None:
        return self._app.database.one("SELECT * FROM messages WHERE id = :id", id=id)

    def _taking_in(self, mail: Incoming) -> Iterator[Statement]:
        """What stores a mail, and ends what it ends. Of two who do so at once, one comes to
        nothing, as a message has one row."""
        touch, contact_id = self._match(mail)
        kind = mail.kind if contact_id is not None else "stray"
        status = records.ENDED_BY.get(kind)
        yield sql(
            """INSERT INTO messages (id, kind, address, contact_id, late, received_at,
                 subject, text, told)
               VALUES (:id, :kind, :address, :contact_id, 0, :received_at, :subject, :text,
                 :told)""",
            id=_id(mail),
            kind=kind,
            address=mail.address,
            contact_id=contact_id,
            received_at=self._app.clock.now(),
            subject=mail.subject[:1000],
            text=mail.text[:10_000],
            told=int(status is None),
        )
        if status is None or contact_id is None:
            return
        if status == "replied":
            yield from records.reply(_id(mail), contact_id, touch)
        else:
            yield from records.end_contact(contact_id, status)

    def _match(self, mail: Incoming) -> tuple[Row | None, int | None]:
        """The touch that a mail answers, and the contact it is from.

        A bounce has to name one of our mails; anybody else is known by his address, too.
        """
        people = [_spelling(address) for address in (mail.address, *mail.others)]
        own, answered, contacts = self._app.database.read(
            sql("SELECT 1 FROM touches WHERE message_id = :id", id=mail.message_id),
            sql(
                """SELECT * FROM touches WHERE attempt IS NOT NULL
                   AND message_id IN (SELECT value->>'is' FROM json_each(:ids))
                   ORDER BY CASE WHEN sent_at IS NULL THEN 1 ELSE 0 END""",
                ids=_listed(mail.in_reply_to),
            ),
            sql(
                """SELECT id, address FROM contacts
                   WHERE address IN (SELECT value->>'is' FROM json_each(:people))""",
                people=_listed(people),
            ),
        )
        if own:
            return None, None
        for id in mail.in_reply_to:
            for touch in answered:
                if touch["message_id"] == id:
                    return touch, touch["contact_id"]
        if mail.kind == "bounce" or not contacts:
            return None, None
        contact_id = min(contacts, key=lambda row: people.index(row["address"]))["id"]
        last = self._app.database.one(
            """SELECT t.* FROM members m JOIN touches t
               ON t.campaign_id = m.campaign_id AND t.contact_id = m.contact_id
               WHERE m.contact_id = :id AND t.sent_at IS NOT NULL
               ORDER BY t.sent_at DESC LIMIT 1""",
            id=contact_id,
        )
        return last, contact_id

    def _tell(self, message: Row) -> bool:
        """Signal the threads of a contact; of one that is over, say what its touch earned.

        False if that is to be said later: whoever ends a thread may be about to say what it knows.
        """
        for campaign_id in records.campaigns_of(self._app.database, message["contact_id"]):
            thread_id = thread_of(campaign_id, message["contact_id"])
            self._client.blocking.signal(thread_id, "wake", key=message["id"])
            self._release(thread_id)
        if message["run_id"]:
            with contextlib.suppress(errors.NotFound):  # pruned
                if self._client.blocking.get(message["run_id"]).ended:
                    effects = self._client.blocking.effects(message["run_id"], limit=MANY)
                    part = sent_by(effects, message["step"])
                    self._client.blocking.score(message["run_id"], "reply", 1.0, **part)
                elif message["late"]:
                    return False
        self._app.database.write(
            sql("UPDATE messages SET told = 1 WHERE id = :id", id=message["id"])
        )
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


def _listed(words: list[str]) -> str:
    """For SQL, which reads each word as `value->>'is'`."""
    return json.dumps([{"is": word} for word in words])


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
