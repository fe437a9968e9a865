"""A server and a worker in processes of their own, killed in turn as a client's text grows.

They are children of `tests.support.fork_server`, with the graph of `stream_child` and one that
produces far more than a connection holds. The next server takes the port of the killed one.

A worker is faster than a client whose server is being restarted. So that a run is still running at
the next kill, the story is told no more than some words ahead of the client: `Leash`.

`serve` is `perdure serve`. An application is made here, once, so that its modules are there and a
child begins at once.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
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
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.testing.local_server import free_port
from tests.contract.wire_listener import WireListener
from tests.support import stream_child
from tests.support.commands import main
from tests.support.described_routes import describe_once
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.polling import auntil

PAUSES = (0.002, 0.01, 0.03)
"""Seconds between two words: a worker takes one of these for its life."""
AHEAD = 14
"""Words that the story may be ahead of the client."""
BEGINS = {"one": 0, "left": 16, "right": 16, "first": 48, "second": 60, "last": 72}
"""Words before those of each node, at least."""
PIECE = "x" * 16 * 1024

runtime: perdure.Runtime
"""What `perdure serve` finds here."""


class Leash:
    """How many words a client has, in a file."""

    def __init__(self, path: str | Path) -> None:
        self._file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)

    def set(self, words: int) -> None:
        os.pwrite(self._file, f"{words:9}".encode(), 0)

    def get(self) -> int:
        return int(os.pread(self._file, 9, 0) or 0)

    def close(self) -> None:
        os.close(self._file)


def position(word: str) -> int:
    """How many words of the story are before this one, at least."""
    name = word.rstrip("0123456789")
    number = int(word.removeprefix(name)) + (stream_child.NODES[name.lower()] * name.isupper())
    return BEGINS[name.lower()] + number


def pour(state: MessagesState) -> dict[str, Any]:
    """Write as many pieces as the message says, without a pause."""
    write = get_stream_writer()
    for n in range(int(str(state["messages"][0].content))):
        write({"n": n, "piece": PIECE})
    return {"messages": []}


def flood() -> StateGraph[Any, Any, Any, Any]:
    graph = StateGraph(MessagesState)
    graph.add_node("pour", pour)
    graph.add_edge(START, "pour")
    return graph


def _runtime(url: str) -> perdure.Runtime:
    rt = perdure.Runtime(url)
    rt.register(stream_child.story(), name="story", deaths=1000)
    rt.register(flood(), name="flood")
    return rt


describe_once()
_runtime("sqlite:///:memory:").asgi()


def serve(order: dict[str, Any], tell: Tell) -> None:
    """`perdure serve --port …`, with a worker beside if that is ordered."""
    global runtime
    runtime = _runtime(order["url"])
    at, worker = f"{__name__}:runtime", bool(order.get("worker"))
    how = "--worker" if worker else "--no-worker"
    main(["serve", "--at", at, "--port", str(order["port"]), how, "--quiet"])


async def work(order: dict[str, Any], tell: Tell) -> None:
    """Drive runs until killed."""
    leash, pause = Leash(order["leash"]), random.choice(PAUSES)

    async def pace(word: str) -> None:
        await asyncio.sleep(pause)
        await auntil(lambda: leash.get() + AHEAD >= position(word), "a client", seconds=600)

    stream_child.pace = pace
    async with _runtime(order["url"]) as rt:
        await rt.work(handle_signals=False)


EVERY = 10
"""Words between two kills."""
LIMIT = 3600
"""Seconds that a process lives at most."""


ROLES = {"serve": serve, "work": work}


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
        return self._processes.start(ROLES[name], limit=LIMIT, **order)

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
