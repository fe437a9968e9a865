"""A server and a worker on one journal, each a child of `tests.support.fork_server` that a test
kills: the graph of `stream_child`, and one that produces far more than a connection holds.

A worker is faster than a client whose server is being restarted. So that a run is still running at
the next kill, the story is told no more than some words ahead of the client: `Leash`.

`serve` is `perdure serve`. An application is made here, once, so that its modules are there and a
child begins at once.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path
from typing import Any

from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from tests.support import stream_child
from tests.support.commands import main
from tests.support.described_routes import describe_once
from tests.support.fork_server import Tell
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
