"""`/threads`, asked by LangGraph's own clients over HTTP."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta
from typing import Any

from langgraph_sdk.schema import Thread

from perdure.runtime import Runtime
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import State
from tests.support.agent_server import AgentServer, refused, served
from tests.support.agents import NOON, gate
from tests.support.polling import until
from tests.support.raw import execute
from tests.support.wire_graphs import SERVED, add, double, ran, row, with_graphs
from tests.support.wire_graphs import database as database
from tests.support.wire_graphs import runtime as runtime
from tests.support.wire_graphs import server as server
from tests.support.wire_graphs import url as url

OWN = "82f632c8-7302-5dc1-9f53-fee8effa3a89"


def status(server: AgentServer, thread_id: str) -> str:
    return str(server.sync_client().threads.get(thread_id)["status"])


@SERVED
def test_a_thread_is_created_once(server: AgentServer) -> None:
    client = server.sync_client()
    made = client.threads.create(metadata={"who": "ada"}, graph_id="numbers")
    assert made["metadata"] == {"who": "ada", "graph_id": "numbers"}
    assert {*made} == {
        *("thread_id", "created_at", "updated_at", "state_updated_at", "metadata", "status"),
        *("config", "values"),
    }
    assert (made["status"], made["values"]) == ("idle", None)
    assert datetime.fromisoformat(str(made["created_at"])).utcoffset() == timedelta(0)
    assert uuid.UUID(made["thread_id"]).version == 7
    assert client.threads.get(made["thread_id"]) == made
    refused(409, client.threads.create, thread_id=made["thread_id"])
    again = client.threads.create(
        thread_id=made["thread_id"], metadata={"x": 1}, if_exists="do_nothing"
    )
    assert again == made


def test_an_id_that_is_not_a_uuid_is_422_and_an_unknown_one_404(server: AgentServer) -> None:
    client, http = server.sync_client(), server.http()
    refused(422, client.threads.create, thread_id="mine")
    for path in ("", "/state", "/history"):
        assert http.get(f"/threads/mine{path}").status_code == 422
        assert http.get(f"/threads/{uuid.uuid4()}{path}").status_code == 404
    assert http.get("/threads/mine").json() == {"detail": "The thread id 'mine' is not a UUID."}
    assert http.delete(f"/threads/{uuid.uuid4()}").status_code == 404
    assert http.patch(f"/threads/{uuid.uuid4()}", json={}).status_code == 404


@SERVED
async def test_metadata_is_merged(server: AgentServer) -> None:
    async with server.client() as client:
        made = await client.threads.create(metadata={"a": 1, "b": {"c": 2}})
        changed = await client.threads.update(made["thread_id"], metadata={"a": 3, "d": 4})
        assert changed["metadata"] == {"a": 3, "b": {"c": 2}, "d": 4}
        assert str(changed["updated_at"]) > str(made["updated_at"])
        await client.threads.update(made["thread_id"], metadata={"e": 5}, return_minimal=True)
        found = await client.threads.get(made["thread_id"])
        assert found["metadata"] == {"a": 3, "b": {"c": 2}, "d": 4, "e": 5}


@SERVED
def test_the_thread_of_any_run_is_a_thread(runtime: Runtime, server: AgentServer) -> None:
    id = ran(runtime, "numbers")
    found = server.sync_client().threads.get(id)
    assert found["metadata"] == {"graph_id": "numbers", "assistant_id": OWN}
    assert (found["status"], found["values"]) == ("idle", {"n": 4, "log": ["add", "double"]})
    assert (found["interrupts"], found["error"]) == ({}, None)  # type: ignore[typeddict-item]
    named = ran(runtime, "numbers", thread="not a uuid")
    assert server.sync_client().threads.get(named)["thread_id"] == "not a uuid"


@SERVED
def test_a_thread_that_asks_is_interrupted_and_shows_what(
    runtime: Runtime, server: AgentServer
) -> None:
    id, client = ran(runtime, "gate", State.WAITING), server.sync_client()
    found = client.threads.get(id)
    assert found["status"] == "interrupted"
    [[asked]] = found["interrupts"].values()
    assert asked["value"] == {"question": "Go on?"}
    assert len(asked["id"]) == 32
    listed = client.threads.search(metadata={"graph_id": "gate"}, status="interrupted")
    assert listed == [found]
    assert client.threads.search(metadata={"graph_id": "gate"}, status="idle") == []
    [wait] = runtime.blocking.waits(thread_id=id)
    runtime.blocking.answer(wait.id, "yes")
    until(lambda: status(server, id) == "idle")
    done = client.threads.get(id)
    assert done["interrupts"] == {}
    assert done["values"] == {"n": 4, "log": ["add", "heard yes", "double"]}


@SERVED
def test_a_busy_thread_is_not_deleted_and_a_cancelled_one_is_interrupted(
    url: str, runtime: Runtime
) -> None:
    with gate() as door:

        def stand(state: Any) -> Any:
            door.block()
            return {}

        runtime.register(row(add, stand, double), name="slow")
        with served(runtime) as server:
            client, id = server.sync_client(), str(uuid.uuid4())
            run = runtime.blocking.start("slow", {"n": 1}, thread_id=id)
            until(lambda: door.entered)
            assert client.threads.get(id)["status"] == "busy"
            assert [one["thread_id"] for one in client.threads.search(status="busy")] == [id]
            refused(409, client.threads.delete, id)
            refused(409, client.threads.update_state, id, {"n": 7})
            runtime.blocking.cancel(run.id, reason="enough")
            door.open()
            until(lambda: runtime.blocking.get(run.id).ended)
            found: Any = client.threads.get(id)
            assert (found["status"], found["interrupts"]) == ("interrupted", {})
            assert found["error"] == {"error": "UserInterrupt", "message": "enough"}
            client.threads.delete(id)


@SERVED
def test_a_deleted_thread_leaves_nothing(url: str, runtime: Runtime, server: AgentServer) -> None:
    client = server.sync_client()
    waiting, empty = ran(runtime, "gate", State.WAITING), client.threads.create()["thread_id"]
    for id in (waiting, empty):
        client.threads.delete(id)
        refused(404, client.threads.get, id)
        refused(404, client.threads.delete, id)
    for table in ("threads", "runs", "checkpoints", "waits"):
        assert execute(url, f"SELECT * FROM perdure_{table}") == []


@SERVED
async def test_threads_are_searched_and_counted(server: AgentServer) -> None:
    async with server.client() as client:
        made = [
            await client.threads.create(
                metadata={"n": n, "kind": "odd" if n % 2 else "even", "in": {"deep": n}},
                graph_id="numbers" if n < 4 else "gate",
            )
            for n in range(6)
        ]
        ids = [one["thread_id"] for one in made]

        async def found(**query: Any) -> list[int]:
            return [ids.index(one["thread_id"]) for one in await client.threads.search(**query)]

        assert await found() == [5, 4, 3, 2, 1, 0]
        assert await found(metadata={"graph_id": "numbers"}, limit=2, offset=1) == [2, 1]
        assert await found(metadata={"kind": "odd", "graph_id": "numbers"}) == [3, 1]
        assert await found(metadata={"in": {"deep": 2}}) == [2]
        assert await found(metadata={"kind": "odd"}, limit=1, offset=1) == [3]
        assert await found(ids=[ids[4], ids[1], str(uuid.uuid4())]) == [4, 1]
        assert await found(sort_by="created_at", sort_order="asc", limit=2) == [0, 1]
        assert await found(sort_by="thread_id", sort_order="desc", limit=2) == [5, 4]
        assert await found(sort_by="status", limit=6)
        await client.threads.update(ids[2], metadata={"n": "two"})
        assert await found(sort_by="updated_at", limit=2) == [2, 5]
        assert await found(metadata={"graph_id": "numbers"}, sort_by="updated_at", limit=1) == [2]
        assert await found(sort_by="state_updated_at", sort_order="asc", limit=1) == [0]
        assert await found(status="interrupted") == []
        assert await client.threads.count() == 6
        assert await client.threads.count(metadata={"graph_id": "gate"}) == 2
        assert await client.threads.count(metadata={"kind": "odd"}) == 3
        assert await client.threads.count(status="busy") == 0
        chosen: Any = await client.threads.search(select=["thread_id", "status"], limit=1)
        assert chosen == [{"thread_id": ids[5], "status": "idle"}]


def test_a_page_of_threads_says_where_the_next_one_begins(server: AgentServer) -> None:
    client, http = server.sync_client(), server.http()
    for _ in range(3):
        client.threads.create()
    first = http.post("/threads/search", json={"limit": 2})
    assert first.headers["x-pagination-total"] == "3"
    assert first.headers["x-pagination-next"] == "2"
    last = http.post("/threads/search", json={"limit": 2, "offset": 2})
    assert (last.headers["x-pagination-total"], len(last.json())) == ("3", 1)
    assert "x-pagination-next" not in last.headers
    wrong: list[Any] = [{"limit": 1001}, {"offset": -1}, {"status": "odd"}, {"sort_by": "x"}, []]
    for bad in wrong:
        assert http.post("/threads/search", json=bad).status_code == 422


@SERVED
def test_threads_are_found_by_their_assistant(runtime: Runtime, server: AgentServer) -> None:
    client = server.sync_client()
    id = ran(runtime, "numbers")
    other = str(uuid.uuid4())
    mine = client.threads.create(metadata={"assistant_id": other}, graph_id="numbers")
    [found] = client.threads.search(metadata={"assistant_id": other})
    assert found["thread_id"] == mine["thread_id"]
    [found] = client.threads.search(metadata={"assistant_id": OWN})
    assert found["thread_id"] == id
    assert client.threads.count(metadata={"assistant_id": other}) == 1


@SERVED
def test_threads_are_found_by_their_values_and_parts_of_them_extracted(
    runtime: Runtime, server: AgentServer
) -> None:
    client = server.sync_client()
    client.threads.create()
    ran(runtime, "numbers", n=1)
    id = ran(runtime, "numbers", n=2)
    found: Any
    [found] = client.threads.search(
        values={"n": 6},
        select=["thread_id"],
        extract={"last": "values.log[-1]", "none": "values.log[9].x", "who": "metadata.graph_id"},
    )
    assert found == {
        "thread_id": id,
        "extracted": {"last": "double", "none": None, "who": "numbers"},
    }
    assert client.threads.count(values={"n": 6}) == 1
    assert client.threads.search(values={"n": 99}) == []
    refused(422, client.threads.search, extract={"x": "values.__class__()"})


@SERVED
def test_a_copy_has_the_state_and_the_metadata(runtime: Runtime, server: AgentServer) -> None:
    client = server.sync_client()
    id = ran(runtime, "numbers")
    client.threads.update(id, metadata={"who": "ada"})
    copy: Any = client.threads.copy  # which returns the thread, whatever its signature says
    made = copy(id)
    assert made["thread_id"] != id
    assert made["metadata"] == client.threads.get(id)["metadata"]
    assert made["values"] == {"n": 4, "log": ["add", "double"]}
    assert len(client.threads.get_history(made["thread_id"])) == 4
    client.threads.update_state(made["thread_id"], {"n": 9})
    assert client.threads.get(id)["values"]["n"] == 4  # type: ignore[index]
    refused(404, client.threads.copy, str(uuid.uuid4()))


@SERVED
async def test_threads_are_pruned(runtime: Runtime, server: AgentServer) -> None:
    first, second = ran(runtime, "numbers"), ran(runtime, "numbers")
    async with server.client() as client:
        pruned = await client.threads.prune([first], strategy="keep_latest")
        assert pruned == {"pruned_count": 1}
        assert len(await client.threads.get_history(first)) == 1
        assert (await client.threads.get(first))["values"] == {"n": 4, "log": ["add", "double"]}
        gone = await client.threads.prune([first, second, str(uuid.uuid4())])
        assert gone == {"pruned_count": 2}
        assert await client.threads.count() == 0


@SERVED
def test_a_thread_can_be_created_with_a_state(server: AgentServer) -> None:
    client = server.sync_client()
    made = client.threads.create(
        graph_id="numbers",
        supersteps=[
            {"updates": [{"values": {"n": 5, "log": ["first"]}, "as_node": "__start__"}]},
            {"updates": [{"values": {"n": 6, "log": ["second"]}, "as_node": "add"}]},
        ],
    )
    assert made["values"] == {"n": 6, "log": ["first", "second"]}
    assert made["status"] == "interrupted"
    assert client.threads.get_state(made["thread_id"])["next"] == ["double"]
    interrupted = client.threads.search(status="interrupted", metadata={"graph_id": "numbers"})
    assert [one["thread_id"] for one in interrupted] == [made["thread_id"]]
    refused(
        422, client.threads.create, supersteps=[{"updates": [{"values": {}, "as_node": "add"}]}]
    )


def kept(thread: Thread) -> Any:
    return thread["ttl"]  # type: ignore[typeddict-item]


@SERVED
async def test_an_expired_thread_is_erased(url: str) -> None:
    clock = Clock(NOON)
    async with TemporaryRuntime(url, clock=clock) as rt:
        with_graphs(rt)
        with served(rt, worker=False) as server:
            client = server.sync_client()
            short = client.threads.create(ttl=10)["thread_id"]
            renewed = client.threads.create(ttl={"ttl": 10, "strategy": "delete"})["thread_id"]
            asking = client.threads.create(ttl=10, graph_id="gate")["thread_id"]
            forever = client.threads.create()["thread_id"]
            await rt.start("gate", {"n": 1}, thread_id=asking)
            found = client.threads.get(short, include=["ttl"])
            assert kept(found)["ttl_minutes"] == 10
            assert datetime.fromisoformat(kept(found)["expires_at"]) == NOON + timedelta(minutes=10)
            assert kept(client.threads.get(forever, include=["ttl"])) is None
            clock.advance(timedelta(minutes=6))
            client.threads.update(renewed, metadata={}, ttl=10)
            clock.advance(timedelta(minutes=6))
            await rt.tick()
            left = {one["thread_id"] for one in client.threads.search()}
            assert left == {renewed, asking, forever}
            clock.advance(timedelta(minutes=6))
            await rt.tick()
            left = {one["thread_id"] for one in client.threads.search()}
            assert left == {asking, forever}
            refused(501, client.threads.create, ttl={"ttl": 10, "strategy": "keep_latest"})
