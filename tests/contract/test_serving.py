"""Who may call the server, and what they see."""

from __future__ import annotations

import ast
import html
import inspect
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from typing import Any
from uuid import UUID, uuid4

import pytest
import pytest_asyncio
from fastapi import APIRouter
from fastapi.routing import APIRoute
from langgraph_sdk import Auth
from langgraph_sdk.errors import APIStatusError

import perdure
from tests.support.agent_server import AgentServer
from tests.support.agents import opened
from tests.support.hostile_journal import fill
from tests.support.html_judge import faults
from tests.support.http import app_with, client_of
from tests.support.sweep import examples, sample
from tests.support.ui_addresses import addresses
from tests.support.visitor import Visitor, account, visiting
from tests.support.wire_agents import wire_server
from tests.support.xss import PAYLOADS

DEPTH = 4
"""How many calls deep an endpoint may ask."""


def endpoints() -> Iterator[tuple[str, Callable[..., Any]]]:
    for route in perdure.Runtime("sqlite:///:memory:").router(worker=False).routes:
        assert isinstance(route, APIRoute)
        if (route.openapi_extra or {}).get("security") != []:
            yield f"{sorted(route.methods or ())} {route.path}", inspect.unwrap(route.endpoint)


def asks(function: Any, depth: int = DEPTH) -> bool:
    """Whether a function calls `.require(...)`, or a function of perdure that does; of a table of
    functions that it uses, each does."""
    try:
        tree = ast.parse(inspect.cleandoc("\n" + inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError, IndentationError):
        return False
    names = vars(sys.modules[function.__module__])
    for node in ast.walk(tree):
        table = names.get(node.id) if isinstance(node, ast.Name) else None
        if depth and isinstance(table, dict) and table and all(map(callable, table.values())):
            return all(asks(one, depth - 1) for one in table.values())
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr == "require":
            return True
        called = names.get(getattr(node.func, "id", ""))
        if called is None and isinstance(node.func, ast.Attribute):
            called = getattr(names.get(getattr(node.func.value, "id", "")), node.func.attr, None)
        module = getattr(called, "__module__", None) or ""
        if depth and module.startswith("perdure.server") and asks(called, depth - 1):
            return True
    return False


def test_every_endpoint_that_is_not_public_requires_a_scope() -> None:
    forgot = [name for name, endpoint in endpoints() if not asks(endpoint)]
    assert not forgot, "\n".join(forgot)


declared = APIRouter()


async def create(rt: perdure.Runtime, *scopes: str, **options: Any) -> str:
    name = options.pop("name", "ada")
    return await rt.journal.arun(rt.services.tokens.create(name, scopes, **options))


@pytest.mark.parametrize("address", ["10.0.0.7", "2001:db8::7", "::ffff:10.0.0.7"])
async def test_a_caller_on_another_machine_needs_a_token(sqlite_url: str, address: str) -> None:
    async with opened(sqlite_url) as rt:
        async with client_of(app_with(rt, declared), address=address) as http:
            answer = await http.get("/private")
            assert answer.status_code == 401
            assert "perdure tokens create" in answer.json()["detail"]
            assert answer.headers["WWW-Authenticate"] == "Bearer"
        token = await create(rt, "read")
        async with client_of(app_with(rt, declared), address=address) as http:
            assert (await http.get("/private", headers={"x-api-key": token})).status_code == 200


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
