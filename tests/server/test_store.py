"""`/store`, asked by LangGraph's own clients over HTTP, and the store that graphs get."""

from __future__ import annotations

import asyncio
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore
from langgraph_sdk.errors import APIStatusError, BadRequestError

from perdure.errors import BadArgument
from perdure.journal_store import JournalStore
from perdure.runtime import Runtime
from perdure.types import State
from tests.support.agent_server import AgentServer, refused, served
from tests.support.polling import until
from tests.support.wire_graphs import SERVED, add, double, remember, row
from tests.support.wire_graphs import database as database
from tests.support.wire_graphs import server as server
from tests.support.wire_graphs import url as url


@pytest.fixture
def runtime(url: str) -> Runtime:
    rt = Runtime(url, store=True)
    rt.register(row(add, remember), name="memory")
    return rt


@SERVED
async def test_an_item_is_put_read_replaced_and_deleted(server: AgentServer) -> None:
    async with server.client() as client:
        assert await client.store.get_item(["a", "b"], "k") is None
        await client.store.put_item(["a", "b"], "k", {"n": 1})
        found = await client.store.get_item(["a", "b"], "k")
        assert (found["namespace"], found["key"], found["value"]) == (["a", "b"], "k", {"n": 1})
        assert {*found} == {"namespace", "key", "value", "created_at", "updated_at"}
        made = datetime.fromisoformat(str(found["created_at"]))
        assert made.utcoffset() == timedelta(0)
        assert abs(datetime.now(UTC) - made) < timedelta(minutes=5)
        await client.store.put_item(["a", "b"], "k", {"n": 2}, index=False)
        assert (await client.store.get_item(["a", "b"], "k"))["value"] == {"n": 2}
        await client.store.delete_item(["a", "b"], "k")
        await client.store.delete_item(["a", "b"], "k")
        assert await client.store.get_item(["a", "b"], "k") is None


@SERVED
def test_items_are_searched_below_a_namespace(server: AgentServer) -> None:
    client = server.sync_client()
    for n in range(3):
        client.store.put_item(["a", f"b{n}"], "k", {"n": n, "kind": "odd" if n % 2 else "even"})
    client.store.put_item(["c"], "k", {"n": 9})
    found = client.store.search_items(["a"])
    assert sorted(one["value"]["n"] for one in found["items"]) == [0, 1, 2]
    assert {one["score"] for one in found["items"]} == {None}
    even = client.store.search_items(["a"], filter={"kind": "even"})
    assert sorted(one["value"]["n"] for one in even["items"]) == [0, 2]
    assert len(client.store.search_items([])["items"]) == 4
    pages = [client.store.search_items(["a"], limit=2, offset=n)["items"] for n in (0, 2)]
    assert [len(page) for page in pages] == [2, 1]


@SERVED
def test_namespaces_are_listed(server: AgentServer) -> None:
    client = server.sync_client()
    for namespace in (["a", "x"], ["a", "x", "deep"], ["b", "x"]):
        client.store.put_item(namespace, "k", {"n": 1})
    every = client.store.list_namespaces()["namespaces"]
    assert sorted(every) == [["a", "x"], ["a", "x", "deep"], ["b", "x"]]
    assert client.store.list_namespaces(prefix=["a"], max_depth=2)["namespaces"] == [["a", "x"]]
    suffixed = client.store.list_namespaces(suffix=["x"])["namespaces"]
    assert sorted(suffixed) == [["a", "x"], ["b", "x"]]
    assert len(client.store.list_namespaces(limit=1, offset=1)["namespaces"]) == 1


@SERVED
def test_what_cannot_be_stored_is_refused(server: AgentServer) -> None:
    client, http = server.sync_client(), server.http()
    with pytest.raises(BadRequestError, match="must not be empty"):
        client.store.put_item([], "k", {"n": 1})
    refused(400, client.store.put_item, [""], "k", {"n": 1})
    refused(400, client.store.get_item, [], "k")
    refused(400, client.store.put_item, ["langgraph"], "k", {"n": 1})
    for bad in ({"key": "a\0b"}, {"value": {"a": "\0"}}, {"namespace": ["a\0"]}, {"value": 5}):
        item = {"namespace": ["a"], "key": "k", "value": {"n": 1}, **bad}
        assert http.put("/store/items", json=item).status_code == 422
    dotted = {"namespace": ["a.b"], "key": "k", "value": {}}
    assert http.put("/store/items", json=dotted).status_code == 400
    odd = http.post("/store/items/search", json={"filter": {"n": {"$odd": 1}}})
    assert odd.status_code == 400
    assert http.get("/store/items").status_code == 422


@SERVED
def test_nodes_and_clients_have_the_same_store(runtime: Runtime, server: AgentServer) -> None:
    run = runtime.blocking.start("memory", {"n": 1}, thread_id=str(uuid.uuid4()))
    until(lambda: runtime.blocking.get(run.id).state is State.DONE)
    found = server.sync_client().store.get_item(["memories"], "last")
    assert found["value"] == {"n": 2}


@SERVED
def test_an_item_survives_the_server(url: str) -> None:
    for n in range(2):
        with served(Runtime(url, store=True), worker=False) as server:
            client = server.sync_client()
            if not n:
                client.store.put_item(["a"], "k", {"n": 1}, ttl=60)
            assert client.store.get_item(["a"], "k")["value"] == {"n": 1}
            assert client.store.get_item(["a"], "k", refresh_ttl=True)["value"] == {"n": 1}


def test_a_graph_keeps_its_own_store(sqlite_url: str) -> None:
    own = InMemoryStore()
    mine = row(add, remember).compile(store=own)
    rt = Runtime(sqlite_url)
    rt.register(mine, name="mine")
    with served(rt) as server:
        client = server.sync_client()
        client.store.put_item(["a"], "k", {"n": 1})
        found = own.get(("a",), "k")
        assert found is not None
        assert found.value == {"n": 1}
    plain = row(add, double).compile()
    with_store = Runtime(sqlite_url, store=InMemoryStore())
    with_store.register(mine, name="mine")
    with_store.register(plain, name="plain")
    assert mine.store is own
    assert plain.store is None, "the graph that was given is not changed"
    assert with_store.compiled("mine").store is own
    assert with_store.compiled("plain").store is with_store.store


def test_graphs_registered_before_get_the_store_of_the_server(sqlite_url: str) -> None:
    rt = Runtime(sqlite_url)
    rt.register(row(add, remember), name="memory")
    store = InMemoryStore()
    with served(rt, store=store) as server:
        run = rt.blocking.start("memory", {"n": 1}, thread_id=str(uuid.uuid4()))
        until(lambda: rt.blocking.get(run.id).state is State.DONE)
        assert server.sync_client().store.get_item(["memories"], "last")["value"] == {"n": 2}
    assert store.get(("memories",), "last") is not None


def test_a_server_without_a_store_says_so(sqlite_url: str) -> None:
    with served(Runtime(sqlite_url)) as server, pytest.raises(APIStatusError) as error:
        server.sync_client().store.get_item(["a"], "k")
    assert error.value.status_code == 501
    assert "Runtime(store=True)" in str(error.value)


async def test_a_store_bound_to_another_event_loop_is_called_there(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with AsyncSqliteStore.from_conn_string(str(tmp_path / "own.db")) as store:
        await store.setup()
        with served(Runtime(sqlite_url, store=store)) as server:
            client = server.sync_client()
            await asyncio.to_thread(client.store.put_item, ["a"], "k", {"n": 1})
            found = await asyncio.to_thread(client.store.get_item, ["a"], "k")
        assert found["value"] == {"n": 1}


def test_a_store_beside_the_journal_is_a_file_of_its_own(sqlite_url: str) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    store = JournalStore(sqlite_url)
    assert not path.with_name("journal-store.db").exists(), "nothing is opened before it is used"
    store.put(("a",), "k", {"n": 1})
    store.close()
    assert path.with_name("journal-store.db").exists()
    again = JournalStore(sqlite_url)
    found: Any = again.get(("a",), "k")
    assert found.value == {"n": 1}
    again.close()
    with pytest.raises(BadArgument, match=r"Runtime\(store"):
        JournalStore("d1://:secret@example.com/")
    with pytest.raises(BadArgument, match="store must be a LangGraph store"):
        Runtime(sqlite_url, store="yes")  # type: ignore[arg-type]
