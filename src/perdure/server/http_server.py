"""uvicorn with the limits of an exposed server, for `perdure serve` and `perdure dev`.

A connection whose request headers are late or huge is closed; uvicorn alone would keep it. So is
one connection too many, so that the journal has files left. The access log has no query strings.
The signals that stop the server are handled here, so that the runtime around it is closed before
the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

import uvicorn
from uvicorn.loops.auto import auto_loop_factory
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from perdure.errors import BadArgument
from perdure.execution.shutdown import SIGNALS

T = TypeVar("T")

HEAD_TIMEOUT = 10.0
"""Seconds that a connection has to send the request line and headers."""
LARGEST_HEAD = 64 * 1024
"""Bytes of incomplete request headers that are read at most."""
SEARCHED = 100
"""Number of ports tried, one after the other, if the first is taken."""
BACKLOG = 2048
MOST_CONNECTIONS = 2000
"""Connections open at once, by default: twice as many as streams."""
OTHER_FILES = 200
"""Open files that are left for the journal and everything else."""
FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
    b"Content-Length: 0\r\n\r\n"
)


class HeadLimits(asyncio.Protocol):
    """A uvicorn connection that is closed if the request headers take too long or are too large.

    Headers that arrive while the previous request is still being answered are limited in size only.
    """

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    cycle: Any
    connections: set[Any]
    most_connections: int
    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > self.most_connections:
            transport.write(FULL)
            transport.close()
        else:
            self._watch()

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        is_head = before is None or before.response_complete or not before.more_body
        super().data_received(data)
        cycle = self.cycle
        self._head_bytes = self._head_bytes + len(data) if is_head and cycle is before else 0
        if self._head_bytes > LARGEST_HEAD:
            self.transport.close()
        elif cycle is None or cycle.response_complete:
            self._watch()
        elif self._head is not None:
            self._head.cancel()
            self._head = None

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head is not None:
            self._head.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(HEAD_TIMEOUT, self._on_slow_head)

    def _on_slow_head(self) -> None:
        self._head = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


def guarded_protocol(most_connections: int) -> Any:
    """uvicorn's protocol, on httptools if it is installed, else on h11."""
    bases, limits = (HeadLimits, AutoHTTPProtocol), {"most_connections": most_connections}
    return type("GuardedProtocol", bases, limits)


class HttpServer(uvicorn.Server):
    """A server that stops on SIGTERM or SIGINT, or when `stop` is called."""

    def __init__(
        self,
        app: Any,
        *,
        grace: float,
        handle_signals: bool = True,
        most_connections: int = MOST_CONNECTIONS,
    ) -> None:
        logging.getLogger("uvicorn.access").addFilter(without_query)
        files = raise_file_limit()
        if files is not None:
            most_connections = min(most_connections, max(files - OTHER_FILES, files // 2))
        config = uvicorn.Config(
            app,
            http=guarded_protocol(most_connections),
            ws="none",
            lifespan="on",
            log_config=None,
            server_header=False,
            proxy_headers=False,  # would hide the address of a proxy: see hosts.client_address
            backlog=BACKLOG,
            timeout_graceful_shutdown=round(grace) + 5,
        )
        super().__init__(config)
        self._handle_signals = handle_signals

    def stop(self) -> None:
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Like uvicorn's, without raising the signal again: the caller still has to clean up."""
        numbers = SIGNALS if self._handle_signals else ()
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in uvloop, if it is installed, else in asyncio's own event loop."""
    with asyncio.Runner(loop_factory=auto_loop_factory()) as runner:
        return runner.run(main)


def without_query(record: logging.LogRecord) -> bool:
    """Cut the query string out of a line of uvicorn's access log."""
    if isinstance(record.args, tuple) and len(record.args) == 5:
        client, method, path, *rest = record.args
        record.args = (client, method, str(path).partition("?")[0], *rest)
    return True


def listen(host: str, port: int, *, search: bool = False) -> socket.socket:
    """A listening socket; with `search`, on the next free port if this one is taken. Raises
    `BadArgument`."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, port + (SEARCHED if search and port else 1)):
        # Set explicitly: asyncio sets TCP_NODELAY only if the protocol is known.
        found = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((host, candidate))
            found.listen(BACKLOG)
            return found
        except OSError as error:
            found.close()
            if error.errno != errno.EADDRINUSE:
                raise BadArgument(f"Cannot listen on {host}:{port}: {error.strerror}.") from error
        except OverflowError:
            found.close()
            raise BadArgument(f"{candidate} is not a port: use 0 to 65535.") from None
    raise BadArgument(f"Port {port} of {host} is taken. Pass another --port; 0 is any free port.")


def address(listening: socket.socket) -> str:
    """The URL of a listening socket."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def raise_file_limit() -> int | None:
    """Raise the limit of open files, and so of connections, to what the system allows. The limit;
    None if it is not known, or there is none."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        return None if hard == resource.RLIM_INFINITY else hard
    return None
