"""Where a graph begins and which run it is a part of, as its config says; and what resumes it."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.errors import UnknownInterruptError
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from perdure import langgraph_port

T: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def one(function: Any) -> StateGraph[Any]:
    return StateGraph(Log).add_node("node", function).add_edge(START, "node")


def asks(state: Log) -> Any:
    return {"log": [interrupt("first?"), interrupt("second?")]}


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_the_config_of_a_task_alone_has_the_key_of_a_saver(saver: Any) -> None:
    seen: list[Any] = []

    def node(state: Log) -> None:
        seen.append(langgraph_port.is_nested(get_config()["configurable"]))
        inner = one(lambda state: None).compile()
        full = langgraph_port.full_config(inner, None)["configurable"]
        seen.append(langgraph_port.is_nested(full))
        full = langgraph_port.full_config(inner, T)["configurable"]
        seen.append(langgraph_port.is_nested(full))

    graph = one(node).compile(checkpointer=saver)
    assert not langgraph_port.is_nested(langgraph_port.full_config(graph, T)["configurable"])
    graph.invoke({}, T)
    assert seen == [True, True, False], "a thread of its own is no part of the outer run"


def test_a_graph_adds_its_own_config() -> None:
    graph = one(lambda state: None).compile().with_config({"configurable": {"team": "night"}})
    found = langgraph_port.full_config(graph, T)["configurable"]
    assert found == {"thread_id": "t", "team": "night"}


def test_a_hidden_key_reaches_tasks_and_neither_streams_nor_metadata() -> None:
    key, seen = f"{langgraph_port.HIDDEN}mine", []
    saver = InMemorySaver()
    graph = one(lambda state: seen.append(get_config()["configurable"][key])).compile(saver)
    config: Any = {"configurable": {**T["configurable"], key: "secret"}}
    chunks = list(graph.stream({}, config, stream_mode=["checkpoints", "debug", "tasks"]))
    assert seen == ["secret"]
    assert "secret" not in repr([chunks, list(saver.list(T))])


def test_a_place_is_named_by_a_checkpoint_not_by_a_namespace() -> None:
    place_of, root = langgraph_port.place_of, langgraph_port.root_checkpoint
    assert place_of({"thread_id": "t", "checkpoint_ns": "", "checkpoint_id": None}) == {}
    assert place_of({"checkpoint_ns": "node:1"}) == {}
    assert root(place_of({"checkpoint_ns": "", "checkpoint_id": "c"})) == "c"
    assert root({"checkpoint_map": {"": "c"}, "checkpoint_id": "d"}) == "c"
    inner = {"checkpoint_ns": "node:1", "checkpoint_map": {"": "c", "node:1": "d"}}
    assert place_of(inner) == inner
    assert root(inner) is None


def test_a_graph_begins_at_the_place_of_its_config() -> None:
    graph = one(lambda state: {"log": ["ran"]}).compile(InMemorySaver())
    graph.invoke({"log": ["in"]}, T)
    first = list(graph.get_state_history(T))[-2]
    place = langgraph_port.place_of(first.config["configurable"])
    assert graph.invoke(None, {"configurable": {**T["configurable"], **place}}) == {
        "log": ["in", "ran"]
    }


def test_an_answer_to_nothing_resumes_at_an_old_checkpoint_with_the_answers_there() -> None:
    saver = InMemorySaver()
    graph = one(asks).compile(saver)
    graph.invoke({"log": []}, T)
    asked = graph.get_state(T)
    graph.invoke(Command(resume="one"), T)
    graph.invoke(Command(resume="two"), T)
    saver.put_writes(asked.config, [("__resume__", ["uno", "due"])], asked.tasks[0].id)
    end = graph.invoke(langgraph_port.resume_nothing(), asked.config)
    assert end == {"log": ["uno", "due"]}
    assert "__interrupt__" in graph.invoke(None, asked.config), "None asks again"


@pytest.mark.parametrize("resume", [{}, {"0" * 32: "x"}])
def test_a_strict_resume_is_checked_as_langgraph_does(resume: Any) -> None:
    strict: Any = {"configurable": {"thread_id": "t", "__pregel_strict_resume": True}}
    graph = one(asks).compile(InMemorySaver())
    [asked] = graph.invoke({"log": []}, T)["__interrupt__"]
    with pytest.raises(UnknownInterruptError) as theirs:
        graph.invoke(Command(resume=resume), strict)
    with pytest.raises(UnknownInterruptError) as ours:
        langgraph_port.check_strict_resume(strict["configurable"], resume, [asked.id])
    assert vars(ours.value) == vars(theirs.value)
    assert str(ours.value) == str(theirs.value)
    langgraph_port.check_strict_resume(T["configurable"], resume, [asked.id])
    langgraph_port.check_strict_resume(strict["configurable"], {asked.id: "x"}, [asked.id])


def test_sends_of_a_command_replace_the_tasks_that_wait() -> None:
    builder = StateGraph(Log)
    builder.add_node("node", lambda state: {"log": [interrupt(state["log"])]})
    builder.add_conditional_edges(START, lambda state: [Send("node", {"log": ["sent"]})])
    graph = builder.compile(InMemorySaver())
    graph.invoke({"log": ["in"]}, T)
    command: Any = Command(resume="yes", goto=[Send("node", {"log": ["new"]})])
    assert langgraph_port.replaces_tasks(command)
    assert not langgraph_port.replaces_tasks(Command(resume="yes", goto="node"))
    assert graph.invoke(command, T) == {"log": ["in", "yes"]}
