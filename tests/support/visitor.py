"""A visitor of the pages over HTTP, without a browser: cookies, forms, no redirects.

async with visiting(rt) as visitor:
    await visitor.sign_in(await account(rt, "answer"))
    page = await visitor.get("/inbox")
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx
from fastapi.routing import APIRoute

import perdure
from tests.support.http import client_of

if TYPE_CHECKING:
    from perdure.server.ui.signing import Signer


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
    return await rt.journal.arun(rt.services.tokens.create(name, scopes, **options))


async def signer_of(rt: perdure.Runtime) -> Signer:
    from perdure.commands.question_links import server_secret
    from perdure.server.ui.signing import Signer

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
