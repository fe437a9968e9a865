"""A runtime's routes, with some more of a test's own, and clients of them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Unpack

import httpx
import uvicorn
from fastapi import APIRouter, FastAPI

from perdure import Runtime
from tests.support.polling import until

if TYPE_CHECKING:
    from perdure.server.options import ServerSettings


def app_with(rt: Runtime, declared: APIRouter, **settings: Unpack[ServerSettings]) -> FastAPI:
    """An application of the runtime's routes and those that a test declares, guarded alike."""
    from perdure.server.app import add_to_app
    from perdure.server.routes import add_routes

    router = rt.router(**settings)
    add_routes(router, declared)
    return add_to_app(FastAPI(), router)


@asynccontextmanager
async def client_of(
    app: Any, *, address: str = "127.0.0.1", lifespan: bool = False, **options: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """A client that calls the application in this process, from this address."""
    transport = httpx.ASGITransport(app=app, client=(address, 4000))
    options = {"base_url": "http://localhost", "timeout": 60, **options}
    async with httpx.AsyncClient(transport=transport, **options) as http:
        if lifespan:
            async with app.router.lifespan_context(app):
                yield http
        else:
            yield http


@contextmanager
def listening(app: Any, **config: Any) -> Iterator[tuple[str, int]]:
    """Serve an application by uvicorn in a thread of this process; its address."""
    config = {"host": "127.0.0.1", "port": 0, "log_config": None, **config}
    server = uvicorn.Server(uvicorn.Config(app, **config))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started, "the server")
        yield server.servers[0].sockets[0].getsockname()
    finally:
        server.should_exit = True
        thread.join(60)


# -- An HTTP server on loopback, for a test.


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Serve in a thread of this process, and give the URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
