"""Which host names, addresses and web pages may call.

A server that requires no credentials is open to this machine only. But a web page can make a
browser call a server on loopback: under a name of the page's own that resolves to 127.0.0.1 (DNS
rebinding), or from another origin. Such requests carry the page's name in `Host` or `Origin`.

If `cors` is set, Starlette's CORS middleware is around each route and not around the application,
so it also applies where the router is included. Pages may read the headers that LangGraph's clients
use to reconnect and to page.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
FORWARDED = frozenset(
    {
        *(b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-proto", b"x-real-ip"),
        *(b"forwarded", b"via", b"cf-connecting-ip"),
    }
)
"""Headers that a proxy sets: the caller may be on any machine."""
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
EXPOSED = ("Content-Location", "Location", "X-Pagination-Total", "X-Pagination-Next", "Retry-After")
_PORTS = {"http": 80, "https": 443}


@lru_cache(maxsize=64)  # most requests come from the same few
def is_loopback(host: str) -> bool:
    """Whether a name or address is this machine's own."""
    name = host.strip("[]").rstrip(".").lower()
    if name in LOOPBACK_NAMES or name.endswith(".localhost"):
        return True
    address = _as_address(name)
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback if address else False


def host_name(header: str) -> str:
    """The name in a `Host` header, without its port. Empty if the header is invalid."""
    try:
        return (urlsplit(f"//{header}").hostname or "").rstrip(".")
    except ValueError:
        return ""


@lru_cache(maxsize=64)
def is_allowed(header: str, allowed: tuple[str, ...]) -> bool:
    """Whether a `Host` header is allowed: a loopback name, an address, or one of `allowed`. After
    DNS rebinding the header has the page's own name, never an address."""
    name = host_name(header)
    if not name:
        return False
    return is_loopback(name) or bool(_as_address(name)) or any(_fits(name, one) for one in allowed)


def _as_address(name: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(name.partition("%")[0])
    except ValueError:
        return None


def _fits(name: str, allowed: str) -> bool:
    """`*` allows every name, `*.example.com` every subdomain."""
    wanted = host_name(allowed) or allowed.lower()
    return wanted in ("*", name) or (wanted.startswith("*.") and name.endswith(wanted[1:]))


def is_same_origin(origin: str, request: Request) -> bool:
    """Whether an `Origin` header names the server that was called: its scheme, host and port."""
    try:
        page, server = urlsplit(origin), urlsplit(f"//{request.headers.get('host', '')}")
        usual = _PORTS[page.scheme]
        same = bool(page.hostname) and page.hostname == server.hostname
        same = same and (page.port or usual) == (server.port or usual)
    except (KeyError, ValueError):
        return False
    return same and page.scheme in _schemes(request)


def _schemes(request: Request) -> tuple[str, ...]:
    """The scheme that the browser uses; both, if a proxy does not say which."""
    if is_encrypted(request):
        return ("https",)
    is_known = "x-forwarded-proto" in request.headers or not _is_proxied(request)
    return ("http",) if is_known else ("http", "https")


def client_address(request: Request) -> str | None:
    """The network address that a request comes from: behind a proxy on this machine, the last
    one in `X-Forwarded-For`."""
    address = None if request.client is None else request.client.host
    if address is None or is_loopback(address):
        return forwarded_for(request) or address
    return address


def forwarded_for(request: Request) -> str | None:
    """The client address that the nearest proxy reports."""
    named = request.headers.get("x-forwarded-for", "").rpartition(",")[2].strip()
    return named[:64] or None


def is_encrypted(request: Request) -> bool:
    """Whether the browser uses TLS, to this server or to a proxy. Only decides whether cookies are
    `Secure`, so a false claim harms only its sender."""
    reported = request.headers.get("x-forwarded-proto", "").partition(",")[0]
    return "https" in (request.url.scheme, reported.strip().lower())


def is_local_client(request: Request) -> bool:
    """Whether a request comes from this machine, and not through a proxy on it. A client on a Unix
    socket has no address."""
    host = "localhost" if request.client is None else request.client.host
    is_local = is_loopback(host) or _as_address(host) is None  # that of a test client is no address
    return is_local and not _is_proxied(request)


def _is_proxied(request: Request) -> bool:
    return not FORWARDED.isdisjoint(name for name, _ in request.scope["headers"])


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
