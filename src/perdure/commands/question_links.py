"""Signed links with which one person answers one question, and the secret that signs them.

Workers that send mail do not serve the pages, so the address is configured: `public_url=`, or
`PERDURE_PUBLIC_URL`.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from perdure.commands import answering, waits
from perdure.commands.answering import expired_at
from perdure.commands.connection import MISSING, Connection
from perdure.commands.waits import WaitRow
from perdure.errors import (
    BadArgument,
    Damaged,
    Error,
    InvalidLink,
    LinkExpired,
    NotFound,
    WaitExpired,
    needs_extra,
)
from perdure.journal import NO_PROOF, Op, Plan, Rows, Statement
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import LAST_MS, check_duration, moment, utc_time
from perdure.types import Actor, WaitRecord, WaitState
from perdure.verbs import check_name, verb

BYTES = 32

ENTRY = "server secret"

_FIND = Statement("entry", {"name": ENTRY})


PLACE = Place("the secret of this journal's servers", ())


def server_secret(serializer: Serializer) -> Plan[bytes]:
    """Read the secret; create it on first use."""
    body: bytes | None = yield Op("server_secret", [_FIND], _body)
    if body is None:
        body = yield _insert(serializer.dumps(secrets.token_hex(BYTES), PLACE, own=True))
    if body is None:
        raise Damaged(PLACE.name, "it was deleted just now")
    return bytes.fromhex(serializer.loads(body, PLACE, str))


def _insert(body: bytes) -> Op[bytes | None]:
    return Op(
        "insert_server_secret",
        [Statement("insert_entry", {"name": ENTRY, "body": body}), _FIND],
        _body,
        write=True,
        key=_FIND,
        proof=NO_PROOF,
    )


def _body(rows: Rows) -> bytes | None:
    return bytes(rows[-1][0][1]) if rows[-1] else None


LASTS = timedelta(days=7)
"""Default lifetime of a link."""

LONGEST = 1000
"""Maximum length of a signed text. Anything longer is not checked."""


class QuestionLink(NamedTuple):
    """The contents of a link.

    Attributes:
        to: The person it is for.
        last_answered: When its question was last answered, before that answer was withdrawn; 0:
            never.
    """

    wait_id: str
    to: str
    expires_at: datetime
    last_answered: int = 0


class LinkedQuestion(NamedTuple):
    """A link whose signature is valid, and its question as it is now."""

    link: QuestionLink
    wait: WaitRecord
    is_spent: bool
    """Whether the question was answered since the link was made, and the answer withdrawn."""


def _signer(on: Connection) -> Plan[Any]:
    """Signs and reads links with the journal's server secret."""
    try:
        from itsdangerous import URLSafeSerializer
    except ImportError as error:
        raise Error(needs_extra("A signed link", "server")) from error
    secret = yield from server_secret(on.serializer)
    how = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
    return URLSafeSerializer(secret, salt="perdure.link", signer_kwargs=how)


def _read(signer: Any, token: str) -> QuestionLink:
    """The contents of a link, expired or not. Raises `InvalidLink`."""
    from itsdangerous import BadData

    try:
        if len(token) > LONGEST:
            raise InvalidLink
        wait_id, to, until, last = signer.loads(token)
        return QuestionLink(str(wait_id), str(to), moment(int(until) * 1000), int(last))
    except (BadData, ValueError, TypeError):
        raise InvalidLink from None


def make_link(
    on: Connection, wait_id: str, to: str, expires: timedelta
) -> Plan[tuple[QuestionLink, str]]:
    """A new link and its signed text. It expires with its question, if that is earlier. Raises
    `NotFound`, or the error that answering the question would raise."""
    check_name("to", to)
    check_duration("expires", expires, timedelta(seconds=1))
    row: WaitRow = yield from answering.find_open(on, wait_id)
    now = on.clock.now()
    if row.expires_at is not None and row.expires_at <= now:  # its run has not noticed yet
        raise WaitExpired(row.id, expired_at(row.expires_at))
    ends = min(now + round(expires.total_seconds() * 1000), LAST_MS)
    ends = ends if row.expires_at is None else min(ends, row.expires_at)
    link = QuestionLink(row.id, to, moment(ends), row.answered_at or 0)
    fields = [link.wait_id, link.to, int(link.expires_at.timestamp()), link.last_answered]
    return link, str((yield from _signer(on)).dumps(fields))


def look_at(on: Connection, token: str) -> Plan[LinkedQuestion]:
    """The question of a link. Raises `InvalidLink`, `LinkExpired`, or `NotFound` if its run was
    deleted."""
    link, row = yield from _find(on, token)
    is_spent = row.state == WaitState.OPEN and (row.answered_at or 0) != link.last_answered
    return LinkedQuestion(link, waits.to_record(on, row), is_spent)


def answer_by_link(
    on: Connection, token: str, value: Any, address: str | None
) -> Plan[QuestionLink]:
    """Answer the question of a link as the person it is for, who is at `address`. Raises as
    `look_at`, `LinkSpent`, or why the answer is refused."""
    link, _ = yield from _find(on, token)
    by = Actor(link.to, via="link", address=address)
    answers = [(link.wait_id, value)]
    yield from answering.answer_all(on, answers, by, last_answered=link.last_answered)
    return link


def _find(on: Connection, token: str) -> Plan[tuple[QuestionLink, WaitRow]]:
    link = _read((yield from _signer(on)), token)
    if on.clock.now() >= link.expires_at.timestamp() * 1000:
        raise LinkExpired(link.wait_id, utc_time(link.expires_at))
    row: WaitRow | None = yield waits.find(link.wait_id)
    if row is None:
        raise NotFound("wait", link.wait_id)
    return link, row


@verb()
def link(on: Connection, wait_id: str, *, to: str, expires: timedelta = LASTS) -> Plan[str]:
    """Make a URL where one person can answer a question, without signing in.

    Send it by mail or chat. Opening it decides nothing. It works once, until it expires, for
    anyone who has it, and the answer is recorded under the name `to`, so send each person their
    own link. It is spent once the question has been answered in any way, even if that answer is
    withdrawn later.

    `perdure serve`, or another server with the pages, must run at `PERDURE_PUBLIC_URL`. Every
    server on the journal accepts the link. Needs the extra `server`.

        url = await client.link(wait.id, to="ana@example.com")

    The other servers are those of `asgi(ui=True)`. `public_url` of the client or runtime may be
    passed in place of the variable. Links are signed with a secret in the journal.

    Args:
        wait_id: The id of an open question.
        to: The person the link is for.
        expires: How long the link works, 7 days by default and at least a second. It ends with
            the question if that expires earlier.

    Raises:
        BadArgument: `public_url` is not set.
        AnswerRefused: The question can no longer be answered.
        NotFound: The journal has no wait with this id.
    """
    if (public := on.public_url) is None:
        raise BadArgument(MISSING)
    _, token = yield from make_link(on, wait_id, to, expires)
    return public.link(token)
