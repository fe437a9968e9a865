"""Incoming mail: matched to its contacts, stored, and told to the threads it ends.

A mail is answered with 250 only when all of that is on disk, so the server that hands it over keeps
it until then, and hands it over again if this process dies. What each crash leaves behind:

    before the message is stored   nothing; it is handed over again
    stored, threads not told       `told = 0`: `sweep` tells them, and so does the second hand-over
    some threads told              the same; `message_contacts`, stored with the message, has whom
                                   it ends, so all of them are told again
    told                           the signal's key is the message's id: telling again does no harm

From the moment it is stored nothing more is sent: `members.status` says so in the same transaction,
for everyone it ends: the contact whose mail it answers, the author, who may be another person (bo@
answers for info@), and the contact whose unsubscribe address it went to: each with all contacts of
the same person (bo+news@ is bo@, and so is robert@, who replaced it: identity.py).

A held thread is retried, so that it ends: there is nothing more to send. A thread with a mail of
unknown outcome is not: a person settles that first, and then the thread ends by itself.

Message-IDs are not trusted. Two mails are the same only if their Message-ID, author and wish to
unsubscribe are equal; and an answer or a bounce is about one of our mails only if we have begun to
send that mail.

Our own mail is not a reply: a mail with one of our Message-IDs that came back, or a copy of a mail
that a campaign's sender wrote by hand. It counts only for the token in its recipients, or as a
sender's answer to a mail sent to that sender. Otherwise only its id is kept, as for a dismissed
stray; but if it asks to unsubscribe it is a stray, because it may pass on somebody's request.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Sequence
from email.utils import parseaddr
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.lmtp import LMTP
from aiosmtpd.smtp import SMTP

from perdure import Client, errors
from perdure.types import State

from . import messages
from .agent import OUTCOME, thread_of
from .app import App
from .database import Conflict, Row, json_list, sql
from .identity import together
from .messages import Match
from .reading import Incoming, Written, parse
from .sending import MANY, sent_by
from .sheet import normalise, person_of

log = logging.getLogger("campaign")

_LARGEST = 25 * 1024 * 1024


class Inbound:
    """Receives mail for an application."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._client: Client = app.runtime

    def receive(self, content: bytes, recipients: Sequence[str] = ()) -> Row:
        """Store a mail, and tell its threads. Returns its row of `messages`.

        `recipients` are those of its envelope; its headers need not name them.
        """
        return self._receive(self._parse(content, recipients))

    def receive_known(self, content: bytes) -> Row | None:
        """Receive a mail from a personal mailbox if it is about a contact. Returns None otherwise:
        then it is private, and nothing of it is stored."""
        mail = self._parse(content)
        match = self._match(mail)
        return None if match.contact_id is None else self._receive(mail, match)

    def one_click(self, token: str) -> Row | None:
        """Unsubscribe the contact with this token, who clicked the link. May be repeated. Returns
        None if there is no such contact."""
        contact = self._app.database.one(
            "SELECT address FROM contacts WHERE token = :token", token=token
        )
        if contact is None:
            return None
        message_id = f"<{token}@one-click.invalid>"
        mail = Incoming(message_id, contact["address"], "unsubscribe", [], "", "", tokens=[token])
        return self._receive(mail)

    def _parse(self, content: bytes, recipients: Sequence[str] = ()) -> Incoming:
        """Read a mail. If it answers ours, read it again without what it quotes from them."""
        unsubscribe = self._app.settings.unsubscribe
        mail = parse(content, unsubscribe, recipients)
        touches = self._app.database.rows(
            """SELECT subject, body FROM touches
               WHERE message_id IN (SELECT value->>'is' FROM json_each(:ids))""",
            ids=json_list(mail.in_reply_to),
        )
        ours = [Written(touch["subject"], touch["body"]) for touch in touches]
        return parse(content, unsubscribe, recipients, ours) if ours else mail

    def _receive(self, mail: Incoming, match: Match | None = None) -> Row:
        message = self._message(_id(mail))
        if message is None:
            with contextlib.suppress(Conflict):  # it was handed over twice at once
                match = match or self._match(mail)
                self._app.database.write(*messages.take_in(self._row(mail, match), match))
            message = self._message(_id(mail))
            assert message is not None
            if message["kind"] == "stray":
                log.warning(
                    "stray from %s: %r; `strays` lists them", message["address"], message["subject"]
                )
        if not message["told"]:
            self.tell(message)
        return message

    def sweep(self) -> int:
        """Tell the threads of messages whose receiver died first, or which arrived too early."""
        waiting = self._app.database.rows(
            "SELECT * FROM messages WHERE told = 0 ORDER BY received_at"
        )
        return sum(self.tell(message) for message in waiting)

    def _message(self, id: str) -> Row | None:
        return self._app.database.one("SELECT * FROM messages WHERE id = :id", id=id)

    def _row(self, mail: Incoming, match: Match) -> Row:
        row = {
            "id": _id(mail),
            "kind": mail.kind if match.contact_id is not None else "stray",
            "read_as": mail.kind,
            "address": mail.address,
            "received_at": self._app.clock.now(),
            "subject": mail.subject[:1000],
            "text": mail.text[:10_000],
        }
        put_away = {"kind": "dismissed", "address": "", "subject": "", "text": ""}
        return row | put_away if match.is_copy else row

    def _match(self, mail: Incoming) -> Match:
        """The touch that a mail answers, and the people it is about.

        A bounce must name one of our mails. Any other mail is also matched by its author, or by the
        token in the address it went to. Our own mail matches nothing else.
        """
        people = [_spelling(address) for address in (mail.address, *mail.others)]
        persons = [person_of(one) for one in people if one]
        own, senders, answered, tokens, exact = self._app.database.read(
            sql("SELECT 1 FROM touches WHERE message_id = :id", id=mail.message_id),
            sql("SELECT DISTINCT sender FROM campaigns"),
            sql(
                """SELECT t.*, c.person FROM touches t LEFT JOIN contacts c ON c.id = t.contact_id
                   WHERE t.attempt IS NOT NULL
                   AND t.message_id IN (SELECT value->>'is' FROM json_each(:ids))
                   ORDER BY CASE WHEN t.sent_at IS NULL THEN 1 ELSE 0 END""",
                ids=json_list(mail.in_reply_to),
            ),
            sql(
                """SELECT id FROM contacts
                   WHERE token IN (SELECT value->>'is' FROM json_each(:tokens)) ORDER BY id""",
                tokens=json_list(mail.tokens),
            ),
            sql(
                """SELECT id, address FROM contacts
                   WHERE address IN (SELECT value->>'is' FROM json_each(:people))""",
                people=json_list(people),
            ),
        )
        if own or (mail.kind != "bounce" and _is_sender(people[0], senders)):
            answered = [row for row in answered if not own and row["person"] == persons[0]]
            if not (answered or tokens):
                return Match(is_copy=mail.kind in ("reply", "automatic"))
            exact, persons = [], []
        touch = _nearest(mail.in_reply_to, answered)
        about = [row["contact_id"] for row in [touch] if row] + [row["id"] for row in tokens]
        everybody = together(self._app.database, persons, about)
        if touch is not None:
            return Match(touch["contact_id"], touch, everybody.persons)
        if mail.kind == "bounce":
            return Match()
        if tokens:
            return Match(tokens[0]["id"], None, everybody.persons)
        if not everybody.contacts:
            return Match(None, None, everybody.persons)
        exact.sort(key=lambda row: people.index(row["address"]))
        ids = [row["id"] for row in exact[:1]] or everybody.contacts
        last = next(iter(self._app.database.read(messages.last_touch(ids))[0]), None)
        return Match(last["contact_id"] if last else ids[0], last, everybody.persons)

    def tell(self, message: Row) -> bool:
        """Signal the threads that a message ends, and score the touch of one that is over.

        False if the score has to wait: a thread that is just ending may be about to write its own.
        """
        for member in self._app.database.read(messages.threads_of(message["id"]))[0]:
            thread_id = thread_of(member["campaign_id"], member["contact_id"])
            self._client.blocking.signal(thread_id, "wake", key=message["id"])
            self._release(thread_id)
        if message["run_id"]:
            with contextlib.suppress(errors.NotFound):  # pruned
                if self._client.blocking.get(message["run_id"]).ended:
                    effects = self._client.blocking.effects(message["run_id"], limit=MANY)
                    part = sent_by(effects, message["step"])
                    self._client.blocking.score(message["run_id"], OUTCOME, 1.0, **part)
                elif message["late"]:
                    return False
        self._app.database.write(
            sql("UPDATE messages SET told = 1 WHERE id = :id", id=message["id"])
        )
        return True

    def _release(self, thread_id: str) -> None:
        """Retry a held thread so that it ends, unless a person has to settle something first."""
        client = self._client.blocking
        for run in client.runs(thread_id=thread_id, state=State.HELD, output=False):
            if not client.effects(run.id, state="unknown", limit=1):
                with contextlib.suppress(errors.WrongState, errors.NotFound):  # no longer held
                    client.retry(run.id)


def _id(mail: Incoming) -> str:
    """The id of a mail: a hash, since a Message-ID may name its author. Dismissed mails and signals
    to other people's threads keep nothing else. Machines that write `<1@localhost>` into every mail
    must not merge two people.

    An unsubscription differs from its plain copy: a mail to us with an unsubscribe address in Bcc
    arrives twice, and only one copy unsubscribes.
    """
    about = [mail.message_id, mail.address]
    if mail.kind == "unsubscribe":
        about += ["unsubscribe", *sorted(mail.tokens)]
    return hashlib.sha256(" ".join(about).encode()).hexdigest()


def _nearest(ids: list[str], touches: list[Row]) -> Row | None:
    """The touch of the first of these Message-IDs that is ours."""
    found = (touch for id in ids for touch in touches if touch["message_id"] == id)
    return next(found, None)


def _is_sender(address: str, campaigns: list[Row]) -> bool:
    """Whether an address belongs to the sender of one of these campaigns."""
    senders = [_spelling(parseaddr(row["sender"])[1]) for row in campaigns]
    return bool(address) and person_of(address) in map(person_of, senders)


def _spelling(address: str) -> str:
    """An address as stored in `contacts`; empty if it is invalid."""
    try:
        return normalise(address)
    except ValueError:
        return ""


class Handler:
    """The aiosmtpd handler: accepts a mail, or asks the client to retry."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        content = envelope.content
        if envelope.mail_from in (None, "", "<>"):  # of a bounce, or of a machine that wants none
            content = b"Return-Path: <>\r\n" + content
        try:
            message = await asyncio.to_thread(
                self._inbound.receive, content, list(envelope.rcpt_tos)
            )
        except Exception:
            log.exception("a mail could not be stored")
            return "451 4.3.0 Try again later"
        if message["kind"] not in ("stray", "dismissed"):  # a stray was logged when it was matched
            log.info("%s from %s", message["kind"], message["address"])
        return "250 2.0.0 Stored"


class _SMTP(SMTP):
    line_length_limit = _LARGEST
    """Many mail programs write a paragraph as one line, longer than the RFC allows."""


class _LMTP(LMTP):
    """Answers the content once per recipient, as RFC 2033 asks."""

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
