"""Runs over HTTP with LangGraph's own clients: created, waited for, joined, listed, ended."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import httpx
import pytest

from perdure.commands.webhooks import RunWebhooks
from perdure.testing import Clock
from tests.support.agent_server import AgentServer, refused, served
from tests.support.polling import auntil, until
from tests.support.webhook_receiver import receiving
from tests.support.wire_agents import wire_runtime, wire_server

NEW: Any = {"if_not_exists": "create"}


def thread() -> str:
    return str(uuid4())


# -- creating and waiting


def test_a_run_is_created_waited_for_and_shown(client: Any) -> None:
    told: list[Any] = []
    t = thread()
    run = client.runs.create(
        t, "numbers", input={"n": 1}, metadata={"a": "b"}, on_run_created=told.append, **NEW
    )
    assert told == [{"run_id": run["run_id"], "thread_id": t}]
    assert (run["thread_id"], run["status"], run["multitask_strategy"]) == (t, "pending", "enqueue")
    assert run["metadata"]["a"] == "b"
    assert run["kwargs"]["input"] == {"n": 1}
    assert UUID(run["run_id"]).version == 7
    assert client.runs.join(t, run["run_id"]) == {"n": 4, "log": ["add", "double"]}
    assert client.runs.get(t, run["run_id"])["status"] == "success"
    assert run["created_at"].endswith("+00:00")


def test_waiting_returns_the_state_of_the_thread(client: Any) -> None:
    t = thread()
    assert client.runs.wait(t, "numbers", input={"n": 1}, **NEW)["n"] == 4
    second = client.runs.wait(t, "numbers", input={"n": 3})
    assert second == {"n": 8, "log": ["add", "double", "add", "double"]}


def test_a_stateless_run_can_be_waited_for_joined_and_seen(client: Any) -> None:
    assert client.runs.wait(None, "numbers", input={"n": 5}) == {"n": 12, "log": ["add", "double"]}
    run = client.runs.create(None, "numbers", input={"n": 5})
    joined = client.http.get(f"/runs/{run['run_id']}/join")
    assert joined == {"n": 12, "log": ["add", "double"]}
    assert client.http.get(f"/runs/{run['run_id']}")["status"] == "success"


def test_a_batch_creates_a_run_for_each_payload(client: Any) -> None:
    made: Any = client.runs.create_batch(
        [{"assistant_id": "one", "input": {"n": n}} for n in range(3)]
    )
    values = [client.runs.join(run["thread_id"], run["run_id"]) for run in made]
    assert [one["n"] for one in values] == [1, 2, 3]


def test_headers_say_where_the_run_is(server: AgentServer) -> None:
    http, t = server.http(), thread()
    body = {"assistant_id": "one", "input": {"n": 1}, "unknown": 1, **NEW}
    made = http.post(f"/threads/{t}/runs", json=body)
    assert made.headers["content-location"] == f"/threads/{t}/runs/{made.json()['run_id']}"
    waited = http.post(f"/threads/{t}/runs/wait", json=body)
    assert waited.headers["location"] == waited.headers["content-location"] + "/join"
    stateless = http.post("/runs", json=body)
    assert stateless.headers["content-location"] == f"/runs/{stateless.json()['run_id']}"


def test_a_long_wait_sends_line_feeds_before_the_json(
    server: AgentServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perdure.server.agent_api.sse.HEARTBEAT", 0.05)
    answer = server.http().post("/runs/wait", json={"assistant_id": "nap", "input": {"n": 1}})
    assert answer.content.startswith(b"\n\n")
    assert answer.json()["log"] == ["napped"]


def test_what_is_unknown_is_refused(client: Any, server: AgentServer) -> None:
    t = thread()
    refused(404, client.runs.create, t, "numbers", input={"n": 1})
    refused(422, client.runs.create, t, "nope", input={"n": 1}, **NEW)
    refused(404, client.runs.create, t, str(uuid4()), input={"n": 1}, **NEW)
    refused(422, client.runs.create, "not-a-uuid", "numbers", input={"n": 1}, **NEW)
    refused(404, client.runs.list, t)
    refused(404, client.runs.get, t, str(uuid4()))
    refused(404, client.runs.cancel, t, str(uuid4()))
    refused(422, client.runs.create, t, "one", stream_mode="lifecycle", **NEW)
    unknown = client.runs.join(t, str(uuid4()))
    assert unknown["__error__"]["error"] == "NotFound"
    http = server.http()
    bad: list[Any] = [{}, [], {"assistant_id": 1}, {"assistant_id": "one", "after_seconds": -1}]
    for body in bad:
        answer = http.post("/runs", json=body)
        assert answer.status_code == 422, body
        assert isinstance(answer.json()["detail"], str)


def test_runs_are_listed_newest_first_and_in_pages(client: Any) -> None:
    t = thread()
    made = [client.runs.create(t, "one", input={"n": n}, **NEW)["run_id"] for n in range(3)]
    client.runs.join(t, made[-1])
    assert [run["run_id"] for run in client.runs.list(t)] == made[::-1]
    assert [run["run_id"] for run in client.runs.list(t, limit=1, offset=1)] == [made[1]]
    assert client.runs.list(t, select=["run_id"], limit=1) == [{"run_id": made[2]}]
    assert len(client.runs.list(t, status="success")) == 3
    assert client.runs.list(t, status="error") == []


async def test_a_thread_of_the_runtime_may_have_another_kind_of_id(url: str) -> None:
    with closing(wire_runtime(url)) as runtime, served(runtime) as server:
        run = await runtime.start("gate", {"said": []}, thread_id="ada")
        client: Any = server.sync_client()
        assert "__interrupt__" in client.runs.join("ada", run.id)
        assert client.runs.wait("ada", "gate", command={"resume": 1}) == {"said": [1, "end"]}
        [only] = client.runs.list("ada")
        assert only["run_id"] == run.id


async def test_a_thread_s_id_of_any_letters_is_written_into_the_headers(sqlite_url: str) -> None:
    with closing(wire_runtime(sqlite_url)) as runtime, served(runtime) as server:
        await runtime.start("numbers", {"n": 1}, thread_id="Ärger/日本\r\nx: 1")
        http, client = server.http(), server.sync_client()
        body = {"assistant_id": "numbers", "input": {"n": 1}}
        place = f"/threads/{quote('Ärger日本', safe='')}/runs"
        await runtime.start("numbers", {"n": 1}, thread_id="Ärger日本")
        for path in ("", "/wait", "/stream"):
            made = http.post(place + path, json=body)
            assert made.status_code == 200
            found = http.get(made.headers["content-location"])
            assert found.json()["thread_id"] == "Ärger日本"
        [first] = await runtime.runs(thread_id="Ärger/日本\r\nx: 1")
        joined = http.get(f"/runs/{first.id}/join")
        assert joined.json()["n"] == 4
        assert len(client.runs.list("Ärger日本")) == 4
        await runtime.start("numbers", {"n": 1}, thread_id="user:1@a")
        made = http.post("/threads/user:1@a/runs", json=body)
        assert made.headers["content-location"].startswith("/threads/user:1@a/runs/")


@pytest.mark.parametrize(
    "place",
    [
        {"checkpoint_id": "a\0b"},
        {"checkpoint": {"checkpoint_id": "\0"}},
        {"checkpoint": {"checkpoint_id": "x", "checkpoint_ns": "\0"}},
        {"checkpoint": {"checkpoint_map": {"": "\0"}}},
        {"checkpoint": {"checkpoint_map": {"\0": "x"}}},
        {"config": {"configurable": {"checkpoint_id": 5}}},
        {"config": {"configurable": {"checkpoint_id": "x" * 300}}},
    ],
    ids=range(7),
)
def test_a_checkpoint_that_cannot_be_is_refused_and_no_run_is_made(
    sqlite_url: str, place: Any
) -> None:
    with wire_server(sqlite_url) as server:
        http, t = server.http(), server.sync_client().threads.create()["thread_id"]
        body = {"assistant_id": "numbers", "input": {"n": 1}, **place}
        answer = http.post(f"/threads/{t}/runs", json=body)
        assert (answer.status_code, http.get(f"/threads/{t}/runs").json()) == (422, [])


def test_who_waits_for_a_run_does_not_count_as_a_stream(sqlite_url: str) -> None:
    with wire_server(sqlite_url, max_streams=1) as server:
        client, t, http = server.sync_client(), thread(), server.http()
        run = client.runs.create(t, "slow", input={"n": 1}, **NEW)["run_id"]
        with http.stream("GET", f"/threads/{t}/stream") as stream, ThreadPoolExecutor(3) as beside:
            assert stream.status_code == 200
            assert server.http().get(f"/threads/{t}/stream").status_code == 503
            body: Any = {"assistant_id": "numbers", "input": {"n": 2}}
            waits = [
                beside.submit(server.http().get, f"/threads/{t}/runs/{run}/join"),
                beside.submit(server.http().get, f"/perdure/runs/{run}/join"),
                beside.submit(server.http().post, f"/threads/{t}/runs/wait", json=body),
            ]
            until(lambda: len(client.runs.list(t)) == 2)
            client.runs.cancel(t, run)
            assert [one.result(30).status_code for one in waits] == [200, 200, 200]


# -- a thread that is busy


def test_a_busy_thread_enqueues_by_default_and_rejects_if_asked(
    client: Any,
) -> None:
    t = thread()
    first = client.runs.create(t, "nap", input={"n": 1}, **NEW)
    second = client.runs.create(t, "nap", input={"n": 2})
    refused(409, client.runs.create, t, "nap", input={"n": 3}, multitask_strategy="reject")
    assert client.runs.join(t, second["run_id"])["log"] == ["napped", "napped"]
    assert client.runs.get(t, first["run_id"])["status"] == "success"


def test_an_interrupting_run_keeps_the_steps_of_the_other(client: Any) -> None:
    t = thread()
    first = client.runs.create(t, "slow", input={"n": 1}, **NEW)
    until(lambda: client.runs.get(t, first["run_id"])["status"] == "running")
    values: Any = client.runs.wait(t, "one", input={"n": 5}, multitask_strategy="interrupt")
    assert values["n"] == 6
    assert client.runs.get(t, first["run_id"])["status"] == "interrupted"


def test_a_run_with_rollback_removes_the_other(client: Any) -> None:
    t = thread()
    first = client.runs.create(t, "slow", input={"n": 1}, **NEW)
    until(lambda: client.runs.get(t, first["run_id"])["status"] == "running")
    values = client.runs.wait(t, "one", input={"n": 5}, multitask_strategy="rollback")
    assert values == {"n": 6, "log": ["add"]}
    refused(404, client.runs.get, t, first["run_id"])


def test_a_new_input_supersedes_a_run_that_asks(client: Any) -> None:
    t = thread()
    client.runs.wait(t, "gate", input={"said": ["a"]}, **NEW)
    values: Any = client.runs.wait(t, "gate", input={"said": ["b"]}, multitask_strategy="reject")
    assert values["said"] == ["a", "b"]
    assert len(values["__interrupt__"]) == 1
    assert [one["status"] for one in client.runs.list(t)] == ["success", "interrupted"]


# -- ending


def test_a_cancelled_run_is_interrupted_and_keeps_its_state(client: Any) -> None:
    t = thread()
    run = client.runs.create(t, "slow", input={"n": 1}, **NEW)
    until(lambda: client.runs.get(t, run["run_id"])["status"] == "running")
    client.runs.cancel(t, run["run_id"], wait=True)
    assert client.runs.get(t, run["run_id"])["status"] == "interrupted"
    assert client.runs.join(t, run["run_id"])["n"] in (1, 2)
    client.runs.cancel(t, run["run_id"])  # again: nothing to do


def test_cancelling_returns_202_or_200(server: AgentServer, client: Any) -> None:
    http, t = server.http(), thread()
    run = client.runs.create(t, "slow", input={"n": 1}, **NEW)
    answer = http.post(f"/threads/{t}/runs/{run['run_id']}/cancel?wait=0&action=interrupt")
    assert (answer.status_code, answer.content) == (202, b"")
    answer = http.post(f"/threads/{t}/runs/{run['run_id']}/cancel?wait=1&action=interrupt")
    assert (answer.status_code, answer.json()) == (200, {})
    stateless = client.runs.create(None, "slow", input={"n": 1})
    assert http.post(f"/runs/{stateless['run_id']}/cancel?wait=1").json() == {}
    assert client.http.get(f"/runs/{stateless['run_id']}")["status"] == "interrupted"


@pytest.mark.parametrize("wait", [True, False])
def test_a_rolled_back_run_is_gone_with_its_state(client: Any, wait: bool) -> None:
    t = thread()
    client.runs.wait(t, "one", input={"n": 1}, **NEW)
    run = client.runs.create(t, "slow", input={"n": 10})
    until(lambda: client.runs.get(t, run["run_id"])["status"] == "running")
    client.runs.cancel(t, run["run_id"], wait=wait, action="rollback")
    refused(404, client.runs.get, t, run["run_id"])
    [left] = client.runs.list(t)
    assert client.runs.join(t, left["run_id"]) == {"n": 2, "log": ["add"]}
    again: Any = client.runs.wait(t, "one", input=None)
    assert again == {"n": 2, "log": ["add"]}


def test_several_runs_are_cancelled_at_once(client: Any) -> None:
    t = thread()
    runs = [client.runs.create(t, "slow", input={"n": n}, **NEW)["run_id"] for n in range(3)]
    client.runs.cancel_many(thread_id=t, run_ids=runs[:2])
    until(lambda: client.runs.get(t, runs[1])["status"] == "interrupted")
    client.runs.cancel_many(status="all")
    until(lambda: len(client.runs.list(t, status="interrupted")) == 3)
    refused(404, client.runs.cancel_many, status="all")


def test_a_run_that_asks_can_be_cancelled_and_deleted(client: Any) -> None:
    t = thread()
    client.runs.wait(t, "gate", input={"said": []}, **NEW)
    [run] = client.runs.list(t)
    client.runs.cancel(t, run["run_id"], wait=True)
    assert client.runs.get(t, run["run_id"])["status"] == "interrupted"
    client.runs.wait(t, "gate", input={"said": []})
    [newest, _] = client.runs.list(t)
    client.runs.delete(t, newest["run_id"])
    assert [one["run_id"] for one in client.runs.list(t)] == [run["run_id"]]


def test_deleting_a_run_keeps_the_state_of_its_thread(client: Any) -> None:
    t = thread()
    client.runs.wait(t, "one", input={"n": 1}, **NEW)
    [run] = client.runs.list(t)
    client.runs.delete(t, run["run_id"])
    assert client.runs.list(t) == []
    assert client.runs.wait(t, "one", input={"n": 5}) == {"n": 6, "log": ["add", "add"]}


def test_a_run_that_is_driven_is_not_deleted(client: Any) -> None:
    t = thread()
    run = client.runs.create(t, "slow", input={"n": 1}, **NEW)
    until(lambda: client.runs.get(t, run["run_id"])["status"] == "running")
    assert "cancel it" in refused(409, client.runs.delete, t, run["run_id"])
    client.runs.cancel(t, run["run_id"])


@pytest.mark.parametrize(
    ("on_disconnect", "status"), [("cancel", "interrupted"), (None, "running")]
)
async def test_a_caller_that_leaves_a_wait_cancels_its_run_only_if_asked(
    server: AgentServer, on_disconnect: str | None, status: str
) -> None:
    t = thread()
    body = {"assistant_id": "slow", "input": {"n": 1}, "on_disconnect": on_disconnect, **NEW}
    async with httpx.AsyncClient(base_url=server.url) as http, server.client() as client:
        with pytest.raises(httpx.ReadTimeout):
            await http.post(f"/threads/{t}/runs/wait", json=body, timeout=1.0)
        [run] = await client.runs.list(t)

        async def reached() -> bool:
            return (await client.runs.get(t, run["run_id"]))["status"] == status

        await auntil(reached, status)
        await client.runs.cancel(t, run["run_id"])


async def test_the_thread_of_a_stateless_run_is_erased_some_time_after_it(url: str) -> None:
    clock = Clock(datetime(2030, 1, 1, tzinfo=UTC))
    with (
        closing(wire_runtime(url, clock=clock)) as runtime,
        served(runtime, worker=False) as server,
    ):
        client: Any = server.sync_client()
        erased = client.runs.create(None, "one", input={"n": 1})
        kept = client.runs.create(None, "one", input={"n": 1}, on_completion="keep")
        await runtime.work(until_idle=True, handle_signals=False)
        assert client.http.get(f"/runs/{erased['run_id']}")["status"] == "success"
        clock.advance(timedelta(minutes=5))
        await runtime.work(until_idle=True, handle_signals=False)
        refused(404, client.http.get, f"/runs/{erased['run_id']}")
        assert [one["thread_id"] for one in client.threads.search()] == [kept["thread_id"]]


# -- what a run is started with


def test_a_run_merges_its_assistant_and_its_request(client: Any) -> None:
    assistant = client.assistants.create(
        "settings", context={"tone": "dry", "more": "a"}, metadata={"team": "x"}
    )
    t = thread()
    values = client.runs.wait(
        t,
        assistant["assistant_id"],
        input={"said": []},
        context={"tone": "kind"},
        metadata={"mine": 1},
        **NEW,
    )
    [seen] = values["said"]
    assert seen["context"] == {"tone": "kind", "more": "a"}
    assert seen["configurable"]["assistant_id"] == assistant["assistant_id"]
    [run] = client.runs.list(t)
    assert run["assistant_id"] == assistant["assistant_id"]
    assert run["metadata"]["team"] == "x"
    assert run["metadata"]["mine"] == 1
    assert client.threads.get(t)["metadata"]["assistant_id"] == assistant["assistant_id"]


def test_a_webhook_is_sent_for_a_run_and_for_one_that_is_continued(url: str) -> None:
    own = RunWebhooks((), allow_private=True)
    with closing(wire_runtime(url, run_webhooks=own)) as runtime, receiving() as receiver:
        with served(runtime) as server:
            client, t = server.sync_client(), thread()
            client.runs.wait(t, "gate", input={"said": []}, **NEW)
            run = client.runs.create(t, "gate", command={"resume": "yes"}, webhook=receiver.url)
            until(lambda: len(receiver.got) == 1)
        [told] = receiver.got
    assert (told.json["run_id"], told.json["status"]) == (run["run_id"], "success")
    assert told.json["values"] == {"said": ["yes", "end"]}


def test_the_settings_of_a_run_are_accepted(client: Any) -> None:
    for durability in ("sync", "async", "exit"):
        values = client.runs.wait(
            None,
            "numbers",
            input={"n": 1},
            durability=durability,
            config={"recursion_limit": 5, "tags": ["a"]},
        )
        assert values["n"] == 4
    too_few = {"recursion_limit": 1}
    failed = client.runs.wait(None, "numbers", input={"n": 1}, config=too_few, raise_error=False)
    assert failed["__error__"]["error"] == "GraphRecursionError"


def test_config_context_and_headers_reach_the_nodes(url: str) -> None:
    with wire_server(url, configurable_headers=["x-my-*", "!x-my-secret"]) as server:
        client = server.sync_client(headers={"x-my-name": "ada", "x-my-secret": "no"})
        values: Any = client.runs.wait(
            None,
            "settings",
            input={"said": []},
            config={"configurable": {"color": "red", "__pregel_x": "y", "run_id": "z"}},
            context={"tone": "kind"},
        )
    [seen] = values["said"]
    assert seen["context"] == {"tone": "kind"}
    got = seen["configurable"]
    assert (got["color"], got["tone"], got["x-my-name"]) == ("red", "kind", "ada")
    assert "x-my-secret" not in got
    assert got["run_id"] != "z"
    assert got["graph_id"] == "settings"
    assert UUID(got["assistant_id"]).version == 5


def test_a_context_may_be_given_as_configurable(client: Any) -> None:
    values: Any = client.runs.wait(
        None, "settings", input={"said": []}, config={"configurable": {"tone": "kind"}}
    )
    assert values["said"][0]["context"] == {"tone": "kind"}
