"""Small agents that tests of the HTTP side share, served with LangGraph's own clients."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as GraphRuntime
from langgraph.types import interrupt

import perdure
from perdure.types import Retry
from tests.support.agent_server import AgentServer, served


class Numbers(TypedDict, total=False):
    n: int
    log: Annotated[list[str], operator.add]


class Talk(TypedDict, total=False):
    said: Annotated[list[Any], operator.add]


class Settings(TypedDict, total=False):
    tone: str


def add(state: Numbers) -> Numbers:
    return {"n": state["n"] + 1, "log": ["add"]}


def double(state: Numbers) -> Numbers:
    return {"n": state["n"] * 2, "log": ["double"]}


def ask(state: Talk) -> Talk:
    return {"said": [interrupt({"question": "go on?"})]}


def ask_twice(state: Talk) -> Talk:
    return {"said": [interrupt("first"), interrupt("second")]}


def left(state: Talk) -> Talk:
    return {"said": [interrupt("left")]}


def right(state: Talk) -> Talk:
    return {"said": [interrupt("right")]}


def end(state: Talk) -> Talk:
    return {"said": ["end"]}


def review(state: Talk) -> Talk:
    """Asks as LangChain's `HumanInTheLoopMiddleware` does."""
    request = {
        "action_requests": [{"name": "send_mail", "args": {"to": "ada"}}],
        "review_configs": [
            {"action_name": "send_mail", "allowed_decisions": ["approve", "edit", "reject"]}
        ],
    }
    return {"said": [interrupt(request)]}


def fail(state: Numbers) -> Numbers:
    raise ValueError("this node always fails")


async def sleep(state: Numbers) -> Numbers:
    await asyncio.sleep(60)
    return {"log": ["slept"]}


async def nap(state: Numbers) -> Numbers:
    await asyncio.sleep(0.5)
    return {"log": ["napped"]}


def settings(state: Talk, config: RunnableConfig, runtime: GraphRuntime[Settings]) -> Talk:
    configurable = {
        name: value
        for name, value in config["configurable"].items()
        if not name.startswith("__") and isinstance(value, str)
    }
    return {"said": [{"configurable": configurable, "context": runtime.context}]}


def row(schema: Any, *nodes: Any, **options: Any) -> StateGraph[Any]:
    """A graph of these nodes, one after the other."""
    builder: StateGraph[Any] = StateGraph(schema, **options)
    builder.add_sequence(list(nodes))
    builder.add_edge(START, nodes[0].__name__)
    return builder


def beside(schema: Any, *nodes: Any) -> StateGraph[Any]:
    """A graph of these nodes, all at once."""
    builder: StateGraph[Any] = StateGraph(schema)
    for node in nodes:
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    return builder


def wire_runtime(url: str, **options: Any) -> perdure.Runtime:
    """A runtime with every graph of this module."""
    runtime = perdure.Runtime(url, **options)
    graphs = {
        "numbers": row(Numbers, add, double),
        "one": row(Numbers, add),
        "gate": row(Talk, ask, end),
        "twice": row(Talk, ask_twice, end),
        "both": beside(Talk, left, right),
        "review": row(Talk, review, end),
        "faulty": row(Numbers, add, fail),
        "slow": row(Numbers, add, sleep),
        "nap": row(Numbers, nap),
        "settings": row(Talk, settings, context_schema=Settings),
        "asked settings": row(Talk, ask, settings, context_schema=Settings),
    }
    for name, graph in graphs.items():
        runtime.register(graph, name=name, retry=Retry(attempts=1))
    return runtime


@contextmanager
def wire_server(url: str, **options: Any) -> Iterator[AgentServer]:
    """These graphs behind a real server, with a worker."""
    with closing(wire_runtime(url)) as runtime, served(runtime, **options) as server:
        yield server
