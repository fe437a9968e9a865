"""A server and a worker in processes of their own, killed in turn as a client's text grows.

They are children of `tests.support.fork_server` (`http_stream_child`). The next server takes the
port of the killed one.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx

from perdure.testing.ports import free_port
from tests.contract.wire_listener import WireListener
from tests.support.fork_server import Child, ForkServer
from tests.support.http_stream_child import Leash
from tests.support.polling import auntil

EVERY = 10
"""Words between two kills."""
LIMIT = 3600
"""Seconds that a process lives at most."""


class Pair:
    """A server and a worker on one journal, each replaced when it is killed."""

    asking = threading.Lock()
    """Held while the fork server is asked: several pairs may share it."""

    def __init__(self, processes: ForkServer, url: str, folder: Path, *, one: bool) -> None:
        """`one`: the worker is in the process of the server."""
        self._processes = processes
        leash = folder / f"leash-{uuid4()}"
        self.leash = Leash(leash)
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.log = folder / f"log-{self.port}"
        serve = {"url": url, "port": self.port, "worker": one, "log": str(self.log)}
        self._orders: dict[str, dict[str, Any]] = {"serve": serve}
        if not one:
            self._orders["work"] = {"url": url, "leash": str(leash)}
        with self.asking:
            self.children = {name: self._start(name) for name in self._orders}
        self.killed: Counter[str] = Counter()

    def _start(self, name: str) -> Child:
        order = self._orders[name]
        return self._processes.start(f"http_stream_child:{name}", limit=LIMIT, **order)

    async def kill(self, name: str) -> None:
        self.killed[name] += 1
        self.children[name].send(signal.SIGKILL)
        await asyncio.to_thread(self._replace, name)

    def _replace(self, name: str) -> None:
        with self.asking:
            assert self.children[name].wait() == -signal.SIGKILL
            self.children[name] = self._start(name)

    def stop(self) -> None:
        with self.asking:
            for child in self.children.values():
                child.kill()
        self.leash.close()

    async def is_up(self, http: httpx.AsyncClient) -> bool:
        try:
            return (await http.get("/ok")).status_code == 200
        except httpx.TransportError:
            return False


@asynccontextmanager
async def running(
    processes: ForkServer, url: str, folder: Path, *, one: bool = False
) -> AsyncIterator[tuple[Pair, httpx.AsyncClient]]:
    """A pair, and a plain client of it."""
    pair = Pair(processes, url, folder, one=one)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    # A reader that does not read must fill the buffers soon: the system's grow to 32 MB.
    small = httpx.AsyncHTTPTransport(
        limits=limits, socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)]
    )
    try:
        async with httpx.AsyncClient(base_url=pair.base, transport=small, timeout=30) as http:
            await auntil(lambda: pair.is_up(http), "a server")
            yield pair, http
    finally:
        pair.stop()


class Killer:
    """Kills the server and the worker in turn, whenever a client's text has grown by ten words.

    By how far it has come, not by how often: a node whose worker was killed begins again.
    """

    def __init__(self, pair: Pair, first: int) -> None:
        self._pair, self._next = pair, EVERY
        pair.leash.set(0)
        self._turns: Iterator[str] = itertools.islice(itertools.cycle(pair.children), first, None)

    async def look(self, heard: WireListener) -> None:
        words = len(heard.words())
        if words >= self._next:
            self._next += EVERY
            await self._pair.kill(next(self._turns))
        self._pair.leash.set(max(words, self._next - EVERY))
