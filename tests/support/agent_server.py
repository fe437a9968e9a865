"""A runtime behind a real HTTP server on loopback, and LangGraph's own clients of it.

    with served(runtime) as server:
        thread = server.sync_client().threads.create()

The server runs in a thread of this process, in an event loop of its own, so that the blocking
client, the async client and a test's own event loop can all use it.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from langgraph_sdk import get_client, get_sync_client
from langgraph_sdk.client import LangGraphClient, SyncLangGraphClient
from langgraph_sdk.errors import APIStatusError

from perdure import Runtime
from tests.support.commands import main
from tests.support.described_routes import describe_once

describe_once()

SECONDS = 30.0
"""How long a server may take to start, and to stop."""


@dataclass(frozen=True)
class AgentServer:
    """A running server."""

    url: str
    stop: Callable[[], None]
    """Ends the server as SIGTERM would. Called at the end in any case."""
    _opened: contextlib.ExitStack

    def client(self, **options: Any) -> LangGraphClient:
        """LangGraph's async client, without an API key unless one is given: use it with
        `async with`."""
        return get_client(url=self.url, **{"api_key": None, **options})

    def sync_client(self, **options: Any) -> SyncLangGraphClient:
        """LangGraph's blocking client, without an API key unless one is given. It is closed with
        the server."""
        client = get_sync_client(url=self.url, **{"api_key": None, **options})
        return self._opened.enter_context(client)

    def http(self, **options: Any) -> httpx.Client:
        """A plain blocking client, for what LangGraph's own does not show: codes and headers. It is
        closed with the server."""
        client = httpx.Client(base_url=self.url, **{"timeout": SECONDS, **options})
        return self._opened.enter_context(client)


@contextlib.contextmanager
def served(runtime: Runtime, **options: Any) -> Iterator[AgentServer]:
    """Serve a runtime while the block runs. `options` are those of `Runtime.asgi`."""
    with serving(runtime.asgi(**options)) as server:
        yield server


@contextlib.contextmanager
def serving(app: Any) -> Iterator[AgentServer]:
    """Serve an ASGI application on a free port of loopback, with its lifespan."""
    # asyncio sets TCP_NODELAY only if the protocol is said; without it each response takes 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(1024)
    config = uvicorn.Config(
        app, log_level="warning", lifespan="on", ws="none", timeout_graceful_shutdown=5
    )
    server = _Server(config)
    thread = threading.Thread(target=server.run_in_thread, args=(listener,), daemon=True)

    def stop() -> None:
        server.should_exit = True
        thread.join(SECONDS)

    thread.start()
    opened = contextlib.ExitStack()
    try:
        if not server.is_ready.wait(SECONDS) or not server.started:
            raise RuntimeError("The server did not start; its log says why.")
        yield AgentServer(f"http://127.0.0.1:{listener.getsockname()[1]}", stop, opened)
    finally:
        opened.close()
        stop()
        listener.close()
    if thread.is_alive():
        raise RuntimeError(f"The server did not stop within {SECONDS:.0f} seconds.")


def refused(code: int, call: Any, *arguments: Any, **named: Any) -> str:
    """What a call is refused with."""
    with pytest.raises((APIStatusError, httpx.HTTPStatusError)) as error:
        call(*arguments, **named)
    assert error.value.response.status_code == code, str(error.value)
    return error.value.response.text


class _Server(uvicorn.Server):
    """A server in a thread, which says when it has started or failed to."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_ready = threading.Event()

    def run_in_thread(self, listener: socket.socket) -> None:
        try:
            asyncio.run(self.serve(sockets=[listener]))
        except SystemExit:  # uvicorn's way of saying that the lifespan failed
            pass
        finally:
            self.is_ready.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_ready.set()


# -- Tokens, as an operator makes them: with `perdure tokens create`.


def create_token(url: str, name: str, *scopes: str) -> str:
    """A new token of a journal. A server that is running may notice it seconds later."""
    arguments = ["tokens", "create", name]
    for scope in scopes:
        arguments += ["--scope", scope]
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as said:
        patch.setenv("PERDURE_URL", url)
        main(arguments)
    return next(word for word in said.getvalue().split() if word.startswith("perdure_"))
