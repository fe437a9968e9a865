"""Names and values that LangGraph stores in checkpoints."""

from __future__ import annotations

import importlib
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt

from perdure.langgraph_port import checkpoint_names
from perdure.saver import Saver

CONFIG: Any = {"configurable": {"thread_id": "t"}}


class Log(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


def append(old: list[str], new: list[list[str]]) -> list[str]:
    return [*old, *(one for part in new for one in part)]


class Deltas(TypedDict):
    log: Annotated[list[str], DeltaChannel(append, snapshot_frequency=1)]


def note(name: str) -> Any:
    return lambda state: {"log": [name]}


def joined(*, defer: bool = False) -> StateGraph[Any]:
    """`a` at once and `b`, `c` one after the other, then `end`, which waits for `a` and `c`."""
    builder: StateGraph[Any] = StateGraph(Log)
    for name in "abc":
        builder.add_node(name, note(name))
    builder.add_node("end", note("end"), defer=defer)
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    builder.add_edge("b", "c")
    builder.add_edge(["a", "c"], "end")
    return builder


def latest(saver: BaseCheckpointSaver[Any]) -> CheckpointTuple:
    found = saver.get_tuple(CONFIG)
    assert found is not None
    return found


def test_the_drawing_of_a_graph_has_a_first_and_a_last_node_of_its_own() -> None:
    nodes = list(joined().compile().get_graph().nodes)
    assert (nodes[0], nodes[-1]) == (checkpoint_names.START, checkpoint_names.END)


def test_a_checkpoint_holds_the_sends_of_the_next_step() -> None:
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("first", note("first"))
    builder.add_node("each", note("each"))
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", lambda _: [Send("each", {}), Send("each", {})], ["each"])
    saver = InMemorySaver()
    builder.compile(saver, interrupt_before=["each"]).invoke({}, CONFIG)
    sends = checkpoint_names.pending_sends(latest(saver).checkpoint["channel_values"])
    assert [send.node for send in sends] == ["each", "each"]


def test_a_send_of_a_task_that_ended_is_a_pending_write_to_the_channel_of_sends() -> None:
    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("sends", lambda _: Command(goto=Send("each", {})), destinations=("each",))
    builder.add_node("rests", lambda _: interrupt("?"))
    builder.add_node("each", note("each"))
    builder.add_edge(START, "sends")
    builder.add_edge(START, "rests")
    saver = InMemorySaver()
    builder.compile(saver).invoke({}, CONFIG)
    writes = latest(saver).pending_writes or []
    assert [v.node for _, channel, v in writes if checkpoint_names.is_send(channel)] == ["each"]


def test_each_trigger_of_a_node_is_a_channel_whose_name_says_so() -> None:
    graph = joined().compile()
    triggers = {channel for node in graph.nodes.values() for channel in node.triggers}
    assert triggers
    assert all(checkpoint_names.is_trigger(channel) for channel in triggers)
    assert not checkpoint_names.is_trigger("log")
    assert checkpoint_names.START == START


@pytest.mark.parametrize("defer", [False, True])
def test_the_channel_of_a_join_holds_the_nodes_that_ended(defer: bool) -> None:
    seen = []
    with Saver("sqlite:///:memory:") as saver:  # which keeps a tuple as one
        graph = joined(defer=defer).compile(saver, interrupt_before=["c", "end"])
        [channel] = [one for one in graph.nodes["end"].triggers if "join" in one]
        given: Any = {}
        for _ in range(3):
            graph.invoke(given, CONFIG)
            value = latest(saver).checkpoint["channel_values"].get(channel)
            some, all = (
                checkpoint_names.has_joined(channel, "end", value, partly)
                for partly in (True, False)
            )
            seen.append((some, all))
            given = None
    assert seen == [(True, False), (True, True), (False, False)]


def test_entries_of_versions_seen_that_are_no_nodes_begin_with_two_underscores() -> None:
    saver = InMemorySaver()
    graph = joined().compile(saver, interrupt_before=["c"])
    graph.invoke({}, CONFIG)
    graph.invoke(None, CONFIG)
    seen = latest(saver).checkpoint["versions_seen"]
    assert {name for name in seen if checkpoint_names.is_node(name)} == {"a", "b", "c", "end"}
    assert seen[checkpoint_names.START]


def test_versions_seen_tells_where_the_graph_last_stopped() -> None:
    saver = InMemorySaver()
    graph = joined().compile(saver, interrupt_before=["c", "end"])
    graph.invoke({}, CONFIG)
    first = latest(saver).checkpoint
    assert not checkpoint_names.versions_at_stop(first)
    graph.invoke(None, CONFIG)
    second = latest(saver).checkpoint
    assert checkpoint_names.versions_at_stop(second) == first["channel_versions"]


def test_a_namespace_names_the_nodes_from_the_top() -> None:
    found: list[str] = []

    def look(state: Log, config: RunnableConfig) -> None:
        found.append(config["configurable"]["checkpoint_ns"])

    inner = StateGraph(Log).add_node("look", look).add_edge(START, "look").compile()

    def twice(state: Log) -> None:
        inner.invoke({})
        inner.invoke({})

    outer = StateGraph(Log).add_node("twice", twice).add_edge(START, "twice")
    outer.compile(InMemorySaver()).invoke({}, CONFIG)
    for ns in found:
        nodes = checkpoint_names.namespace_nodes(ns)
        assert [node for node, _ in nodes] == ["twice", "look"]
        assert nodes[1][1] == ns
        assert ns.startswith(f"{nodes[0][1]}|")
    assert found[0] != found[1]


def test_what_a_graph_returns_has_its_interrupts_under_their_key() -> None:
    builder = StateGraph(Log).add_node("asks", lambda _: interrupt("?")).add_edge(START, "asks")
    graph = builder.compile(InMemorySaver())
    [asked] = graph.invoke({}, CONFIG)[checkpoint_names.INTERRUPT]
    assert asked.value == "?"


def test_the_node_whose_error_a_handler_sees_is_a_write_of_its_task() -> None:
    written: list[tuple[str, Any]] = []

    class Notes(InMemorySaver):
        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            written.extend(writes)
            super().put_writes(config, writes, task_id, task_path)

    def breaks(state: Log) -> None:
        raise ValueError("no")

    builder: StateGraph[Any] = StateGraph(Log)
    builder.add_node("breaks", breaks, error_handler=note("handled"))
    builder.add_edge(START, "breaks")
    builder.compile(Notes()).invoke({}, CONFIG)
    assert (checkpoint_names.ERROR_SOURCE, "breaks") in written


def test_an_update_as_a_copy_makes_a_checkpoint_with_the_same_state_and_next_nodes() -> None:
    graph = joined().compile(InMemorySaver(), interrupt_before=["c"])
    graph.invoke({}, CONFIG)
    before = graph.get_state(CONFIG)
    graph.update_state(before.config, None, checkpoint_names.COPY)
    after = graph.get_state(CONFIG)
    assert (after.values, after.next) == (before.values, before.next)
    assert after.config != before.config
    assert after.metadata is not None
    assert after.metadata["source"] == "fork"


def test_the_whole_value_of_a_delta_channel_is_stored_in_a_type_of_its_own() -> None:
    module, name = checkpoint_names.DELTA_SNAPSHOT
    kind = getattr(importlib.import_module(module), name)
    saver = InMemorySaver()
    builder = StateGraph(Deltas).add_node("a", note("a")).add_edge(START, "a")
    builder.compile(saver).invoke({"log": []}, CONFIG)
    assert isinstance(latest(saver).checkpoint["channel_values"]["log"], kind)
