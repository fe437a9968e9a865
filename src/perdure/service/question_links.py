"""Signed links to questions, for mail and chat.

A link names a question, the person it is for, and when it expires. Opening it decides nothing; an
answer through it is recorded as that person's. It is signed with the journal's server secret, so
every server on the journal accepts it, and nothing about it is stored.

A wait's id is a hash of what is shown, so a link is bound to that as well. It is spent once its
question has been answered in any way, even if the answer was withdrawn: `answered_at` stays, and a
link contains the value from the time it was made.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure.errors import (
    Error,
    InvalidLink,
    LinkExpired,
    NotFound,
    WaitExpired,
    needs_extra,
)
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.operations import waits
from perdure.operations.server_secret import server_secret
from perdure.operations.waits import WaitRow
from perdure.serde.serializer import Serializer
from perdure.service.validation import check_duration, check_name
from perdure.service.waits import WaitService, expired_at
from perdure.times import LAST_MS, moment
from perdure.types import Actor, WaitRecord, WaitState
from perdure.views.formatting import utc_time

LASTS = timedelta(days=7)
"""Default lifetime of a link."""
LONGEST = 1000
"""Maximum length of a signed text. Anything longer is not checked."""


class QuestionLink(NamedTuple):
    """The contents of a link."""

    wait_id: str
    to: str
    """The person it is for."""
    expires_at: datetime
    last_answered: int = 0
    """When its question was last answered, before that answer was withdrawn; 0: never."""


class LinkedQuestion(NamedTuple):
    """A link whose signature is valid, and its question as it is now."""

    link: QuestionLink
    wait: WaitRecord
    is_spent: bool
    """Whether the question was answered since the link was made, and the answer withdrawn."""


class LinkSigner:
    """Signs and reads links with one journal's server secret."""

    def __init__(self, secret: bytes) -> None:
        try:
            from itsdangerous import URLSafeSerializer
        except ImportError as error:
            raise Error(needs_extra("A signed link", "server")) from error
        how = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        self._serializer = URLSafeSerializer(secret, salt="perdure.link", signer_kwargs=how)

    def sign(self, link: QuestionLink) -> str:
        until = int(link.expires_at.timestamp())
        said = [link.wait_id, link.to, until, link.last_answered]
        signed: str | bytes = self._serializer.dumps(said)
        return signed if isinstance(signed, str) else signed.decode()

    def read(self, token: str) -> QuestionLink:
        """The contents of a link, expired or not. Raises `InvalidLink`."""
        from itsdangerous import BadData

        try:
            if len(token) > LONGEST:
                raise InvalidLink
            wait_id, to, until, last = self._serializer.loads(token)
            return QuestionLink(str(wait_id), str(to), moment(int(until) * 1000), int(last))
        except (BadData, ValueError, TypeError):
            raise InvalidLink from None


class QuestionLinkService:
    """Plans about links: make one, look at its question, answer through it."""

    def __init__(self, serializer: Serializer, clock: Clock, waits: WaitService) -> None:
        self._serializer, self._clock, self._waits = serializer, clock, waits

    def make(self, wait_id: str, to: str, expires: timedelta) -> Plan[tuple[QuestionLink, str]]:
        """A new link and its signed text. It expires with its question, if that is earlier. Raises
        `NotFound`, or the error that answering the question would raise."""
        check_name("to", to)
        check_duration("expires", expires, timedelta(seconds=1))
        row: WaitRow = yield from self._waits.find_open(wait_id)
        now = self._clock.now()
        if row.expires_at is not None and row.expires_at <= now:  # its run has not noticed yet
            raise WaitExpired(row.id, expired_at(row.expires_at))
        ends = min(now + round(expires.total_seconds() * 1000), LAST_MS)
        ends = ends if row.expires_at is None else min(ends, row.expires_at)
        link = QuestionLink(row.id, to, moment(ends), row.answered_at or 0)
        return link, (yield from self._signer()).sign(link)

    def look(self, token: str) -> Plan[LinkedQuestion]:
        """The question of a link. Raises `InvalidLink`, `LinkExpired`, or `NotFound` if its run was
        deleted."""
        link, row = yield from self._find(token)
        is_spent = row.state == WaitState.OPEN and (row.answered_at or 0) != link.last_answered
        return LinkedQuestion(link, self._waits.record(row), is_spent)

    def answer(self, token: str, value: Any, address: str | None) -> Plan[QuestionLink]:
        """Answer the question of a link as the person it is for, who is at `address`. Raises as
        `look`, `LinkSpent`, or why the answer is refused."""
        link, _ = yield from self._find(token)
        by = Actor(link.to, via="link", address=address)
        answers = [(link.wait_id, value)]
        yield from self._waits.answer_all(answers, by, last_answered=link.last_answered)
        return link

    def _find(self, token: str) -> Plan[tuple[QuestionLink, WaitRow]]:
        signer = yield from self._signer()
        link = signer.read(token)
        if self._clock.now() >= link.expires_at.timestamp() * 1000:
            raise LinkExpired(link.wait_id, utc_time(link.expires_at))
        row: WaitRow | None = yield waits.find(link.wait_id)
        if row is None:
            raise NotFound("wait", link.wait_id)
        return link, row

    def _signer(self) -> Plan[LinkSigner]:
        return LinkSigner((yield from server_secret(self._serializer)))
