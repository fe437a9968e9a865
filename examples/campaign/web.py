"""The page and the POST behind the unsubscribe link (RFC 8058).

    GET  /unsubscribe/{token}   a page with a button; it changes nothing, as scanners open links
    POST /unsubscribe/{token}   unsubscribes: from the button, or from a mail program's own

A POST is handled like an incoming mail (inbound.py): it is on disk before the answer. An unknown
token gets the same answers as a known one, so they do not reveal who is a contact.
"""

from __future__ import annotations

import asyncio
import logging

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from .inbound import Inbound
from .incoming import TOKEN

log = logging.getLogger("campaign")

_BUTTON = (
    "<form method=post><button name=List-Unsubscribe value=One-Click>Unsubscribe</button></form>"
)
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; form-action 'self'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


def routes(inbound: Inbound) -> list[Route]:
    async def get(request: Request) -> Response:
        if not TOKEN.fullmatch(request.path_params["token"]):
            return _page(404, "The link is incomplete. Copy all of it.")
        return _page(200, f"Press the button to stop all mail from us.{_BUTTON}")

    async def post(request: Request) -> Response:
        if b"One-Click" not in await request.body():
            return _page(400, f"Nothing was changed. Press the button instead.{_BUTTON}")
        try:
            await asyncio.to_thread(inbound.one_click, request.path_params["token"])
        except Exception:
            log.exception("an unsubscription could not be stored")
            return _page(503, "We could not save your request. Please try again in a few minutes.")
        return _page(200, "You are unsubscribed. You will get no more mail from us.")

    path = "/unsubscribe/{token}"
    return [Route(path, get, methods=["GET"]), Route(path, post, methods=["POST"])]


def _page(code: int, content: str) -> HTMLResponse:
    page = f"<!doctype html><html lang=en><title>Unsubscribe</title><main>{content}</main></html>"
    return HTMLResponse(page, code, _HEADERS)
