"""The route class of every endpoint. Access checks and limits are here and not in middleware, so
they also apply in an application that includes `Runtime.router()`.

The caller and the host are checked first (`gate.py`); then the body is read within its limits, if
the endpoint needs it; every error becomes JSON. An endpoint returns a `Response`, or a plain value,
which becomes a `WireResponse` without FastAPI's own encoder. Every response has the headers of
`json_errors.HEADERS`.

FastAPI describes the endpoints and, where its own features are used, calls them: in an application
that includes the router, whose dependencies then count, and while its telemetry is on. Otherwise an
endpoint is called directly, with the same arguments (`endpoint_arguments.py`).

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
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.server.context import KEY
from perdure.server.cors import preflight_method
from perdure.server.endpoint_arguments import EndpointArguments
from perdure.server.gate import Gate
from perdure.server.json_body import SharedMemory, parse_json, read_body
from perdure.server.json_errors import error_response, guarded
from perdure.server.json_values import WireResponse

PUBLIC_BODY = 16 * 1024
"""Bytes of a body that are read from anyone."""
FILES = "fastapi_middleware_astack"
"""Where FastAPI's handler expects a stack for uploaded files. A Starlette application sets none."""
TELEMETRY = "fastapi.telemetry"
"""In the scope of a request that FastAPI traces: its handler makes spans of its own."""

PLAIN = "perdure_plain"
"""Attribute of an endpoint that returns a response itself: see `plain`."""

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
        if (direct := self._call_directly()) is not None:
            self.app = direct  # FastAPI's own is kept for those who include the router
        self._handle = self.gate.origins.wrap(super().handle)
        self._literals = [part for part in re.split(r"\{[^}]*\}", self.path) if part != "/"]

    @classmethod
    def bound_to(cls, gate: Gate) -> type[ApiRoute]:
        return type(cls.__name__, (cls,), {"gate": gate})

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def handle_with_files(request: Request) -> Response:
            async with AsyncExitStack() as files:
                request.scope.setdefault(FILES, files)
                return await handle(request)

        return self._protected(handle_with_files)

    def _protected(self, handle: Handler) -> Handler:
        """The handler behind the gate, with every error as JSON."""
        gate = self.gate
        public = (self.openapi_extra or {}).get("security") == []

        async def handle_safely(request: Request) -> Response:
            asked = ApiRequest(request.scope, request.receive, gate)
            try:
                asked.scope[KEY] = await gate.admit(asked, public=public)
                if not public:
                    asked.trust()
                return guarded(await handle(asked))
            except Exception as error:
                return asked.refused(guarded(error_response(error, gate.runtime.redact)))
            finally:
                asked.release()

        return handle_safely

    def _call_directly(self) -> ASGIApp | None:
        """The application that calls the endpoint without FastAPI. None: only FastAPI can, as for
        the routes that a user adds to the router."""
        if not getattr(self.endpoint, PLAIN, False):
            return None
        found = EndpointArguments.of(self.dependant, embed_body=self._embed_body_fields)
        if found is None:
            return None
        arguments, endpoint, by_fastapi = found, self.endpoint, self.app

        async def call(request: Request) -> Response:
            response: Response = await endpoint(**await arguments.read(request))
            return response

        handle = self._protected(call)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if TELEMETRY in scope:
                await by_fastapi(scope, receive, send)
                return
            response = await handle(Request(scope, receive, send))
            await response(scope, receive, send)

        return app

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
    """Wrap an endpoint so that a plain value becomes a response."""

    @functools.wraps(endpoint)
    async def respond(*arguments: Any, **named: Any) -> Response:
        found = await endpoint(*arguments, **named)
        return found if isinstance(found, Response) else WireResponse(found, status or 200)

    respond.__dict__[PLAIN] = True
    return respond


def add_routes(router: APIRouter, declared: APIRouter) -> None:
    """Add the routes that a module declares to a runtime's router, bound to that runtime.

    `include_router` would keep the class of the declared routes, which is bound to no runtime.
    """
    for route in declared.routes:
        if not isinstance(route, APIRoute):
            raise TypeError(f"{route!r} is not a FastAPI endpoint.")
        router.add_api_route(
            route.path,
            plain(route.endpoint, route.status_code),
            response_model=route.response_model,
            status_code=route.status_code,
            tags=route.tags,
            dependencies=route.dependencies,
            summary=route.summary,
            description=route.description,
            response_description=route.response_description,
            responses=route.responses,
            deprecated=route.deprecated,
            methods=list(route.methods or ()),
            operation_id=route.operation_id,
            include_in_schema=route.include_in_schema,
            name=route.name,
            openapi_extra=route.openapi_extra,
        )
