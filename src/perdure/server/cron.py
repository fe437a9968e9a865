"""`POST /cron/tick`: a cron elsewhere says when, the journal says what.

It is off until it has a secret, since driving costs money: without one it is not there (404), and
whoever does not know it is refused (401), before anything else of the request is looked at. A tick
that was begun comes to its end, whether or not its caller waits for it: at its limit or budget,
or drained when the server stops. Two at once share the work, as two workers do.
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
SHORTEST = 16
LARGEST = 64 * 1024
"""Bytes of a body."""
PARAMETERS = {"limit": (25, 1, 1000), "concurrency": (10, 1, 1000), "budget": (50.0, 0.0, 3600.0)}
"""Of each its default, and the least and the most it may be."""


class BadRequest(Exception):
    """What is wrong with what was asked for, in a sentence."""


class Cron:
    """The ticks of one application."""

    def __init__(self, tick: Tick, secret: str | None, public: Callable[[str], str]) -> None:
        self._tick, self._public = tick, public
        secret = os.environ.get(SECRET) or None if secret is None else secret
        secret = None if secret is None else secret.strip()  # of the line it was read from
        if secret is not None and len(secret) < SHORTEST:
            raise BadArgument(
                f"The secret of /cron/tick has {len(secret)} characters; at least {SHORTEST} are "
                "needed, so that nobody guesses it. Make one with: openssl rand -hex 32."
            )
        self._secret = None if secret is None else secret.encode()
        self._under_way: set[asyncio.Task[Counts]] = set()

    async def post(self, request: Request) -> Response:
        if self._secret is None:
            return _told(404, f"Ticks over HTTP are off. Set {SECRET}, or pass asgi(secret=...).")
        if not self._is_known(request):
            answer = _told(401, "Send the secret: Authorization: Bearer <secret>.")
            answer.headers["WWW-Authenticate"] = "Bearer"
            return answer
        try:
            bounds = await _read(request)
        except BadRequest as error:
            return _told(422, str(error))
        try:
            counts = await asyncio.shield(self._begin(bounds))
        except Error as error:
            status = 503 if isinstance(error, Unavailable) else 500
            return _told(status, self._public(str(error)))
        return JSONResponse(asdict(counts))

    async def drain(self) -> None:
        """What is driven stops at its next step, or is given back."""
        for task in self._under_way:
            task.cancel()
        await asyncio.gather(*self._under_way, return_exceptions=True)

    def _is_known(self, request: Request) -> bool:
        given = request.headers.get("authorization", "").encode("latin-1")
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(
            token.strip(), self._secret or b""
        )

    def _begin(self, bounds: dict[str, Any]) -> asyncio.Task[Counts]:
        task = asyncio.ensure_future(self._tick(**bounds))
        self._under_way.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Counts]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("A tick failed: %s", error)


async def _read(request: Request) -> dict[str, Any]:
    """What `Runtime.tick` is called with: from the query, or from a JSON body."""
    given: dict[str, Any] = dict(request.query_params)
    given |= await _body(request)
    if unknown := sorted(given.keys() - PARAMETERS):
        raise BadRequest(f"{unknown[0]!r} is no parameter; there is {', '.join(PARAMETERS)}.")
    chosen = {name: _number(name, given.get(name)) for name in PARAMETERS}
    return {
        "limit": int(chosen["limit"]),
        "concurrency": int(chosen["concurrency"]),
        "budget": timedelta(seconds=chosen["budget"]),
    }


async def _body(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST:
            raise BadRequest(f"The body is larger than {LARGEST} bytes.")
    try:
        found = json.loads(body) if body.strip() else {}
    except ValueError:  # also of bytes that are no text
        raise BadRequest('The body is no JSON; send nothing, or {"limit": 25}.') from None
    if not isinstance(found, dict):
        raise BadRequest('The body is a JSON object, such as {"limit": 25}.')
    return found


def _number(name: str, given: Any) -> float:
    default, least, most = PARAMETERS[name]
    if given is None:
        return default
    whole = isinstance(default, int)
    try:
        found = math.nan if isinstance(given, bool) else float(given)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not least <= found <= most or (whole and found % 1):
        kind = "a whole number" if whole else "a number of seconds"
        raise BadRequest(f"{name} is {kind} from {least:g} to {most:g}, not {str(given)[:40]!r}.")
    return found


def _told(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)
