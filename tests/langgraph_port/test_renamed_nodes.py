"""A graph that has nodes under old names as well."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from perdure.langgraph_port import renamed_nodes

CONFIG: Any = {"configurable": {"thread_id": "t"}}


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
        "a": renamed_nodes.OldNode("x", old.nodes["a"].triggers),
        "end": renamed_nodes.OldNode("y", old.nodes["end"].triggers),
    }
    [[before, (starts, end)]] = renamed_nodes.joins_of(old).items()
    [after] = renamed_nodes.joins_of(new)
    assert (before, starts, end) == ("join:a+b:end", ("a", "b"), "end")
    both = renamed_nodes.with_old_names(
        new, nodes, {after: renamed_nodes.OldJoin(before, "end", {"x": "a"})}
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

    assert renamed_nodes.is_state_graph(renaming("a", "end"))
    assert not renamed_nodes.is_state_graph(flow)
