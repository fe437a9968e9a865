"""The response of `wait` and `join`: JSON that is sent when a run is over.

Until then a line feed is sent every few seconds. JSON ignores it, and it keeps proxies from closing
the connection. If the caller disconnects before the end, `left` is called.
If the server stops or the journal goes away before the end, the response is cut after its head:
clients go on waiting at its `Location`. An error would make them start the run again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.errors import Unavailable
from perdure.server.agent_api.sse import StreamSlot
from perdure.server.json_errors import error_response
from perdure.server.json_values import dump

PULSE = 5.0
"""Seconds between two line feeds."""


class WaitingResponse(Response):
    """A response that waits for its value."""

    def __init__(
        self,
        slot: StreamSlot,
        value: Callable[[], Awaitable[Any]],
        *,
        headers: Mapping[str, str] | None = None,
        left: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        super().__init__(None, 200, dict(headers or {}), "application/json")
        del self.headers["content-length"]
        self._slot, self._value, self._left = slot, value, left

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = asyncio.ensure_future(self._value())
        gone = asyncio.ensure_future(_disconnected(receive))
        stopping = asyncio.ensure_future(self._slot.stopping.wait())
        try:
            await self._send(scope, receive, send, value, gone, stopping)
        finally:
            self._slot.close()
            for task in (value, gone, stopping):
                task.cancel()
            await asyncio.gather(value, gone, stopping, return_exceptions=True)

    async def _send(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        value: asyncio.Future[Any],
        gone: asyncio.Future[None],
        stopping: asyncio.Future[Any],
    ) -> None:
        has_begun = False
        while True:
            await asyncio.wait(
                {value, gone, stopping}, timeout=PULSE, return_when=asyncio.FIRST_COMPLETED
            )
            if gone.done() and not value.done():
                await self._slot.leave(self._left)
                return
            is_cut, body = stopping.done() and not value.done(), b"\n"
            try:
                if value.done():
                    body = dump(value.result())
            except Exception as error:
                failed, is_cut = error_response(error, self._slot.redact), True
                if not has_begun and not isinstance(error, Unavailable):
                    await failed(scope, receive, send)
                    return
            if not has_begun:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                has_begun = True
            if is_cut:
                return
            more = not value.done()
            await send({"type": "http.response.body", "body": body, "more_body": more})
            if not more:
                return


async def _disconnected(receive: Receive) -> None:
    """Return when the caller has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass
