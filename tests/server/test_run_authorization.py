"""Who may start, answer, read and end runs: token scopes, and `Auth` handlers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from datetime import timedelta
from typing import Any
from uuid import uuid4

import httpx
import pytest
from langgraph_sdk import Auth
from langgraph_sdk.errors import APIStatusError

from perdure.commands import tokens
from perdure.server import authentication
from perdure.testing import Clock
from tests.support.agent_server import AgentServer, served
from tests.support.wire_agents import wire_runtime, wire_server

NEW: Any = {"if_not_exists": "create"}


def refused(code: int, call: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(APIStatusError) as error:
        call(*arguments, **named)
    assert error.value.status_code == code


# -- tokens


@pytest.mark.parametrize("how", ["revoked", "expired"])
def test_a_stream_ends_with_its_token(
    sqlite_url: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authentication, "READ_EVERY", 0.1)
    clock = Clock()
    with closing(wire_runtime(sqlite_url, clock=clock)) as runtime, served(runtime) as server:
        token = runtime.journal.run(
            tokens.create(runtime.engine, "short", ["start"], expires=timedelta(hours=1))
        )
        http, t = server.http(headers={"x-api-key": token}), str(uuid4())
        body = {"assistant_id": "slow", "input": {"n": 1}, "if_not_exists": "create"}
        run = http.post(f"/threads/{t}/runs", json=body).json()["run_id"]
        paths = (
            f"/threads/{t}/stream",
            f"/threads/{t}/runs/{run}/stream",
            "/perdure/events/stream",
        )
        waits = (f"/threads/{t}/runs/{run}/join", f"/perdure/runs/{run}/join")
        with ThreadPoolExecutor(2) as beside, ExitStack() as opened:
            waiting = [beside.submit(http.get, path) for path in waits]
            streams = [opened.enter_context(http.stream("GET", path)) for path in paths]
            assert [one.status_code for one in streams] == [200, 200, 200]
            if how == "revoked":
                runtime.journal.run(tokens.revoke(runtime.engine, "short"))
            else:
                clock.advance(timedelta(hours=2))
            for one in streams:
                with pytest.raises(httpx.RemoteProtocolError):
                    one.read()
            with pytest.raises(httpx.RemoteProtocolError):
                waiting[0].result(30)
            assert waiting[1].result(30).json()["state"] == "running"
        assert http.get(f"/threads/{t}").status_code == 401


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


def own_threads() -> Auth:
    """Handlers for threads only: nothing is said of crons and assistants."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        return {"identity": headers[b"x-name"].decode(), "permissions": []}

    @auth.on.threads
    async def owned(ctx: Auth.types.AuthContext, value: Any) -> Any:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    return auth


def test_the_crons_of_a_thread_are_for_those_who_may_have_the_thread(sqlite_url: str) -> None:
    with wire_server(sqlite_url, auth=own_threads()) as server:
        ada: Any = server.sync_client(headers={"x-name": "ada"})
        bob: Any = server.sync_client(headers={"x-name": "bob"})
        t = ada.threads.create()["thread_id"]
        refused(404, bob.crons.create_for_thread, t, "one", schedule="0 0 1 1 *")
        cron = ada.crons.create_for_thread(t, "one", schedule="0 0 1 1 *", input={"n": 1})
        assert bob.crons.search() == []
        assert bob.crons.search(thread_id=t) == []
        assert bob.crons.count() == 0
        refused(404, bob.crons.update, cron["cron_id"], enabled=False)
        refused(404, bob.crons.delete, cron["cron_id"])
        assert [one["cron_id"] for one in ada.crons.search()] == [cron["cron_id"]]
        assert ada.crons.update(cron["cron_id"], enabled=False)["enabled"] is False
        ada.crons.delete(cron["cron_id"])


def test_threads_of_others_are_kept_when_their_assistant_is_deleted(sqlite_url: str) -> None:
    with wire_server(sqlite_url, auth=own_threads()) as server:
        ada: Any = server.sync_client(headers={"x-name": "ada"})
        bob: Any = server.sync_client(headers={"x-name": "bob"})
        made = ada.assistants.create("numbers")["assistant_id"]
        threads = {}
        for client in (ada, bob, ada):
            t = str(uuid4())
            client.runs.wait(t, made, input={"n": 1}, **NEW)
            threads[t] = client
        ada.http.delete(f"/assistants/{made}?delete_threads=true")
        assert [one["thread_id"] for one in bob.threads.search()] == [
            t for t, client in threads.items() if client is bob
        ]
        assert ada.threads.search() == []


def test_a_thread_of_any_name_that_is_hidden_looks_like_none(sqlite_url: str) -> None:
    with closing(wire_runtime(sqlite_url)) as runtime:
        runtime.blocking.start("numbers", {"n": 1}, thread_id="hidden")
        with served(runtime, auth=own_threads()) as server:
            http, body = server.http(headers={"x-name": "ada"}), {"assistant_id": "numbers"}
            for method, path in (
                ("GET", "/threads/{}"),
                ("GET", "/threads/{}/runs"),
                ("POST", "/threads/{}/runs"),
                ("POST", "/threads/{}/runs/crons"),
            ):
                cron = {"schedule": "0 0 1 1 *"} if path.endswith("crons") else {}
                hidden, missing = (
                    http.request(method, path.format(id), json={**body, **cron})
                    for id in ("hidden", "absent")
                )
                assert hidden.status_code == missing.status_code
                assert hidden.text.replace("hidden", "") == missing.text.replace("absent", "")


def test_a_run_knows_its_user_and_a_caller_cannot_forge_it(server: AgentServer) -> None:
    ada: Any = server.sync_client(headers={"x-name": "ada"})
    forged = {"langgraph_auth_user_id": "eve", "user_id": "eve"}
    for given in ({"config": {"configurable": forged}}, {"context": forged}):
        values = ada.runs.wait(None, "settings", input={"said": []}, **given)
        got = values["said"][0]["configurable"]
        assert (got["langgraph_auth_user_id"], got["user_id"]) == ("ada", "ada")


@pytest.mark.parametrize("where", ["config", "context"])
def test_a_caller_without_a_user_cannot_name_one(sqlite_url: str, where: str) -> None:
    forged = {"langgraph_auth_user_id": "eve", "__odd": 1, "tone": "dry"}
    given: Any = {"context": forged} if where == "context" else {"config": {"configurable": forged}}
    with wire_server(sqlite_url) as server:
        client: Any = server.sync_client()
        values = client.runs.wait(None, "settings", input={"said": []}, **given)
    got = values["said"][0]["configurable"]
    assert got["tone"] == "dry"
    assert not {"langgraph_auth_user_id", "__odd"} & {*got}


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


def test_pages_of_others_rows_name_none_of_them(sqlite_url: str) -> None:
    """A position in a list has the id of a row: of one that the caller may see."""
    with wire_server(sqlite_url, auth=own_threads()) as server:
        ada, bob = (server.http(headers={"x-name": name}) for name in ("ada", "bob"))
        made: dict[str, list[str]] = {"ada": [], "bob": []}
        for name in ("bob", "ada", "bob", "bob", "ada", "bob"):
            body = {"assistant_id": "gate", "input": {"said": []}, "if_not_exists": "create"}
            http = ada if name == "ada" else bob
            answer = http.post(f"/threads/{uuid4()}/runs/wait", json=body)
            made[name].append(answer.headers["content-location"].rpartition("/")[2])
        for path, order in (("/perdure/runs", -1), ("/perdure/waits", 1)):
            found, after, pages = [], None, 0
            while pages == 0 or after is not None:
                page = ada.get(path, params={"limit": 1} | ({"after": after} if after else {}))
                found += [one.get("run_id") or one["id"] for one in page.json()["items"]]
                after, pages = page.json()["next"], pages + 1
                assert after is None or len(page.json()["items"]) == 1
            assert found == made["ada"][::order]
            assert pages <= 3
