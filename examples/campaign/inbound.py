"""Incoming mail: matched to its contacts, stored, and told to the threads it ends.

A mail is acknowledged only when it is on disk, so whoever hands it over keeps it until then, and
hands it over again if this process dies. What each crash leaves behind:

    before the message is stored     nothing; it is handed over again
    stored, threads not signalled    `signalled = 0`: `sweep` does it, or a second hand-over
    signalled                        the signal's key is the message's id: once more does no harm

From the moment it is stored nothing more is sent: `members.status` says so in the same transaction,
for everyone it ends: the contact whose mail it answers, the author, who may be another person (bo@
answers for info@), and the contact whose unsubscribe address it went to; each under all addresses
of the same person (bo+news@ is bo@).

Our own mail is not a reply: a mail with one of our Message-IDs that came back, or a copy of what a
campaign's sender wrote by hand. It counts only for the token in its recipients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from email.utils import parseaddr
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP
from imap_tools import AND, BaseMailBox, MailBox, U

from perdure import errors
from perdure.times import moment

from .agent import OUTCOME, thread_of
from .app import App
from .contacts import normalise, person_of
from .database import Conflict, Row, Statement, json_list, sql
from .incoming import Incoming, parse
from .sending import MANY, sent_by

log = logging.getLogger("campaign")

_LARGEST = 25 * 1024 * 1024
ENDS = {"reply": "replied", "bounce": "bounced", "unsubscribe": "unsubscribed"}
"""The status of a member that a message of this kind ends."""
_STORE = """INSERT INTO messages (id, kind, address, contact_id, persons, late, received_at,
  subject, text, signalled)
VALUES (:id, :kind, :address, :contact_id, :persons, 0, :received_at, :subject, :text,
  :signalled)"""
_THESE = """(SELECT id FROM contacts WHERE id = :contact_id
  OR person IN (SELECT value->>'is' FROM json_each(:persons)))"""
_END_CONTACTS = f"""UPDATE contacts SET status = :status WHERE id IN {_THESE}
AND (status = 'active' OR CAST(:status AS TEXT) = 'unsubscribed')"""
_END_MEMBERS = f"""UPDATE members SET status = :status WHERE contact_id IN {_THESE}
AND status = 'active'"""
_EARNED = """UPDATE messages SET run_id = :run_id, step = :step, late =
  CASE WHEN EXISTS (SELECT 1 FROM members WHERE campaign_id = :campaign_id
    AND contact_id = :contact_id AND status = 'active') THEN 0 ELSE 1 END
WHERE id = :id AND NOT EXISTS (SELECT 1 FROM touches WHERE campaign_id = :campaign_id
  AND contact_id = :contact_id AND outcome = 1.0)"""
_OUTCOME = """UPDATE touches SET outcome = 1.0 WHERE campaign_id = :campaign_id
AND contact_id = :contact_id AND step = :step
AND EXISTS (SELECT 1 FROM messages WHERE id = :id AND run_id IS NOT NULL)"""
_LAST_TOUCH = """SELECT t.* FROM touches t JOIN contacts c ON c.id = t.contact_id
WHERE c.person IN (SELECT value->>'is' FROM json_each(:persons)) AND t.sent_at IS NOT NULL
ORDER BY t.sent_at DESC LIMIT 1"""


@dataclass(frozen=True)
class Match:
    """Whom a mail is about."""

    contact_id: int | None = None
    """Whose mail it answers, or who wrote it."""
    touch: Row | None = None
    """The mail that it answers."""
    persons: set[str] = field(default_factory=set)
    is_copy: bool = False
    """We wrote it ourselves."""


class Inbound:
    """Receives mail for an application."""

    def __init__(self, app: App) -> None:
        self._app, self._client = app, app.runtime.blocking

    def receive(
        self, content: bytes, recipients: Sequence[str] = (), *, only_known: bool = False
    ) -> Row | None:
        """Store a mail, and tell its threads. Returns its row of `messages`; None if we wrote it.

        `recipients` are those of its envelope. With `only_known`, mail that is about no contact is
        private: nothing of it is stored.
        """
        unsubscribe = self._app.settings.unsubscribe
        mail = parse(content, unsubscribe, recipients)
        answered = self._app.database.rows(
            """SELECT subject, body FROM touches
               WHERE message_id IN (SELECT value->>'is' FROM json_each(:ids))""",
            ids=json_list(mail.in_reply_to),
        )
        if answered:  # read it again, without what it quotes from ours
            ours = [text for row in answered for text in row.values()]
            mail = parse(content, unsubscribe, recipients, ours)
        match = self._match(mail)
        if match.is_copy or (only_known and match.contact_id is None):
            return None
        return self._store(mail, match)

    def one_click(self, token: str) -> bool:
        """Unsubscribe the contact with this token, who clicked the link. May be repeated."""
        contact = self._app.database.one("SELECT * FROM contacts WHERE token = :token", token=token)
        if contact is not None:
            id, address = f"<{token}@one-click.invalid>", contact["address"]
            mail = Incoming(id, address, "unsubscribe", [], "", "", [token])
            self._store(mail, Match(contact["id"], None, {contact["person"]}))
        return contact is not None

    def sweep(self) -> int:
        """Tell the threads of messages whose receiver died first, or which arrived too early."""
        waiting = self._app.database.rows(
            "SELECT * FROM messages WHERE signalled = 0 ORDER BY received_at"
        )
        return sum(self._signal(message) for message in waiting)

    def _match(self, mail: Incoming) -> Match:
        """The touch that a mail answers, and the people it is about. A bounce must name one of our
        mails. Any other mail is also matched by its author, or by the token in its recipients."""
        author = person_of(mail.address) if mail.address else ""
        own, senders, answered, tokens, known = self._app.database.read(
            sql("SELECT 1 FROM touches WHERE message_id = :id", id=mail.message_id),
            sql("SELECT DISTINCT sender FROM campaigns"),
            sql(
                """SELECT t.*, c.person FROM touches t JOIN contacts c ON c.id = t.contact_id
                   WHERE t.attempt <> ''
                   AND t.message_id IN (SELECT value->>'is' FROM json_each(:ids))""",
                ids=json_list(mail.in_reply_to),
            ),
            sql(
                """SELECT id, person FROM contacts
                   WHERE token IN (SELECT value->>'is' FROM json_each(:tokens)) ORDER BY id""",
                tokens=json_list(mail.tokens),
            ),
            sql("SELECT id FROM contacts WHERE person = :person ORDER BY id", person=author),
        )
        ours = {person_of(normalise(parseaddr(row["sender"])[1])) for row in senders}
        if (own or (author in ours and mail.kind != "bounce")) and not tokens:
            return Match(is_copy=mail.kind != "unsubscribe")  # else it may pass on a request
        answered.sort(key=lambda row: mail.in_reply_to.index(row["message_id"]))
        touch = next(iter(answered), None)
        persons = {row["person"] for row in [*answered[:1], *tokens]}
        if mail.kind == "bounce":
            return Match(touch["contact_id"], touch) if touch else Match()
        persons |= {author} - {""} - ours
        if touch is None and not tokens and known:
            last = self._app.database.one(_LAST_TOUCH, persons=json_list([author]))
            return Match(last["contact_id"] if last else known[0]["id"], last, persons)
        contact_id = touch["contact_id"] if touch else tokens[0]["id"] if tokens else None
        return Match(contact_id, touch, persons)

    def _store(self, mail: Incoming, match: Match) -> Row:
        """Store a message with what it ends, once; then signal its threads."""
        kind = mail.kind if match.contact_id is not None else "stray"
        status = ENDS.get(kind)
        persons = json_list(sorted(match.persons))
        whom = {"contact_id": match.contact_id, "persons": persons}
        row: Row = {
            "id": mail.id,
            "kind": kind,
            "address": mail.address,
            "received_at": self._app.clock.now(),
            "subject": mail.subject[:1000],
            "text": mail.text[:10_000],
            "signalled": int(status is None),
        }
        statements = [sql(_STORE, **row, **whom)]
        if mail.kind == "unsubscribe":
            statements += [_suppress(one, row["received_at"]) for one in sorted(match.persons)]
        if status == "replied" and match.touch is not None:
            names = ("campaign_id", "contact_id", "step")
            of = {"id": mail.id, **{name: match.touch[name] for name in names}}
            statements.append(sql(_EARNED, run_id=match.touch["run_id"], **of))
            statements.append(sql(_OUTCOME, **of))
        if status is not None:
            ended = {"status": status, **whom}
            if status != "replied":
                statements.append(sql(_END_CONTACTS, **ended))
            statements.append(sql(_END_MEMBERS, **ended))
        with contextlib.suppress(Conflict):  # it was stored before
            self._app.database.write(*statements)
            if kind == "stray":
                log.warning("stray from %s: %r; `strays` lists it", mail.address, mail.subject)
        stored = self._app.database.one("SELECT * FROM messages WHERE id = :id", id=mail.id)
        assert stored is not None
        if not stored["signalled"]:
            self._signal(stored)
        return stored

    def _signal(self, message: Row) -> bool:
        """Wake the threads that a message ends, and score the touch of one that is over. False if
        the score has to wait: a thread that is just ending may be about to write its own."""
        for member in self._app.database.rows(
            f"SELECT campaign_id, contact_id FROM members WHERE contact_id IN {_THESE}",
            contact_id=message["contact_id"],
            persons=message["persons"],
        ):
            thread_id = thread_of(member["campaign_id"], member["contact_id"])
            self._client.signal(thread_id, "wake", key=message["id"])
        if message["run_id"]:
            with contextlib.suppress(errors.NotFound):  # pruned
                if self._client.get(message["run_id"]).ended:
                    effects = self._client.effects(message["run_id"], limit=MANY)
                    part = sent_by(effects, message["step"])
                    self._client.score(message["run_id"], OUTCOME, 1.0, **part)
                elif message["late"]:
                    return False
        self._app.database.write(
            sql("UPDATE messages SET signalled = 1 WHERE id = :id", id=message["id"])
        )
        return True


def _suppress(person: str, at: int) -> Statement:
    return sql(
        """INSERT INTO suppressions (person, at) VALUES (:person, :at)
           ON CONFLICT (person) DO NOTHING""",
        person=person,
        at=at,
    )


# -- from a mail server


class Handler:
    """The aiosmtpd handler: accepts a mail, or asks the client to retry."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        content = envelope.content
        if not envelope.mail_from or envelope.mail_from == "<>":  # of a bounce
            content = b"Return-Path: <>\r\n" + content
        try:
            await asyncio.to_thread(self._inbound.receive, content, list(envelope.rcpt_tos))
        except Exception:
            log.exception("a mail could not be stored")
            return "451 4.3.0 Try again later"
        return "250 2.0.0 Stored"


class _LongLines(SMTP):
    line_length_limit = _LARGEST
    """Many mail programs write a paragraph as one line, longer than the RFC allows."""


class Listener(Controller):
    """An SMTP server for the mail server in front of us."""

    def __init__(self, inbound: Inbound, host: str, port: int) -> None:
        super().__init__(Handler(inbound), hostname=host, port=port, ready_timeout=30)

    def factory(self) -> SMTP:
        return _LongLines(self.handler, data_size_limit=_LARGEST)


# -- from a mailbox


def read_mailbox(app: App, connect: Callable[[], BaseMailBox] | None = None) -> int:
    """Take in new mail of the inbox over IMAP, without changing anything in it. Returns how many
    mails were about a contact.

    The database records how far it was read, so a kill loses nothing: what is read again is the
    same message by its id. If the server renumbers its mails (UIDVALIDITY), reading restarts. No
    reply comes before the first mail has gone out, so older mail is never read.
    """
    settings, inbound, taken = app.settings, Inbound(app), 0
    name = f"{settings.imap_user} at {settings.imap_host}"
    with (connect or (lambda: _log_in(app)))() as mailbox:
        mailbox.folder.set("INBOX", readonly=True)
        validity = int(mailbox.folder.status("INBOX", ["UIDVALIDITY"])["UIDVALIDITY"])
        place = _place(app, name, validity)
        since = (moment(place["since"]) - timedelta(days=1)).date()
        new = AND(uid=U(str(place["uid"] + 1), "*"), date_gte=since)
        for mail in mailbox.fetch(new, mark_seen=False):
            uid = int(mail.uid or 0)
            if uid <= place["uid"]:  # `9:*` always has the last mail
                continue
            taken += inbound.receive(mail.obj.as_bytes(), only_known=True) is not None
            app.database.write(
                sql(
                    """UPDATE mailboxes SET uid = :uid
                       WHERE name = :name AND validity = :validity AND uid < :uid""",
                    name=name,
                    validity=validity,
                    uid=uid,
                )
            )
    return taken


def _log_in(app: App) -> BaseMailBox:
    settings = app.settings
    box = MailBox(
        settings.imap_host, settings.imap_port, timeout=20, ssl_context=ssl.create_default_context()
    )
    try:
        return box.login_utf8(settings.imap_user, settings.imap_password, initial_folder=None)
    except BaseException:
        box.client.shutdown()
        raise


def _place(app: App, name: str, validity: int) -> Row:
    """How far a mailbox was read."""
    [first] = app.database.rows("SELECT MIN(attempt_at) AS at FROM touches WHERE attempt <> ''")
    *_, [place] = app.database.write(
        sql(
            """INSERT INTO mailboxes (name, validity, uid, since)
               VALUES (:name, :validity, 0, :since) ON CONFLICT (name) DO NOTHING""",
            name=name,
            validity=validity,
            since=first["at"] or app.clock.now(),
        ),
        sql(
            """UPDATE mailboxes SET validity = :validity, uid = 0
               WHERE name = :name AND validity <> :validity""",
            name=name,
            validity=validity,
        ),
        sql("SELECT * FROM mailboxes WHERE name = :name", name=name),
    )
    return place
