"""The states of a thread over HTTP: current, earlier and changed, with LangGraph's own clients."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from langgraph_sdk.errors import APIStatusError, BadRequestError

from perdure.runtime import Runtime
from perdure.types import State
from tests.support.agent_server import AgentServer, served
from tests.support.wire_graphs import SERVED, ran
from tests.support.wire_graphs import database as database
from tests.support.wire_graphs import runtime as runtime
from tests.support.wire_graphs import server as server
from tests.support.wire_graphs import url as url

KEYS = {
    *("values", "next", "tasks", "metadata", "created_at", "checkpoint", "parent_checkpoint"),
    *("interrupts", "checkpoint_id", "parent_checkpoint_id"),
}


def test_a_thread_without_a_state_has_an_empty_one(server: AgentServer) -> None:
    client = server.sync_client()
    id = client.threads.create(graph_id="numbers")["thread_id"]
    empty: dict[str, Any] = {
        **dict.fromkeys(KEYS),
        "values": {},
        "next": [],
        "tasks": [],
        "interrupts": [],
    }
    assert client.threads.get_state(id) == empty
    assert client.threads.get_history(id) == []
    without = client.threads.create()["thread_id"]
    assert client.threads.get_state(without) == empty


@SERVED
def test_the_state_of_a_thread_has_the_shape_that_clients_expect(
    runtime: Runtime, server: AgentServer
) -> None:
    id, client = ran(runtime, "gate", State.WAITING), server.sync_client()
    found: Any = client.threads.get_state(id)
    assert {*found} == KEYS
    assert (found["values"], found["next"]) == ({"n": 2, "log": ["add"]}, ["ask"])
    [task] = found["tasks"]
    [asked] = task["interrupts"]
    assert asked["value"] == {"question": "Go on?"}
    assert found["interrupts"] == [asked]
    assert task == {
        "id": task["id"],
        "name": "ask",
        "path": ["__pregel_pull", "ask"],
        "error": None,
        "interrupts": [asked],
        "checkpoint": None,
        "state": None,
        "result": None,
    }
    here = found["checkpoint"]
    assert here == {"thread_id": id, "checkpoint_ns": "", "checkpoint_id": found["checkpoint_id"]}
    assert found["parent_checkpoint"]["checkpoint_id"] == found["parent_checkpoint_id"]
    assert (found["metadata"]["source"], found["metadata"]["step"]) == ("loop", 1)


@SERVED
def test_the_error_of_a_task_is_its_text(runtime: Runtime, server: AgentServer) -> None:
    found: Any = server.sync_client().threads.get_state(ran(runtime, "faulty", State.FAILED))
    assert [one["error"] for one in found["tasks"]] == ["ValueError('this node always fails')"]


@SERVED
async def test_earlier_states_are_found_by_their_checkpoints(
    runtime: Runtime, server: AgentServer
) -> None:
    id = ran(runtime, "numbers")
    async with server.client() as client:
        history = await client.threads.get_history(id)
        assert [one["values"].get("n") for one in history] == [4, 2, 1, None]  # type: ignore[union-attr]
        assert [one["next"] for one in history] == [[], ["double"], ["add"], ["__start__"]]
        earlier: Any = history[1]
        at = earlier["checkpoint"]
        by_id = await client.threads.get_state(id, checkpoint_id=earlier["checkpoint_id"])
        assert await client.threads.get_state(id, checkpoint=at) == by_id == earlier
        latest: Any = {"thread_id": id}
        assert await client.threads.get_state(id, checkpoint=latest) == history[0]
        unknown: Any = await client.threads.get_state(id, checkpoint_id=str(uuid.uuid4()))
        assert (unknown["values"], unknown["checkpoint"]) == ({}, None)


@SERVED
async def test_a_history_goes_back_from_a_checkpoint_in_any_of_its_forms(
    runtime: Runtime, server: AgentServer
) -> None:
    id = ran(runtime, "numbers")
    async with server.client() as client:
        history: Any = await client.threads.get_history(id)
        assert await client.threads.get_history(id, limit=2) == history[:2]
        earlier = history[1]["checkpoint"]
        config: Any = {"configurable": earlier}
        for before in (earlier, earlier["checkpoint_id"], config):
            assert await client.threads.get_history(id, before=before) == history[2:]
        loops = await client.threads.get_history(id, metadata={"source": "loop", "step": 1})
        assert loops == [history[1]]
        place: Any = {"thread_id": id, "checkpoint_ns": ""}
        assert await client.threads.get_history(id, checkpoint=place) == history
    http = server.http()
    assert http.get(f"/threads/{id}/history", params={"limit": 1}).json() == history[:1]
    refused = http.post(f"/threads/{id}/history", json={"before": {"x": 1}})
    assert refused.status_code == 422


@SERVED
def test_parts_of_a_state_can_be_chosen(runtime: Runtime, server: AgentServer) -> None:
    id, client = ran(runtime, "numbers"), server.sync_client()
    chosen: Any = client.threads.get_state(id, select=["next", "values.n"])
    assert chosen == {"next": [], "values": {"n": 4}}
    last: Any
    [last] = client.threads.get_history(id, limit=1, select=["values.log"])
    assert last == {"values": {"log": ["add", "double"]}}


@SERVED
def test_the_states_of_subgraphs_are_shown_if_asked(runtime: Runtime, server: AgentServer) -> None:
    id, client = ran(runtime, "family", State.WAITING), server.sync_client()
    task: Any
    [task] = client.threads.get_state(id)["tasks"]
    assert task["state"] is None
    assert task["checkpoint"]["checkpoint_ns"] == f"sub:{task['id']}"
    whole: Any
    [whole] = client.threads.get_state(id, subgraphs=True)["tasks"]
    assert (whole["state"]["next"], whole["state"]["values"]["n"]) == (["ask"], 4)
    inner: Any = client.threads.get_state(id, checkpoint=task["checkpoint"])
    assert inner["values"] == whole["state"]["values"]


@SERVED
def test_a_state_is_changed_as_if_a_node_had_returned_it(
    runtime: Runtime, server: AgentServer
) -> None:
    id, client = ran(runtime, "numbers"), server.sync_client()
    changed: Any = client.threads.update_state(id, {"n": 10}, as_node="add")
    assert {*changed} == {"checkpoint", "configurable", "checkpoint_id"}
    assert changed["checkpoint"] == changed["configurable"]
    found: Any = client.threads.get_state(id)
    assert found["checkpoint"] == changed["checkpoint"]
    assert (found["values"]["n"], found["next"]) == (10, ["double"])
    assert client.threads.get(id)["status"] == "interrupted"
    with pytest.raises(BadRequestError, match="nope"):
        client.threads.update_state(id, {"n": 1}, as_node="nope")
    assert client.threads.get(id)["status"] == "interrupted"  # "double" is next as before
    client.threads.update_state(id, {"n": 11}, as_node="double")
    assert client.threads.get(id)["status"] == "idle"
    earlier = client.threads.get_history(id)[-2]["checkpoint"]
    forked: Any = client.threads.update_state(id, {"n": 5}, checkpoint=earlier)
    assert client.threads.get_state(id)["checkpoint"] == forked["checkpoint"]


@SERVED
def test_a_null_update_as_the_end_ends_a_thread_that_asks(
    runtime: Runtime, server: AgentServer
) -> None:
    id, client = ran(runtime, "gate", State.WAITING), server.sync_client()
    client.threads.update_state(id, None, as_node="__end__")
    found = client.threads.get(id)
    assert (found["status"], found["interrupts"]) == ("idle", {})
    assert client.threads.get_state(id)["next"] == []
    assert client.threads.search(metadata={"graph_id": "gate"}, status="interrupted") == []
    [run] = runtime.blocking.runs(thread_id=id)
    assert run.state is State.DONE
    assert runtime.blocking.waits(thread_id=id) == []


def test_a_thread_without_a_graph_has_no_state_to_change(server: AgentServer) -> None:
    client = server.sync_client()
    id = client.threads.create()["thread_id"]
    with pytest.raises(BadRequestError, match="graph_id"):
        client.threads.update_state(id, {"n": 1})
    client.threads.update(id, metadata={"graph_id": "numbers"})
    client.threads.update_state(id, {"n": 1}, as_node="add")
    assert client.threads.get_state(id)["values"] == {"n": 1, "log": []}


def test_an_update_that_the_graph_refuses_is_not_a_server_error(
    runtime: Runtime, server: AgentServer
) -> None:
    id, client = ran(runtime, "numbers"), server.sync_client()
    values: Any
    for values, code in (({"log": 5}, 422), ([1, 2], 400)):
        with pytest.raises(APIStatusError) as error:
            client.threads.update_state(id, values, as_node="add")
        assert error.value.status_code == code
    assert client.threads.get(id)["status"] == "idle"


def test_an_unknown_subgraph_is_not_found(runtime: Runtime, server: AgentServer) -> None:
    id, http = ran(runtime, "numbers"), server.http()
    for path in ("state/checkpoint", "history"):
        answer = http.post(f"/threads/{id}/{path}", json={"checkpoint": {"checkpoint_ns": "nope"}})
        assert answer.status_code == 404, answer.text
        assert "nope" in answer.json()["detail"]


@SERVED
def test_a_thread_whose_graph_is_gone_can_still_be_read(runtime: Runtime) -> None:
    with served(runtime):
        id = ran(runtime, "numbers")
    runtime.unregister("numbers")
    with served(runtime) as server:
        client = server.sync_client()
        assert client.threads.get(id)["values"] == {"n": 4, "log": ["add", "double"]}
        assert client.threads.get_state(id)["values"] == {"n": 4, "log": ["add", "double"]}
        assert len(client.threads.get_history(id)) == 4
