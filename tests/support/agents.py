"""Small agents that tests of the runtime share, and how to watch what becomes of them.

`chain` makes a graph of nodes in a row. `Calls` makes nodes that count, so that a test can say what
ran and how often; a `Gate` is a node that stands still until the test lets it go. `opened` is a
runtime with a movable clock that looks through its journal in the end, as `perdure doctor` does.
"""

from __future__ import annotations

import asyncio
import operator
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import Runnable
from langgraph.graph import START, StateGraph

from perdure import Runtime
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Event, Run, State
from tests.support.polling import auntil

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
"""When every test begins, unless it brings a clock."""

Node = Callable[..., Any]


class Log(TypedDict, total=False):
    """What these agents know."""

    log: Annotated[list[str], operator.add]
    value: Any


def chain(*nodes: Node | tuple[str, Node | Runnable[Any, Any]]) -> StateGraph[Any]:
    """A graph of these nodes, one after the other, each named after its function or as given."""
    builder: StateGraph[Any] = StateGraph(Log)
    last = START
    for node in nodes:
        name, function = node if isinstance(node, tuple) else (node.__name__, node)
        builder.add_node(name, function)
        builder.add_edge(last, name)
        last = name
    return builder


class Calls(list[str]):
    """The nodes that ran, in order, whether or not anything was kept of it."""

    def node(self, name: str, then: Callable[[Any], Any] | None = None) -> tuple[str, Node]:
        """A plain node that notes its name here and in the state; `then` may raise or wait."""

        def run(state: Log) -> Any:
            self.append(name)
            update = None if then is None else then(state)
            return {"log": [name], **(update or {})}

        return name, run

    def coroutine(
        self, name: str, then: Callable[[Any], Coroutine[Any, Any, Any]] | None = None
    ) -> tuple[str, Node]:
        """The same as a coroutine."""

        async def run(state: Log) -> Any:
            self.append(name)
            update = None if then is None else await then(state)
            return {"log": [name], **(update or {})}

        return name, run


class Gate:
    """Where a node stands still. `entered` tells that it is there, `open` lets it go, `left` tells
    that it went, or was torn away."""

    def __init__(self) -> None:
        self._entered, self._open, self._left = (threading.Event() for _ in range(3))

    @property
    def entered(self) -> bool:
        return self._entered.is_set()

    @property
    def left(self) -> bool:
        return self._left.is_set()

    def open(self) -> None:
        self._open.set()

    def block(self, state: Any = None) -> None:
        """Stand still in a thread, or block an event loop."""
        self._entered.set()
        try:
            assert self._open.wait(60), "nobody opened the gate"
        finally:
            self._left.set()

    async def wait(self, state: Any = None) -> None:
        """Stand still in an event loop that goes on with other things."""
        self._entered.set()
        try:
            await auntil(self._open.is_set)
        finally:
            self._left.set()

    async def freeze(self, state: Any = None) -> None:
        """A coroutine that blocks the event loop it is in."""
        self.block()

    async def reached(self) -> None:
        await auntil(lambda: self.entered)


@contextmanager
def gate() -> Iterator[Gate]:
    """A gate that is open in the end, whatever the test did, so that no thread is left behind."""
    made = Gate()
    try:
        yield made
    finally:
        made.open()


@asynccontextmanager
async def opened(
    url: str, clock: Clock | None = None, **options: Any
) -> AsyncIterator[TemporaryRuntime]:
    """A runtime with a movable clock; its journal must be sound when the block ends."""
    rt = TemporaryRuntime(url, clock=clock or Clock(NOON), **options)
    async with rt:
        yield rt
        assert not (await rt.doctor()).findings


@asynccontextmanager
async def driving(rt: Runtime, **bounds: Any) -> AsyncIterator[asyncio.Task[Any]]:
    """A worker of this runtime, until the block ends."""
    work = asyncio.create_task(rt.work(**bounds))
    try:
        yield work
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)


async def reaches(rt: Runtime, run: Run, *states: State) -> Run:
    """The run, once it is in one of these states."""

    async def look() -> Run | None:
        found = await rt.get(run.id)
        return found if found.state in states else None

    found: Run = await auntil(look)
    return found


async def told_to_stop(rt: Runtime, run: Run) -> None:
    """Wait until the driver of a run, in this runtime, knows that it is to stop."""
    keeper = rt.engine.keeper
    await auntil(lambda: [one for one in keeper.driven if one.row.id == run.id and one.stop])


async def driven(
    rt: Runtime, graph: Any, input: Any, *, name: str = "g", retry: Any = None, **options: Any
) -> Run:
    """A run of this graph as it was started; it is driven as far as it goes now."""
    rt.register(graph, name=name, retry=retry)
    run = await rt.start(name, input, **options)
    await rt.tick()
    return run


async def history(rt: Runtime, run: Run) -> list[str]:
    """The kinds of a run's events in order, whose numbers have no gap."""
    events: list[Event] = await rt.events(run.id)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    return [event.kind for event in events]


async def checkpoints(rt: Runtime, thread_id: str) -> list[Any]:
    """The checkpoints of a thread, newest first."""
    config: Any = {"configurable": {"thread_id": thread_id}}
    return [found async for found in rt.saver.alist(config)]
