"""Graphs that tests of the HTTP side serve, and the databases it is tested on."""

from __future__ import annotations

import operator
import uuid
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore
from langgraph.types import interrupt
from typing_extensions import TypedDict

from perdure import Runtime
from perdure.commands.health import examine
from perdure.types import State
from tests.support.agent_server import AgentServer, served
from tests.support.polling import until

SERVED = pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
)
"""The databases of a server: each test once per database."""


@pytest.fixture
def database() -> str:
    return "sqlite"


@pytest.fixture
def url(request: pytest.FixtureRequest, database: str) -> str:
    found: str = request.getfixturevalue(f"{database}_url")
    return found


@pytest.fixture
def runtime(url: str) -> Iterator[Runtime]:
    """The graphs below. At the end nothing is wrong with the journal."""
    rt = with_graphs(Runtime(url))
    yield rt
    with rt:
        assert rt.journal.do(examine()) == []


@pytest.fixture
def server(runtime: Runtime) -> Iterator[AgentServer]:
    with served(runtime) as running:
        yield running


def ran(rt: Runtime, graph: str, *states: State, n: int = 1, thread: str | None = None) -> str:
    """The thread of a run that the server's worker has driven."""
    id = thread or str(uuid.uuid4())
    run = rt.blocking.start(graph, {"n": n}, thread_id=id)
    until(lambda: rt.blocking.get(run.id).state in (states or (State.DONE,)))
    return id


class Numbers(TypedDict, total=False):
    """A number, and who changed it."""

    n: int
    log: Annotated[list[str], operator.add]


class Settings(TypedDict, total=False):
    """What runs of `numbers` can be given."""

    by: int


def add(state: Numbers, config: RunnableConfig) -> Numbers:
    return {"n": state.get("n", 0) + 1, "log": ["add"]}


def double(state: Numbers) -> Numbers:
    return {"n": 2 * state["n"], "log": ["double"]}


def ask(state: Numbers) -> Numbers:
    return {"log": [f"heard {interrupt({'question': 'Go on?'})}"]}


def fail(state: Numbers) -> Numbers:
    raise ValueError("this node always fails")


def remember(state: Numbers, *, store: BaseStore) -> Numbers:
    store.put(("memories",), "last", {"n": state["n"]})
    return {"log": ["remembered"]}


def row(*nodes: Any, schema: Any = Numbers, **options: Any) -> Any:
    """A graph of these nodes, one after the other."""
    builder = StateGraph(schema, **options)
    last = START
    for node in nodes:
        name = getattr(node, "__name__", "sub")
        builder.add_node(name, node)
        builder.add_edge(last, name)
        last = name
    return builder


def with_graphs(runtime: Runtime) -> Runtime:
    """Register graphs: a plain one, one that asks, one that fails, one with a subgraph."""
    runtime.register(row(add, double, context_schema=Settings), name="numbers")
    runtime.register(row(add, ask, double), name="gate")
    runtime.register(row(add, fail), name="faulty")
    runtime.register(row(add, row(double, ask).compile()), name="family")
    return runtime
