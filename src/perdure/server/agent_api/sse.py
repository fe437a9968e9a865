"""Responses that last as long as a run: server-sent events, and JSON that is sent at its end.

A stream ends in one of five ways.

    its events end       the response ends
    the client leaves    noticed at once, even while nothing is sent
    the server stops     the connection is cut, as by a crash: clients reconnect to the next server
                         with `Last-Event-ID`. They would mistake a clean end for the run's end
    the journal is gone  the same
    its token is not valid any more: the same

Events that are available together are sent together, up to 32 KiB; the next one is read once the
connection has taken them. A slow client slows only its own reader of the journal. A comment is sent
every 5 seconds, even between events: JavaScript clients drop a connection whose comments are late.

`wait` and `join` send JSON when a run is over. Until then they send a line feed every few seconds:
JSON ignores it, and it keeps proxies from closing the connection. If the server stops or the
journal goes away before the end, the response is cut after its head: clients go on waiting at its
`Location`. An error would make them start the run again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from perdure.errors import NotFound, Unavailable
from perdure.server.errors import error_response, log_failure
from perdure.server.lifespan import OpenStream
from perdure.views.json_values import dump

HEARTBEAT = 5.0
"""Seconds between two comments, or two line feeds."""
FULL = 32 * 1024
"""Maximum number of bytes gathered before they are sent."""
STALLED = 900.0
"""Seconds after which a client that reads nothing is disconnected."""
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
"""The response, for OpenAPI."""
OnLeave = Callable[[], Awaitable[object]] | None


def encode(name: str, data: Any, id: str | None = None) -> bytes:
    """Encode one event. Its JSON has no line breaks, so the data is one line."""
    event = b"event: " + _line(name) + b"\r\ndata: " + dump(data) + b"\r\n"
    return event + (b"" if id is None else b"id: " + _line(id) + b"\r\n") + b"\r\n"


def _line(text: str) -> bytes:
    """Text that may come from a user, such as a node's name, as one line."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace")


class EventStreamResponse(Response):
    """Sends encoded events as they come. `on_leave` is awaited if the client leaves before the end.

    with api.open_stream() as slot:
        accepted = await accept_run(api, thread_id, body)
        return EventStreamResponse(slot, events)
    """

    media_type = "text/event-stream"
    heartbeat = b": heartbeat\r\n\r\n"
    begins_at_once = True
    """Whether clients get the head before there is an event."""

    def __init__(
        self,
        slot: OpenStream,
        parts: AsyncGenerator[bytes],
        headers: Mapping[str, str] | None = None,
        *,
        on_leave: OnLeave = None,
    ) -> None:
        self._slot, self._parts, self._on_leave = slot, parts, on_leave
        slot.is_handed_on = True
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]
        self._has_begun, self._gathered = False, bytearray()
        self._has_some, self._is_taken = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sending = asyncio.ensure_future(self._send_all(send))
        leaving = asyncio.ensure_future(_until_left(receive))
        tasks: set[asyncio.Future[Any]] = {sending, leaving}
        tasks.add(asyncio.ensure_future(self._slot.stopping.wait()))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_left = leaving.done()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._slot.close()
            if has_left and (sending.cancelled() or sending.exception() is not None):
                await self._leave()
        if not has_left:
            await self._begin(send)

    async def _leave(self) -> None:
        try:
            if self._on_leave is not None:
                await self._on_leave()
        except NotFound:  # the run was deleted
            pass
        except Exception as error:
            log_failure("Cancelling a run whose client left", error, self._slot.redact)

    async def _begin(self, send: Send) -> None:
        """Send the head of the response, once."""
        if not self._has_begun:
            self._has_begun = True
            head = {"status": self.status_code, "headers": self.raw_headers}
            await send({"type": "http.response.start", **head})

    async def _read(self) -> None:
        """Gather the parts, at most as many as the connection takes."""
        async with contextlib.aclosing(self._parts) as parts:
            async for part in parts:
                self._gathered += part
                self._has_some.set()
                if len(self._gathered) >= FULL:
                    self._is_taken.clear()
                    await self._is_taken.wait()

    async def _send_all(self, send: Send) -> None:
        """Send what is gathered, and heartbeats, until everything was read."""
        if self.begins_at_once:
            await self._begin(send)
        loop = asyncio.get_running_loop()
        beat_at = loop.time() + HEARTBEAT
        reading = asyncio.ensure_future(self._read())
        reading.add_done_callback(lambda _: self._has_some.set())
        try:
            while not reading.done() or self._gathered:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout_at(beat_at):
                        await self._has_some.wait()
                self._has_some.clear()
                body = bytes(self._gathered)
                self._gathered.clear()
                if loop.time() >= beat_at:
                    body, beat_at = body + self.heartbeat, max(beat_at + HEARTBEAT, loop.time())
                if body:
                    await self._send(send, body)
                self._is_taken.set()
            await self._end(send, reading.exception())
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)

    async def _send(self, send: Send, body: bytes, *, more: bool = True) -> None:
        await self._begin(send)
        async with asyncio.timeout(STALLED):
            await send({"type": "http.response.body", "body": body, "more_body": more})

    async def _end(self, send: Send, error: BaseException | None) -> None:
        """Send the end of the response. Raises if it is to be cut instead."""
        body = b""
        if isinstance(error, Unavailable):
            raise error
        if error is not None:
            log_failure("A stream", error, self._slot.redact)
            data = {"error": "InternalError", "message": "The stream failed; the log says why."}
            body = encode("error", data)
        await self._send(send, body, more=False)


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class WaitingResponse(EventStreamResponse):
    """A response that waits for its value. Its head is sent with the first line feed, so an error
    before has its own status."""

    media_type = "application/json"
    heartbeat = b"\n"
    begins_at_once = False

    def __init__(
        self,
        slot: OpenStream,
        value: Callable[[], Awaitable[Any]],
        headers: Mapping[str, str] | None = None,
        *,
        on_leave: OnLeave = None,
    ) -> None:
        async def parts() -> AsyncGenerator[bytes]:
            yield dump(await value())

        super().__init__(slot, parts(), headers, on_leave=on_leave)

    async def _end(self, send: Send, error: BaseException | None) -> None:
        if isinstance(error, Exception):
            response = error_response(error, self._slot.redact)
            if self._has_begun or isinstance(error, Unavailable):
                raise error
            self.status_code, self.raw_headers = response.status_code, response.raw_headers
            await self._send(send, bytes(response.body), more=False)
        else:
            await super()._end(send, error)
