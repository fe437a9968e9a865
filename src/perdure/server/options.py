"""Settings of the HTTP server: the keyword arguments of `Runtime.asgi()` and `Runtime.router()`.

`ServerSettings` gives their types to callers; `ServerOptions` holds them, checked, for the server.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, TypedDict

from perdure.commands.webhooks import secrets_of
from perdure.errors import BadArgument, did_you_mean

MIB = 1024 * 1024


class ServerSettings(TypedDict, total=False):
    """Types of the keyword arguments of `Runtime.asgi()` and `Runtime.router()`.

    `ServerOptions` has the meaning and the default of each.
    """

    secret: str | None
    worker: bool
    concurrency: int
    grace: float
    auth: Any
    insecure: bool
    hosts: Sequence[str]
    cors: Sequence[str]
    store: Any
    configurable_headers: Sequence[str]
    hook_secrets: Mapping[str, str | Sequence[str]]
    hook_headers: Sequence[str]
    max_body: int
    body_timeout: float
    max_streams: int
    ui: bool
    ui_user: Any
    ui_proxy: Any
    trace_url: str | None


@dataclass(frozen=True)
class ServerOptions:
    """The keyword arguments of `Runtime.asgi()` and `Runtime.router()`, with their defaults."""

    secret: str | None = None
    """Bearer token of `POST /cron/tick`. Default: `PERDURE_CRON_SECRET`. Without either, the route
    is off."""
    worker: bool = True
    """Run a worker while the application's lifespan runs. If not, run workers elsewhere."""
    concurrency: int = 50
    """Segments that the worker drives at once."""
    grace: float = 10.0
    """Seconds that running steps have to finish when the server stops."""
    auth: Any = None
    """A `langgraph_sdk.Auth` with handlers that authenticate and authorise callers."""
    insecure: bool = False
    """Require no token, even from other machines."""
    hosts: tuple[str, ...] = ()
    """Host names the server accepts, besides loopback names: `agents.example.com`,
    `*.example.com`, or `*` for any."""
    cors: tuple[str, ...] = ()
    """Origins of web pages that may call this server: `https://app.example.com`,
    `https://*.example.com`, or `*` for any."""
    store: Any = None
    """A LangGraph `BaseStore` for graphs without their own. Default: the runtime's."""
    configurable_headers: tuple[str, ...] = ()
    """Patterns of request headers that are copied to `configurable` of a run: `x-tenant`, `x-my-*`;
    `!x-my-key` excludes one."""
    hook_secrets: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    """Standard Webhooks secrets of `POST /perdure/hooks/{thread_id}/{name}`, by signal name.
    Default: the JSON object in `PERDURE_HOOK_SECRETS`."""
    hook_headers: tuple[str, ...] = ()
    """Patterns of webhook headers that are passed on in the signal: `x-event-*`."""
    max_body: int = 8 * MIB
    """Largest body of a request, in bytes. A larger one gets 413."""
    body_timeout: float = 30.0
    """Seconds in which the body of a request must arrive. A later one gets 408."""
    max_streams: int = 1000
    """Streams that may be open at once. Further ones get 503 with `Retry-After`."""
    ui: bool = False
    """Serve the inbox and the dashboard under `/ui`."""
    ui_user: Any = None
    """A callable, plain or async, that takes the request and returns the person who is signed in to
    your application: a `UiUser`, its fields as a mapping, a name, or None. Replaces the sign-in
    page."""
    ui_proxy: Any = None
    """A `TrustedProxy` that signs people in and names them in a header."""
    trace_url: str | None = None
    """URL template of a run's trace, with `{trace_id}` or `{run_id}`. The page of a run links to
    it. Default: `PERDURE_TRACE_URL`."""

    @classmethod
    def of(cls, settings: ServerSettings) -> ServerOptions:
        """Check settings, and fill in those of the environment.

        Args:
            settings: The keyword arguments.

        Raises:
            BadArgument: A name is unknown, or a value is invalid.
        """
        known = {one.name for one in fields(cls)}
        for name in settings:
            if name not in known:
                raise BadArgument(
                    f"{name!r} is not a setting of the server.{did_you_mean(name, known)}"
                )
        values: dict[str, Any] = dict(settings)
        for name in ("hosts", "cors", "configurable_headers", "hook_headers"):
            setting = values.get(name)
            if isinstance(setting, str):
                raise BadArgument(f"{name} must be a list of strings, not {setting!r}.")
            values[name] = tuple(setting or ())
        if values.get("hook_secrets") is None:
            values["hook_secrets"] = _hook_secrets()
        values["trace_url"] = _trace_url(values.get("trace_url"))
        options = cls(**values)
        for name in ("concurrency", "grace", "max_body", "body_timeout", "max_streams"):
            if getattr(options, name) <= 0:
                raise BadArgument(f"{name} must be more than 0, not {getattr(options, name)!r}.")
        for secret in options.hook_secrets.values():
            secrets_of(secret)
        for origin in options.cors:
            if origin not in ("*", "null") and not re.fullmatch("[^/]+://[^/]+/?", origin):
                raise BadArgument(
                    f"cors: {origin!r} is not an origin, such as https://app.example.com, "
                    "https://*.example.com or *."
                )
        for host in options.hosts:
            if "/" in host:
                raise BadArgument(
                    f"hosts: {host!r} is not a host name, such as agents.example.com, "
                    "*.example.com or *."
                )
        return options


def _trace_url(setting: Any) -> str | None:
    url = os.environ.get("PERDURE_TRACE_URL") if setting is None else setting
    if not url:
        return None
    if not isinstance(url, str) or not re.match("https?://[^/]", url):
        raise BadArgument(
            f"trace_url: {url!r} is not an address, such as "
            "https://jaeger.example.com/trace/{trace_id}."
        )
    return url


def _hook_secrets() -> dict[str, Any]:
    """The secrets of incoming webhooks, from the environment."""
    try:
        secrets = json.loads(os.environ.get("PERDURE_HOOK_SECRETS") or "{}")
    except ValueError:
        secrets = None
    if not isinstance(secrets, dict):
        raise BadArgument('PERDURE_HOOK_SECRETS must be a JSON object: {"name": "whsec_..."}.')
    return secrets
