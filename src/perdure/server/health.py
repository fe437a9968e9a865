"""What a server says about itself: `GET /ok`, `/info` and `/openapi.json`.

`/ok` says whether the journal answers, and the worker in this process does its work. Anyone may
ask, so the response says nothing else. The reason for a failure names hosts, databases and roles:
it is logged, and sent only to a request with the secret of `/cron/tick`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.openapi.utils import get_openapi

from perdure.client import Client
from perdure.errors import Error
from perdure.server.json_errors import WireResponse
from perdure.server.tick_endpoint import CronSecret

log = logging.getLogger("perdure")

PING_TIMEOUT = 5.0
"""Seconds the journal has to answer."""
SECURITY = {
    "token": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    "bearer": {"type": "http", "scheme": "bearer"},
}
ERROR = {
    "description": "An error: one sentence that says what happened and what to do.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["detail"],
                "properties": {"detail": {"type": "string"}},
            }
        }
    },
}
NO_ANSWER = "The journal does not answer."
NO_WORK = "The worker in this process keeps failing; its log says why."


class Health:
    """Whether the process is healthy. Concurrent requests share one ping."""

    def __init__(self, client: Client, secret: CronSecret) -> None:
        self._client, self._secret = client, secret
        self._ping: asyncio.Task[None] | None = None
        self._logged: str | None = None

    async def get(self, request: Request) -> Response:
        """Whether the journal answers, and the worker works."""
        why, message = await self._find_fault(), NO_ANSWER
        if why is None and (why := self._client.engine.failures.alarm) is not None:
            message = NO_WORK
        if why != self._logged:  # log each change once
            log.warning("GET /ok: %s", why or "all is well again.")
            self._logged = why
        if why is None:
            return WireResponse({"ok": True})
        known = self._secret.is_sent_by(request)
        return WireResponse({"ok": False, "detail": why if known else message}, 503)

    async def _find_fault(self) -> str | None:
        """Why the journal does not answer, without its password. None if it does."""
        try:
            async with asyncio.timeout(PING_TIMEOUT):
                await asyncio.shield(self._shared_ping())
        except TimeoutError:
            why = self._client.journal.opening_problem or "it gave no answer"
            return self._client.redact(f"The journal is not there after {PING_TIMEOUT:g} s: {why}")
        except Exception as error:
            return self._client.redact(str(error) if isinstance(error, Error) else repr(error))
        return None

    def _shared_ping(self) -> asyncio.Task[None]:
        ping, loop = self._ping, asyncio.get_running_loop()
        if ping is None or ping.done() or ping.get_loop() is not loop:
            ping = self._ping = loop.create_task(self._client.ping())
            ping.add_done_callback(_retrieve_exception)
        return ping


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    """Keep asyncio quiet about the failed ping of a request that is gone."""
    if not task.cancelled():
        task.exception()


@cache
def _versions() -> dict[str, str]:
    return {"version": version("perdure"), "langgraph_py_version": version("langgraph")}


class Description:
    """Describes the routes of one runtime."""

    def __init__(self, router: APIRouter) -> None:
        self._router = router
        self._document: dict[str, Any] | None = None

    async def info(self) -> dict[str, Any]:
        """Versions, and what this server can do."""
        flags = {"assistants": True, "crons": True, "langsmith": False}
        host = {"kind": "self-hosted", "project_id": None, "revision_id": None}
        return {**_versions(), "flags": flags, "host": host, "server": "perdure"}

    async def openapi(self) -> Response:
        """Every operation, as an OpenAPI document."""
        if self._document is None:
            found = get_openapi(
                title="perdure",
                version=_versions()["version"],
                routes=self._router.routes,
                description="LangGraph's Agent Server API on durable runs, and perdure's own.",
            )
            _describe_errors(found)
            self._document = found
        return WireResponse(self._document)


def _describe_errors(document: dict[str, Any]) -> None:
    """Describe our errors instead of FastAPI's, and the credentials."""
    document["security"] = [{}, *({name: []} for name in SECURITY)]
    document.setdefault("components", {})["securitySchemes"] = SECURITY
    for name in ("HTTPValidationError", "ValidationError"):
        document["components"].get("schemas", {}).pop(name, None)
    for operations in document.get("paths", {}).values():
        for operation in operations.values():
            operation["responses"].pop("422", None)
            operation["responses"]["4XX"] = ERROR
            operation["responses"]["5XX"] = ERROR
