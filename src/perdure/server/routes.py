"""The route class of every endpoint, and what an endpoint gets: `Api`, through `ApiDep`.

Access checks and limits are here and not in middleware, so they also apply in an application that
includes `Runtime.router()`. The caller and the host are checked first (`authentication.py`); then
the body is read within its limits (`bodies.py`), if the endpoint needs it; every error becomes
JSON. An endpoint returns a `Response`, or a plain value, which becomes a `WireResponse` without
FastAPI's own encoder. Every response has the headers of `errors.HEADERS`.

    @router.get("/threads/{thread_id}", dependencies=[READ])
    async def get(thread_id: str, api: ApiDep) -> dict[str, Any]:
        ...

A trailing slash is ignored. A redirect would do nothing, and `curl -f` would report success.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute, APIRouter
from starlette.routing import Match

from perdure.commands import Journal
from perdure.commands.connection import Connection
from perdure.server.authentication import AccessControl
from perdure.server.authorization import Caller, Filters, Scope
from perdure.server.bodies import ApiRequest
from perdure.server.errors import ApiError, WireResponse, error_response, guarded
from perdure.server.lifespan import OpenStream
from perdure.server.options import ServerOptions
from perdure.server.origins import client_address, preflight_method
from perdure.types import Actor

if TYPE_CHECKING:
    from perdure.runtime import Runtime

KEY = "perdure.api"
FILES = "fastapi_middleware_astack"
"""Where FastAPI's handler expects a stack for uploaded files. A Starlette application sets none."""
COPIED = (
    *("response_model", "status_code", "tags", "responses", "include_in_schema", "name"),
    *("openapi_extra", "dependencies"),
)
"""What `add_routes` copies from a declared route. FastAPI reads the rest from the endpoint."""
NO_WORKER = (
    "No worker runs in this process, because the lifespan of perdure's routes did not run; in a "
    "mounted application it never does. Use app.include_router(runtime.router()) in FastAPI, or "
    "Starlette(routes=router.routes, lifespan=router.lifespan_context); or pass worker=False and "
    "run `perdure worker` beside it."
)

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


@dataclass(frozen=True)
class Api:
    """The runtime, the options and the caller of one request."""

    access: AccessControl
    caller: Caller
    address: str | None = None
    """The network address of the caller."""

    @property
    def runtime(self) -> Runtime:
        return self.access.runtime

    @property
    def options(self) -> ServerOptions:
        return self.access.options

    @property
    def journal(self) -> Journal:
        return self.access.runtime.journal

    @property
    def engine(self) -> Connection:
        return self.access.runtime.engine

    @property
    def serializer(self) -> Any:
        return self.access.runtime.engine.serializer

    def now(self) -> int:
        """The journal's time, in milliseconds."""
        return self.engine.clock.now()

    def may(self, scope: Scope) -> bool:
        """Whether the caller has this scope."""
        return scope in self.caller.scopes

    def require(self, scope: Scope) -> None:
        """Raise 403 unless the caller has this scope."""
        if not self.may(scope):
            message = f"This token does not have the scope {scope.value!r}."
            if not self.caller.is_token:
                message = f"This needs the permission 'perdure:{scope.value}'."
            raise ApiError(403, message)

    def actor(self, claimed: str | None = None) -> Actor:
        """The actor to record: the authenticated user, the claimed name, or the token's name.

        A token may act for others, so a name that it claims is recorded with the token's.
        """
        own, is_user = self.caller.identity, self.caller.user is not None
        name = own if is_user else claimed or own
        via = "api" if name == own or own is None else f"api, token {own}"
        return Actor(name or "", via=via, address=self.address)

    async def authorize(self, resource: str, action: str, value: dict[str, Any]) -> Filters | None:
        """Call the `langgraph_sdk.Auth` handlers. They may change `value`, and return conditions on
        the metadata of what is read or changed. Raises 403."""
        handlers = self.access.handlers
        if handlers is None or self.caller.is_token:
            return None
        return await handlers.authorize(self.caller, resource, action, value)

    def require_worker(self) -> None:
        """Raise 503 if runs would wait forever because the lifespan did not run."""
        driven = self.access.lifespan.is_running or self.runtime.engine.is_driving
        if self.options.worker and not driven:
            raise ApiError(503, NO_WORKER)

    def open_stream(self, *, counts: bool = True) -> OpenStream:
        """Register a stream while it is open. Raises 503 if too many are open; a request that waits
        for a run does not count. It must end when its `stopping` is set: the server waits for it
        before it exits."""
        return self.access.streams.open(self.caller, counts=counts)


async def api(request: Request) -> Api:
    """The `Api` of a request, as a dependency. A coroutine: FastAPI calls functions in a thread."""
    current: Api = request.scope[KEY]
    return current


ApiDep = Annotated[Api, Depends(api)]


def needs(scope: Scope) -> Any:
    """A dependency of routes that only callers with this scope may call."""

    async def check(api: ApiDep) -> None:
        api.require(scope)

    return Depends(check)


READ, START = needs(Scope.READ), needs(Scope.START)


class ApiRoute(APIRoute):
    """A route of one runtime: `bound_to` makes the class."""

    access: AccessControl

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._handle = self.access.origins.wrap(super().handle)
        self._literals = [part for part in re.split(r"\{[^}]*\}", self.path) if part != "/"]

    @classmethod
    def bound_to(cls, access: AccessControl) -> type[ApiRoute]:
        return type(cls.__name__, (cls,), {"access": access})

    def get_route_handler(self) -> Handler:
        """FastAPI's handler behind the access control, with every error as JSON."""
        handle, access = super().get_route_handler(), self.access
        public = (self.openapi_extra or {}).get("security") == []

        async def handle_safely(request: Request) -> Response:
            limited = ApiRequest(request.scope, request.receive, access.limits)
            try:
                caller = await access.check(limited, public=public)
                limited.scope[KEY] = Api(access, caller, client_address(limited))
                if not public:
                    limited.trust()
                async with AsyncExitStack() as files:
                    limited.scope.setdefault(FILES, files)
                    return guarded(await handle(limited))
            except Exception as error:
                return limited.refused(guarded(error_response(error, access.runtime.redact)))
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
        if self.access.origins and (method := preflight_method(scope)) is not None:
            scope = {**scope, "method": method}
        match = super().matches(scope)
        if match[0] is Match.NONE and path.endswith("/") and path != "/":
            match = super().matches({**scope, "path": path[:-1]})
        return match


def plain(endpoint: Callable[..., Awaitable[Any]], status: int | None = None) -> Callable[..., Any]:
    """Wrap an endpoint so that a plain value becomes a response without FastAPI's encoder, and
    nothing, with the status 204, an empty one."""

    @functools.wraps(endpoint)
    async def respond(*arguments: Any, **named: Any) -> Response:
        result = await endpoint(*arguments, **named)
        if isinstance(result, Response):
            return result
        return Response(status_code=204) if status == 204 else WireResponse(result, status or 200)

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
