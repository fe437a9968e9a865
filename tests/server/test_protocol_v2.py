"""The v2 protocol over real HTTP: LangGraph's `client.threads.stream`, commands, event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import httpx
import pytest

from perdure.server.agent_api.protocol_events import run_of
from tests.support.streaming_agents import SAID, StreamingServer, streaming_server

HI: Any = {"messages": [{"role": "user", "content": "hi", "id": "h"}]}
ALL = ["values", "updates", "messages", "tools", "lifecycle", "input", "checkpoints", "tasks"]
ALL += ["custom"]


@pytest.fixture
def server(url: str) -> Iterator[StreamingServer]:
    with streaming_server(url) as running:
        yield running


def thread() -> str:
    return str(uuid4())


def command(http: httpx.Client, t: str, method: str, **params: Any) -> Any:
    reply = http.post(f"/threads/{t}/commands", json={"id": 7, "method": method, "params": params})
    assert reply.status_code == 200, reply.text
    return reply.json()


def start(http: httpx.Client, t: str, graph: str) -> str:
    found: str = command(http, t, "run.start", assistant_id=graph, input=HI)["result"]["run_id"]
    return found


def events(
    http: httpx.Client, t: str, ends: int = 1, channels: Any = ALL, **more: Any
) -> list[dict[str, Any]]:
    """The events of a thread, until so many runs have ended or ask."""
    body = {"channels": [*channels], **more}
    found: list[dict[str, Any]] = []
    with http.stream("POST", f"/threads/{t}/stream/events", json=body) as reply:
        assert reply.status_code == 200
        lines = reply.iter_lines()
        for line in lines:
            if line.startswith("data: "):
                found.append(json.loads(line[6:]))
                ends -= is_end(found[-1])
                if not ends:
                    break
    return found


def is_end(event: dict[str, Any]) -> bool:
    ended = ("completed", "failed", "interrupted")
    return (
        event["method"] == "lifecycle"
        and not event["params"]["namespace"]
        and event["params"]["data"]["event"] in ended
    )


def told(found: list[dict[str, Any]], method: str) -> list[Any]:
    return [one["params"]["data"] for one in found if one["method"] == method]


# -- LangGraph's own clients


async def test_a_thread_stream_has_messages_values_and_the_output(
    server: StreamingServer,
) -> None:
    async with (
        server.http.client() as client,
        client.threads.stream(assistant_id="chat") as stream,
    ):
        await stream.run.start(input=HI)
        messages = [message async for message in stream.messages]
        assert [await message.text for message in messages] == [SAID]
        found = await asyncio.wait_for(stream.output, 20)
        assert [one["content"] for one in found["messages"]] == ["hi", SAID]


async def test_a_question_is_seen_and_answered(server: StreamingServer) -> None:
    t = thread()
    async with (
        server.http.client() as client,
        client.threads.stream(t, assistant_id="ask") as stream,
    ):
        await stream.run.start(input=HI)
        async for _ in stream.values:  # ends at the question
            pass
        (asked,) = stream.interrupts
        assert asked["value"] == "go on?"
        await stream.run.respond("yes")
        found = await asyncio.wait_for(stream.output, 20)
        assert [one["content"] for one in found["messages"]] == ["hi", "you said yes", SAID]


async def test_a_failure_is_raised_with_its_error(server: StreamingServer) -> None:
    async with (
        server.http.client() as client,
        client.threads.stream(assistant_id="faulty") as stream,
    ):
        await stream.run.start(input=HI)
        with pytest.raises(RuntimeError, match="this node always fails"):
            await asyncio.wait_for(stream.output, 20)


async def test_subgraphs_are_discovered_with_their_messages(server: StreamingServer) -> None:
    async with (
        server.http.client() as client,
        client.threads.stream(assistant_id="outer") as stream,
    ):
        await stream.run.start(input=HI)
        (subgraph,) = [subgraph async for subgraph in stream.subgraphs]
        (message,) = [message async for message in subgraph.messages]
        assert (subgraph.graph_name, subgraph.status) == ("sub", "completed")
        assert await message.text == SAID


async def test_tool_calls_have_their_results(server: StreamingServer) -> None:
    async with (
        server.http.client() as client,
        client.threads.stream(assistant_id="tools") as stream,
    ):
        await stream.run.start(input=HI)
        (call,) = [call async for call in stream.tool_calls]
        assert (call.name, (await call.output)["content"]) == ("add", "3")


async def test_the_second_turn_of_a_chat_streams_only_itself(server: StreamingServer) -> None:
    t = thread()
    async with server.http.client() as client:
        for turn in (1, 2):
            async with client.threads.stream(t, assistant_id="chat") as stream:
                await stream.run.start(input={"messages": [("user", f"turn {turn}")]})
                (message,) = [message async for message in stream.messages]
                assert await message.text == SAID
        values: Any = (await client.threads.get_state(t))["values"]
        assert len(values["messages"]) == 4


# -- events


def test_an_event_has_the_frame_of_the_protocol(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    start(http, t, "count")
    body = {"channels": ["lifecycle"]}
    with http.stream("POST", f"/threads/{t}/stream/events", json=body) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        lines = reply.iter_lines()
        event, data, id = next(lines), next(lines), next(lines)
    found = json.loads(data.removeprefix("data: "))
    assert event == "event: lifecycle"
    assert id == f"id: {found['seq']}"
    assert found["event_id"] == str(found["seq"])
    assert (found["type"], found["method"]) == ("event", "lifecycle")
    assert found["params"]["namespace"] == []
    assert found["params"]["timestamp"] > 1.7e12


def test_custom_data_comes_on_its_channel(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    start(http, t, "count")
    found = events(http, t, channels=["custom", "lifecycle"])
    assert told(found, "custom") == [{"payload": {"n": n}} for n in range(3)]
    assert {one["method"] for one in found} == {"custom", "lifecycle"}


def test_several_answers_come_in_one_command(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    run = start(http, t, "ask")
    (data,) = told(events(http, t), "input.requested")
    responses = [{"interrupt_id": data["interrupt_id"], "response": "all", "namespace": []}]
    assert command(http, t, "input.respond", responses=responses)["type"] == "success"
    server.http.sync_client().runs.join(t, run)
    # A reader that comes later does not get the question, which was answered.
    whole = events(http, t)
    assert not told(whole, "input.requested")
    assert told(whole, "values")[-1]["messages"][-2]["content"] == "you said all"


def test_all_runs_of_a_thread_are_replayed_in_order_with_the_same_numbers(
    server: StreamingServer, url: str
) -> None:
    http, t = server.http.http(), thread()
    for graph in ("chat", "count", "outer"):
        start(http, t, graph)
    first = events(http, t, 3)
    numbers = [one["seq"] for one in first]
    assert numbers == sorted({*numbers})
    assert {run_of(one) for one in numbers} == {1, 2, 3}
    assert max(numbers) < 2**53
    assert events(http, t, 3) == first
    server.http.stop()
    with streaming_server(url) as other:
        assert events(other.http.http(), t, 3) == first


def test_since_returns_the_events_after_a_number(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    for graph in ("outer", "chat"):
        start(http, t, graph)
    whole = events(http, t, 2)
    for at in range(1, len(whole), 7):
        left = sum(map(is_end, whole[at:]))
        assert whole[:at] + events(http, t, left, since=whole[at - 1]["seq"]) == whole


def test_all_events_of_a_started_run_come_after_its_applied_through_seq(
    server: StreamingServer,
) -> None:
    http, t = server.http.http(), thread()
    for graph in ("count", "chat"):
        reply = command(http, t, "run.start", assistant_id=graph, input=HI)
        found = events(http, t, since=reply["meta"]["applied_through_seq"])
        assert [one["event"] for one in told(found, "lifecycle")] == ["running", "completed"]
        assert told(found, "values")


def test_events_are_chosen_by_namespace_and_depth(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    start(http, t, "outer")
    whole = events(http, t)
    spaces = {tuple(one["params"]["namespace"]) for one in whole}
    (inside,) = spaces - {()}

    def chosen(count: int, **more: Any) -> set[tuple[str, ...]]:
        body = {"channels": ALL, **more}
        found = set()
        with http.stream("POST", f"/threads/{t}/stream/events", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    found.add(tuple(json.loads(line[6:])["params"]["namespace"]))
                    count -= 1
                    if not count:
                        break
        return found

    at_top = sum(not one["params"]["namespace"] for one in whole)
    assert chosen(at_top, namespaces=[[]], depth=0) == {()}
    assert chosen(len(whole), namespaces=[[]], depth=1) == {(), inside}
    assert chosen(len(whole) - at_top, namespaces=[["sub"]]) == {inside}
    assert chosen(len(whole) - at_top, namespaces=[[*inside]], depth=0) == {inside}


def test_a_stream_of_a_missing_thread_waits_for_it(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    body = {"channels": ["lifecycle"]}
    with http.stream("POST", f"/threads/{t}/stream/events", json=body) as reply:
        assert reply.status_code == 200
        start(server.http.http(), t, "count")
        lines = [line for line in _first(reply.iter_lines(), 6) if line.startswith("data")]
    assert "running" in lines[0]


def _first(lines: Iterator[str], count: int) -> Iterator[str]:
    for _ in range(count):
        yield next(lines)


def test_runs_whose_output_is_not_kept_are_shown_by_their_last_state(
    server: StreamingServer,
) -> None:
    http, t = server.http.http(), thread()
    start = server.runtime.blocking.start
    start("chat", HI, thread_id=t)
    found = events(http, t)
    assert [one["method"] for one in found] == ["lifecycle", "values", "lifecycle"]
    assert told(found, "values")[0]["messages"][-1]["content"] == SAID
    start("ask", HI, thread_id=t)
    found = events(http, t, since=found[-1]["seq"])
    (asked,) = told(found, "input.requested")
    answer = {"interrupt_id": asked["interrupt_id"], "response": "yes"}
    assert command(http, t, "input.respond", **answer)["type"] == "success"


# -- errors


def test_an_unknown_command_is_an_error_that_names_the_known_ones(
    server: StreamingServer,
) -> None:
    reply = command(server.http.http(), thread(), "state.fork")
    assert (reply["type"], reply["id"], reply["error"]) == ("error", 7, "unknown_command")
    assert "run.start" in reply["message"]


def test_a_command_with_wrong_parameters_is_an_error(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    assert command(http, t, "run.start", input=1)["error"] == "invalid_argument"
    unknown = command(http, t, "run.start", assistant_id="nonsense", input=HI)
    assert unknown["error"] == "invalid_argument"
    nothing = command(http, t, "input.respond", interrupt_id="x", response=1)
    assert nothing["error"] == "no_such_run"
    start(http, t, "count")
    events(http, t)
    assert command(http, t, "input.respond", response=1)["error"] == "invalid_argument"


def test_a_stream_of_an_unknown_channel_is_refused(server: StreamingServer) -> None:
    http, t = server.http.http(), thread()
    path = f"/threads/{t}/stream/events"
    assert http.post(path, json={"channels": ["nonsense"]}).status_code == 400
    assert http.post(path, json={"channels": "values"}).status_code == 422
    assert http.post("/threads/x/stream/events", json={"channels": []}).status_code == 422
    assert http.post("/threads/x/commands", json={}).status_code == 422
    assert http.post(f"/threads/{t}/commands", json=[1]).status_code == 422
