"""Nodes and runs in every state, for the tests that pause, cancel, retry, fork and prune."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from langgraph.graph import StateGraph

import perdure
from perdure import Runtime
from perdure.types import Retry, Run, State
from tests.support.agents import Calls, Gate, Log, chain, driving, gate, opened

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def said(*texts: str) -> dict[str, Any]:
    return {"log": list(texts)}


def echo(state: Log) -> Any:
    return {"log": ["echo"]}


def nap(state: Log) -> Any:
    perdure.sleep(HOUR)
    return {"log": ["nap"]}


def approve(state: Log) -> Any:
    return {"log": [f"approved {perdure.ask('go on?')}"]}


def fail(state: Log) -> Any:
    raise ValueError("no luck")


async def resting(rt: Runtime, state: State, thread_id: str = "t") -> Run:
    """A run of "g" in a state in which nobody drives it."""
    run = await rt.start("g", said("a"), thread_id=thread_id)
    if state in (State.WAITING, State.DONE, State.FAILED):
        await rt.tick()
    elif state == State.PAUSED:
        await rt.pause(run.id)
    elif state == State.CANCELLED:
        await rt.cancel(run.id)
    found = await rt.get(run.id)
    assert found.state == state
    return found


ONCE = Retry(attempts=1)


def standing(calls: Calls, closed: Any, color: str) -> StateGraph[Any]:
    """A graph that stands still in its second node, the first time it comes there."""
    first = threading.Event()

    def stand(state: Log) -> None:
        if not first.is_set():
            first.set()
            closed.block()

    async def stand_in_loop(state: Log) -> None:
        if not first.is_set():
            first.set()
            await closed.wait()

    if color == "thread":
        nodes = [calls.node("one"), calls.node("stand", stand), calls.node("two")]
    else:
        nodes = [
            calls.coroutine("one"),
            calls.coroutine("stand", stand_in_loop),
            calls.coroutine("two"),
        ]
    return chain(*nodes)


@asynccontextmanager
async def in_a_step(
    url: str, calls: Calls, color: str = "loop"
) -> AsyncIterator[tuple[Runtime, Run, Gate]]:
    """A run of `standing` that is driven, and stands still until the gate is opened."""
    with gate() as closed:
        async with opened(url) as rt:
            rt.register(standing(calls, closed, color), name="g")
            run = await rt.start("g", said("a"))
            async with driving(rt):
                await closed.reached()
                yield rt, run, closed


COLORS = pytest.mark.parametrize("color", ["thread", "loop"])
