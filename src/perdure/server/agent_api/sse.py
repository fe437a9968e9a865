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
from starlette.types import Message, Receive, Scope, Send

from perdure.errors import NotFound, Unavailable
from perdure.server.errors import error_response, log_failure
from perdure.server.routes import Api
from perdure.views.json_values import dump

HEARTBEAT = 5.0
"""Seconds between two comments, or two line feeds."""
FULL = 32 * 1024
"""Maximum number of bytes gathered before they are sent."""
STALLED = 900.0
"""Seconds after which a client that reads nothing is disconnected."""
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}
COMMENT = b": heartbeat\r\n\r\n"
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Server-sent events.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
}
"""The response, for OpenAPI."""


def encode(name: str, data: Any, id: str | None = None) -> bytes:
    """Encode one event. Its JSON has no line breaks, so the data is one line."""
    event = b"event: " + _line(name) + b"\r\ndata: " + dump(data) + b"\r\n"
    return event + (b"" if id is None else b"id: " + _line(id) + b"\r\n") + b"\r\n"


def _line(text: str) -> bytes:
    """Text that may come from a user, such as a node's name, as one line."""
    return text.replace("\r", " ").replace("\n", " ").encode("utf-8", "replace")


class StreamSlot:
    """Counts a stream as open. Take it before accepting the run that is to be streamed.

    with StreamSlot(api) as slot:  # released if the block raises
        accepted = await accept_run(api, thread_id, body)
        return EventStreamResponse(slot, events)
    """

    def __init__(self, api: Api, *, counts: bool = True) -> None:
        """Raises 503 if too many are open."""
        self._open, self.redact = contextlib.ExitStack(), api.runtime.redact
        self.stopping = self._open.enter_context(api.open_stream(counts=counts)).stopping
        """Set when the server stops, or the caller's token is no longer valid."""

    def __enter__(self) -> StreamSlot:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is not None:
            self.close()

    async def leave(self, on_leave: Callable[[], Awaitable[object]] | None) -> None:
        """Call `on_leave` after the client has left. An error is only logged."""
        try:
            if on_leave is not None:
                await on_leave()
        except NotFound:  # the run was deleted
            pass
        except Exception as error:
            log_failure("Cancelling a run whose client left", error, self.redact)

    def close(self) -> None:
        self._open.close()

    __del__ = close  # a response that is never sent


class EventStreamResponse(Response):
    """Streams encoded events. `on_leave` is awaited if the client leaves before the end."""

    media_type = "text/event-stream"

    def __init__(
        self,
        slot: StreamSlot,
        events: AsyncGenerator[bytes],
        headers: dict[str, str] | None = None,
        *,
        on_leave: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        self._slot, self._events, self._on_leave = slot, events, on_leave
        super().__init__(headers={**HEADERS, **(headers or {})})
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        status = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **status})
        connection = _Connection(send)
        writing = asyncio.ensure_future(self._write(connection))
        leaving = asyncio.ensure_future(_until_left(receive))
        others = (connection.beat(), connection.send_gathered(), self._slot.stopping.wait())
        tasks: set[asyncio.Future[Any]] = {writing, leaving, *map(asyncio.ensure_future, others)}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            has_left = leaving.done()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._slot.close()
            is_whole = not writing.cancelled() and writing.exception() is None
            if has_left and not is_whole:
                await self._slot.leave(self._on_leave)
        if is_whole and not has_left:
            await connection.end()

    async def _write(self, connection: _Connection) -> None:
        try:
            async with contextlib.aclosing(self._events) as events:
                async for event in events:
                    await connection.write(event)
        except Unavailable:
            raise
        except Exception as error:
            log_failure("A stream", error, self._slot.redact)
            data = {"error": "InternalError", "message": "The stream failed; the log says why."}
            await connection.write(encode("error", data))
        # A send waits while the client reads nothing; cancelling it would lose its events.
        await connection.flush()


class _Connection:
    """The sending side of a connection: events and comments, one at a time."""

    def __init__(self, send: Send) -> None:
        self._send_message, self._free = send, asyncio.Lock()
        self._gathered, self._has_some = bytearray(), asyncio.Event()

    async def write(self, event: bytes) -> None:
        """Send an event soon. Waits only if many are gathered."""
        self._gathered += event
        if len(self._gathered) < FULL:
            self._has_some.set()
        else:
            await self.flush()
            await asyncio.sleep(0)  # let other tasks run

    async def send_gathered(self) -> None:
        """Send what is gathered whenever no further event is available."""
        while True:
            await self._has_some.wait()
            self._has_some.clear()
            await self.flush()

    async def end(self) -> None:
        """Send the end of the response."""
        await self._send(b"", more=False)

    async def flush(self) -> None:
        """Send what is gathered, after any send in progress."""
        async with self._free:
            body = bytes(self._gathered)
            self._gathered.clear()
            if body:
                await self._send(body)

    async def _send(self, body: bytes, *, more: bool = True) -> None:
        message: Message = {"type": "http.response.body", "body": body, "more_body": more}
        await self._send_message(message)

    async def beat(self) -> None:
        """Send comments until the client has read nothing for too long."""
        loop = asyncio.get_running_loop()
        next_at, taken_at = loop.time() + HEARTBEAT, loop.time()
        while loop.time() < taken_at + STALLED:
            await asyncio.sleep(next_at - loop.time())
            next_at = max(next_at + HEARTBEAT, loop.time())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HEARTBEAT):
                    await self._free.acquire()
                try:
                    await self._send(COMMENT)
                    taken_at = loop.time()
                finally:
                    self._free.release()


async def _until_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class WaitingResponse(Response):
    """A response that waits for its value. `on_leave` is awaited if the client leaves before."""

    def __init__(
        self,
        slot: StreamSlot,
        value: Callable[[], Awaitable[Any]],
        headers: Mapping[str, str] | None = None,
        *,
        on_leave: Callable[[], Awaitable[object]] | None = None,
    ) -> None:
        super().__init__(None, 200, headers, "application/json")
        del self.headers["content-length"]
        self._slot, self._value, self._on_leave = slot, value, on_leave

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        value = asyncio.ensure_future(self._value())
        leaving = asyncio.ensure_future(_until_left(receive))
        stopping = asyncio.ensure_future(self._slot.stopping.wait())
        tasks: set[asyncio.Future[Any]] = {value, leaving, stopping}
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        has_begun = False
        try:
            while True:
                await asyncio.wait(tasks, timeout=HEARTBEAT, return_when=asyncio.FIRST_COMPLETED)
                if leaving.done() and not value.done():
                    await self._slot.leave(self._on_leave)
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
                    await send(start)
                    has_begun = True
                if is_cut:
                    return
                more = not value.done()
                await send({"type": "http.response.body", "body": body, "more_body": more})
                if not more:
                    return
        finally:
            self._slot.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
