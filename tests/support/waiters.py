"""Graphs that wait, for the tests of waits, answers, signals and recorded reads.

Run as a program it is the worker that dies: `python -m tests.support.waiters` reads lines of
`url point` and forks a process for each, which answers a question and is killed by SIGKILL at that
point while the answer is being used.
"""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import timedelta
from typing import Annotated, Any, TypedDict

import psycopg
from langgraph.graph import START, StateGraph

import perdure
from perdure import Runtime, testing
from perdure.testing import TemporaryRuntime, watch_points
from perdure.types import Event, Run, State, Wait
from tests.support.fork_server import Tell

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
MS = timedelta(milliseconds=1)

ANSWER = {"ok": True, "note": "as agreed"}
ASKED = {"draft": "Dear Ana"}


FREE_RUNS = "SELECT 1 FROM perdure_runs FOR UPDATE SKIP LOCKED"
WAITS_FOR_LOCK = """SELECT 1 FROM pg_stat_activity
WHERE datname = current_database() AND wait_event_type = 'Lock'"""


class Log(TypedDict, total=False):
    """What nodes tell, in the order of their steps."""

    log: Annotated[list[Any], operator.add]


Node = Any
"""A function from a `Log` to an update of it, of either colour."""


def chain(*nodes: Node) -> StateGraph[Log]:
    """One node after the other."""
    builder = StateGraph(Log)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(before, node.__name__)
        before = node.__name__
    return builder


def side_by_side(*nodes: Node) -> StateGraph[Log]:
    """All nodes in one step."""
    builder = StateGraph(Log)
    for node in nodes:
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    return builder


def asking(value: Any, name: str = "asks", **options: Any) -> Node:
    """A node that asks, and tells what it got."""

    def node(state: Log) -> Log:
        return {"log": [(value, perdure.ask(value, **options))]}

    return named(name, node)


def listening(signal_name: str, name: str = "listens", **options: Any) -> Node:
    """A node that waits for a signal, and tells its value."""

    def node(state: Log) -> Log:
        return {"log": [(signal_name, perdure.wait_for(signal_name, **options))]}

    return named(name, node)


def sleeping(until: Any, name: str = "sleeps") -> Node:
    def node(state: Log) -> Log:
        perdure.sleep(until)
        return {"log": ["slept"]}

    return named(name, node)


def named(name: str, node: Node) -> Node:
    node.__name__ = name
    return node


@asynccontextmanager
async def healthy(url: str | None = None, **options: Any) -> AsyncIterator[TemporaryRuntime]:
    """A runtime with a movable clock, whose journal has nothing wrong in the end."""
    async with testing.runtime(url, **options) as rt:
        assert isinstance(rt, TemporaryRuntime)
        yield rt
        assert not (await rt.doctor()).findings


async def drive(rt: Runtime) -> None:
    """Until nothing is due."""
    await rt.tick(limit=1000)


async def begin(rt: Runtime, graph: Any, thread_id: str = "t", **options: Any) -> Run:
    """Register a graph, start a run of it, and drive that until it rests."""
    rt.register(graph, name=options.pop("name", "g"))
    run = await rt.start("g", options.pop("input", {"log": []}), thread_id=thread_id, **options)
    await drive(rt)
    return await rt.get(run.id)


async def only_wait(rt: Runtime, run: Run, kind: str | None = None) -> Wait:
    [found] = await rt.waits(run_id=run.id, kind=kind)
    return found


async def log_of(rt: Runtime, run: Run) -> list[Any]:
    """What a run told; it must have ended well."""
    found = await rt.get(run.id)
    assert found.state is State.DONE, (found.state, found.error, found.reason)
    log: list[Any] = found.output["log"]
    return log


async def kinds(rt: Runtime, run: Run, *only: str) -> list[str]:
    return [event.kind for event in await rt.events(run.id) if not only or event.kind in only]


def data_of(events: Iterable[Event], kind: str) -> list[dict[str, Any]]:
    return [dict(event.data) for event in events if event.kind == kind]


@contextmanager
def in_the_midst(point: str, url: str, call: Callable[[], Any]) -> Iterator[None]:
    """Inside, when a transaction on PostgreSQL first comes to `point`, another thread calls `call`.

    There is only one run. The transaction has it locked, and goes on when the call waits for it.
    """
    callers: list[threading.Thread] = []
    problems: list[str] = []

    def hook(reached: str) -> None:
        if reached == point and not callers:
            callers.append(threading.Thread(target=call))
            with psycopg.connect(url, autocommit=True) as server:
                deadline = time.monotonic() + 20
                # The batch is a pipeline: what was sent is not yet done.
                while server.execute(FREE_RUNS).fetchall() and time.monotonic() < deadline:
                    pass
                callers[0].start()
                while callers[0].is_alive() and time.monotonic() < deadline:
                    if server.execute(WAITS_FOR_LOCK).fetchall():
                        return
            problems.append("the call did not wait for the transaction")

    before = watch_points(hook)
    try:
        yield
    finally:
        watch_points(before)
    assert callers, f"{point} was not reached"
    callers[0].join()
    assert problems == []


# -- the worker that dies


def approved(state: Log) -> Log:
    """Three answers in one node: the same each time it runs, whoever drives it."""
    perdure.sleep(MINUTE)
    decision = perdure.ask(ASKED)
    reply = perdure.wait_for("reply")
    return {"log": [decision, reply, str(perdure.uuid())]}


def after(state: Log) -> Log:
    return {"log": ["after"]}


def registered(url: str, clock: testing.Clock | None = None) -> TemporaryRuntime:
    rt = testing.runtime(url, clock=clock)
    rt.register(chain(approved, after), name="g")
    return rt


async def answer_and_die(order: dict[str, Any], tell: Tell) -> None:
    """Use an answer, and be killed at a point."""
    rt, point = registered(order["url"]), order["point"]
    await rt.start("g", {"log": []}, thread_id="t")
    await drive(rt)
    rt.clock.advance(MINUTE)
    await drive(rt)
    [wait] = await rt.waits()
    await rt.answer(wait.id, ANSWER, by="ana")
    await rt.signal("t", "reply", "stop", key="m1")
    name, _, n = point.partition("#")
    with testing.crash_at(name, int(n or 1)):
        await drive(rt)
    raise AssertionError(f"{point} was not reached")
