"""LangGraph's JavaScript SDK, 1.12 and npm's `latest`, calls every method and gets what it expects.

One program calls them all; each test checks some of the responses.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.clients.js_clients import SDKS, agent_server, node
from tests.support.databases import DATABASES

pytestmark = pytest.mark.slow

Answers = dict[str, Any]
STATE = {
    *("values", "next", "tasks", "metadata", "created_at", "checkpoint", "parent_checkpoint"),
    *("interrupts", "checkpoint_id", "parent_checkpoint_id"),
}


@pytest.fixture(scope="module", params=DATABASES[:2])
def address(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('js')}/journal.db"
    else:
        url = request.getfixturevalue("postgres_server").database()
    with agent_server(url) as found:
        yield found


@pytest.fixture(scope="module", params=SDKS)
def answers(request: pytest.FixtureRequest, address: str) -> Answers:
    found: Answers = node("every_method.mjs", request.param, address)
    return found


def failed(answers: Answers, name: str) -> int | None:
    """The code that a call was refused with; every refusal says why in one string."""
    refusal = answers[name]["failed"]
    if refusal["status"] is not None:
        assert re.search(r'"detail":\s*".+"', refusal["message"]), refusal
    code: int | None = refusal["status"]
    return code


def events(answers: Answers, name: str) -> list[tuple[str, Any]]:
    """Events of a stream without the `end` that ours has and theirs has not."""
    found = answers[name]
    assert isinstance(found, list), found
    return [(one["event"], one["data"]) for one in found if one["event"] != "end"]


def kinds(answers: Answers, name: str) -> list[str]:
    return [event for event, _ in events(answers, name)]


def nothing(answers: Answers, name: str) -> bool:
    """Whether the answer was 202 or 204, which the SDK makes `undefined`."""
    return bool(answers[name] == {"undefined": True})


def test_state_and_history_are_read_and_edited(answers: Answers) -> None:
    empty = answers["threads.getState empty"]
    assert set(empty) >= STATE
    assert (empty["values"], empty["next"], empty["tasks"]) == ({}, [], [])
    assert empty["checkpoint"] is None
    thread_id = answers["threads.create"]["thread_id"]
    state = answers["threads.getState"]
    assert set(state) >= STATE
    assert state["values"] == {"n": 4, "log": ["add", "double"]}
    assert state["checkpoint"] == {
        "thread_id": thread_id,
        "checkpoint_ns": "",
        "checkpoint_id": state["checkpoint_id"],
    }
    history = answers["threads.getHistory"]
    assert [one["values"].get("n") for one in history] == [4, 2, 1, None]
    assert [one["next"] for one in history] == [[], ["double"], ["add"], ["__start__"]]
    assert history[0]["parent_checkpoint"] == history[1]["checkpoint"]
    assert history[0]["metadata"]["source"] == "loop"
    task = history[1]["tasks"][0]
    assert set(task) >= {*("id", "name", "path", "error", "interrupts"), "checkpoint", "state"}
    assert (task["name"], task["path"]) == ("double", ["__pregel_pull", "double"])
    assert task["result"] == {"n": 4, "log": ["double"]}
    assert len(answers["threads.getHistory limit"]) == 1
    assert answers["threads.getState at"]["values"] == {"n": 2, "log": ["add"]}
    assert answers["threads.getState checkpoint"]["values"] == {"n": 2, "log": ["add"]}
    edited = answers["threads.updateState"]
    assert edited["checkpoint"] == edited["configurable"]
    assert edited["checkpoint"]["checkpoint_id"] == edited["checkpoint_id"]
    updated = answers["threads.getState updated"]
    assert (updated["values"]["n"], updated["next"]) == (10, ["double"])
    assert updated["checkpoint_id"] == edited["checkpoint_id"]
    assert failed(answers, "threads.updateState unknown node") == 400
    assert failed(answers, "threads.patchState") == 405


def test_a_stream_is_joined_from_its_start_after_its_end(answers: Answers) -> None:
    joined = answers["runs.joinStream"]
    ids = [one["id"] for one in joined if one["event"] != "end"]
    assert len(ids) >= 6
    assert len(set(ids)) == len(ids) or ids[0].endswith("-0")  # theirs repeat
    assert kinds(answers, "runs.joinStream")[0] == "metadata"
    last = events(answers, "runs.joinStream")[-1]
    assert last[0] in ("values", "updates")
    updates = [
        data for event, data in events(answers, "runs.joinStream updates") if event == "updates"
    ]
    assert [list(one) for one in updates] == [["add"], ["double"]]
    assert "values" not in kinds(answers, "runs.joinStream updates")


def test_every_mode_streams_its_own_events(answers: Answers) -> None:
    for mode in ("values", "updates", "messages-tuple", "events", "debug", "tasks", "checkpoints"):
        first, *rest = events(answers, f"runs.stream {mode}")
        assert first[0] == "metadata"
        assert set(first[1]) >= {"run_id", "attempt"}
        assert {event for event, _ in rest} == {mode.removesuffix("-tuple")}, mode
    assert kinds(answers, "runs.stream custom") == ["metadata"]
    assert events(answers, "runs.stream updates")[1] == ("updates", {"ask": None})
    values = events(answers, "runs.stream values")[1:]
    assert [len(data["messages"]) for _, data in values] == [1, 1, 2] or len(values) == 2
    assert values[-1][1]["messages"][-1]["content"] == "You said: hello there "
    tasks = [data for _, data in events(answers, "runs.stream tasks")[1:]]
    assert [one["name"] for one in tasks] == ["ask", "ask", "model", "model"]
    assert set(tasks[0]) >= {"id", "name", "input", "triggers"}
    assert set(tasks[1]) >= {"id", "name", "error", "result", "interrupts"}
    debug = [data for _, data in events(answers, "runs.stream debug")[1:]]
    assert all({"step", "timestamp", "type", "payload"} <= set(one) for one in debug)
    checkpoints = [data for _, data in events(answers, "runs.stream checkpoints")[1:]]
    wanted = {"config", "parent_config", "values", "metadata", "next", "tasks"}
    assert all(wanted <= set(one) for one in checkpoints)
    names = [data["event"] for _, data in events(answers, "runs.stream events")[1:]]
    assert names[0] == "on_chain_start"
    assert "on_chat_model_stream" in names


def test_tokens_arrive_one_by_one_in_both_modes_of_messages(answers: Answers) -> None:
    tuples = [data for _, data in events(answers, "runs.stream messages-tuple")[1:]]
    chunks = [chunk for chunk, _ in tuples if chunk["type"] == "AIMessageChunk"]
    assert "".join(chunk["content"] for chunk in chunks) == "You said: hello there "
    assert chunks[0]["content"] == "You "
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert chunks[-1]["chunk_position"] == "last"
    assert tuples[0][1]["langgraph_node"] == "model"
    found = events(answers, "runs.stream messages")[1:]
    partial = [data[0]["content"] for event, data in found if event == "messages/partial"]
    assert partial[:3] == ["You ", "You said: ", "You said: hello "]
    assert partial[-1] == "You said: hello there "
    told = next(data for event, data in found if event == "messages/metadata")
    (about,) = told.values()
    assert about["metadata"]["langgraph_node"] == "model"
    assert {data[0]["type"] for event, data in found if event == "messages/partial"} == {"ai"}


def test_a_failed_run_is_an_event_and_a_value_but_not_an_http_error(answers: Answers) -> None:
    error = {"error": "ValueError", "message": "this node always fails"}
    assert events(answers, "runs.stream failing")[-1] == ("error", error)
    raised = answers["runs.wait failing"]["failed"]
    assert raised["message"] == "ValueError: this node always fails"
    assert answers["runs.wait failing quietly"]["__error__"] == error
    thread = answers["threads.get failed"]
    assert (thread["status"], thread["error"]) == ("error", error)
    assert failed(answers, "runs.wait unknown graph") == 422
    assert failed(answers, "runs.wait unknown thread") == 404


def test_a_question_is_shown_found_and_answered(answers: Answers) -> None:
    (asked,) = answers["runs.wait interrupt"]["__interrupt__"]
    assert re.fullmatch("[0-9a-f]{32}", asked["id"])
    assert asked["value"][0]["action_request"]["action"] == "send_mail"
    thread = answers["threads.get interrupted"]
    assert thread["status"] == "interrupted"
    ((of_task,),) = thread["interrupts"].values()
    assert of_task["id"] == asked["id"]
    assert of_task["value"] == asked["value"]
    found = answers["threads.search interrupted"]
    assert thread["thread_id"] in [one["thread_id"] for one in found]
    assert all(one["interrupts"] for one in found)
    state = answers["threads.getState interrupted"]
    assert state["next"] == ["request"]
    assert state["tasks"][0]["interrupts"][0]["id"] == asked["id"]
    assert answers["runs.wait resume"]["got"] == [{"type": "accept", "args": None}]
    resumed = answers["threads.get resumed"]
    assert (resumed["status"], resumed["interrupts"]) == ("idle", {})


def test_a_run_is_cancelled_rolled_back_or_delayed(answers: Answers) -> None:
    assert failed(answers, "runs.create busy reject") == 409
    assert answers["threads.get busy"]["status"] == "busy"
    assert failed(answers, "threads.updateState busy") == 409
    assert isinstance(answers["runs.cancel"], dict)
    assert "failed" not in answers["runs.cancel"]
    assert answers["runs.get cancelled"]["status"] == "interrupted"
    cancelled = answers["threads.get cancelled"]
    assert (cancelled["status"], cancelled["interrupts"]) == ("interrupted", {})
    assert cancelled["error"]["error"] == "UserInterrupt"
    assert nothing(answers, "runs.cancel at once")
    assert "failed" not in answers["runs.join cancelled"]
    assert failed(answers, "runs.get rolled back") == 404
    assert answers["threads.get rolled back"]["status"] == "idle"
    if "runs.cancelMany" in answers:
        assert nothing(answers, "runs.cancelMany")
        assert failed(answers, "runs.cancelMany none") == 404
    assert answers["runs.get later"]["status"] == "pending"
    assert nothing(answers, "runs.delete")
    assert failed(answers, "runs.get deleted") == 404


def test_a_threads_stream_shows_the_runs_that_begin_later(answers: Answers) -> None:
    found = events(answers, "threads.joinStream")
    values = [data for event, data in found if event == "values"]
    assert values[-1] == {"n": 4, "log": ["add", "double"]}
    event, data = found[-1]
    assert (event, data["status"]) == ("metadata", "run_done")


@pytest.fixture(scope="module")
def protocol(address: str) -> Answers:
    """What `client.threads.stream` showed; npm's `latest` does not have it."""
    found: Answers = node("protocol.mjs", "langgraph-sdk-1.12", address)
    return found


def test_the_protocol_streams_words_and_ends_with_the_output(protocol: Answers) -> None:
    chat = protocol["chat"]
    uuid.UUID(chat["started"]["run_id"])
    assert chat["words"] == ["You ", "said: ", "hello ", "there "]
    assert chat["messages"] == [["human", "hello there"], ["ai", "You said: hello there "]]


def test_the_protocol_shows_a_question_and_takes_its_answer(protocol: Answers) -> None:
    question = protocol["question"]
    assert question["interrupted"] is True
    (interrupt,) = question["interrupts"]
    assert (interrupt["payload"], interrupt["namespace"]) == ({"question": "May I?"}, [])
    assert question["count"] == 3


def test_the_protocol_ends_a_failed_run(protocol: Answers) -> None:
    failure = protocol["failure"]  # `langgraph dev` does not say why: the output is the last state
    if "failed" in failure:
        assert "this node always fails" in failure["failed"]["message"]
    else:
        assert failure["output"] == {"n": 2, "log": ["add"]}


def test_the_protocol_names_the_subgraph_of_an_event(protocol: Answers) -> None:
    seen = protocol["subgraph"]
    assert ["values", ["sub"], None] in seen
    assert ["lifecycle", ["sub"], "completed"] in seen
    assert seen[-1] == ["lifecycle", [], "completed"]
