"""A runtime's routes, with some more of a test's own, and clients of them."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Unpack

import httpx
import uvicorn
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

import perdure
from perdure import Runtime
from perdure.commands import tokens
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


# -- A visitor of the pages over HTTP, without a browser: cookies, forms, no redirects.

if TYPE_CHECKING:
    from perdure.server.ui.identity import Signer


class Visitor:
    """A client with cookies that does not follow redirects."""

    def __init__(self, http: httpx.AsyncClient, base: str = "/ui") -> None:
        self.http, self.base = http, base

    async def get(self, path: str = "/inbox", **options: Any) -> httpx.Response:
        return await self.http.get(f"{self.base}{path}", **options)

    async def post(self, path: str, fields: Mapping[str, Any], **headers: str) -> httpx.Response:
        return await self.http.post(f"{self.base}{path}", data=fields, headers=headers)

    async def sign_in(self, token: str, **fields: str) -> httpx.Response:
        page = await self.get("/sign-in")
        return await self.post("/sign-in", {"csrf": csrf(page), "token": token, **fields})

    async def is_signed_in(self) -> bool:
        page = await self.get()
        assert page.status_code in (200, 303)
        return page.status_code == 200


def csrf(page: httpx.Response) -> str:
    found = re.search(r'name="csrf" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


@asynccontextmanager
async def visiting(
    rt: perdure.Runtime,
    app: Any = None,
    *,
    address: str = "127.0.0.1",
    base: str = "/ui",
    **given: Any,
) -> AsyncIterator[Visitor]:
    """A visitor of the pages; `given` are settings of the server, or options of the client."""
    client = {name: given.pop(name) for name in ("base_url", "headers") if name in given}
    app = app or rt.asgi(**{"ui": True, "worker": False, **given})
    async with client_of(app, address=address, **client) as http:
        yield Visitor(http, base)


async def account(rt: perdure.Runtime, *scopes: str, name: str = "ana", **options: Any) -> str:
    return await rt.journal.arun(tokens.create(rt.engine, name, scopes, **options))


async def signer_of(rt: perdure.Runtime) -> Signer:
    from perdure.commands.question_links import server_secret
    from perdure.server.ui.identity import Signer

    return Signer(await rt.journal.arun(server_secret(rt.engine.serializer)))


async def form_token(rt: perdure.Runtime, visitor: Visitor, name: str) -> str:
    """The token of the forms of a visitor with a token of this name, also if no page shows one."""
    from perdure.server.ui.page_route import browser_cookie

    await visitor.get()
    signer = await signer_of(rt)
    return signer.form_token(visitor.http.cookies[browser_cookie(signer)], name)


def pages_of(rt: perdure.Runtime) -> list[APIRoute]:
    routes = rt.router(ui=True, worker=False).routes
    return [one for one in routes if isinstance(one, APIRoute) and one.path.startswith("/ui")]


def filled(path: str) -> str:
    """A path with its parameters filled in."""
    return re.sub(r"\{[^}]*\}", "019a0000-0000-7000-8000-000000000000", path).removeprefix("/ui")
