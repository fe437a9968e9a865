"""The route class of every endpoint. Access checks and limits are here and not in middleware, so
they also apply in an application that includes `Runtime.router()`.

The caller and the host are checked first (`gate.py`); then the body is read within its limits, if
the endpoint needs it; every error becomes JSON. An endpoint returns a `Response`, or a plain value,
which becomes a `WireResponse` without FastAPI's own encoder.

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

from perdure.server.context import KEY
from perdure.server.cors import preflight_method
from perdure.server.gate import Gate
from perdure.server.json_body import parse_json, read_body
from perdure.server.json_errors import error_response
from perdure.server.json_values import WireResponse

FILES = "fastapi_middleware_astack"
"""Where FastAPI's handler expects a stack for uploaded files. A Starlette application sets none."""


class ApiRequest(Request):
    """A request whose body is read within limits and parsed strictly."""

    def __init__(self, request: Request, gate: Gate) -> None:
        super().__init__(request.scope, request.receive)
        self._options = gate.options

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            limits: Any = {"largest": self._options.max_body, "seconds": self._options.body_timeout}
            self._body = await read_body(self, **limits)
        return self._body

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

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, gate = super().get_route_handler(), self.gate
        public = (self.openapi_extra or {}).get("security") == []

        async def handle_safely(request: Request) -> Response:
            try:
                asked = ApiRequest(request, gate)
                asked.scope[KEY] = await gate.admit(asked, public=public)
                async with AsyncExitStack() as files:
                    asked.scope.setdefault(FILES, files)
                    return await handle(asked)
            except Exception as error:
                return error_response(error, gate.runtime.redact)

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
    """Wrap an endpoint so that a plain value becomes a response."""

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
