"""v1 streams over real HTTP with LangGraph's own clients: modes, ids, resuming, joining, ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk.client import SyncLangGraphClient
from langgraph_sdk.schema import StreamPart

from perdure.server.agent_api import sse
from tests.support.polling import until
from tests.support.streaming_agents import SAID, StreamingServer, streaming_server

NEW: Any = {"if_not_exists": "create"}
HI: Any = {"messages": [{"role": "user", "content": "hi", "id": "h"}]}


@pytest.fixture
def server(url: str) -> Iterator[StreamingServer]:
    with streaming_server(url) as running:
        yield running


@pytest.fixture
def client(server: StreamingServer) -> SyncLangGraphClient:
    return server.http.sync_client()


def thread() -> str:
    return str(uuid4())


def names(parts: list[StreamPart]) -> list[str]:
    return [part.event for part in parts]


def streamed(
    client: SyncLangGraphClient, graph: str, *modes: str, on: str | None = None, **more: Any
) -> list[StreamPart]:
    """The whole stream of a new run, on a thread of its own unless one is named."""
    options = {"input": HI, **NEW, **more}
    asked: Any = list(modes) or "values"
    return list(client.runs.stream(on or thread(), graph, stream_mode=asked, **options))


class Sse(NamedTuple):
    """One event as it is on the wire."""

    event: str
    data: Any
    id: str | None


def parse(text: str) -> list[Sse]:
    found = []
    for block in text.split("\r\n\r\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\r\n") if line[:1] not in ":")
        if fields:
            found.append(Sse(fields["event"], json.loads(fields["data"]), fields.get("id")))
    return found


# -- modes


def test_values_are_the_state_after_each_step(client: SyncLangGraphClient) -> None:
    parts = streamed(client, "chat")
    assert names(parts) == ["metadata", "values", "values", "end"]
    assert parts[0].data["attempt"] == 1
    assert [one["content"] for one in parts[2].data["messages"]] == ["hi", SAID]


def test_each_mode_has_its_event(client: SyncLangGraphClient) -> None:
    modes = ["values", "updates", "custom", "tasks", "checkpoints", "debug"]
    parts = streamed(client, "count", *modes)
    assert {*names(parts)} == {"metadata", "end", *modes}
    custom = [one.data for one in parts if one.event == "custom"]
    assert custom == [{"n": 0}, {"n": 1}, {"n": 2}]
    begun, ended = [one.data for one in parts if one.event == "tasks"]
    assert (begun["name"], "input" in begun) == ("count", True)
    assert (ended["name"], ended["error"]) == ("count", None)
    updates = [one.data for one in parts if one.event == "updates"]
    assert updates == [{"count": {"messages": []}}]


def test_subgraphs_are_named_in_the_event(client: SyncLangGraphClient) -> None:
    inside = list(names(streamed(client, "outer", "updates", stream_subgraphs=True)))
    assert inside[1].startswith("updates|sub:")
    assert inside[2:] == ["updates", "updates", "end"]
    assert names(streamed(client, "outer", "updates")) == ["metadata", "updates", "updates", "end"]


def test_unknown_stream_modes_are_refused(server: StreamingServer) -> None:
    http = server.http.http()
    for mode in ("tools", "lifecycle", "nonsense"):
        body = {"assistant_id": "chat", "input": HI, "stream_mode": mode}
        reply = http.post("/runs/stream", json=body)
        assert reply.status_code == 422
        assert isinstance(reply.json()["detail"], str)


# -- the wire


def test_the_response_says_where_it_can_be_resumed(server: StreamingServer) -> None:
    t, http = thread(), server.http.http()
    body = {"assistant_id": "chat", "input": HI, **NEW}
    reply = http.post(f"/threads/{t}/runs/stream", json=body)
    location = reply.headers["content-location"]
    assert location.startswith(f"/threads/{t}/runs/")
    assert reply.headers["location"] == f"{location}/stream"
    assert reply.headers["content-type"].startswith("text/event-stream")
    assert reply.headers["cache-control"] == "no-store"
    assert reply.headers["x-accel-buffering"] == "no"
    assert "content-length" not in reply.headers
    assert reply.text.startswith("event: metadata\r\ndata: {")
    assert parse(reply.text)[-1] == Sse("end", None, None)


def test_ids_are_always_sent_and_increase_strictly(server: StreamingServer) -> None:
    modes = ["values", "messages", "messages-tuple", "updates"]
    body = {"assistant_id": "chat", "input": HI, "stream_mode": modes}
    events = parse(server.http.http().post("/runs/stream", json=body).text)
    ids = [tuple(map(int, one.id.split("-"))) for one in events if one.id is not None]
    assert len(ids) == len(events) - 1  # all but the end
    assert ids[0] == (0,)
    assert ids == sorted({*ids})


def test_a_join_from_the_start_begins_with_metadata(server: StreamingServer) -> None:
    http = server.http.http()
    first = http.post("/runs/stream", json={"assistant_id": "count", "input": HI})
    for id in ("-1", "-"):
        again = http.get(first.headers["location"], headers={"Last-Event-ID": id})
        assert parse(again.text) == parse(first.text)
    behind = http.get(first.headers["location"], headers={"Last-Event-ID": "0"})
    assert parse(behind.text) == parse(first.text)[1:]


def test_a_join_without_one_of_our_ids_gets_only_new_events(server: StreamingServer) -> None:
    http = server.http.http()
    first = http.post("/runs/stream", json={"assistant_id": "count", "input": HI})
    for headers in ({}, {"Last-Event-ID": "1763391-0-x"}):
        again = parse(http.get(first.headers["location"], headers=headers).text)
        assert [one.event for one in again] == ["metadata", "end"]


def test_a_join_filters_by_modes_in_every_format(server: StreamingServer) -> None:
    http = server.http.http()
    body = {"assistant_id": "count", "input": HI, "stream_mode": ["values", "custom", "updates"]}
    location = http.post("/runs/stream", json=body).headers["location"]

    def joined(query: str) -> set[str]:
        reply = http.get(f"{location}?{query}", headers={"Last-Event-ID": "-1"})
        return {one.event for one in parse(reply.text)} - {"metadata", "end"}

    assert joined("stream_mode=custom") == {"custom"}
    assert joined("stream_mode=custom&stream_mode=updates") == {"custom", "updates"}
    assert joined('stream_mode=["values"]') == {"values"}
    assert joined("stream_mode=") == joined("") == {"values", "custom", "updates"}
    assert http.get(f"{location}?stream_mode=tools").status_code == 422


async def test_nothing_is_lost_at_the_end_of_a_stream_whose_client_is_slow() -> None:
    takes, sent = asyncio.Event(), bytearray()

    async def events() -> AsyncGenerator[bytes]:
        yield b"the last event, "
        for _ in range(5):  # it is being sent
            await asyncio.sleep(0)
        yield b"the end"
        asyncio.get_running_loop().call_later(0.05, takes.set)

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            await takes.wait()  # as a server does while the buffers are full
            sent.extend(message["body"])

    slot: Any = SimpleNamespace(stopping=asyncio.Event(), close=lambda: None)
    response = sse.EventStreamResponse(slot, events())
    await response({"type": "http"}, asyncio.Event().wait, send)  # type: ignore[arg-type]
    assert sent == b"the last event, the end"


def test_a_join_that_reconnects_gets_the_same_modes(server: StreamingServer) -> None:
    http = server.http.http()
    body = {"assistant_id": "count", "input": HI, "stream_mode": ["values", "custom", "updates"]}
    path = http.post("/runs/stream", json=body).headers["location"]
    query = "stream_mode=custom&stream_mode=updates&cancel_on_disconnect=true"
    first = http.get(f"{path}?{query}", headers={"Last-Event-ID": "-1"})
    assert first.headers["location"] == f"{path}?{query}"
    events = parse(first.text)
    behind = http.get(first.headers["location"], headers={"Last-Event-ID": str(events[1].id)})
    assert parse(behind.text) == events[2:]
    assert http.get(f"{path}?stream_mode=").headers["location"] == path


def test_an_unknown_run_is_404_and_an_invalid_id_is_422(server: StreamingServer) -> None:
    http = server.http.http()
    assert http.get(f"/threads/{thread()}/runs/{thread()}/stream").status_code == 404
    assert http.get(f"/runs/{thread()}/stream").status_code == 404
    assert http.get("/runs/nonsense/stream").status_code == 422


def test_a_run_whose_output_is_not_kept_shows_its_last_state(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    run = server.runtime.blocking.start("chat", HI, thread_id=t)
    path = f"/threads/{t}/runs/{run.id}/stream"
    begun, values, end = parse(http.get(path).text)
    assert (begun.event, values.event, end.event) == ("metadata", "values", "end")
    assert values.data["messages"][-1]["content"] == SAID


# -- questions, waits and errors


def test_a_question_ends_the_stream_and_the_answer_begins_another(
    client: SyncLangGraphClient,
) -> None:
    t = thread()
    parts = streamed(client, "ask", "values", "updates", on=t)
    (asked,) = parts[-2].data["__interrupt__"]
    assert asked["value"] == "go on?"
    assert names(parts)[-1] == "end"
    more = streamed(
        client, "ask", "values", "messages-tuple", on=t, input=None, command={"resume": "yes"}
    )
    assert more[0].data["run_id"] == parts[0].data["run_id"]
    assert names(more)[-1] == "end"
    assert not any("__interrupt__" in one.data for one in more if one.event == "values")
    last = [one.data for one in more if one.event == "values"][-1]
    assert [one["content"] for one in last["messages"]] == ["hi", "you said yes", SAID]


def test_what_was_replaced_by_the_answer_is_named(client: SyncLangGraphClient) -> None:
    t = thread()
    before = streamed(client, "ask", "values", "custom", on=t)
    answer: Any = {"input": None, "command": {"resume": "yes"}}
    after = streamed(client, "ask", "values", "custom", on=t, **answer)
    marks = [one.data for one in after if one.event == "metadata" and "replaces_from" in one.data]
    assert len(marks) == 1
    first = marks[0]["replaces_from"]
    held = [one for one in before if one.id and int(one.id) < first and one.event != "metadata"]
    held += [one for one in after if one.event not in ("metadata", "end")]
    custom: list[Any] = [one.data for one in held if one.event == "custom"]
    assert custom == ["asking"]
    assert not any("__interrupt__" in one.data for one in held if one.event == "values")


def test_a_run_that_sleeps_goes_on_running(client: SyncLangGraphClient) -> None:
    parts = streamed(client, "nap", "values", "updates")
    assert names(parts)[-1] == "end"
    assert not any("__interrupt__" in one.data for one in parts if one.data)
    values = [one.data for one in parts if one.event == "values"]
    assert values[-1]["messages"][-1]["content"] == SAID


def test_a_cancelled_run_ends_its_stream(server: StreamingServer) -> None:
    client, t = server.http.sync_client(), thread()
    run = client.runs.create(t, "gate", input=HI, stream_mode=["custom"], **NEW)
    assert server.gate.begun.wait(10)
    canceller = threading.Timer(0.2, client.runs.cancel, [t, run["run_id"]])
    canceller.start()
    stream = server.http.sync_client().runs.join_stream(t, run["run_id"], last_event_id="-1")
    assert names(list(stream)) == ["metadata", "custom", "end"]
    canceller.join()


# -- clients that come, go and are slow


async def test_a_client_that_joins_sees_new_events(
    server: StreamingServer,
) -> None:
    t = thread()
    async with server.http.client() as client:
        run = await client.runs.create(
            t, "gate", input=HI, stream_mode=["custom", "updates"], **NEW
        )
        assert await asyncio.to_thread(server.gate.begun.wait, 10)
        seen = []
        async for part in client.runs.join_stream(t, run["run_id"]):
            seen.append(part.event)
            if part.event == "metadata":
                server.gate.opened.set()
        assert [one for one in seen if one != "custom"] == ["metadata", "updates", "updates", "end"]


def leave_at(server: StreamingServer, request: httpx.Request, event: str) -> None:
    """Send a request, and leave when this event comes."""
    with contextlib.closing(httpx.Client(base_url=server.http.url)) as http:
        reply = http.send(request, stream=True)
        for line in reply.iter_lines():
            if line == f"event: {event}":
                return


@pytest.mark.parametrize(("mode", "status"), [("cancel", "interrupted"), ("continue", "success")])
def test_a_client_that_leaves_cancels_the_run_if_requested(
    server: StreamingServer, mode: str, status: str
) -> None:
    client, t = server.http.sync_client(), thread()
    body = {"assistant_id": "gate", "input": HI, "stream_mode": "custom", "on_disconnect": mode}
    http = server.http.http()
    request = http.build_request("POST", f"/threads/{t}/runs/stream", json={**body, **NEW})
    leave_at(server, request, "custom")
    if mode == "continue":
        server.gate.opened.set()
    (run,) = client.runs.list(t)
    until(lambda: client.runs.get(t, run["run_id"])["status"] == status)


def test_a_client_that_leaves_a_join_cancels_the_run_if_requested(server: StreamingServer) -> None:
    client, t = server.http.sync_client(), thread()
    run = client.runs.create(t, "gate", input=HI, stream_mode=["custom"], **NEW)
    path = f"/threads/{t}/runs/{run['run_id']}/stream?cancel_on_disconnect=1"
    request = server.http.http().build_request("GET", path, headers={"Last-Event-ID": "-1"})
    leave_at(server, request, "custom")
    until(lambda: client.runs.get(t, run["run_id"])["status"] == "interrupted")


def test_a_stream_over_the_limit_is_refused_before_its_run_is_accepted(url: str) -> None:
    with streaming_server(url, max_streams=1) as server:
        http, t = server.http.http(), thread()
        body = {"assistant_id": "gate", "input": HI, **NEW}
        with http.stream("POST", f"/threads/{t}/runs/stream", json=body):
            refused = http.post(f"/threads/{t}/runs/stream", json=body)
            assert refused.status_code == 503
            assert len(server.http.sync_client().runs.list(t)) == 1
        server.gate.opened.set()

        def is_free() -> bool:
            return http.post("/runs/stream", json={"assistant_id": "chat"}).status_code == 200

        until(is_free)


def test_comments_come_regularly(server: StreamingServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "HEARTBEAT", 0.1)
    http = server.http.http()
    body = {"assistant_id": "gate", "input": HI, "stream_mode": "custom"}
    at = []
    with http.stream("POST", "/runs/stream", json=body) as reply:
        for line in reply.iter_lines():
            if line == ": heartbeat":
                at.append(time.monotonic())
                if len(at) == 8:
                    server.gate.opened.set()
    pauses = [b - a for a, b in itertools.pairwise(at)]
    assert sum(pauses) / len(pauses) == pytest.approx(0.1, abs=0.05)


def test_who_joins_a_run_of_our_own_api_when_the_server_stops_gets_it_as_it_is(
    sqlite_url: str,
) -> None:
    with streaming_server(sqlite_url) as server:
        client, t = server.http.sync_client(), thread()
        run = client.runs.create(t, "gate", input=HI, **NEW)
        assert server.gate.begun.wait(10)
        found: list[httpx.Response] = []

        def join() -> None:
            path = f"/perdure/runs/{run['run_id']}/join"
            found.append(server.http.http().get(path, params={"timeout": 60}))

        joining = threading.Thread(target=join)
        joining.start()
        until(lambda: len(server.streams) == 1, "the one that waits")
        server.streams.stop()  # as at SIGTERM
        joining.join(30)
        assert found[0].json()["state"] == "running"
        server.gate.opened.set()


# -- threads


def test_a_thread_streams_all_later_runs_one_after_the_other(server: StreamingServer) -> None:
    client, t = server.http.sync_client(), thread()
    client.runs.wait(t, "chat", input=HI, **NEW)
    seen: list[StreamPart] = []
    joined = threading.Event()

    def read() -> None:
        reader = server.http.sync_client()
        joined.set()
        for part in reader.threads.join_stream(t):
            seen.append(part)
            if len([one for one in seen if "status" in (one.data or {})]) == 2:
                return

    reading = threading.Thread(target=read)
    reading.start()
    assert joined.wait(10)
    time.sleep(0.5)
    for graph in ("count", "ask"):
        client.runs.create(t, graph, input=HI, stream_mode=["updates"])
    reading.join(20)
    done = [one.data for one in seen if "status" in (one.data or {})]
    assert [one["status"] for one in done] == ["run_done", "run_done"]
    assert names(seen)[:3] == ["metadata", "updates", "metadata"]
    assert any("__interrupt__" in (one.data or {}) for one in seen)
    ids = [one.id for one in seen]
    assert len({*ids}) == len(ids)


def read_thread(http: httpx.Client, t: str, last: str, until_done: int) -> list[Sse]:
    """The stream of a thread, until so many runs are done."""
    text = ""
    with http.stream("GET", f"/threads/{t}/stream", headers={"Last-Event-ID": last}) as reply:
        for piece in reply.iter_text():
            text += piece
            if text.count("run_done") == until_done and text.endswith("\r\n\r\n"):
                break
    return parse(text)


def test_a_thread_stream_resumes_after_any_of_its_ids(server: StreamingServer) -> None:
    client, http, t = server.http.sync_client(), server.http.http(), thread()
    for graph in ("chat", "count"):
        streamed(client, graph, "messages", "updates", on=t)
    whole = read_thread(http, t, "-", 2)
    assert [one.event for one in whole].count("metadata") == 4
    for at in range(1, len(whole)):
        left = sum("status" in one.data for one in whole[at:] if one.event == "metadata")
        assert whole[:at] + read_thread(http, t, whole[at - 1].id or "", left) == whole


def test_an_unknown_thread_or_mode_is_refused(
    server: StreamingServer,
) -> None:
    client, http = server.http.sync_client(), server.http.http()
    t = client.runs.create(thread(), "chat", input=HI, **NEW)["thread_id"]
    assert http.get(f"/threads/{thread()}/stream").status_code == 404
    assert http.get(f"/threads/{t}/stream?stream_mode=state_update").status_code == 501
    assert http.get(f"/threads/{t}/stream?stream_mode=nonsense").status_code == 422
