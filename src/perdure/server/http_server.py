"""uvicorn for `perdure serve` and `perdure dev`, which import nothing else of the server.

A connection too many gets 503, so that the journal has files left. The access log has no query
strings. The signals that stop the server are handled here, so that the runtime around it is closed
before the process ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import signal
import socket
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from uvicorn.loops.auto import auto_loop_factory

from perdure.commands import tokens
from perdure.errors import BadArgument
from perdure.server.app import add_to_app as add_to_app
from perdure.server.authorization import authenticate_handler
from perdure.server.origins import host_name, is_loopback
from perdure.server.ui.site import sign_in_path
from perdure.shutdown import SIGNALS

if TYPE_CHECKING:
    from perdure.runtime import Runtime
    from perdure.server.options import ServerSettings

T = TypeVar("T")

SEARCHED = 100
"""Number of ports tried, one after the other, if the first is taken."""
BACKLOG = 2048
MOST_CONNECTIONS = 2000
"""Connections open at once, by default: twice as many as streams."""
OTHER_FILES = 200
"""Open files that are left for the journal and everything else."""


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
            limit_concurrency=most_connections + 1,  # uvicorn refuses the one that reaches it
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
        listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(BACKLOG)
            return listening
        except OSError as error:
            listening.close()
            if error.errno != errno.EADDRINUSE:
                raise BadArgument(f"Cannot listen on {host}:{port}: {error.strerror}.") from error
        except OverflowError:
            listening.close()
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


async def pages_url(rt: Runtime, settings: ServerSettings, address: str) -> str:
    """The URL of the pages: on loopback with the key that signs in, if there are no accounts."""
    has_accounts = settings.get("ui_proxy") is not None or await _has_accounts(rt, settings)
    if has_accounts or not is_loopback(host_name(address.partition("//")[2])):
        return f"{address}/ui/"
    return address + await sign_in_path(rt)


async def is_exposed(rt: Runtime, settings: ServerSettings, host: str) -> bool:
    """Whether other machines could call the server without credentials, and nobody said so."""
    if is_loopback(host) or settings.get("insecure"):
        return False
    return not await _has_accounts(rt, settings)


async def _has_accounts(rt: Runtime, settings: ServerSettings) -> bool:
    auth = settings.get("auth")
    if auth is not None and authenticate_handler(auth) is not None:
        return True
    return bool(await rt.journal.arun(tokens.read_rows(rt.engine)))
