"""Who calls, and what they may do: a token with its scopes, or a user of `langgraph_sdk.Auth`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from perdure.commands.tokens import Scope as Scope

EVERY_SCOPE = frozenset(Scope)


@dataclass(frozen=True)
class Caller:
    """The caller of a request."""

    identity: str | None = None
    """The name of the token, or the identity from the `authenticate` handler. None: unknown."""
    scopes: frozenset[Scope] = EVERY_SCOPE
    user: Any = None
    """The user object of `langgraph_sdk.Auth` handlers."""
    permissions: tuple[str, ...] = ()
    """Permissions from the `authenticate` handler."""
    is_token: bool = False
    """Whether it sent a perdure token: then its scopes decide, and no `@auth.on` handler."""
    until_invalid: Callable[[], Coroutine[Any, Any, None]] | None = None
    """For a token: waits until it has expired or been revoked."""
    configurable: dict[str, Any] = field(default_factory=dict)
    """What a run that this caller starts has in `config["configurable"]`."""


ANYONE = Caller()
"""The caller of a server that requires no credentials."""
