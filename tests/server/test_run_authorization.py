"""Who may start, answer, read and end runs: token scopes, and `Auth` handlers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
from langgraph_sdk import Auth
from langgraph_sdk.errors import APIStatusError

from tests.support.agent_server import AgentServer, served
from tests.support.wire_agents import wire_runtime, wire_server

NEW: Any = {"if_not_exists": "create"}


def refused(code: int, call: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(APIStatusError) as error:
        call(*arguments, **named)
    assert error.value.status_code == code


# -- tokens


def test_a_scope_allows_only_what_it_is_for(url: str) -> None:
    with closing(wire_runtime(url)) as runtime, served(runtime) as server:
        create = runtime.services.tokens.create
        keys = {one: runtime.journal.run(create(one, [one])) for one in ("read", "start", "answer")}
        reader, starter, answerer = (server.sync_client(api_key=key) for key in keys.values())
        t = str(uuid4())
        refused(403, reader.runs.create, t, "gate", input={"said": []}, **NEW)
        refused(403, answerer.runs.create, t, "gate", input={"said": []}, **NEW)
        run = starter.runs.create(t, "gate", input={"said": []}, **NEW)
        assert "__interrupt__" in reader.runs.join(t, run["run_id"])
        refused(403, starter.runs.create, t, "gate", command={"resume": 1})
        refused(403, reader.runs.create, t, "gate", command={"resume": 1})
        answerer.runs.create(t, "gate", command={"resume": 1})
        assert reader.runs.join(t, run["run_id"]) == {"said": [1, "end"]}
        for call in (reader.runs.cancel, reader.runs.delete, answerer.runs.delete):
            refused(403, call, t, run["run_id"])
        refused(403, reader.crons.create, "one", schedule="0 0 1 1 *")
        assert reader.crons.search() == []


# -- handlers


class Seen(list[Any]):
    """What the handlers were asked."""


@pytest.fixture
def seen() -> Seen:
    return Seen()


@pytest.fixture
def server(url: str, seen: Seen) -> Iterator[AgentServer]:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": headers[b"x-name"].decode(), "permissions": []}

    @auth.on
    async def owned(ctx: Auth.types.AuthContext, value: Any) -> Any:
        seen.append((ctx.resource, ctx.action, dict(value)))
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    with wire_server(url, auth=auth) as running:
        yield running


def test_the_runs_of_others_appear_not_to_exist(server: AgentServer, seen: Seen) -> None:
    ada: Any = server.sync_client(headers={"x-name": "ada"})
    bob: Any = server.sync_client(headers={"x-name": "bob"})
    t = str(uuid4())
    run = ada.runs.create(t, "numbers", input={"n": 1}, metadata={"a": 1}, **NEW)
    assert ada.runs.join(t, run["run_id"])["n"] == 4
    assert run["metadata"]["owner"] == "ada"
    assert ada.threads.get(t)["metadata"]["owner"] == "ada"
    resource, action, value = seen[0]
    assert (resource, action) == ("threads", "create_run")
    assert (value["thread_id"], value["run_id"]) == (UUID(t), UUID(run["run_id"]))
    assert value["metadata"]["a"] == 1
    assert value["kwargs"]["input"] == {"n": 1}
    refused(404, bob.runs.create, t, "numbers", input={"n": 1})
    refused(404, bob.runs.create, t, "numbers", input={"n": 1}, **NEW)
    for call in (bob.runs.get, bob.runs.cancel, bob.runs.delete):
        refused(404, call, t, run["run_id"])
    refused(404, bob.runs.list, t)
    refused(404, bob.runs.cancel_many, thread_id=t, run_ids=[run["run_id"]])
    assert "__error__" in bob.runs.join(t, run["run_id"])
    assert [one["run_id"] for one in ada.runs.list(t)] == [run["run_id"]]


def test_the_crons_of_others_appear_not_to_exist(server: AgentServer) -> None:
    ada: Any = server.sync_client(headers={"x-name": "ada"})
    bob: Any = server.sync_client(headers={"x-name": "bob"})
    cron = ada.crons.create("one", schedule="0 0 1 1 *")
    assert (cron["user_id"], cron["metadata"]) == ("ada", {"owner": "ada"})
    assert [one["cron_id"] for one in ada.crons.search()] == [cron["cron_id"]]
    assert bob.crons.search() == []
    assert bob.crons.count() == 0
    refused(404, bob.crons.delete, cron["cron_id"])
    refused(404, bob.crons.update, cron["cron_id"], enabled=False)


def test_a_run_knows_its_user_and_a_caller_cannot_forge_it(server: AgentServer) -> None:
    ada: Any = server.sync_client(headers={"x-name": "ada"})
    forged = {"langgraph_auth_user_id": "eve", "user_id": "eve"}
    values = ada.runs.wait(None, "settings", input={"said": []}, config={"configurable": forged})
    got = values["said"][0]["configurable"]
    assert (got["langgraph_auth_user_id"], got["user_id"]) == ("ada", "ada")


def test_a_run_that_goes_on_knows_who_answered(server: AgentServer) -> None:
    ada: Any = server.sync_client(headers={"x-name": "ada"})
    t = str(uuid4())
    ada.runs.wait(t, "asked settings", input={"said": []}, **NEW)
    values = ada.runs.wait(
        t, "asked settings", command={"resume": 1}, config={"configurable": {"color": "red"}}
    )
    got = values["said"][-1]["configurable"]
    assert (got["langgraph_auth_user_id"], got["color"]) == ("ada", "red")
    assert got["graph_id"] == "asked settings"
