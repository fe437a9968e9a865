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
import hmac
import os
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from fastapi import Request, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from perdure.errors import BadArgument, Error, Unavailable
from perdure.server.errors import ApiError, WireResponse, invalid, json_error, log_failure
from perdure.shutdown import has_signal_handlers
from perdure.types import Counts

if TYPE_CHECKING:
    from perdure.runtime import Runtime

VARIABLE = "PERDURE_CRON_SECRET"
SHORTEST = 16
"""Characters that a secret needs."""


class CronSecret:
    """The secret of `/cron/tick`, a bearer token. If none is set, no request matches. A request
    with it may tick, and sees why the journal is down."""

    def __init__(self, setting: str | None) -> None:
        """Default: the environment's. Raises `BadArgument` if it is too short."""
        secret = os.environ.get(VARIABLE) or None if setting is None else setting
        secret = None if secret is None else secret.strip()  # a file ends with a newline
        if secret is not None and len(secret) < SHORTEST:
            raise BadArgument(
                f"The secret of /cron/tick has {len(secret)} characters, but needs at least "
                f"{SHORTEST}. Make one with: openssl rand -hex 32."
            )
        self._secret = None if secret is None else secret.encode()

    @property
    def is_set(self) -> bool:
        return self._secret is not None

    def is_sent_by(self, request: Request) -> bool:
        header = request.headers.get("authorization", "").encode("latin-1")
        scheme, _, token = header.partition(b" ")
        same = hmac.compare_digest(token.strip(), self._secret or b"")
        return self.is_set and scheme.lower() == b"bearer" and same


class TickBounds(BaseModel):
    """The arguments of a tick, from the query or a JSON body. By default it drives one segment at a
    time."""

    model_config = ConfigDict(extra="forbid")
    limit: int = Field(25, ge=1, le=1000)
    concurrency: int = Field(1, ge=1, le=1000)
    budget: float = Field(50.0, ge=0, le=3600, allow_inf_nan=False)
    """Seconds."""


class TickEndpoint:
    """The ticks of one application."""

    def __init__(self, runtime: Runtime, secret: CronSecret) -> None:
        self._runtime, self._secret = runtime, secret
        self._ticks: set[asyncio.Task[Counts]] = set()

    async def post(self, request: Request) -> Response:
        """Drive what is due, then answer: for a cron service, with its own secret."""
        if not self._secret.is_set:
            message = f"Ticks over HTTP are off. Set {VARIABLE}, or pass asgi(secret=...)."
            return json_error(404, message)
        if not self._secret.is_sent_by(request):
            message = "Send the secret: Authorization: Bearer <secret>."
            return json_error(401, message, {"WWW-Authenticate": "Bearer"})
        body: Any = await request.json()
        if not isinstance(body, dict | None):
            raise ApiError(422, 'The body must be a JSON object, such as {"limit": 25}.')
        try:
            bounds = TickBounds.model_validate({**request.query_params, **(body or {})})
        except ValidationError as error:
            raise invalid(error) from error
        try:
            counts = await asyncio.shield(self._begin(bounds))
        except Error as error:
            status = 503 if isinstance(error, Unavailable) else 500
            return json_error(status, self._runtime.redact(str(error)))
        return WireResponse(asdict(counts))

    async def drain(self) -> None:
        """Stop every tick of this event loop: its runs stop at their next step, or are released."""
        here = asyncio.get_running_loop()
        while ticks := [task for task in self._ticks if task.get_loop() is here]:
            self._runtime.engine.drain_ticks()
            await asyncio.wait(ticks, timeout=0.1)  # one may have begun just now

    def _begin(self, bounds: TickBounds) -> asyncio.Task[Counts]:
        work = self._runtime.tick(
            limit=bounds.limit,
            concurrency=bounds.concurrency,
            budget=timedelta(seconds=bounds.budget),
            handle_signals=has_signal_handlers(),
        )
        task = asyncio.ensure_future(work)
        self._ticks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Counts]) -> None:
        self._ticks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure("A tick", error, self._runtime.redact)
