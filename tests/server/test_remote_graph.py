"""LangGraph's `RemoteGraph` against our server: a graph elsewhere, used as if it were here."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command

from tests.support.agent_server import AgentServer
from tests.support.wire_agents import Numbers, Talk


def remote(server: AgentServer, name: str) -> Any:
    return RemoteGraph(name, sync_client=server.sync_client())


def on_thread() -> Any:
    return {"configurable": {"thread_id": str(uuid4())}}


def test_it_is_invoked_and_streamed_without_a_thread(server: AgentServer) -> None:
    numbers = remote(server, "numbers")
    assert numbers.invoke({"n": 1}) == {"n": 4, "log": ["add", "double"]}
    chunks = list(numbers.stream({"n": 1}, stream_mode="updates"))
    assert chunks == [{"add": {"n": 2, "log": ["add"]}}, {"double": {"n": 4, "log": ["double"]}}]


async def test_it_is_invoked_and_streamed_asynchronously(server: AgentServer) -> None:
    async with server.client() as client:
        numbers: Any = RemoteGraph("numbers", client=client)
        assert (await numbers.ainvoke({"n": 1}, on_thread()))["n"] == 4
        parts = [one async for one in numbers.astream({"n": 1}, stream_mode=["values"])]
        assert [one.data["n"] for one in parts] == [1, 2, 4]
        many = await asyncio.gather(*(numbers.ainvoke({"n": n}) for n in range(4)))
        assert [one["n"] for one in many] == [2, 4, 6, 8]


def test_its_state_and_history_are_read_and_changed(server: AgentServer) -> None:
    numbers, config = remote(server, "numbers"), on_thread()
    numbers.invoke({"n": 1}, config)
    state = numbers.get_state(config)
    assert (state.values, state.next) == ({"n": 4, "log": ["add", "double"]}, ())
    history = list(numbers.get_state_history(config))
    assert [one.next for one in history] == [(), ("double",), ("add",), ("__start__",)]
    updated = numbers.update_state(config, {"n": 10}, as_node="add")
    assert updated["configurable"]["thread_id"] == config["configurable"]["thread_id"]
    assert numbers.get_state(config).next == ("double",)
    assert numbers.invoke(None, config)["n"] == 20


def test_its_graph_is_drawn(server: AgentServer) -> None:
    drawn = remote(server, "numbers").get_graph()
    assert {"add", "double"} <= {*drawn.nodes}


def test_an_interrupt_is_answered(server: AgentServer) -> None:
    gate, config = remote(server, "gate"), on_thread()
    asked = gate.invoke({"said": []}, config)
    assert asked["__interrupt__"][0]["value"] == {"question": "go on?"}
    assert gate.get_state(config).next == ("ask",)
    assert gate.invoke(Command(resume="yes"), config) == {"said": ["yes", "end"]}


def test_a_run_that_fails_raises(server: AgentServer) -> None:
    with pytest.raises(RemoteException, match="this node always fails"):
        remote(server, "faulty").invoke({"n": 1})


def test_it_is_a_node_of_a_local_graph(server: AgentServer) -> None:
    builder: StateGraph[Any] = StateGraph(Numbers)
    builder.add_node("far", remote(server, "one"))
    builder.add_edge(START, "far")
    graph = builder.compile()
    assert graph.invoke({"n": 1}) == {"n": 2, "log": ["add"]}
    chunks = list(graph.stream({"n": 1}, subgraphs=True, stream_mode="updates"))
    assert [update for _, update in chunks][-1] == {"far": {"n": 2, "log": ["add"]}}


def test_an_interrupt_in_a_remote_node_stops_the_local_graph(server: AgentServer) -> None:
    builder: StateGraph[Any] = StateGraph(Talk)
    builder.add_node("far", remote(server, "gate"))
    builder.add_edge(START, "far")
    graph = builder.compile(checkpointer=InMemorySaver())
    config = on_thread()
    asked = graph.invoke({"said": []}, config)
    assert asked["__interrupt__"][0].value == {"question": "go on?"}
