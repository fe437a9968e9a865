"""The page and the POST behind the unsubscribe link (RFC 8058).

    GET  /unsubscribe/{token}   a page with a button; it changes nothing, as scanners open links
    POST /unsubscribe/{token}   unsubscribes: from the button, or from a mail program's own

A POST is handled like an incoming mail (inbound.py): it is on disk before the answer, 200. If
the database cannot be reached, the answer is 503. An unknown token gets the same answers as a known
one, so they do not reveal who is a contact.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import logging
import re
from html import escape

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from .inbound import Inbound
from .reading import TOKEN

log = logging.getLogger("campaign")

_LARGEST = 10_000
"""Octets of a body: a form with one field."""
_ONE_CLICK = re.compile(rb"List-Unsubscribe\b.{1,200}?\bOne-Click\b", re.S)
"""The field, in either encoding of a form."""

_STYLE = """
:root { color-scheme: light dark; }
body { font: 1.125rem/1.5 system-ui, sans-serif; margin: 0; padding: 3rem 1.5rem; }
main { max-width: 30rem; margin: 0 auto; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .75rem; }
button { font: inherit; padding: .75rem 1.5rem; border: 0; border-radius: .5rem;
  background: #1d4ed8; color: #fff; cursor: pointer; }
button:hover { background: #1e40af; }
button:focus-visible { outline: 3px solid #60a5fa; outline-offset: 2px; }
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        f"default-src 'none'; style-src 'sha256-{_HASH}'; form-action 'self'; "
        "base-uri 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Robots-Tag": "noindex",
}
_BUTTON = """<form method="post">
<input type="hidden" name="List-Unsubscribe" value="One-Click">
<button>Unsubscribe</button>
</form>"""


class Unsubscribe:
    """The routes of an application that receives mail."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound

    def routes(self) -> list[Route]:
        path = "/unsubscribe/{token}"
        return [Route(path, self.get, methods=["GET"]), Route(path, self.post, methods=["POST"])]

    async def get(self, request: Request) -> Response:
        if not _is_token(request):
            return _no_such_page(request)
        text = "Press the button to stop all mail from us."
        return _page(request, 200, "Unsubscribe?", text, _BUTTON)

    async def post(self, request: Request) -> Response:
        if not _is_token(request):
            return _no_such_page(request)
        try:
            body = await _body(request)
        except ClientDisconnect:
            return _page(request, 400, "Nothing was changed", "The request was cut off.")
        if body is None:
            return _page(request, 413, "Nothing was changed", "The request is too large.")
        if not _ONE_CLICK.search(body):
            text = "The request has no field List-Unsubscribe=One-Click. Press the button instead."
            return _page(request, 400, "Nothing was changed", text)
        try:
            await asyncio.to_thread(self._inbound.one_click, request.path_params["token"])
        except Exception:
            log.exception("an unsubscription could not be stored")
            text = "We could not save your request. Please try again in a few minutes."
            return _page(request, 503, "Not yet", text, retry_after=60)
        return _page(request, 200, "You are unsubscribed", "You will get no more mail from us.")


def _is_token(request: Request) -> bool:
    return bool(TOKEN.fullmatch(request.path_params["token"]))


def _no_such_page(request: Request) -> Response:
    return _page(request, 404, "No such page", "The link is incomplete. Copy all of it.")


async def _body(request: Request) -> bytes | None:
    """None if it is too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _LARGEST:
            return None
    return body


def _page(
    request: Request, code: int, title: str, text: str, form: str = "", *, retry_after: int = 0
) -> Response:
    """A page for a browser, a line of text for a mail program."""
    headers = dict(_HEADERS)
    if retry_after:
        headers["Retry-After"] = str(retry_after)
    if "text/html" not in request.headers.get("accept", "") and not form:
        return PlainTextResponse(f"{title}. {text}\n", code, headers)
    page = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<main>
<h1>{escape(title)}</h1>
<p>{escape(text)}</p>
{form}
</main>
</body>
</html>
"""
    return HTMLResponse(page, code, headers)
