"""The application that `Runtime.asgi()` returns: its routes and its lifespan.

    GET  /ok          whether the journal answers
    GET  /metrics     what `Metrics` measures, for Prometheus; off without it
    POST /cron/tick   drives what is due; off until it has a secret

The lifespan opens and closes the runtime, unless it was open before. The lifespan of a mounted
application does not run: then the runtime opens on first use, and the outer application closes it.
Responses never contain the journal's password.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure.client import Client
from perdure.errors import Error
from perdure.observe import prometheus
from perdure.observe.metrics import Metrics
from perdure.server.tick_endpoint import Tick, TickEndpoint

PING_TIMEOUT = 5.0
"""Seconds the journal has to answer."""


class Health:
    """Whether the journal answers. Concurrent requests share one ping."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ping: asyncio.Task[None] | None = None

    async def get(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                await asyncio.shield(self._shared_ping())
        except TimeoutError:
            return self._failed(f"The journal gave no answer within {PING_TIMEOUT:g} s.")
        except Exception as error:
            return self._failed(str(error) if isinstance(error, Error) else repr(error))
        return JSONResponse({"ok": True})

    def _shared_ping(self) -> asyncio.Task[None]:
        if self._ping is None or self._ping.done():
            self._ping = asyncio.create_task(self._client.ping())
            self._ping.add_done_callback(_retrieve_exception)
        return self._ping

    def _failed(self, why: str) -> Response:
        return JSONResponse({"ok": False, "error": self._client.redact(why)}, 503)


class MetricsEndpoint:
    """`GET /metrics`: the text that Prometheus reads. The journal is read in a thread."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def get(self, request: Request) -> Response:
        metrics = self._client.engine.observers.find(Metrics)
        if metrics is None:
            return JSONResponse({"error": "Metrics are off. Pass Runtime(observe=Metrics())."}, 404)
        families = await asyncio.to_thread(metrics.collect)
        return Response(prometheus.render(families), media_type=prometheus.CONTENT_TYPE)


def make_app(client: Client, tick: Tick, *, secret: str | None) -> Starlette:
    """The application of a runtime, whose method `tick` is."""
    cron = TickEndpoint(tick, secret, client.redact)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            if not client.is_open:
                await stack.enter_async_context(client)
            stack.push_async_callback(cron.drain)
            yield

    return Starlette(
        routes=[
            Route("/ok", Health(client).get, methods=["GET"]),
            Route("/metrics", MetricsEndpoint(client).get, methods=["GET"]),
            Route("/cron/tick", cron.post, methods=["POST"]),
        ],
        lifespan=lifespan,
    )


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Keep asyncio quiet about the failed ping of a request that is gone."""
    if not task.cancelled():
        task.exception()
