"""Who calls, and what they may: scopes of tokens, and the user of `langgraph_sdk.Auth` handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


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
EVERY_SCOPE = frozenset(Scope)


@dataclass(frozen=True)
class Caller:
    """The caller of a request."""

    identity: str | None = None
    """The name of its token, or what the `authenticate` handler says. None: not asked for."""
    scopes: frozenset[Scope] = EVERY_SCOPE
    user: Any = None
    """The user object of `langgraph_sdk.Auth` handlers."""
    permissions: tuple[str, ...] = ()
    """Permissions that the `authenticate` handler gave."""
    configurable: dict[str, Any] = field(default_factory=dict)
    """What a run that this caller starts has in `config["configurable"]`."""


ANYONE = Caller()
"""The caller of a server that asks for no credentials."""
