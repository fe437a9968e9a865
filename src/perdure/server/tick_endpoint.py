"""`POST /cron/tick`: an external cron drives what is due.

Driving costs money, so the route is off (404) until it has a secret, and a request without the
secret is refused (401) before its body is read. Once a tick has begun, it goes on even if its
caller is gone, until its limit, its budget, or a drain when the server stops. Concurrent ticks
share the work, as two workers do.

A tick drains on the SIGTERM or SIGINT that its server handles, wherever the application is mounted.
Otherwise the server would wait until the tick's budget is used up, or exit in the middle of it.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Any

from fastapi import Request, Response

from perdure.client import Client
from perdure.errors import Error, Unavailable
from perdure.execution.shutdown import has_signal_handlers
from perdure.server.json_body import parse_json, read_body
from perdure.server.json_errors import ApiError, json_error, log_failure
from perdure.server.json_values import WireResponse
from perdure.server.secret import VARIABLE, CronSecret
from perdure.types import Counts

Tick = Callable[..., Awaitable[Counts]]
"""`Runtime.tick`."""

LARGEST_BODY = 64 * 1024
BODY_TIMEOUT = 30.0
PARAMETERS = {"limit": (25, 1, 1000), "concurrency": (1, 1, 1000), "budget": (50.0, 0.0, 3600.0)}
"""Default, minimum and maximum of each. By default a tick drives one segment at a time."""


class TickEndpoint:
    """The ticks of one application."""

    def __init__(self, client: Client, tick: Tick, secret: CronSecret) -> None:
        self._client, self._tick, self._secret = client, tick, secret
        self._ticks: set[asyncio.Task[Counts]] = set()

    async def post(self, request: Request) -> Response:
        """Drive what is due, then answer: for a cron service, with its own secret."""
        if not self._secret.is_set:
            message = f"Ticks over HTTP are off. Set {VARIABLE}, or pass asgi(secret=...)."
            return json_error(404, message)
        if not self._secret.is_sent_by(request):
            message = "Send the secret: Authorization: Bearer <secret>."
            return json_error(401, message, {"WWW-Authenticate": "Bearer"})
        bounds = await _read_parameters(request)
        try:
            counts = await asyncio.shield(self._begin(bounds))
        except Error as error:
            status = 503 if isinstance(error, Unavailable) else 500
            return json_error(status, self._client.redact(str(error)))
        return WireResponse(asdict(counts))

    async def drain(self) -> None:
        """Stop every tick of this event loop: its runs stop at their next step, or are released."""
        here = asyncio.get_running_loop()
        while ticks := [task for task in self._ticks if task.get_loop() is here]:
            self._client.engine.drain_ticks()
            await asyncio.wait(ticks, timeout=0.1)  # one may have begun just now

    def _begin(self, bounds: dict[str, Any]) -> asyncio.Task[Counts]:
        work = self._tick(**bounds, handle_signals=has_signal_handlers())
        task = asyncio.ensure_future(work)
        self._ticks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Counts]) -> None:
        self._ticks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure("A tick", error, self._client.redact)


async def _read_parameters(request: Request) -> dict[str, Any]:
    """The arguments of `Runtime.tick`, from the query or a JSON body."""
    body = parse_json(await read_body(request, largest=LARGEST_BODY, seconds=BODY_TIMEOUT))
    if not isinstance(body, dict | None):
        raise _refused('The body must be a JSON object, such as {"limit": 25}.')
    passed: dict[str, Any] = {}
    for name, value in [*request.query_params.multi_items(), *(body or {}).items()]:
        if name not in PARAMETERS:
            known = ", ".join(PARAMETERS)
            raise _refused(f"{ascii(name)[:60]} is not a parameter; use {known}.")
        if name in passed:
            raise _refused(f"{name} is passed twice.")
        passed[name] = value
    bounds: dict[str, Any] = {name: _number(name, passed.get(name)) for name in PARAMETERS}
    return bounds | {"budget": timedelta(seconds=bounds["budget"])}


def _refused(message: str) -> ApiError:
    return ApiError(422, message)


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
        raise _refused(
            f"{name} must be {kind} from {least:g} to {most:g}, not {ascii(passed)[:40]}."
        )
    return int(found) if whole else found
