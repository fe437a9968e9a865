"""What the tests of effects share: a far side that counts, and every way to drive an agent.

`WAYS` are the runtime and the bare saver, in both colours. `drive` brings a graph to its end over
any number of `Boom`s, each time with a runtime or saver of its own, as a process that died would
leave it. `Mortals` are processes that drive one of the `STORIES` and are killed by SIGKILL at a
point.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

import perdure
from perdure.errors import OrderChanged
from perdure.testing import Clock, TemporaryRuntime, crash_at, set_commit_interval
from perdure.types import Event, Retry, Run, State
from tests.support.agents import NOON, Log, chain, opened
from tests.support.fork_server import ForkServer, Tell
from tests.support.polling import auntil
from tests.support.raw import execute
from tests.support.runtime_child import NEVER, Ledger

AT_ONCE = Retry(attempts=3, first=timedelta(0))
FOREVER = Retry(attempts=50, first=timedelta(0))
WAYS = ["runtime", "runtime-async", "saver", "saver-async"]


class Boom(Exception):
    """What a node of these tests raises."""


class Cut(BaseException):
    """Ends an attempt in the middle, as a process that dies does: nothing is known of it then."""


class Times:
    """Raises the first so many times it is asked."""

    def __init__(self, n: int, error: type[BaseException] = Boom) -> None:
        self.n, self.error = n, error

    def __call__(self, why: str = "not yet") -> None:
        if self.n > 0:
            self.n -= 1
            raise self.error(why)


def colour(way: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A node of the colour of a way, from a function that gives the steps of it as coroutine."""
    if way.endswith("async"):
        return function

    def run(state: Log) -> Any:
        coroutine = function(state)
        try:
            coroutine.send(None)
        except StopIteration as done:
            return done.value
        raise AssertionError("a plain node waits for nothing")

    run.__name__ = function.__name__
    return run


class Pair:
    """An effect in the colour of a way, which coroutines of either colour await."""

    def __init__(self, way: str, function: Callable[..., Any], **options: Any) -> None:
        if way.endswith("async"):

            async def called(*args: Any, **kwargs: Any) -> Any:
                await asyncio.sleep(0)
                return function(*args, **kwargs)

            called.__name__ = called.__qualname__ = function.__name__
            called.__signature__ = _signature(function)  # type: ignore[attr-defined]
            self._function: Any = perdure.effect(**options)(called)
        else:
            self._function = perdure.effect(**options)(function)
        self._is_async = way.endswith("async")

    async def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self._function(*args, **kwargs)
        return await found if self._is_async else found


def _signature(function: Callable[..., Any]) -> Any:
    import inspect

    return inspect.signature(function)


async def drive(
    url: str, way: str, builder: Any, input: Any = None, *, thread: str = "t", attempts: int = 20
) -> Any:
    """Bring a graph to its end, each attempt with a runtime or a saver of its own."""
    if way.startswith("runtime"):
        clock = Clock(NOON)
        run: Run | None = None
        for _ in range(attempts):
            async with opened(url, clock) as rt:
                rt.register(builder, name="agent", retry=FOREVER)
                run = await rt.start("agent", input or {"log": []}, thread_id=thread, key="one")
                if not run.ended:
                    await rt.tick(limit=1)
                run = await rt.get(run.id)
                if run.ended:
                    assert run.state is State.DONE, run.error
                    return run.output
            clock.advance(timedelta(hours=1))
        raise AssertionError(f"it does not end: {run}")
    config: Any = {"configurable": {"thread_id": thread}}
    given: Any = input or {"log": []}
    for _ in range(attempts):
        with perdure.Saver(url) as saver:
            graph = builder.compile(checkpointer=saver) if hasattr(builder, "compile") else builder
            with contextlib.suppress(Boom, Cut, OrderChanged):
                if way.endswith("async"):
                    return await graph.ainvoke(given, config)
                return await asyncio.to_thread(graph.invoke, given, config)
            await auntil(
                lambda: len(asyncio.all_tasks()) == 1
            )  # what goes on after a node that failed
            given = None if graph.get_state(config).next else given
    raise AssertionError("it does not end")


async def settled(rt: perdure.Runtime, run: Run, kind: str = "effect") -> list[Event]:
    """The events of a run about effects."""
    return [event for event in await rt.events(run.id) if event.kind == kind]


async def started(
    rt: perdure.Runtime, builder: Any, *, thread: str = "t", name: str = "agent", **options: Any
) -> Run:
    """A run of this graph, driven as far as it goes now."""
    rt.register(builder, name=name, **options)
    run = await rt.start(name, {"log": []}, thread_id=thread)
    await rt.tick()
    return await rt.get(run.id)


async def held(rt: TemporaryRuntime, builder: Any, **options: Any) -> tuple[Run, Any]:
    """A run that is held by one unknown effect, and that effect."""
    run = await started(rt, builder, **options)
    assert run.state is State.HELD, run
    [effect] = await rt.effects(run.id, state="unknown")
    return run, effect


def raw(url: str) -> bytes:
    """All that is stored about effects, runs and events, as somebody with the file sees it."""
    found = b""
    for table, column in [
        ("perdure_effects", "arguments"),
        ("perdure_effects", "outcome"),
        ("perdure_effects", "key"),
        ("perdure_events", "body"),
        ("perdure_runs", "error"),
        ("perdure_runs", "reason"),
        ("perdure_runs", "output"),
        ("perdure_waits", "body"),
        ("perdure_outbox", "body"),
        ("perdure_outbox", "error"),
    ]:
        for (value,) in execute(url, f"SELECT {column} FROM {table}"):
            found += value.encode() if isinstance(value, str) else bytes(value or b"")
    return found


def states(url: str) -> list[str]:
    """The states of all effects, in order."""
    sql = "SELECT state FROM perdure_effects ORDER BY created_at, name, n"
    return [state for (state,) in execute(url, sql)]


# -- stories: graphs whose effects go to a ledger, in a process that is killed


def careful(ledger: Ledger) -> Any:
    """A mail nobody may send twice."""

    @perdure.effect(name="mail", unknown="hold")
    def mail(to: str) -> str:
        ledger.add(f"mail {to}")
        return f"sent {to}"

    return _two(lambda: mail("ana"), ledger)


def books(ledger: Ledger) -> Any:
    """A row of the user's own table, and a message about it."""

    @perdure.effect(name="book", transactional=True)
    def book(what: str) -> str:
        connection = perdure.transaction()
        connection.execute("CREATE TABLE IF NOT EXISTS booked (what TEXT)")
        connection.execute(f"INSERT INTO booked VALUES ('{what}')")
        perdure.outbox("booked", {"what": what})
        return f"booked {what}"

    return _two(lambda: book("room"), ledger)


def trip(ledger: Ledger) -> Any:
    """Three bookings, each with its undo; then it waits for a person."""

    def cancel(result: str, what: str) -> None:
        ledger.add(f"cancel {what} {perdure.key()}")

    @perdure.effect(name="reserve", compensate=cancel)
    def reserve(what: str) -> str:
        ledger.add(f"reserve {what}")
        return what

    def plan(state: Log) -> Log:
        for what in ("flight", "hotel", "car"):
            reserve(what)
        perdure.ask("shall we?")
        return {"log": ["gone"]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("plan", plan)
    builder.add_edge(START, "plan")
    return builder


STORIES: dict[str, Callable[[Ledger], Any]] = {
    "careful": careful,
    "books": books,
    "trip": trip,
}


def _two(call: Callable[[], str], ledger: Ledger) -> Any:
    def first(state: Log) -> Log:
        return {"log": [call()]}

    def second(state: Log) -> Log:
        return {"log": ["second"]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_sequence([first, second])
    builder.add_edge(START, "first")
    return builder


async def play(order: dict[str, Any], tell: Tell) -> None:
    kill = order["kill"]
    dies = crash_at(kill, order.get("n", 1)) if kill else contextlib.nullcontext()
    async with opened(order["url"]) as rt:
        rt.register(STORIES[order["story"]](Ledger(order["ledger"])), name="story", deaths=100)
        set_commit_interval(rt, NEVER)
        run = await rt.start("story", {"log": []}, thread_id="t", key="one")
        if order.get("cancel"):
            await rt.tick()
            await rt.cancel(run.id)
        with dies:
            await rt.tick()


async def decide(order: dict[str, Any], tell: Tell) -> None:
    """A person settles an effect, in a process of their own."""
    async with opened(order["url"]) as rt:
        await rt.now()  # the journal is open: what follows is the decision alone
        with crash_at(order["kill"]):
            await rt.settle(order["key"], "done", order["result"])


class Mortals:
    """Processes that are killed."""

    def __init__(self, server: ForkServer) -> None:
        self._server = server

    def live(self, story: str, url: str, ledger: str, kill: str = "", **order: Any) -> int:
        """How a process ended that drove a story: 0, or the signal, negative."""
        told = {"story": story, "url": url, "ledger": ledger, "kill": kill, **order}
        return self._server.run("effects:play", **told).status

    def settle(self, url: str, key: str, result: str, kill: str) -> int:
        """How a process ended that settled an effect."""
        order: dict[str, Any] = {"url": url, "key": key, "result": result, "kill": kill}
        return self._server.run("effects:decide", **order).status


@pytest.fixture
def children(fork_server: ForkServer) -> Mortals:
    return Mortals(fork_server)


# -- What the tests of effect policies share.

HOUR = timedelta(hours=1)
every_way = pytest.mark.parametrize("way", WAYS)


def one(function: Any, *args: Any) -> StateGraph[Any]:
    """A graph of one node that makes one call."""

    async def node(state: Log) -> Log:
        return {"log": [await function(*args)]}

    return chain(node)
