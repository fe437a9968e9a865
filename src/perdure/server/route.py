"""The route class of every endpoint. Access checks and limits are here and not in middleware, so
they also apply in an application that includes `Runtime.router()`.

The caller and the host are checked first (`gate.py`); then the body is read within its limits, if
the endpoint needs it; every error becomes JSON. An endpoint returns a `Response`, or a plain value,
which becomes a `WireResponse` without FastAPI's own encoder. Every response has the headers of
`json_errors.HEADERS`.

A trailing slash is ignored. A redirect would do nothing, and `curl -f` would report success.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute, APIRouter
from starlette.routing import Match
from starlette.types import Receive, Scope

from perdure.server.context import KEY
from perdure.server.gate import Gate
from perdure.server.hosts import preflight_method
from perdure.server.json_body import SharedMemory, parse_json, read_body
from perdure.server.json_errors import WireResponse, error_response, guarded

PUBLIC_BODY = 16 * 1024
"""Bytes of a body that are read from anyone."""
FILES = "fastapi_middleware_astack"
"""Where FastAPI's handler expects a stack for uploaded files. A Starlette application sets none."""
COPIED = (
    *("response_model", "status_code", "tags", "responses", "include_in_schema", "name"),
    "openapi_extra",
)
"""What `add_routes` copies from a declared route. FastAPI reads the rest from the endpoint."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class ApiRequest(Request):
    """A request whose body is read within limits and parsed strictly.

    Until its sender is known to be allowed, only a few KiB of a body are its own. More of it is in
    memory that all such requests share, until the request has ended.
    """

    def __init__(self, scope: Scope, receive: Receive, gate: Gate) -> None:
        super().__init__(scope, receive)
        self.largest, self.seconds = gate.options.max_body, gate.options.body_timeout
        self._shared: SharedMemory | None = gate.shared_memory
        self._received = self._taken = 0

    def trust(self) -> None:
        """Read bodies from now on within the limits of a caller who is allowed."""
        self.release()
        self._shared = None

    def release(self) -> None:
        """Give back the shared memory."""
        if self._shared is not None:
            self._shared.give_back(self._taken)
        self._taken = 0

    def refused(self, response: Response) -> Response:
        """The response to a request that is not served. A large body that was not read is not read
        any more: the connection is closed."""
        length = self.headers.get("content-length", "")
        is_large = length.isdecimal() and int(length[:20]) > PUBLIC_BODY
        if not hasattr(self, "_body") and (is_large or "transfer-encoding" in self.headers):
            response.headers["Connection"] = "close"
        return response

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            take = None if self._shared is None else self._take
            self._body = await read_body(
                self, largest=self.largest, seconds=self.seconds, take=take
            )
        return self._body

    def _take(self, size: int) -> None:
        self._received += size
        if self._shared is not None and self._received > PUBLIC_BODY:
            self._shared.take(size)
            self._taken += size

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json


class ApiRoute(APIRoute):
    """A route of one runtime: `bound_to` makes the class."""

    gate: Gate

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handle = self.gate.origins.wrap(super().handle)
        self._literals = [part for part in re.split(r"\{[^}]*\}", self.path) if part != "/"]

    @classmethod
    def bound_to(cls, gate: Gate) -> type[ApiRoute]:
        return type(cls.__name__, (cls,), {"gate": gate})

    def get_route_handler(self) -> Handler:
        """FastAPI's handler behind the gate, with every error as JSON."""
        handle, gate = super().get_route_handler(), self.gate
        public = (self.openapi_extra or {}).get("security") == []

        async def handle_safely(request: Request) -> Response:
            limited = ApiRequest(request.scope, request.receive, gate)
            try:
                limited.scope[KEY] = await gate.admit(limited, public=public)
                if not public:
                    limited.trust()
                async with AsyncExitStack() as files:
                    limited.scope.setdefault(FILES, files)
                    return guarded(await handle(limited))
            except Exception as error:
                return limited.refused(guarded(error_response(error, gate.runtime.redact)))
            finally:
                limited.release()

        return handle_safely

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        await self._handle(scope, receive, send)

    def matches(self, scope: Any) -> Any:
        path = scope["path"]
        for part in self._literals:  # rules out most routes quickly, whatever their prefix
            if part not in path:
                return Match.NONE, {}
        if self.gate.origins and (method := preflight_method(scope)) is not None:
            scope = {**scope, "method": method}
        found = super().matches(scope)
        if found[0] is Match.NONE and path.endswith("/") and path != "/":
            found = super().matches({**scope, "path": path[:-1]})
        return found


def plain(endpoint: Callable[..., Awaitable[Any]], status: int | None = None) -> Callable[..., Any]:
    """Wrap an endpoint so that a plain value becomes a response without FastAPI's encoder."""

    @functools.wraps(endpoint)
    async def respond(*arguments: Any, **named: Any) -> Response:
        found = await endpoint(*arguments, **named)
        return found if isinstance(found, Response) else WireResponse(found, status or 200)

    return respond


def add_routes(router: APIRouter, declared: APIRouter) -> None:
    """Add the routes that a module declares to a runtime's router, bound to that runtime.

    `include_router` would keep the class of the declared routes, which is bound to no runtime.
    """
    for route in declared.routes:
        if not isinstance(route, APIRoute):
            raise TypeError(f"{route!r} is not a FastAPI endpoint.")
        options: dict[str, Any] = {name: getattr(route, name) for name in COPIED}
        endpoint = plain(route.endpoint, route.status_code)
        router.add_api_route(route.path, endpoint, methods=sorted(route.methods or ()), **options)
