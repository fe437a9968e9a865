"""Plans about the tokens of the HTTP API: create, list and revoke them."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.commands.connection import Connection
from perdure.errors import BadArgument, NotFound
from perdure.journal import Op, Plan, Rows, Statement, read_op, rows_as, write_op
from perdure.journal.names import check_text
from perdure.times import maybe_moment, moment

PREFIX = "perdure_"
"""Prefix of every token, so that secret scanners can recognise it."""

USED_INTERVAL = 10 * 60 * 1000
"""Minimum number of milliseconds between two updates of a token's last use."""


class Scope(StrEnum):
    """What a caller may do. `admin` implies all; `start` and `answer` imply `read`."""

    READ = "read"
    START = "start"
    ANSWER = "answer"
    ADMIN = "admin"


IMPLIED = {
    Scope.READ: frozenset({Scope.READ}),
    Scope.START: frozenset({Scope.START, Scope.READ}),
    Scope.ANSWER: frozenset({Scope.ANSWER, Scope.READ}),
    Scope.ADMIN: frozenset(Scope),
}


@dataclass(frozen=True)
class Token:
    """A token as it is listed, without the secret itself."""

    name: str
    scopes: tuple[Scope, ...]
    created_at: datetime
    expires_at: datetime | None
    used_at: datetime | None
    """When it was last used, accurate to some minutes."""
    revoked_at: datetime | None


class TokenRow(NamedTuple):
    """A token as it is stored."""

    hash: str
    name: str
    scopes: str
    created_at: int
    expires_at: int | None
    used_at: int | None
    revoked_at: int | None

    def is_valid(self, now: int) -> bool:
        """Whether it may be used."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)

    @property
    def allowed(self) -> frozenset[Scope]:
        """Its scopes and those they imply. Scopes of a newer perdure are left out."""
        known = [scope for scope in Scope if scope.value in self.scopes.split()]
        return frozenset[Scope]().union(*(IMPLIED[scope] for scope in known))

    def to_token(self) -> Token:
        return Token(
            self.name,
            tuple(scope for scope in Scope if scope.value in self.scopes.split()),
            moment(self.created_at),
            maybe_moment(self.expires_at),
            maybe_moment(self.used_at),
            maybe_moment(self.revoked_at),
        )


def make() -> str:
    """A new token: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


_rows = rows_as(TokenRow)


def insert(row: TokenRow) -> Op[bool]:
    """Store a token. False if one with that name is not revoked."""
    params: dict[str, Any] = {"hash": row.hash, "name": row.name, "scopes": row.scopes}
    params |= {"now": row.created_at, "expires_at": row.expires_at}
    find = Statement("find_token", {"hash": row.hash})
    statements = [Statement("insert_token", params), find]
    return Op("create_token", statements, _was_stored, write=True, key=find)


def _was_stored(rows: Rows) -> bool:
    return bool(rows[-1])


def every() -> Op[list[TokenRow]]:
    """Every token, including revoked ones, oldest first."""
    return read_op("tokens", {}, _rows)


def use(hash: str, now: int) -> Op[None]:
    """Note that a token was used, unless that was noted within the last minutes."""
    params = {"hash": hash, "now": now, "before": now - USED_INTERVAL}
    return write_op(params, "use_token")


def revoke_row(name: str, now: int) -> Op[None]:
    statement = Statement("revoke_token", {"name": name, "now": now})
    return Op("revoke_token", [statement], lambda rows: None, write=True)


def create(
    on: Connection, name: str, scopes: Iterable[str], *, expires: timedelta | None = None
) -> Plan[str]:
    """Create a token and return it: it cannot be read again. Raises `BadArgument` if a
    token with this name is not revoked."""
    check_text("name", name)
    if not name:
        raise BadArgument("A token needs a name.")
    chosen = _checked(scopes)
    if expires is not None and expires <= timedelta(0):
        raise BadArgument(f"expires must be longer than 0, not {expires}.")
    token, now = make(), on.clock.now()
    ends = None if expires is None else now + round(expires.total_seconds() * 1000)
    row = TokenRow(hash_of(token), name, chosen, now, ends, None, None)
    if not (yield insert(row)):
        raise BadArgument(
            f"The token {name!r} already exists. Revoke it first, or use another name."
        )
    return token


def read_rows(on: Connection) -> Plan[list[TokenRow]]:
    """Every token as it is stored, oldest first."""
    found: list[TokenRow] = yield every()
    return found


def list_tokens(on: Connection) -> Plan[list[Token]]:
    """Every token, including revoked ones, oldest first."""
    return [row.to_token() for row in (yield from read_rows(on))]


def revoke(on: Connection, name: str) -> Plan[None]:
    """Revoke a token. Raises `NotFound` if no unrevoked token has this name."""
    rows = yield from read_rows(on)
    if not any(row.name == name and row.revoked_at is None for row in rows):
        raise NotFound("token", name)
    yield revoke_row(name, on.clock.now())


def note_use(on: Connection, hash: str) -> Plan[None]:
    """Note that a token was used, accurate to some minutes."""
    yield use(hash, on.clock.now())


def _checked(scopes: Iterable[str]) -> str:
    given = list(scopes)
    known = ", ".join(Scope)
    for scope in given:
        if scope not in list(Scope):
            raise BadArgument(f"{scope!r} is not a scope; use {known}.")
    if not given:
        raise BadArgument(f"A token needs at least one scope: {known}.")
    return " ".join(scope.value for scope in Scope if scope in given)
