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
from perdure.journal import Op, Plan, Statement, read_op, rows_as, write_op
from perdure.times import maybe_moment, moment
from perdure.verbs import check_member, check_name

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


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def insert(row: TokenRow) -> Op[bool]:
    """Store a token. False if one with that name is not revoked."""
    params: dict[str, Any] = {"hash": row.hash, "name": row.name, "scopes": row.scopes}
    params |= {"now": row.created_at, "expires_at": row.expires_at}
    find = Statement("find_token", {"hash": row.hash})
    statements = [Statement("insert_token", params), find]
    return Op("create_token", statements, lambda rows: bool(rows[-1]), write=True, key=find)


def create(
    on: Connection, name: str, scopes: Iterable[str], *, expires: timedelta | None = None
) -> Plan[str]:
    """Create a token and return it: it cannot be read again. Raises `BadArgument` if a
    token with this name is not revoked."""
    check_name("name", name)
    chosen = _checked(scopes)
    if expires is not None and expires <= timedelta(0):
        raise BadArgument(f"expires must be longer than 0, not {expires}.")
    token, now = PREFIX + secrets.token_urlsafe(32), on.clock.now()  # 256 random bits
    ends = None if expires is None else now + round(expires.total_seconds() * 1000)
    row = TokenRow(hash_of(token), name, chosen, now, ends, None, None)
    if not (yield insert(row)):
        raise BadArgument(
            f"The token {name!r} already exists. Revoke it first, or use another name."
        )
    return token


def read_rows(on: Connection) -> Plan[list[TokenRow]]:
    """Every token as it is stored, oldest first."""
    rows: list[TokenRow] = yield read_op("tokens", {}, rows_as(TokenRow))
    return rows


def list_tokens(on: Connection) -> Plan[list[Token]]:
    """Every token, including revoked ones, oldest first."""
    return [row.to_token() for row in (yield from read_rows(on))]


def revoke(on: Connection, name: str) -> Plan[None]:
    """Revoke a token. Raises `NotFound` if no unrevoked token has this name."""
    rows = yield from read_rows(on)
    if not any(row.name == name and row.revoked_at is None for row in rows):
        raise NotFound("token", name)
    yield write_op({"name": name, "now": on.clock.now()}, "revoke_token")


def note_use(on: Connection, hash: str) -> Plan[None]:
    """Note that a token was used, unless that was noted within the last minutes."""
    now = on.clock.now()
    yield write_op({"hash": hash, "now": now, "before": now - USED_INTERVAL}, "use_token")


def _checked(scopes: Iterable[str]) -> str:
    chosen = {check_member(Scope, "a scope", scope) for scope in scopes}
    if not chosen:
        raise BadArgument(f"A token needs at least one scope: {', '.join(Scope)}.")
    return " ".join(scope.value for scope in Scope if scope in chosen)
