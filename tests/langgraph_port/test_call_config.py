"""Where a graph begins and which run it is a part of, as its config says."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config
from langgraph.graph import START, StateGraph

from perdure.langgraph_port import call_config

T: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]


def one(function: Any) -> StateGraph[Any]:
    return StateGraph(Log).add_node("node", function).add_edge(START, "node")


@pytest.mark.parametrize("saver", [None, InMemorySaver()])
def test_the_config_of_a_task_alone_has_the_key_of_a_saver(saver: Any) -> None:
    seen: list[Any] = []

    def node(state: Log) -> None:
        seen.append(call_config.is_nested(get_config()["configurable"]))
        inner = one(lambda state: None).compile()
        full = call_config.full_config(inner, None)["configurable"]
        seen.append(call_config.is_nested(full))
        full = call_config.full_config(inner, T)["configurable"]
        seen.append(call_config.is_nested(full))

    graph = one(node).compile(checkpointer=saver)
    assert not call_config.is_nested(call_config.full_config(graph, T)["configurable"])
    graph.invoke({}, T)
    assert seen == [True, True, False], "a thread of its own is no part of the outer run"


def test_a_graph_adds_its_own_config() -> None:
    graph = one(lambda state: None).compile().with_config({"configurable": {"team": "night"}})
    found = call_config.full_config(graph, T)["configurable"]
    assert found == {"thread_id": "t", "team": "night"}


def test_a_hidden_key_reaches_tasks_and_neither_streams_nor_metadata() -> None:
    key, seen = f"{call_config.HIDDEN}mine", []
    saver = InMemorySaver()
    graph = one(lambda state: seen.append(get_config()["configurable"][key])).compile(saver)
    config: Any = {"configurable": {**T["configurable"], key: "secret"}}
    chunks = list(graph.stream({}, config, stream_mode=["checkpoints", "debug", "tasks"]))
    assert seen == ["secret"]
    assert "secret" not in repr([chunks, list(saver.list(T))])


def test_keys_of_a_config_that_are_not_the_users_are_known() -> None:
    found: list[Any] = []
    inner = one(lambda _: found.append(get_config()["configurable"])).compile()
    config: Any = {"configurable": {"thread_id": "t", "mine": 1}}
    one(inner).compile(InMemorySaver()).invoke({}, config)
    assert {key for key in found[0] if not call_config.is_own_key(key)} == {"mine"}


def test_a_place_is_named_by_a_checkpoint_not_by_a_namespace() -> None:
    place_of, root = call_config.place_of, call_config.root_checkpoint
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
    place = call_config.place_of(first.config["configurable"])
    assert graph.invoke(None, {"configurable": {**T["configurable"], **place}}) == {
        "log": ["in", "ran"]
    }


class Names(TypedDict):
    name: str


def test_a_graph_in_a_node_inherits_its_run_and_takes_no_second_input_in_it() -> None:
    seen, inherits = [], []
    inner: StateGraph[Any] = StateGraph(Names)
    inner.add_node("note", lambda state: seen.append(state["name"]))
    inner.add_edge(START, "note")
    called = inner.compile(checkpointer=InMemorySaver())

    def call(state: Names) -> None:
        for name in "ab":
            config: Any = {"configurable": {"thread_id": "inner"}}
            inherits.append(call_config.inherits_run(call_config.full_config(called, config)))
            called.invoke({"name": name}, config)

    outer: StateGraph[Any] = StateGraph(Names)
    outer.add_node("call", call)
    outer.add_edge(START, "call")
    outer.compile().invoke({"name": ""}, {"metadata": {call_config.RUN: "the run"}})
    assert seen == ["a"]
    assert inherits == [True, True]
    assert not call_config.inherits_run({"metadata": {call_config.RUN: "its own"}})
