"""`POST /cron/tick`: an external cron drives what is due.

Driving costs money, so the route is off (404) until it has a secret, and a request without the
secret is refused (401) before anything else of it is read. A tick that began ends on its own, even
if its caller is gone: at its limit, at its budget, or drained when the server stops. Concurrent
ticks share the work, as two workers do.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import math
import os
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.errors import BadArgument, Error, Unavailable
from perdure.types import Counts

log = logging.getLogger("perdure")

Tick = Callable[..., Awaitable[Counts]]
"""`Runtime.tick`."""

SECRET = "PERDURE_CRON_SECRET"  # noqa: S105  the name of a variable
SHORTEST_SECRET = 16
LARGEST_BODY = 64 * 1024
PARAMETERS = {"limit": (25, 1, 1000), "concurrency": (10, 1, 1000), "budget": (50.0, 0.0, 3600.0)}
"""Default, minimum and maximum of each."""


class BadRequest(Exception):
    """A request that cannot be served; the message is the response."""


class TickEndpoint:
    """The ticks of one application."""

    def __init__(self, tick: Tick, secret: str | None, redact: Callable[[str], str]) -> None:
        self._tick, self._redact = tick, redact
        secret = os.environ.get(SECRET) or None if secret is None else secret
        secret = None if secret is None else secret.strip()  # a file ends with a newline
        if secret is not None and len(secret) < SHORTEST_SECRET:
            raise BadArgument(
                f"The secret of /cron/tick has {len(secret)} characters, and needs at least "
                f"{SHORTEST_SECRET}. Make one with: openssl rand -hex 32."
            )
        self._secret = None if secret is None else secret.encode()
        self._ticks: set[asyncio.Task[Counts]] = set()

    async def post(self, request: Request) -> Response:
        if self._secret is None:
            return _error(404, f"Ticks over HTTP are off. Set {SECRET}, or pass asgi(secret=...).")
        if not self._is_authorised(request):
            answer = _error(401, "Send the secret: Authorization: Bearer <secret>.")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        try:
            bounds = await _read_parameters(request)
        except BadRequest as error:
            return _error(422, str(error))
        try:
            counts = await asyncio.shield(self._begin(bounds))
        except Error as error:
            status = 503 if isinstance(error, Unavailable) else 500
            return _error(status, self._redact(str(error)))
        return JSONResponse(asdict(counts))

    async def drain(self) -> None:
        """Stop every tick: its runs stop at their next step, or are released."""
        for task in self._ticks:
            task.cancel()
        await asyncio.gather(*self._ticks, return_exceptions=True)

    def _is_authorised(self, request: Request) -> bool:
        header = request.headers.get("authorization", "").encode("latin-1")
        scheme, _, token = header.partition(b" ")
        same = hmac.compare_digest(token.strip(), self._secret or b"")
        return scheme.lower() == b"bearer" and same

    def _begin(self, bounds: dict[str, Any]) -> asyncio.Task[Counts]:
        task = asyncio.ensure_future(self._tick(**bounds))
        self._ticks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Counts]) -> None:
        self._ticks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A tick failed: %s", error)


async def _read_parameters(request: Request) -> dict[str, Any]:
    """The arguments of `Runtime.tick`, from the query or a JSON body."""
    passed: dict[str, Any] = dict(request.query_params)
    passed |= await _read_body(request)
    if unknown := sorted(passed.keys() - PARAMETERS):
        raise BadRequest(f"{unknown[0]!r} is not a parameter; use {', '.join(PARAMETERS)}.")
    bounds: dict[str, Any] = {name: _number(name, passed.get(name)) for name in PARAMETERS}
    return bounds | {"budget": timedelta(seconds=bounds["budget"])}


async def _read_body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise BadRequest(f"The body is larger than {LARGEST_BODY} bytes.")
    try:
        found = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):  # bytes that are not text among them
        raise BadRequest('The body is not JSON; send none, or {"limit": 25}.') from None
    if not isinstance(found, dict):
        raise BadRequest('The body must be a JSON object, such as {"limit": 25}.')
    return found


def _number(name: str, passed: Any) -> float:
    default, least, most = PARAMETERS[name]
    whole = isinstance(default, int)
    if passed is None:
        return default
    try:
        found = math.nan if isinstance(passed, bool) else float(passed)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found <= most or (whole and found % 1):
        kind = "a whole number" if whole else "a number of seconds"
        raise BadRequest(
            f"{name} must be {kind} from {least:g} to {most:g}, not {str(passed)[:40]!r}."
        )
    return int(found) if whole else found


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": message}, status)
