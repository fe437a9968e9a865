"""The style sheet, the scripts and the icon: read once, and served at an address that changes with
their content, so browsers can cache them forever.

The style sheet joins the styles that all of perdure's pages share (`views`) with those of
these pages. htmx and its extension for server-sent events are
vendored as published (Zero-Clause BSD): no build step, and nothing is loaded from elsewhere.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from fastapi import APIRouter, Request, Response

from perdure.server.errors import ApiError
from perdure.views import markup

PUBLIC: dict[str, Any] = {"security": []}
FOREVER = "public, max-age=31536000, immutable"
SCRIPTS = ("htmx.min.js", "sse.min.js", "perdure.js")
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32">'
    '<rect width="32" height="32" rx="8" fill="#1f5fbf"/>'
    '<path d="M8 21c4 0 4-10 8-10s4 10 8 10" fill="none" stroke="#fff" '
    'stroke-width="3.4" stroke-linecap="round"/></svg>'
)

router = APIRouter(prefix="/ui", include_in_schema=False)


class Asset(NamedTuple):
    body: bytes
    media_type: str
    tag: str


@cache
def assets() -> dict[str, Asset]:
    """Every asset by its name."""
    folder = files("perdure.server.ui") / "static"
    pictures = (markup.TIMELINE, markup.GRAPH, markup.SPENT)
    style = "".join((markup.THEME, *pictures)) + (folder / "perdure.css").read_text()
    bodies = {
        "perdure.css": (style.encode(), "text/css"),
        **{name: ((folder / name).read_bytes(), "text/javascript") for name in SCRIPTS},
        "icon.svg": (ICON.encode(), "image/svg+xml"),
    }
    return {
        name: Asset(body, media_type, hashlib.sha256(body).hexdigest()[:16])
        for name, (body, media_type) in bodies.items()
    }


def asset_url(base: str, name: str) -> str:
    return f"{base}/static/{name}?v={assets()[name].tag}"


@router.get("/static/{name}", openapi_extra=PUBLIC)
async def get_asset(request: Request, name: str) -> Response:
    found = assets().get(name)
    if found is None:
        raise ApiError(404, "There is no such file.")
    kept = FOREVER if request.query_params.get("v") == found.tag else "no-cache"
    headers = {"Cache-Control": kept, "ETag": f'"{found.tag}"'}
    if request.headers.get("if-none-match") == headers["ETag"]:
        return Response(status_code=304, headers=headers)
    return Response(found.body, media_type=found.media_type, headers=headers)
