"""`Api`: what an endpoint gets through `Depends(api)`.

The route (`route.py`) makes it once the caller is admitted. Endpoints are functions of it and of
their parameters; they keep no state.

    @router.get("/threads/{thread_id}")
    async def get(thread_id: str, api: ApiDep) -> dict[str, Any]:
        api.require(Scope.READ)
        ...
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request

from perdure.server.auth_handlers import AuthHandlers, Filters
from perdure.server.caller import Caller, Scope
from perdure.server.json_errors import ApiError
from perdure.server.lifespan import SharedLifespan
from perdure.server.open_streams import OpenStream, OpenStreams
from perdure.server.options import ServerOptions
from perdure.types import Actor

if TYPE_CHECKING:
    from perdure.runtime import Runtime

KEY = "perdure.api"
NO_WORKER = (
    "No worker runs in this process, because the lifespan of perdure's routes did not run; in a "
    "mounted application it never does. Use app.include_router(runtime.router()) in FastAPI, or "
    "Starlette(routes=router.routes, lifespan=router.lifespan_context); or pass worker=False and "
    "run `perdure worker` beside it."
)


@dataclass(frozen=True)
class Api:
    """The runtime, the options and the caller of one request."""

    runtime: Runtime
    options: ServerOptions
    caller: Caller
    lifespan: SharedLifespan
    streams: OpenStreams
    handlers: AuthHandlers | None
    address: str | None = None
    """The network address of the caller."""

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
        """The actor to record: the authenticated user, the given name, or the token's name.

        A token may act for others, so a name that it gives is recorded with the token's.
        """
        own, is_user = self.caller.identity, self.caller.user is not None
        name = own if is_user else claimed or own
        via = "api" if name == own or own is None else f"api, token {own}"
        return Actor(name or "", via=via, address=self.address)

    async def authorize(self, resource: str, action: str, value: dict[str, Any]) -> Filters | None:
        """Call the `langgraph_sdk.Auth` handlers. They may change `value`, and return conditions on
        the metadata of what is read or changed. Raises 403."""
        if self.handlers is None or self.caller.is_token:
            return None
        return await self.handlers.authorize(self.caller, resource, action, value)

    def require_worker(self) -> None:
        """Raise 503 if runs would wait forever because the lifespan did not run."""
        driven = self.lifespan.is_running or self.runtime.engine.is_driving
        if self.options.worker and not driven:
            raise ApiError(503, NO_WORKER)

    def open_stream(self, *, counts: bool = True) -> AbstractContextManager[OpenStream]:
        """Register a stream while it is open. Raises 503 if too many are open; a request that waits
        for a run does not count. It must end when its `stopping` is set: the server waits for it
        before it exits."""
        return self.streams.open(self.caller, counts=counts)


async def api(request: Request) -> Api:
    """The `Api` of a request, as a dependency. A coroutine: FastAPI calls functions in a thread."""
    found: Api = request.scope[KEY]
    return found


ApiDep = Annotated[Api, Depends(api)]
