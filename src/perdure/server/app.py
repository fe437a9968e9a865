"""The application that `Runtime.asgi()` returns: its routes.

    GET  /ok          whether the journal answers
    GET  /metrics     what `Metrics` measures, for Prometheus; off without it
    POST /cron/tick   drives what is due; off until it has a secret

A slash at the end changes nothing: a redirect, which `curl -f` takes for success, would drive
nothing. Every error is JSON. Responses never contain the journal's password.

The lifespan of a mounted application does not run: then the runtime opens on first use, and the
outer application closes it.
"""

from __future__ import annotations

import asyncio

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.client import Client
from perdure.observe import prometheus
from perdure.observe.metrics import Metrics
from perdure.server.health import Health
from perdure.server.json_errors import (
    BadRequest,
    json_error,
    on_bad_request,
    on_failure,
    on_http_error,
)
from perdure.server.lifespan import SharedLifespan
from perdure.server.secret import CronSecret
from perdure.server.tick_endpoint import Tick, TickEndpoint


class MetricsEndpoint:
    """`GET /metrics`: the text that Prometheus reads. The journal is read in a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, request: Request) -> Response:
        metrics = self._client.engine.observers.find(Metrics)
        if metrics is None:
            return json_error(404, "Metrics are off. Pass Runtime(observe=Metrics()).")
        families = await asyncio.to_thread(metrics.collect)
        return Response(prometheus.render(families), media_type=prometheus.CONTENT_TYPE)


def make_app(client: Client, tick: Tick, *, secret: str | None) -> Starlette:
    """The application of a runtime; `tick` is that runtime's method."""
    known = CronSecret(secret)
    cron = TickEndpoint(client, tick, known)
    routes = {
        "/ok": (Health(client, known).get, "GET"),
        "/metrics": (MetricsEndpoint(client).get, "GET"),
        "/cron/tick": (cron.post, "POST"),
    }
    app = Starlette(
        routes=[
            Route(path + slash, endpoint, methods=[method])
            for path, (endpoint, method) in routes.items()
            for slash in ("", "/")
        ],
        exception_handlers={
            BadRequest: on_bad_request,
            HTTPException: on_http_error,
            Exception: on_failure,
        },
        lifespan=SharedLifespan(client, cron.drain).run,
    )
    app.router.redirect_slashes = False
    return app
