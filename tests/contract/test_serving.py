"""Who may call the server, and what they see."""

from __future__ import annotations

import html
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from fastapi.routing import APIRoute
from langgraph_sdk import Auth
from langgraph_sdk.errors import APIStatusError

import perdure
from tests.server.ui.html_judge import faults
from tests.support.agent_server import AgentServer, create_token
from tests.support.agents import opened
from tests.support.hostile_journal import fill
from tests.support.http import Visitor, account, client_of, filled, visiting
from tests.support.sweep import examples, sample
from tests.support.ui_addresses import addresses
from tests.support.wire_agents import wire_server
from tests.support.xss import PAYLOADS

READS = (
    "search", "count", "versions", "history", "stream/events", "store/namespaces", "commands",
    "state/checkpoint",
)  # fmt: skip
"""How the paths end that only read, although they are posted to."""
BODIES: dict[str, Any] = {
    "POST /assistants": {"graph_id": "g"},
    "POST /assistants/{assistant_id}/latest": {"version": 1},
    "POST /runs/batch": [{"assistant_id": "g"}],
    "PUT /store/items": {"namespace": ["a"], "key": "k", "value": {}},
    "DELETE /store/items": {"namespace": ["a"], "key": "k"},
    "POST /threads/prune": {"thread_ids": ["t"]},
    "POST /threads/{thread_id}/state/checkpoint": {"checkpoint": {}},
    "POST /perdure/effects/{key:path}/settle": {"how": "retry"},
    "PUT /perdure/schedules/{name}": {"graph": "g", "cron": "0 * * * *"},
    "POST /perdure/runs/{run_id}/scores": {"name": "good", "value": 1},
    "POST /perdure/waits/{wait_id}/answer": {"value": 1},
    "POST /runs/cancel": {"status": "all"},
}
"""What is sent where an empty object is refused before the scope is looked at."""
RUN = {"assistant_id": "g", "schedule": "0 * * * *"}


async def test_every_endpoint_that_is_not_public_requires_a_scope(sqlite_url: str) -> None:
    """Nobody gets past it without a token, and a token that reads changes nothing."""
    async with opened(sqlite_url) as rt:
        token = create_token(sqlite_url, "reader", "read")
        routes = rt.router(worker=False, ui=True).routes
        async with client_of(rt.asgi(worker=False, ui=True)) as http:
            for route in routes:
                assert isinstance(route, APIRoute)
                if (route.openapi_extra or {}).get("security") == []:
                    continue
                is_page = route.path.startswith("/ui")
                path = ("/ui" if is_page else "") + filled(route.path)
                for method in route.methods or ():
                    named = f"{method} {route.path}"
                    body = BODIES.get(
                        named, RUN if " /perdure" not in named and "runs" in named else {}
                    )
                    call = partial(http.request, method, path, json=body)
                    answer = await call()
                    if is_page:
                        assert answer.status_code == 303, named
                        assert answer.headers["location"].startswith("/ui/sign-in"), named
                        continue
                    assert answer.status_code == 401, named
                    if method not in ("GET", "HEAD") and not path.endswith(READS):
                        answer = await call(headers={"x-api-key": token})
                        assert answer.status_code == 403, (named, answer.status_code, answer.text)


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::7", "::ffff:10.0.0.7"])
async def test_a_caller_on_another_machine_needs_a_token(sqlite_url: str, address: str) -> None:
    async with opened(sqlite_url) as rt:
        async with client_of(rt.asgi(worker=False), address=address) as http:
            answer = await http.get("/perdure/runs")
            assert answer.status_code == 401
            assert "perdure tokens create" in answer.json()["detail"]
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        token = create_token(sqlite_url, "ada", "read")
        async with client_of(rt.asgi(worker=False), address=address) as http:
            assert (
                await http.get("/perdure/runs", headers={"x-api-key": token})
            ).status_code == 200


NEW: Any = {"if_not_exists": "create"}


def refused(code: int, call: Any, *arguments: Any, **named: Any) -> None:
    with pytest.raises(APIStatusError) as error:
        call(*arguments, **named)
    assert error.value.status_code == code


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
    http = server.http(headers={"x-name": "bob"})
    for path in ("/runs/{}", "/runs/{}/stream", "/runs/{}/join", f"/threads/{t}/runs/{{}}"):
        hidden, missing = (
            http.get(path.format(id)).text.replace(id, "") for id in (run["run_id"], str(uuid4()))
        )
        assert hidden == missing
    assert [one["run_id"] for one in ada.runs.list(t)] == [run["run_id"]]


PER_ROUTE = 30


OPERATOR = "<b>root</b>"


SEEDS = examples(len(PAYLOADS), 12)


def contents(rt: perdure.Runtime) -> dict[str, list[Any]]:
    """Every row of the journal, except when tokens were used."""
    with closing(sqlite3.connect(rt.url.removeprefix("sqlite:///"))) as db:
        tables = db.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        names = [name for (name,) in tables if name != "perdure_tokens"]
        return {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in names}


@pytest_asyncio.fixture
async def hostile(sqlite_url: str) -> AsyncIterator[tuple[perdure.Runtime, Visitor]]:
    """A journal full of them, and an operator who looks at it."""
    async with perdure.Runtime(sqlite_url) as rt:
        await fill(rt, range(SEEDS))
        async with visiting(rt) as visitor:
            await visitor.sign_in(await account(rt, "admin", name=OPERATOR))
            yield rt, visitor


@pytest.mark.slow
@pytest.mark.timeout(0)
async def test_no_text_becomes_markup_on_any_page(
    hostile: tuple[perdure.Runtime, Visitor],
) -> None:
    rt, visitor = hostile
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    before = contents(rt)
    for route, paths in (await addresses(rt)).items():
        assert paths, f"nothing to visit for {route}"
        for path in sample(paths, PER_ROUTE):
            page = await visitor.http.get(path)
            assert page.status_code == 200, f"{path}: {page.status_code} {page.text[:2000]}"
            if wrong := faults(page.text):
                found[path] = wrong
            shown = html.unescape(page.text)
            seen.update(one for one in PAYLOADS if one in shown)
    assert found == {}
    assert contents(rt) == before, "a page that was only looked at changed the journal"
    assert len(seen) > 0.6 * len(PAYLOADS), "the pages do not show what was planted"
