"""Another user's assistant does not exist: it is not run, shown, or put on a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import Auth

from tests.support.agent_server import AgentServer, served
from tests.support.wire_agents import wire_runtime

SECRET = "the tenant's own key"


def owners() -> Auth:
    """Everyone has threads, assistants and crons of their own, as in LangGraph's tutorial."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> str:
        return headers[b"x-api-key"].decode()

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    return auth


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentServer]:
    url = f"sqlite:///{tmp_path_factory.mktemp('assistants') / 'agents.db'}"
    with closing(wire_runtime(url)) as runtime, served(runtime, auth=owners()) as running:
        yield running


@pytest.fixture(scope="module")
def ada(server: AgentServer) -> httpx.Client:
    return server.http(headers={"x-api-key": "ada"})


@pytest.fixture(scope="module")
def ben(server: AgentServer) -> httpx.Client:
    return server.http(headers={"x-api-key": "ben"})


@pytest.fixture(scope="module")
def private(ada: httpx.Client) -> str:
    """Ada's assistant. It has just run, so the server remembers it."""
    config = {"configurable": {"secret": SECRET}, "tags": [SECRET]}
    body = {"graph_id": "one", "config": config, "metadata": {"note": SECRET}}
    id: str = ada.post("/assistants", json=body).json()["assistant_id"]
    made = ada.post("/runs/wait", json={"assistant_id": id, "input": {"n": 1}})
    assert made.json()["n"] == 2
    return id


def answers(client: httpx.Client, assistant_id: str, thread: str, cron: str) -> dict[str, Any]:
    """What every request that uses an assistant gets."""
    run = {"assistant_id": assistant_id, "input": {"n": 1}, "if_not_exists": "create"}
    line = {"assistant_id": assistant_id, "schedule": "0 0 1 1 *"}
    begin = {"id": 1, "method": "run.start", "params": {**run, "if_not_exists": None}}
    on, whole = f"/threads/{thread}", f"/assistants/{assistant_id}"
    asked: list[tuple[str, str, Any]] = [
        ("GET", whole, None),
        ("GET", f"{whole}/graph", None),
        ("GET", f"{whole}/schemas", None),
        ("GET", f"{whole}/subgraphs", None),
        ("GET", f"{whole}/subgraphs/x", None),
        ("PATCH", whole, {"name": "taken"}),
        ("DELETE", whole, None),
        *[
            ("POST", f"{place}{how}", body)
            for place in ("/runs", f"{on}/runs")
            for how in ("", "/wait", "/stream")
            for body in (run, {**run, "command": {"goto": "add"}})
        ],
        ("POST", f"{on}/runs", {**run, "input": None}),
        ("POST", f"{on}/runs", {"assistant_id": assistant_id, "command": {"resume": 1}}),
        ("POST", "/runs/batch", [run]),
        ("POST", "/runs/batch", [{**run, "thread_id": thread}]),
        ("POST", f"{on}/commands", begin),
        ("POST", "/runs/crons", line),
        ("POST", f"{on}/runs/crons", line),
        ("PATCH", f"/runs/crons/{cron}", {"assistant_id": assistant_id}),
    ]
    found = {}
    for method, path, body in asked:
        answer = client.request(method, path, json=body)
        said = answer.text.replace(assistant_id, "ID")
        found[f"{method} {path} {body}".replace(assistant_id, "ID")] = answer.status_code, said
    return found


def test_what_another_user_owns_is_answered_as_what_does_not_exist(
    ada: httpx.Client, ben: httpx.Client, private: str
) -> None:
    thread = ben.post("/threads", json={}).json()["thread_id"]
    own = {"assistant_id": "one", "schedule": "0 0 1 1 *"}
    cron = ben.post("/runs/crons", json=own).json()["cron_id"]
    hidden = answers(ben, private, thread, cron)
    assert hidden == answers(ben, str(uuid4()), thread, cron)
    for request, (status, said) in hidden.items():
        assert SECRET not in said, request
        assert status == 404 or '"no_such_run"' in said, request
    assert ben.get(f"/threads/{thread}/runs").json() == []
    [kept] = ben.post("/runs/crons/search", json={}).json()
    assert kept["assistant_id"] == ben.post("/runs/crons", json=own).json()["assistant_id"]
    assert ada.get(f"/assistants/{private}").json()["name"] == "Untitled"


def test_the_owner_runs_it_and_every_user_runs_the_default_assistants(
    ada: httpx.Client, ben: httpx.Client, private: str
) -> None:
    body = {"assistant_id": private, "input": {"n": 1}}
    assert ada.post("/runs", json=body).json()["kwargs"]["config"]["tags"] == [SECRET]
    line = {"assistant_id": private, "schedule": "0 0 1 1 *"}
    assert ada.post("/runs/crons", json=line).json()["assistant_id"] == private
    for client in (ada, ben):
        own = client.post("/runs/wait", json={"assistant_id": "one", "input": {"n": 1}})
        assert own.json()["n"] == 2


def test_runs_and_threads_of_others_are_neither_cancelled_nor_copied_nor_scheduled(
    ada: httpx.Client, ben: httpx.Client
) -> None:
    body = {"assistant_id": "gate", "input": {"said": []}, "if_not_exists": "create"}
    thread = str(uuid4())
    assert "__interrupt__" in ada.post(f"/threads/{thread}/runs/wait", json=body).json()
    [run] = ada.get(f"/threads/{thread}/runs").json()
    id = run["run_id"]
    for path, asked in (
        ("/runs/cancel", {"run_ids": [id]}),
        ("/runs/cancel", {"thread_id": thread, "run_ids": [id]}),
        ("/runs/cancel", {"thread_id": thread, "status": "all"}),
        (f"/runs/{id}/cancel", None),
        (f"/threads/{thread}/runs/{id}/cancel", None),
        (f"/threads/{thread}/copy", None),
        (f"/threads/{thread}/runs/crons", {"assistant_id": "gate", "schedule": "0 0 1 1 *"}),
        (f"/threads/{thread}/runs", body),
        ("/runs/batch", [{**body, "thread_id": thread}]),
    ):
        assert ben.post(path, json=asked).status_code == 404, path
    assert ben.post("/threads/prune", json={"thread_ids": [thread]}).json()["pruned_count"] == 0
    [after] = ada.get(f"/threads/{thread}/runs").json()
    assert after == run
