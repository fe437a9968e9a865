"""The application that `Runtime.asgi()` gives: which routes there are, and what opens and closes.

    GET  /ok          whether the journal answers
    POST /cron/tick   drives what is due; off until it has a secret

Its lifespan opens the runtime and closes it, unless it was open before. Of an application that is
mounted into another the lifespan does not run: then the runtime opens on first use, and is the
other's to close. What a caller is told never has the password of the journal in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from perdure.client import Client
from perdure.errors import Error
from perdure.operations import claims
from perdure.server.cron import Cron, Tick

PATIENCE = 5.0
"""Seconds after which a journal that gives no answer counts as one that does not."""


class Health:
    """Whether the journal answers. However many ask, one looks."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._looking: asyncio.Task[None] | None = None

    async def ok(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(PATIENCE):
                await asyncio.shield(self._look_once())
        except TimeoutError:
            return self._bad(f"The journal gave no answer within {PATIENCE:g} s.")
        except Exception as error:
            return self._bad(str(error) if isinstance(error, Error) else repr(error))
        return JSONResponse({"ok": True})

    def _look_once(self) -> asyncio.Task[None]:
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
            self._looking.add_done_callback(_heard)
        return self._looking

    async def _look(self) -> None:
        journal = await asyncio.to_thread(lambda: self._client.journal)
        await journal.ado(claims.next_due())

    def _bad(self, why: str) -> Response:
        return JSONResponse({"ok": False, "error": self._client.redact(why)}, 503)


def make_app(
    client: Client, tick: Tick, *, secret: str | None, is_open: Callable[[], bool]
) -> Starlette:
    """The application of a runtime, of which `tick` is the method."""
    cron = Cron(tick, secret, client.redact)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        if is_open():
            try:
                yield
            finally:
                await cron.drain()
            return
        async with client:
            try:
                yield
            finally:
                await cron.drain()

    return Starlette(
        routes=[
            Route("/ok", Health(client).ok, methods=["GET"]),
            Route("/cron/tick", cron.post, methods=["POST"]),
        ],
        lifespan=lifespan,
    )


def _heard(task: asyncio.Task[None]) -> None:
    """Whoever asked may be gone; then nobody else looks at the exception."""
    if not task.cancelled():
        task.exception()
