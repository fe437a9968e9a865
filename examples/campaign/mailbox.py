"""An ordinary mailbox, read over IMAP: replies for a sender without their own mail server.

The mailbox belongs to a person: nothing in it is changed (imap.py), and mail that is about none of
our contacts is private: it is neither stored nor logged.

`mailboxes` records how far it was read: `validity` is its UIDVALIDITY, `uid` the last mail that was
taken in or skipped. UIDs only grow, so new mail is above. What each crash leaves behind:

    before a mail is taken in        it is read again
    taken in, threads not told       `told = 0`: `Inbound.sweep` tells them, and so does the second
                                     reading
    taken in, `uid` not advanced     it is read again, and is the same mail by its Message-ID and
                                     its author: nothing happens twice
    `uid` advanced                   reading goes on with the next one
    all read, `read_at` not noted    a rebuilt mailbox is read again from further back

`uid` is advanced only for the UIDVALIDITY it belongs to, and never back. So two processes that read
one mailbox do the work twice, but no harm. A server that renumbers its mails changes the
UIDVALIDITY: then reading restarts a week before `read_at`, the last time at which everything had
been read.

No reply comes before the first mail has gone out. So the first reading starts at the end of the
mailbox or, if mails were sent before, on the day before the first of them.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections.abc import Callable

from .app import App
from .database import Row, sql
from .imap import Account, Connection, MailboxRefused, MailboxTrouble, MailNotGiven
from .inbound import Inbound

log = logging.getLogger("campaign")

EVERY = 30.0
"""Seconds between two looks."""
LONGEST_PAUSE = 600.0
"""Maximum seconds between two tries while the server is in trouble."""
TRIES = 5
"""Number of requests for a mail that the server does not return, before it is skipped."""
_DAY = 24 * 60 * 60 * 1000
_BEGIN = """INSERT INTO mailboxes (name, validity, uid, since, read_at)
VALUES (:name, :validity, :uid, :since, :now) ON CONFLICT (name) DO NOTHING"""
_BEGIN_AGAIN = """UPDATE mailboxes SET validity = :validity, uid = 0, since = :since
WHERE name = :name AND validity = :before"""
_ADVANCE = """UPDATE mailboxes SET uid = :uid
WHERE name = :name AND validity = :validity AND uid < :uid"""
_ALL_READ = """UPDATE mailboxes SET read_at = :now
WHERE name = :name AND validity = :validity AND read_at < :now"""


class Mailbox:
    """Hands new mail in a mailbox to the application."""

    def __init__(self, app: App, account: Account, tls: ssl.SSLContext | None = None) -> None:
        self._database, self._clock, self._inbound = app.database, app.clock, Inbound(app)
        self._account, self._tls = account, tls
        self._connection: Connection | None = None
        self._was_read, self._failures, self._next = False, 0, 0.0
        self._not_given = (0, 0)
        """A mail that the server did not return, and how often."""

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def look(self, is_over: Callable[[], bool] = lambda: False) -> None:
        """Read new mail, if it is time; `is_over` stops it between two mails.

        Trouble is logged and retried, after a longer pause each time. Raises `MailboxRefused` if
        the mailbox has never been read: then a setting is wrong.
        """
        if time.monotonic() < self._next:
            return
        name = self._account.name
        try:
            self.read(is_over)
        except MailboxTrouble as trouble:
            self.close()
            if isinstance(trouble, MailboxRefused) and not self._was_read:
                raise
            pause = min(EVERY * 2 ** min(self._failures, 10), LONGEST_PAUSE)
            self._failures += 1
            log.warning("%s: %s; trying again in %d s", name, trouble, pause)
        else:
            if self._failures:
                log.info("%s: reached again", name)
            self._was_read, self._failures, pause = True, 0, EVERY
        self._next = time.monotonic() + pause

    def read(self, is_over: Callable[[], bool] = lambda: False) -> int:
        """Take in new mail. Returns how many mails were about a contact. Raises `MailboxTrouble`;
        mail taken in before that stays."""
        now, taken = self._clock.now(), 0
        if self._connection is None:
            self._connection = Connection(self._account, self._tls)
            self._connection.login()
        validity, _ = self._connection.examine()
        place = self._place(self._connection, validity, now)
        new = self._connection.after(place["uid"], place["since"])
        for uid in new:
            if is_over():
                return taken
            content = self._fetch(self._connection, uid)
            message = self._inbound.receive_known(content) if content else None
            if message is not None:
                log.info("%s from %s", message["kind"], message["address"])
                taken += 1
            self._advance(validity, uid)
        if new or now > place["read_at"] + _DAY:
            self._note(_ALL_READ, validity=validity, now=now)
        return taken

    def _fetch(self, connection: Connection, uid: int) -> bytes | None:
        try:
            return connection.fetch(uid)
        except MailNotGiven as no:
            times = self._not_given[1] + 1 if self._not_given[0] == uid else 1
            self._not_given = (uid, times)
            if times < TRIES:
                raise
            log.error("%s: skipping mail %d: %s", self._account.name, uid, no)
            return None

    # -- how far it was read

    def _place(self, connection: Connection, validity: int, now: int) -> Row:
        place = self._stored()
        if place is not None and place["validity"] == validity:
            return place
        if place is None:
            last = connection.last()
            # Read after that: if nothing has been sent yet, nothing up to there is a reply.
            [first] = self._database.rows("SELECT MIN(attempt_at) AS at FROM touches")
            uid, since = (last, now) if first["at"] is None else (0, first["at"])
            self._note(_BEGIN, validity=validity, uid=uid, since=since - _DAY, now=now)
        else:
            log.warning("%s: mails have new UIDs; reading recent ones again", self._account.name)
            since = max(place["since"], place["read_at"] - 7 * _DAY)
            self._note(_BEGIN_AGAIN, validity=validity, since=since, before=place["validity"])
        place = self._stored()
        if place is None or place["validity"] != validity:  # another process found a different one
            raise MailboxTrouble("its UIDVALIDITY changes")
        return place

    def _stored(self) -> Row | None:
        return self._database.one(
            "SELECT * FROM mailboxes WHERE name = :name", name=self._account.name
        )

    def _advance(self, validity: int, uid: int) -> None:
        self._note(_ADVANCE, validity=validity, uid=uid)

    def _note(self, text: str, **params: int) -> None:
        self._database.write(sql(text, name=self._account.name, **params))
