"""Which web pages may call: Starlette's CORS middleware around each route, if origins are set.

It wraps the routes and not the application, so it also applies where the router is included. Pages
may read the headers that LangGraph's clients use to reconnect and to page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
EXPOSED = ("Content-Location", "Location", "X-Pagination-Total", "X-Pagination-Next", "Retry-After")


class Origins:
    """The allowed origins; `*` matches any text in one, and alone every origin."""

    def __init__(self, named: tuple[str, ...]) -> None:
        self.named = named
        self._any = "*" in named
        parts = [re.escape(one.rstrip("/")).replace(r"\*", "[^/]*") for one in named]
        self._pattern = "|".join(parts)

    def __bool__(self) -> bool:
        return bool(self.named)

    def allow(self, origin: str) -> bool:
        return self._any or bool(self.named and re.fullmatch(self._pattern, origin))

    def wrap(self, app: ASGIApp) -> ASGIApp:
        """Wrap an application so that it sends CORS headers."""
        if not self.named:
            return app
        return CORSMiddleware(
            app,
            allow_origins=["*"] if self._any else [],
            allow_origin_regex=None if self._any else self._pattern,
            allow_methods=METHODS,
            allow_headers=["*"],
            allow_credentials=not self._any,
            expose_headers=EXPOSED,
        )


def preflight_method(scope: Mapping[str, Any]) -> str | None:
    """The method that a browser asks about with OPTIONS before it sends the request itself."""
    if scope.get("method") != "OPTIONS":
        return None
    headers: dict[bytes, bytes] = dict(scope["headers"])
    method = headers.get(b"access-control-request-method")
    return None if method is None else method.decode("latin-1")
