"""What a token may change, by the scope that it has: each scope alone, through every route.

An approver's token only answers. It cannot start a run, change one beside its answer, or answer a
question of the past.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph.types import Command

from tests.support.agent_server import AgentServer, create_token, served
from tests.support.wire_agents import wire_runtime

ID = str(uuid4())
"""The id of something that does not exist."""
SCOPES = ("read", "start", "answer", "admin")
PAYLOAD: dict[str, Any] = {"assistant_id": "gate"}
CRON = {**PAYLOAD, "schedule": "0 0 1 1 *"}
ANSWER: dict[str, Any] = {**PAYLOAD, "command": {"resume": "yes"}}
SCHEDULE = {"graph": "gate", "cron": "0 0 1 1 *"}
RESPOND = {"method": "input.respond", "params": {"interrupt_id": "0" * 32, "response": "yes"}}
BEGIN = {"method": "run.start", "params": {"assistant_id": "gate", "input": {}}}
ITEM = {"namespace": ["a"], "key": "k", "value": {"v": 1}}

CHANGES: list[tuple[str, str, Any, str]] = [
    ("POST", "/assistants", {"graph_id": "gate"}, "start"),
    ("PATCH", "/assistants/{assistant_id}", {}, "start"),
    ("DELETE", "/assistants/{assistant_id}", None, "start"),
    ("POST", "/assistants/{assistant_id}/latest", {"version": 1}, "start"),
    ("POST", "/threads", {}, "start"),
    ("POST", "/threads/prune", {"thread_ids": [ID]}, "start"),
    ("PATCH", "/threads/{thread_id}", {}, "start"),
    ("DELETE", "/threads/{thread_id}", None, "start"),
    ("POST", "/threads/{thread_id}/copy", None, "start"),
    ("POST", "/threads/{thread_id}/state", {"values": {"said": [1]}}, "start"),
    ("POST", "/threads/{thread_id}/commands", BEGIN, "start"),
    ("POST", "/threads/{thread_id}/commands", RESPOND, "answer"),
    *[
        ("POST", f"{place}{how}", body, scope)
        for place in ("/runs", "/threads/{thread_id}/runs")
        for how in ("", "/stream", "/wait")
        for body, scope in ((PAYLOAD, "start"), (ANSWER, "answer"))
    ],
    ("POST", "/runs/batch", [PAYLOAD], "start"),
    ("POST", "/runs/batch", [{**ANSWER, "thread_id": ID}], "answer"),
    ("POST", "/runs/cancel", {"thread_id": ID, "run_ids": [ID]}, "start"),
    ("POST", "/runs/{run_id}/cancel", None, "start"),
    ("POST", "/threads/{thread_id}/runs/{run_id}/cancel", None, "start"),
    ("DELETE", "/threads/{thread_id}/runs/{run_id}", None, "start"),
    ("GET", "/runs/{run_id}/join?cancel_on_disconnect=true", None, "start"),
    ("GET", "/runs/{run_id}/stream?cancel_on_disconnect=true", None, "start"),
    ("GET", "/threads/{thread_id}/runs/{run_id}/join?cancel_on_disconnect=true", None, "start"),
    ("GET", "/threads/{thread_id}/runs/{run_id}/stream?cancel_on_disconnect=true", None, "start"),
    ("POST", "/runs/crons", CRON, "start"),
    ("POST", "/threads/{thread_id}/runs/crons", CRON, "start"),
    ("PATCH", "/runs/crons/{cron_id}", {}, "start"),
    ("DELETE", "/runs/crons/{cron_id}", None, "start"),
    ("PUT", "/store/items", ITEM, "start"),
    ("DELETE", "/store/items", {"namespace": ["a"], "key": "k"}, "start"),
    ("POST", "/perdure/threads/{thread_id}/signals/{name}", {}, "start"),
    ("POST", "/perdure/threads/{thread_id}/signals/{name}/raw", {}, "start"),
    ("POST", "/perdure/waits/{wait_id}/answer", {"value": 1}, "answer"),
    ("POST", "/perdure/waits/{wait_id}/withdraw", {}, "answer"),
    ("POST", "/perdure/runs/{run_id}/scores", {"name": "good", "value": True}, "answer"),
    *[
        ("POST", f"/perdure/runs/{{run_id}}/{how}", {}, "admin")
        for how in ("pause", "resume", "cancel", "retry", "wake", "fork")
    ],
    ("POST", "/perdure/effects/{key}/settle", {"how": "retry"}, "admin"),
    ("POST", "/perdure/messages/{message_id}/redeliver", {}, "admin"),
    ("PUT", "/perdure/schedules/{name}", SCHEDULE, "admin"),
    ("DELETE", "/perdure/schedules/{name}", None, "admin"),
]
"""Every request that changes something, on what does not exist, and the scope that allows it."""
READS = {
    *("/assistants/search", "/assistants/count", "/assistants/{assistant_id}/versions"),
    *("/threads/search", "/threads/count", "/threads/{thread_id}/history"),
    *("/threads/{thread_id}/state/checkpoint", "/threads/{thread_id}/stream/events"),
    *("/runs/crons/search", "/runs/crons/count", "/store/items/search", "/store/namespaces"),
}
"""Routes that are posted to, and change nothing."""
OWN_SECRET = {"/cron/tick", "/perdure/hooks/{thread_id}/{name}"}


@pytest.fixture(scope="module")
def keys() -> dict[str, str]:
    return {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, keys: dict[str, str]) -> Iterator[AgentServer]:
    url = f"sqlite:///{tmp_path_factory.mktemp('scopes') / 'agents.db'}"
    for scope in SCOPES:
        keys[scope] = create_token(url, scope, scope)
    keys["both"] = create_token(url, "both", "start", "answer")
    with closing(wire_runtime(url, store=True)) as runtime, served(runtime) as running:
        yield running


def http(server: AgentServer, key: str) -> httpx.Client:
    return server.http(headers={"x-api-key": key})


# -- each scope alone


def test_a_scope_opens_only_the_routes_that_are_listed_for_it(
    server: AgentServer, keys: dict[str, str]
) -> None:
    clients = {scope: http(server, keys[scope]) for scope in SCOPES}
    wrong = []
    for method, route, body, needed in CHANGES:
        for scope, client in clients.items():
            path = re.sub(r"\{\w+\}", lambda _: str(uuid4()), route)
            may = scope in (needed, "admin")
            status = client.request(method, path, json=body).status_code
            if may is (status == 403) or status >= 500:
                wrong.append(f"{scope}: {method} {route} {json.dumps(body)[:60]}: {status}")
    assert not wrong, "\n".join(wrong)


def test_every_route_that_changes_something_is_in_the_table(server: AgentServer) -> None:
    paths = server.http().get("/openapi.json").json()["paths"]
    served = {
        (method.upper(), path)
        for path, methods in paths.items()
        for method in methods
        if method != "get" and path not in READS | OWN_SECRET
    }
    assert served == {(method, path) for method, path, _, _ in CHANGES if method != "GET"}


# -- an approver's token


@pytest.fixture
def asking(server: AgentServer, keys: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """A thread with a run that asks, and that run."""
    return ask(server, keys)


def ask(server: AgentServer, keys: dict[str, str]) -> tuple[str, dict[str, Any]]:
    thread = str(uuid4())
    starter = http(server, keys["start"])
    body = {**PAYLOAD, "input": {"said": []}, "if_not_exists": "create"}
    assert "__interrupt__" in starter.post(f"/threads/{thread}/runs/wait", json=body).json()
    return thread, starter.get(f"/threads/{thread}/runs").json()[0]


MORE: list[tuple[str, dict[str, Any]]] = [
    ("command.goto", {"command": {"resume": "no", "goto": "end"}}),
    ("command.goto", {"command": {"resume": "no", "goto": [{"node": "end", "input": {}}]}}),
    ("command.update", {"command": {"resume": "no", "update": {"said": ["paid"]}}}),
    ("command.update", {"command": {"resume": "no", "update": [["said", ["paid"]]]}}),
    ("interrupt_before", {"interrupt_before": ["end"]}),
    ("interrupt_after", {"interrupt_after": "*"}),
    ("webhook", {"webhook": "https://example.com/taken"}),
    ("config.configurable", {"config": {"configurable": {"limit": 10**6}}}),
    ("config.tags", {"config": {"tags": ["taken"]}}),
    ("config.recursion_limit", {"config": {"recursion_limit": 1}}),
    ("context", {"context": {"tone": "rude"}}),
    ("input", {"input": {"said": ["more"]}}),
    ("metadata", {"metadata": {"owner": "me"}}),
    ("durability", {"durability": "exit"}),
    ("multitask_strategy", {"multitask_strategy": "rollback"}),
    ("after_seconds", {"after_seconds": 1000}),
    ("on_completion", {"on_completion": "keep"}),
    ("on_disconnect", {"on_disconnect": "cancel"}),
]
"""Fields beside an answer, and what is sent in them."""


@pytest.mark.parametrize("how", ["", "/stream", "/wait"])
def test_an_answer_with_anything_beside_it_needs_start_and_says_which_field(
    server: AgentServer, keys: dict[str, str], asking: tuple[str, dict[str, Any]], how: str
) -> None:
    (thread, run), approver = asking, http(server, keys["answer"])
    for field, more in MORE:
        answer = approver.post(f"/threads/{thread}/runs{how}", json={**ANSWER, **more})
        assert answer.status_code == 403, (field, answer.text)
        said = answer.json()["detail"]
        assert said.startswith(f"{field}: ")
        assert "'start'" in said
    assert approver.get(f"/threads/{thread}/runs").json() == [run]
    assert approver.post(f"/threads/{thread}/runs/wait", json=ANSWER).json()["said"] == [
        "yes",
        "end",
    ]


def test_an_answer_of_a_batch_or_of_the_protocol_has_nothing_beside_it_either(
    server: AgentServer, keys: dict[str, str], asking: tuple[str, dict[str, Any]]
) -> None:
    (thread, run), approver = asking, http(server, keys["answer"])
    for field, more in MORE:
        batch = [{**ANSWER, **more, "thread_id": thread}]
        refused = approver.post("/runs/batch", json=batch)
        assert refused.status_code == 403
        assert refused.json()["detail"].startswith(field)
    [wait] = approver.get("/perdure/waits", params={"thread_id": thread}).json()["items"]
    [asked] = approver.get(f"/threads/{thread}/state").json()["interrupts"]
    params = {"interrupt_id": asked["id"], "response": "yes"}

    def respond(**more: Any) -> httpx.Response:
        command = {"id": 1, "method": "input.respond", "params": {**params, **more}}
        return approver.post(f"/threads/{thread}/commands", json=command)

    for field, found in (
        ("command.update", {"update": {"said": ["paid"]}}),
        ("command.goto", {"goto": "end"}),
        ("config.configurable", {"config": {"configurable": {"limit": 1}}}),
        ("metadata", {"metadata": {"owner": "me"}}),
    ):
        refused = respond(**found)
        assert refused.status_code == 403
        assert refused.json()["detail"].startswith(field)
    for body in ({"value": 1, "update": {}}, {"value": 1, "goto": "end"}):
        path = f"/perdure/waits/{wait['id']}/answer"
        assert approver.post(path, json=body).status_code == 422
    assert approver.get(f"/threads/{thread}/runs").json() == [run]
    assert respond().json()["type"] == "success"


def test_an_answer_at_an_old_checkpoint_starts_no_second_run(
    server: AgentServer, keys: dict[str, str], asking: tuple[str, dict[str, Any]]
) -> None:
    (thread, run), approver = asking, http(server, keys["answer"])
    at = approver.get(f"/threads/{thread}/state").json()["checkpoint"]
    answered = {**ANSWER, "checkpoint": at}  # as clients send it that have read the state
    assert approver.post(f"/threads/{thread}/runs/wait", json=answered).json()["said"][0] == "yes"
    again = {**PAYLOAD, "command": {"resume": "again"}}
    for place in (
        {"checkpoint": at},
        {"checkpoint_id": at["checkpoint_id"]},
        {"config": {"configurable": {"checkpoint_id": at["checkpoint_id"]}}},
    ):
        body = {**again, **place}
        for how in ("", "/stream", "/wait"):
            refused = approver.post(f"/threads/{thread}/runs{how}", json=body)
            assert refused.status_code == 403, refused.text
            assert refused.json()["detail"].startswith("checkpoint: ")
    [only] = approver.get(f"/threads/{thread}/runs").json()
    assert only["run_id"] == run["run_id"]
    assert approver.get(f"/threads/{thread}/state").json()["values"]["said"] == ["yes", "end"]
    both = http(server, keys["both"])
    wait = f"/threads/{thread}/runs/wait"
    assert both.post(wait, json={**again, "checkpoint": at}).status_code == 409  # was answered
    assert both.post(wait, json={**PAYLOAD, "input": None, "checkpoint": at}).status_code == 200
    assert len(both.get(f"/threads/{thread}/runs").json()) == 2


def test_an_answer_leaves_the_output_that_the_run_keeps_for_others(
    server: AgentServer, keys: dict[str, str], asking: tuple[str, dict[str, Any]]
) -> None:
    (thread, run), approver = asking, http(server, keys["answer"])
    body = {**ANSWER, "stream_mode": ["custom"], "stream_subgraphs": True}
    assert approver.post(f"/threads/{thread}/runs/wait", json=body).status_code == 200
    [after] = approver.get(f"/threads/{thread}/runs").json()
    kept = {"stream_mode": ["values", "custom"], "subgraphs": True}
    assert after["kwargs"] == {**run["kwargs"], **kept}
    events = approver.get(
        f"/threads/{thread}/runs/{run['run_id']}/stream",
        params={"stream_mode": "values"},
        headers={"Last-Event-ID": "-1"},
    ).text
    assert '"said":["yes","end"]' in events


def test_what_clients_always_send_beside_an_answer_is_accepted(
    server: AgentServer, keys: dict[str, str]
) -> None:
    key = keys["answer"]
    approver = server.sync_client(api_key=key)
    by_hand = http(server, key)
    answers: list[Callable[[str], Any]] = [
        lambda t: approver.runs.wait(t, "gate", command={"resume": "yes"}),
        lambda t: list(approver.runs.stream(t, "gate", command={"resume": "yes"}))[-2].data,
        lambda t: RemoteGraph("gate", sync_client=approver).invoke(
            Command(resume="yes"), {"configurable": {"thread_id": t}}
        ),
        lambda t: by_hand.post(  # the hooks for React
            f"/threads/{t}/runs/wait",
            json={
                "input": None,
                "config": {"configurable": {"thread_id": t}},
                "command": {"resume": "yes", "update": None, "goto": []},
                "stream_mode": ["values", "messages-tuple", "custom"],
                "stream_subgraphs": True,
                "stream_resumable": True,
                "on_disconnect": "continue",
                "multitask_strategy": None,
                "metadata": {},
                "checkpoint": by_hand.get(f"/threads/{t}/state").json()["checkpoint"],
                "assistant_id": "gate",
            },
        ).json(),
    ]
    for answer in answers:
        thread, _ = ask(server, keys)
        assert answer(thread)["said"] == ["yes", "end"]


def test_agent_inbox_accepts_and_ignores_with_an_approvers_token(
    server: AgentServer, keys: dict[str, str]
) -> None:
    approver = http(server, keys["answer"])
    accept = {"type": "accept", "args": {"action": "send_mail", "args": {"to": "ada"}}}
    for how, mode, response, decided in (
        ("/stream", "events", accept, "approve"),
        ("", None, {"type": "ignore", "args": None}, "reject"),
    ):
        thread = str(uuid4())
        body = {"assistant_id": "review", "input": {"said": []}, "if_not_exists": "create"}
        http(server, keys["start"]).post(f"/threads/{thread}/runs/wait", json=body)
        sent = {"command": {"resume": [response]}, "assistant_id": "review", "stream_mode": mode}
        answer = approver.post(f"/threads/{thread}/runs{how}", json=sent)
        assert answer.status_code == 200, answer.text
        run = approver.get(f"/threads/{thread}/runs").json()[0]["run_id"]
        values = approver.get(f"/threads/{thread}/runs/{run}/join").json()
        assert values["said"] == [{"decisions": [{"type": decided}]}, "end"]


def test_headers_of_the_approver_do_not_become_those_of_the_run(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'agents.db'}"
    starter, approver = create_token(url, "app", "start"), create_token(url, "ana", "answer")
    with (
        closing(wire_runtime(url)) as runtime,
        served(runtime, configurable_headers=("x-my-*",)) as server,
    ):
        thread = str(uuid4())
        body = {"assistant_id": "asked settings", "input": {}, "if_not_exists": "create"}
        client = server.http(headers={"x-api-key": starter, "x-my-tenant": "of the app"})
        client.post(f"/threads/{thread}/runs/wait", json=body)
        client = server.http(headers={"x-api-key": approver, "x-my-tenant": "taken"})
        answer = {**body, "input": None, "command": {"resume": "yes"}}
        said = client.post(f"/threads/{thread}/runs/wait", json=answer).json()["said"]
        assert said[1]["configurable"]["x-my-tenant"] == "of the app"
