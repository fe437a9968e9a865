"""Where a `langgraph_sdk.Auth` keeps the handlers that were registered with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from langgraph_sdk import Auth

ANY = "*"
"""Stands for every resource, or every action, in the key of a handler."""


def is_auth(value: object) -> bool:
    """Whether this is an `Auth`."""
    from langgraph_sdk import Auth

    return isinstance(value, Auth)


def authenticate_handler(auth: Auth) -> Callable[..., Any] | None:
    """The `@auth.authenticate` handler."""
    return auth._authenticate_handler


def on_handler(auth: Auth, resource: str, action: str) -> Callable[..., Any] | None:
    """The most specific `@auth.on` handler; there is at most one for each resource and action."""
    for key in ((resource, action), (resource, ANY), (ANY, action)):
        if found := auth._handlers.get(key):
            return found[-1]
    return auth._global_handlers[-1] if auth._global_handlers else None
