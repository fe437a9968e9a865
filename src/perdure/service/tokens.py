"""Plans about the tokens of the HTTP API: create, list and revoke them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from perdure.errors import BadArgument, NotFound
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_text
from perdure.operations import tokens
from perdure.operations.tokens import Scope, Token, TokenRow


class TokenService:
    """Plans about the tokens of a journal."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def create(
        self, name: str, scopes: Iterable[str], *, expires: timedelta | None = None
    ) -> Plan[str]:
        """Create a token and return it: it cannot be read again. Raises `BadArgument` if a
        token with this name is not revoked."""
        check_text("name", name)
        if not name:
            raise BadArgument("A token needs a name.")
        chosen = _checked(scopes)
        if expires is not None and expires <= timedelta(0):
            raise BadArgument(f"expires must be longer than 0, not {expires}.")
        token, now = tokens.make(), self._clock.now()
        ends = None if expires is None else now + round(expires.total_seconds() * 1000)
        row = TokenRow(tokens.hash_of(token), name, chosen, now, ends, None, None)
        if not (yield tokens.insert(row)):
            raise BadArgument(
                f"The token {name!r} already exists. Revoke it first, or use another name."
            )
        return token

    def rows(self) -> Plan[list[TokenRow]]:
        """Every token as it is stored, oldest first."""
        found: list[TokenRow] = yield tokens.every()
        return found

    def all(self) -> Plan[list[Token]]:
        """Every token, including revoked ones, oldest first."""
        return [row.to_token() for row in (yield from self.rows())]

    def revoke(self, name: str) -> Plan[None]:
        """Revoke a token. Raises `NotFound` if no unrevoked token has this name."""
        rows = yield from self.rows()
        if not any(row.name == name and row.revoked_at is None for row in rows):
            raise NotFound("token", name)
        yield tokens.revoke(name, self._clock.now())

    def note_use(self, hash: str) -> Plan[None]:
        """Note that a token was used, accurate to some minutes."""
        yield tokens.use(hash, self._clock.now())


def _checked(scopes: Iterable[str]) -> str:
    given = list(scopes)
    known = ", ".join(Scope)
    for scope in given:
        if scope not in list(Scope):
            raise BadArgument(f"{scope!r} is not a scope; use {known}.")
    if not given:
        raise BadArgument(f"A token needs at least one scope: {known}.")
    return " ".join(scope.value for scope in Scope if scope in given)
