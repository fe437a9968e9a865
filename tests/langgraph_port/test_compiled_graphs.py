"""What a compiled graph says of itself."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from perdure.langgraph_port import compiled_graphs
from perdure.langgraph_port.compiled_graphs import with_outputs

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


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def note(name: str) -> Any:
    return lambda state: {"log": [name]}


def renaming(first: str, last: str, *, defer: bool = False) -> Any:
    """`first` asks beside `b`; `last`, which waits for both, asks too."""

    def ask(state: Log) -> Any:
        return {"log": [interrupt("?")]}

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node(first, ask).add_node("b", note("b"))
    builder.add_node(last, ask, defer=defer)
    builder.add_edge(START, first).add_edge(START, "b").add_edge([first, "b"], last)
    return builder.compile(InMemorySaver())


@pytest.mark.parametrize("defer", [False, True])
def test_a_graph_with_old_names_makes_the_tasks_of_the_old_graph(defer: bool) -> None:
    old, new = renaming("a", "end", defer=defer), renaming("x", "y", defer=defer)
    nodes = {
        "a": compiled_graphs.OldNode("x", old.nodes["a"].triggers),
        "end": compiled_graphs.OldNode("y", old.nodes["end"].triggers),
    }
    [[before, (starts, end)]] = compiled_graphs.joins_of(old).items()
    [after] = compiled_graphs.joins_of(new)
    assert (before, starts, end) == ("join:a+b:end", ("a", "b"), "end")
    both = compiled_graphs.with_old_names(
        new, nodes, {after: compiled_graphs.OldJoin(before, "end", {"x": "a"})}
    )
    both.checkpointer = old.checkpointer
    old.invoke({"log": []}, CONFIG)
    for name in ("a", "end"):  # both are asked by the new graph under their old names
        here, there = (one.get_state(CONFIG).tasks for one in (old, both))
        waiting = [task for task in here if task.interrupts]
        assert [(task.id, task.name) for task in there if task.interrupts] == [
            (task.id, name) for task in waiting
        ]
        both.invoke(Command(resume=name), CONFIG)
    assert both.get_state(CONFIG).values == {"log": ["a", "b", "end"]}
    assert set(new.nodes) == {"__start__", "x", "b", "y"}  # it is not changed
    assert before not in new.channels


def test_only_a_compiled_state_graph_is_one() -> None:
    @entrypoint()
    def flow(text: str) -> str:
        return text

    assert compiled_graphs.is_state_graph(renaming("a", "end"))
    assert not compiled_graphs.is_state_graph(flow)


def loud(value: Any) -> Any:
    if isinstance(value, Command):
        return Command(update=loud(value.update), goto=value.goto)
    return {"log": [one.upper() for one in value["log"]]}


def make() -> Any:
    inner = StateGraph(Log)
    inner.add_node("deep", lambda state: {"log": [f"deep after {state['log'][-1]}"]})
    inner.add_edge(START, "deep")
    outer = StateGraph(Log)
    outer.add_node("go", lambda state: Command(update={"log": ["go"]}, goto="sub"))
    outer.add_node("sub", inner.compile())
    outer.add_node("last", lambda state: {"log": ["last"]})
    outer.add_edge(START, "go")
    outer.add_conditional_edges("sub", lambda state: "last" if state["log"][-1].isupper() else END)
    return outer.compile(checkpointer=InMemorySaver())


def test_the_output_of_every_node_is_changed() -> None:
    plain = make()
    graph = with_outputs(plain, loud)
    config: RunnableConfig = {"configurable": {"thread_id": "1"}}
    found = graph.invoke({"log": ["in"]}, config)
    assert all(one.isupper() for one in found["log"])
    assert {"IN", "GO", "DEEP AFTER GO", "LAST"} == set(found["log"])
    graph.update_state(config, {"log": ["more"]}, as_node="last")
    assert graph.get_state(config).values["log"][-1] == "MORE"
    assert graph.get_graph().draw_mermaid() == plain.get_graph().draw_mermaid()
    assert [*dict(graph.get_subgraphs())] == ["sub"]
    plainly = plain.invoke({"log": ["in"]}, {"configurable": {"thread_id": "2"}})
    assert plainly["log"][:2] == ["in", "go"]  # the given graph is as it was
