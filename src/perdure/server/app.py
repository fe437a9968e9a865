"""The router and the application that `Runtime.router()` and `Runtime.asgi()` return.

    GET  /ok            whether the journal answers
    GET  /info          versions, and what this server can do
    GET  /metrics       what `Metrics` measures, for Prometheus; 404 without it
    GET  /openapi.json  every operation
    POST /cron/tick     drives what is due; off until it has a secret
    agent_api/          LangGraph's Agent Server: assistants, threads, runs, crons, store
    own_api/            /perdure/...: what only perdure has
    ui/                 /ui/...: the inbox and the dashboard in the browser, if `ui` is set

The routes are flat and bound to their runtime (`route.py`), so the router works in FastAPI by
`include_router` and in Starlette by `Starlette(routes=router.routes,
lifespan=router.lifespan_context)`. The lifespan of a mounted application does not run: then the
runtime opens on first use, and a request that needs a worker gets a 503 that explains this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from perdure.execution.shutdown import has_signal_handlers
from perdure.server import agent_api, own_api, ui
from perdure.server.gate import Gate
from perdure.server.health import Description, Health
from perdure.server.json_errors import WireResponse, json_error, on_failure, on_http_error
from perdure.server.lifespan import SharedLifespan
from perdure.server.options import ServerOptions
from perdure.server.route import ApiRoute, add_routes, plain
from perdure.server.tick_endpoint import CronSecret, TickEndpoint
from perdure.server.ui import missing
from perdure.server.ui.page_route import add_pages
from perdure.server.ui.site import Site

if TYPE_CHECKING:
    from perdure.runtime import Runtime

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"

A = TypeVar("A", bound=Starlette)

PUBLIC: dict[str, Any] = {"security": []}
"""OpenAPI fields of an operation that needs no credentials."""


def make_router(runtime: Runtime, options: ServerOptions) -> APIRouter:
    """Every route of a runtime, and the lifespan that opens it and runs its worker."""
    if options.store is not None:
        runtime.use_store(options.store)
    secret = CronSecret(options.secret)
    tick = TickEndpoint(runtime, runtime.tick, secret)

    async def work(stop: asyncio.Event) -> None:
        if runtime.graphs or runtime.engine.receivers or runtime.engine.endpoints:
            await runtime.engine.drive(
                concurrency=options.concurrency,
                grace=options.grace,
                handle_signals=has_signal_handlers(),
                stop=stop,
            )

    lifespan = SharedLifespan(runtime, tick.drain, work if options.worker else None)
    gate = Gate(runtime, options, lifespan)
    router = APIRouter(
        route_class=ApiRoute.bound_to(gate),
        default_response_class=WireResponse,
        lifespan=lifespan.run,
        redirect_slashes=False,
    )
    for path, get in {
        "/ok": Health(runtime, secret).get,
        "/metrics": MetricsEndpoint(runtime).get,
    }.items():
        router.get(path, tags=["server"], openapi_extra=PUBLIC)(get)
        router.head(path, include_in_schema=False, openapi_extra=PUBLIC)(get)
    about = Description(router)
    router.get("/info", tags=["server"], openapi_extra=PUBLIC)(plain(about.info))
    router.get("/openapi.json", include_in_schema=False, openapi_extra=PUBLIC)(about.openapi)
    router.post("/cron/tick", tags=["server"], openapi_extra=PUBLIC)(tick.post)
    for package in (agent_api, own_api):
        for declared in _declared(package):
            add_routes(router, declared)
    if options.ui:
        site = Site(gate)
        for declared in _declared(ui):
            add_pages(router, declared, site)
        add_pages(router, missing.last_router, site)
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


class MetricsEndpoint:
    """`GET /metrics`, in Prometheus's text format. The journal is read in a thread."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    async def get(self, request: Request) -> Response:
        """Metrics for Prometheus."""
        metrics = self._runtime.engine.observers.metrics
        if metrics is None:
            return json_error(404, "Metrics are off. Pass Runtime(observe=Metrics()).")
        text = await asyncio.to_thread(metrics.scrape)
        return Response(text, media_type=PROMETHEUS)
