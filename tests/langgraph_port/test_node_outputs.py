"""What a node returns is changed before it is written: also in subgraphs, for the input and for
`update_state`; and the graph is otherwise as it was."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command

from perdure.langgraph_port.node_outputs import with_outputs


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


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
