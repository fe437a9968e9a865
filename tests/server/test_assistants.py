"""`/assistants`, asked by LangGraph's own clients over HTTP."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import pytest
from langgraph_sdk.errors import NotFoundError

from perdure.commands import assistants
from perdure.commands.assistants import AssistantContent, default_id
from perdure.errors import UnknownGraph
from perdure.testing import TemporaryRuntime
from tests.support.agent_server import AgentServer, refused
from tests.support.wire_graphs import SERVED, with_graphs
from tests.support.wire_graphs import database as database
from tests.support.wire_graphs import runtime as runtime
from tests.support.wire_graphs import server as server
from tests.support.wire_graphs import url as url

OWN = "82f632c8-7302-5dc1-9f53-fee8effa3a89"
"""The id that LangGraph's Agent Server gives to the assistant of a graph `numbers`."""


@SERVED
def test_each_graph_has_a_default_assistant_with_the_well_known_id(server: AgentServer) -> None:
    client = server.sync_client()
    found = client.assistants.get(OWN)
    assert (found["graph_id"], found["name"], found["version"]) == ("numbers", "numbers", 1)
    assert found["metadata"] == {"created_by": "system"}
    assert (found["config"], found["context"], found["description"]) == ({}, {}, None)
    assert found["created_at"] == found["updated_at"]
    assert client.assistants.get("numbers") == found
    assert default_id("numbers") == OWN


def test_an_unknown_id_is_404_and_an_unknown_name_422(server: AgentServer) -> None:
    client, stranger = server.sync_client(), str(uuid.uuid4())
    for call in (
        lambda id: client.assistants.get(id),
        lambda id: client.assistants.get_graph(id),
        lambda id: client.assistants.get_schemas(id),
        lambda id: client.assistants.update(id, name="x"),
        lambda id: client.assistants.delete(id),
    ):
        refused(404, call, stranger)
        refused(422, call, "numbersss")


@SERVED
def test_an_assistant_is_created_once(server: AgentServer) -> None:
    client, id = server.sync_client(), str(uuid.uuid4())
    made = client.assistants.create(
        "numbers",
        {"tags": ["x"]},
        metadata={"team": "a"},
        assistant_id=id,
        name="mine",
        description="a copy",
    )
    assert made["assistant_id"] == id
    assert (made["name"], made["description"], made["version"]) == ("mine", "a copy", 1)
    assert (made["config"], made["metadata"]) == ({"tags": ["x"]}, {"team": "a"})
    refused(409, client.assistants.create, "numbers", assistant_id=id)
    again = client.assistants.create("numbers", assistant_id=id, if_exists="do_nothing")
    assert again == made
    refused(409, client.assistants.create, "numbers", assistant_id=OWN)
    refused(422, client.assistants.create, "numbersss")


def test_a_value_in_only_context_or_config_is_copied_to_the_other(server: AgentServer) -> None:
    client = server.sync_client()
    by_context = client.assistants.create("numbers", context={"by": 2})
    assert by_context["config"]["configurable"] == {"by": 2}
    by_config = client.assistants.create("numbers", {"configurable": {"by": 3}})
    assert by_config["context"] == {"by": 3}


@SERVED
async def test_each_change_is_a_version_and_the_newest_is_kept(server: AgentServer) -> None:
    async with server.client() as client:
        made = await client.assistants.create("numbers", metadata={"team": "a"}, name="mine")
        id = made["assistant_id"]
        changed = await client.assistants.update(id, metadata={"more": 1}, name="ours")
        assert changed["version"] == 2
        assert (changed["metadata"], changed["name"]) == ({"team": "a", "more": 1}, "ours")
        assert changed["created_at"] == made["created_at"]
        assert await client.assistants.get_versions(id) == [changed]
        assert await client.assistants.get_versions(id, metadata={"more": 1}) == [changed]
        assert await client.assistants.get_versions(id, metadata={"more": 2}) == []
        assert await client.assistants.get_versions(id, limit=1, offset=1) == []
        assert await client.assistants.set_latest(id, 2) == changed
        for version in (1, 3):
            with pytest.raises(NotFoundError, match=f"version {version}"):
                await client.assistants.set_latest(id, version)
        assert await client.assistants.get(id) == changed


@SERVED
def test_the_default_assistant_of_a_graph_can_be_changed_but_not_deleted(
    server: AgentServer,
) -> None:
    client = server.sync_client()
    changed = client.assistants.update("numbers", context={"by": 5}, metadata={"mine": True})
    assert (changed["assistant_id"], changed["version"]) == (OWN, 2)
    assert changed["metadata"] == {"created_by": "system", "mine": True}
    assert client.assistants.get(OWN)["context"] == {"by": 5}
    assert [one["version"] for one in client.assistants.get_versions(OWN)] == [2]
    assert client.assistants.count(graph_id="numbers") == 1
    refused(409, client.assistants.delete, OWN)


@SERVED
async def test_assistants_are_searched_and_counted(server: AgentServer) -> None:
    async with server.client() as client:
        for n in range(3):
            await client.assistants.create(
                "gate", name=f"Clerk {n}", metadata={"desk": {"n": n}, "kind": "clerk"}
            )
        assert await client.assistants.count() == 7
        assert await client.assistants.count(graph_id="gate", name="clerk") == 3
        assert await client.assistants.count(metadata={"desk": {"n": 1}}) == 1
        found = await client.assistants.search(
            metadata={"kind": "clerk"}, sort_by="name", sort_order="asc", select=["name", "version"]
        )
        assert found == [{"name": f"Clerk {n}", "version": 1} for n in range(3)]
        page = await client.assistants.search(limit=5, response_format="object")
        assert (len(page["assistants"]), page["next"]) == (5, "5")
        rest = await client.assistants.search(limit=5, offset=5, response_format="object")
        assert (len(rest["assistants"]), rest["next"]) == (2, None)
        ids = {one["assistant_id"] for one in page["assistants"] + rest["assistants"]}
        assert len(ids) == 7


@SERVED
def test_deleting_an_assistant_can_delete_its_threads_too(server: AgentServer) -> None:
    client = server.sync_client()
    made = client.assistants.create("numbers")
    id = made["assistant_id"]
    thread = client.threads.create(metadata={"assistant_id": id}, graph_id="numbers")
    kept = client.threads.create(graph_id="numbers")
    client.assistants.delete(id, delete_threads=True)
    refused(404, client.assistants.get, id)
    refused(404, client.threads.get, thread["thread_id"])
    assert client.threads.get(kept["thread_id"])


@SERVED
def test_a_graph_is_drawn_with_and_without_its_subgraphs(server: AgentServer) -> None:
    client = server.sync_client()
    drawn = client.assistants.get_graph("numbers")
    assert [one["id"] for one in drawn["nodes"]] == ["__start__", "add", "double", "__end__"]
    assert drawn["nodes"][1] == {"id": "add", "type": "runnable", "data": {"name": "add"}}
    assert {"source": "add", "target": "double"} in drawn["edges"]
    inside = client.assistants.get_graph("family", xray=True)
    assert "sub:ask" in [one["id"] for one in inside["nodes"]]


@SERVED
async def test_the_schemas_of_a_graph_and_of_its_subgraphs_are_shown(server: AgentServer) -> None:
    async with server.client() as client:
        found = await client.assistants.get_schemas("numbers")
        assert found["graph_id"] == "numbers"
        state: Any = found["state_schema"]
        assert state["properties"]["n"]["type"] == "integer"
        context: Any = found["context_schema"]
        assert context["properties"]["by"]["type"] == "integer"
        assert found["input_schema"]
        assert found["output_schema"]
        inner = await client.assistants.get_subgraphs("family", recurse=True)
        assert list(inner) == ["sub"]
        assert inner["sub"]["state_schema"]
        assert await client.assistants.get_subgraphs("family", "sub") == inner
        assert await client.assistants.get_subgraphs("numbers") == {}


async def test_concurrent_changes_are_all_applied(sqlite_url: str) -> None:
    async with TemporaryRuntime(sqlite_url) as rt:
        with_graphs(rt)
        id = str(uuid.uuid4())
        await rt.journal.arun(assistants.create(rt.engine, id, AssistantContent("numbers", "mine")))
        changes = [assistants.change(rt.engine, id, {"metadata": {str(n): n}}) for n in range(8)]
        await asyncio.gather(*(rt.journal.arun(one) for one in changes))
        found = await rt.journal.arun(assistants.find(rt.engine, id))
        assert (found.version, found.metadata) == (9, {str(n): n for n in range(8)})
        with pytest.raises(UnknownGraph):
            await rt.journal.arun(assistants.find(rt.engine, "nothing"))
