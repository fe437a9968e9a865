"""Who calls, and what they may: scopes of tokens, and the user of `langgraph_sdk.Auth` handlers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from perdure.operations.tokens import Scope as Scope

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
    is_token: bool = False
    """Whether it sent a token of perdure: then its scopes count, and no `@auth.on` handler."""
    configurable: dict[str, Any] = field(default_factory=dict)
    """What a run that this caller starts has in `config["configurable"]`."""


ANYONE = Caller()
"""The caller of a server that asks for no credentials."""
