"""Small graphs and calls, for the tests of bound graphs."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

from perdure.testing import TemporaryRuntime, runtime

T: RunnableConfig = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


Node = Callable[..., Any]


def sequence(**nodes: Node) -> StateGraph[Log]:
    builder = StateGraph(Log)
    builder.add_sequence(list(nodes.items()))
    builder.add_edge(START, next(iter(nodes)))
    return builder


def says(word: str) -> Node:
    def node(state: Log) -> Log:
        return {"log": [word]}

    return node


def asks(state: Log) -> Log:
    return {"log": ["asked", interrupt({"seen": list(state["log"])})]}


def asking() -> StateGraph[Log]:
    return sequence(a=says("a"), ask=asks, b=says("b"))


class Gate:
    """A node that tells that it was entered, and stays there until it is let through."""

    def __init__(self, word: str = "through") -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self._word = word

    def __call__(self, state: Log) -> Log:
        self.entered.set()
        assert self.open.wait(60)
        return {"log": [self._word]}


@pytest.fixture
def rt() -> Iterator[TemporaryRuntime]:
    with runtime() as found:
        yield found


def kinds(rt: TemporaryRuntime, run_id: str) -> list[str]:
    return [event.kind for event in rt.blocking.events(run_id)]


def states(rt: TemporaryRuntime) -> list[str]:
    """The states of all runs, in the order of their names."""
    return sorted(run.state.value for run in rt.blocking.runs())


def two_calls(graph: Any, gate: Gate, second_is_on_its_way: Callable[[], Any]) -> list[Any]:
    """Call twice, the second time while the first is in the middle."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(graph.invoke, {"log": ["first"]}, T)
        try:
            assert gate.entered.wait(30)
            second = pool.submit(graph.invoke, {"log": ["second"]}, T)
            second_is_on_its_way()
        finally:
            gate.open.set()
        return [first.result(30), second.result(30)]
