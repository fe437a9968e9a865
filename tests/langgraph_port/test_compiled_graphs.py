"""What a compiled graph says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from perdure.langgraph_port import compiled_graphs

CONFIG: Any = {"configurable": {"thread_id": "t"}}


@dataclass
class Order:
    number: int


@dataclass
class Customer:
    name: str


class Shop(TypedDict, total=False):
    order: Order


def one(function: Any, **options: Any) -> StateGraph[Any]:
    builder: StateGraph[Any] = StateGraph(Shop, **options)
    return builder.add_node("node", function).add_edge(START, "node")


def test_a_compile_tells_the_saver_the_types_of_the_schemas() -> None:
    told: set[tuple[str, ...]] = set()

    class Notes(InMemorySaver):
        def with_allowlist(self, extra_allowlist: Any) -> Notes:
            told.update(extra_allowlist)
            return self

    compiled_graphs.ask_graphs_for_their_types(load=True)
    one(lambda _: None).compile(Notes())
    assert (__name__, "Order") in told


def test_a_compiled_graph_has_the_types_of_its_schemas() -> None:
    graph = one(lambda _: None, context_schema=Customer).compile()
    assert compiled_graphs.types_of(graph) >= {(__name__, "Order"), (__name__, "Customer")}


def test_the_output_of_a_graph_can_be_read_from_a_checkpoint() -> None:
    saver = InMemorySaver()
    graph = one(lambda _: {"order": Order(7)}).compile(saver)
    graph.invoke({}, CONFIG)
    last, *_, first = saver.list(CONFIG)
    assert compiled_graphs.output_at(graph, last, saver) == {"order": Order(7)}
    assert compiled_graphs.output_at(graph, first, saver) in (None, {})


INNER = one(lambda _: None).compile()


def calls_it(state: Shop) -> Any:
    return INNER.invoke(state)


async def awaits_it(state: Shop) -> Any:
    return await INNER.ainvoke(state)


def calls_none(state: Shop) -> Any:
    return None


@pytest.mark.parametrize(
    "function", [INNER, calls_it, awaits_it, RunnableLambda(calls_none) | INNER]
)
def test_the_graphs_that_a_node_is_or_calls_are_found_where_langgraph_looks(function: Any) -> None:
    node = one(function).compile().nodes["node"]
    found = compiled_graphs.graphs_in(node.bound)
    assert found
    assert all(graph is INNER for graph in found)


def test_a_node_that_calls_no_graph_has_none() -> None:
    assert compiled_graphs.graphs_in(one(calls_none).compile().nodes["node"].bound) == []
