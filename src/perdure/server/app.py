"""The router and the application that `Runtime.router()` and `Runtime.asgi()` return.

    GET  /ok            whether the journal answers
    GET  /info          versions, and what this server can do
    GET  /metrics       what `Metrics` measures, for Prometheus; 404 without it
    GET  /openapi.json  every operation
    POST /cron/tick     drives what is due; off until it has a secret
    agent_api/          LangGraph's Agent Server: assistants, threads, runs, crons, store
    perdure_api/            /perdure/...: what only perdure has
    ui/                 /ui/...: the inbox and the dashboard in the browser, if `ui` is set

`/ok` says whether the journal answers, and the worker in this process does its work. Anyone may
ask, so the response says nothing else. The reason for a failure names hosts, databases and roles:
it is logged, and sent only to a request with the secret of `/cron/tick`.

The routes are flat and bound to their runtime (`routes.py`), so the router works in FastAPI by
`include_router` and in Starlette by `Starlette(routes=router.routes,
lifespan=router.lifespan_context)`. The lifespan of a mounted application does not run: then the
runtime opens on first use, and a request that needs a worker gets a 503 that explains this.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from perdure.errors import Error
from perdure.server import agent_api, perdure_api, ui
from perdure.server.authentication import AccessControl
from perdure.server.errors import WireResponse, json_error, on_failure, on_http_error
from perdure.server.lifespan import SharedCall, SharedLifespan
from perdure.server.options import ServerOptions
from perdure.server.routes import ApiRoute, add_routes, plain
from perdure.server.ticks import CronSecret, TickEndpoint
from perdure.server.ui import page_route
from perdure.server.ui.page_route import add_pages
from perdure.server.ui.site import Site
from perdure.shutdown import has_signal_handlers

if TYPE_CHECKING:
    from perdure.runtime import Runtime

log = logging.getLogger("perdure")

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

PING_TIMEOUT = 5.0
"""Seconds the journal has to answer."""
SECURITY = {
    "token": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
ERROR = {
    "description": "An error: one sentence that says what happened and what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["detail"],
                "properties": {"detail": {"type": "string"}},
            }
        }
    },
}
NO_ANSWER = "The journal does not answer."
NO_WORK = "The worker in this process keeps failing; its log says why."

A = TypeVar("A", bound=Starlette)

PUBLIC: dict[str, Any] = {"security": []}
"""OpenAPI fields of an operation that needs no credentials."""


def make_router(runtime: Runtime, options: ServerOptions) -> APIRouter:
    """Every route of a runtime, and the lifespan that opens it and runs its worker."""
    if options.store is not None:
        runtime.use_store(options.store)
    secret = CronSecret(options.secret)
    tick = TickEndpoint(runtime, secret)

    async def work(stop: asyncio.Event) -> None:
        if runtime.graphs or runtime.engine.outbox.is_used:
            await runtime.engine.drive(
                concurrency=options.concurrency,
                grace=options.grace,
                handle_signals=has_signal_handlers(),
                stop=stop,
            )

    lifespan = SharedLifespan(runtime, tick.drain, work if options.worker else None)
    access = AccessControl(runtime, options, lifespan)
    router = APIRouter(
        route_class=ApiRoute.bound_to(access),
        default_response_class=WireResponse,
        lifespan=lifespan.run,
        redirect_slashes=False,
    )

    async def metrics(request: Request) -> Response:
        """Metrics for Prometheus."""
        registry = runtime.engine.observers.metrics
        if registry is None:
            return json_error(404, "Metrics are off. Pass Runtime(observe=Metrics()).")
        return Response(await asyncio.to_thread(registry.scrape), media_type=PROMETHEUS)

    for path, get in {"/ok": Health(runtime, secret).get, "/metrics": metrics}.items():
        router.get(path, tags=["server"], openapi_extra=PUBLIC)(get)
        router.head(path, include_in_schema=False, openapi_extra=PUBLIC)(get)

    @cache
    def document() -> Response:
        return WireResponse(_openapi(router))

    async def openapi() -> Response:
        """Every operation, as an OpenAPI document."""
        return document()

    router.get("/info", tags=["server"], openapi_extra=PUBLIC)(plain(info))
    router.get("/openapi.json", include_in_schema=False, openapi_extra=PUBLIC)(openapi)
    router.post("/cron/tick", tags=["server"], openapi_extra=PUBLIC)(tick.post)
    for package in (agent_api, perdure_api):
        for declared in _declared(package):
            add_routes(router, declared)
    if options.ui:
        site = Site(access)
        for declared in _declared(ui):
            add_pages(router, declared, site)
        add_pages(router, page_route.last_router, site)
    return router


def _declared(package: ModuleType) -> Iterator[APIRouter]:
    """The routers of a package's modules."""
    for module in iter_modules(package.__path__, f"{package.__name__}."):
        declared = getattr(import_module(module.name), "router", None)
        if isinstance(declared, APIRouter):
            yield declared


def make_app(runtime: Runtime, options: ServerOptions) -> FastAPI:
    """An application with only the routes of a runtime."""
    app = FastAPI(
        title="perdure",
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={HTTPException: on_http_error, Exception: on_failure},
    )
    return add_to_app(app, make_router(runtime, options))


def add_to_app(app: A, router: APIRouter) -> A:
    """Add a router's routes after those of an application, and its lifespan inside theirs."""
    app.router.routes.extend(router.routes)
    own = app.router.lifespan_context

    @asynccontextmanager
    async def both(served: Any) -> AsyncIterator[Any]:
        async with own(served) as state, router.lifespan_context(served):
            yield state

    app.router.lifespan_context = both
    return app


class Health:
    """Whether the process is healthy. Concurrent requests share one ping."""

    def __init__(self, client: Runtime, secret: CronSecret) -> None:
        self._client, self._secret = client, secret
        self._ping = SharedCall(client.ping)
        self._logged: str | None = None

    async def get(self, request: Request) -> Response:
        """Whether the journal answers, and the worker works."""
        why, message = await self._find_fault(), NO_ANSWER
        if why is None and (why := self._client.engine.failures.alarm) is not None:
            message = NO_WORK
        if why != self._logged:  # log each change once
            log.warning("GET /ok: %s", why or "all is well again.")
            self._logged = why
        if why is None:
            return WireResponse({"ok": True})
        known = self._secret.is_sent_by(request)
        return WireResponse({"ok": False, "detail": why if known else message}, 503)

    async def _find_fault(self) -> str | None:
        """Why the journal does not answer, without its password. None if it does."""
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                await self._ping()
        except TimeoutError:
            why = self._client.journal.opening_problem or "it gave no answer"
            return self._client.redact(
                f"The journal did not respond within {PING_TIMEOUT:g} s: {why}"
            )
        except Exception as error:
            return self._client.redact(str(error) if isinstance(error, Error) else repr(error))
        return None


async def info() -> dict[str, Any]:
    """Versions, and what this server can do."""
    return {
        "version": version("perdure"),
        "langgraph_py_version": version("langgraph"),
        "flags": {"assistants": True, "crons": True, "langsmith": False},
        "host": {"kind": "self-hosted", "project_id": None, "revision_id": None},
        "server": "perdure",
    }


def _openapi(router: APIRouter) -> dict[str, Any]:
    """Every operation, with our errors instead of FastAPI's, and the credentials."""
    document = get_openapi(
        title="perdure",
        version=version("perdure"),
        routes=router.routes,
        description="LangGraph's Agent Server API on durable runs, and perdure's own.",
    )
    document["security"] = [{}, *({name: []} for name in SECURITY)]
    document.setdefault("components", {})["securitySchemes"] = SECURITY
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"].get("schemas", {}).pop(name, None)
    for operations in document.get("paths", {}).values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = ERROR
            operation["responses"]["5XX"] = ERROR
    return document
