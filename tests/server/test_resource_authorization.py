"""Which threads, assistants and store items a caller may use, by `langgraph_sdk.Auth` handlers and
token scopes. What a caller may not use appears not to exist."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk import Auth
from langgraph_sdk.client import SyncLangGraphClient

from perdure.runtime import Runtime
from perdure.types import State
from tests.support.agent_server import AgentServer, refused, served
from tests.support.polling import until
from tests.support.wire_graphs import SERVED, with_graphs
from tests.support.wire_graphs import database as database
from tests.support.wire_graphs import url as url

asked: list[tuple[str, str]] = []
"""(resource, action) of each call of a handler."""


def owners() -> Auth:
    """Everyone has threads and assistants of their own, and a store of their own."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> Any:
        name = headers.get(b"x-api-key", b"").decode()
        return {"identity": name, "permissions": ["perdure:admin"]}

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> Any:
        asked.append((ctx.resource, ctx.action))
        if ctx.action == "create":
            value.setdefault("metadata", {})["owner"] = ctx.user.identity
        return {"owner": ctx.user.identity}

    @auth.on.store
    async def own_store(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        asked.append((ctx.resource, ctx.action))
        value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))

    return auth


@pytest.fixture
def runtime(url: str) -> Runtime:
    return with_graphs(Runtime(url, store=True))


@pytest.fixture
def server(runtime: Runtime) -> Iterator[AgentServer]:
    asked.clear()
    with served(runtime, auth=owners()) as found:
        yield found


@pytest.fixture
def ada(server: AgentServer) -> SyncLangGraphClient:
    return server.sync_client(api_key="ada")


@pytest.fixture
def ben(server: AgentServer) -> SyncLangGraphClient:
    return server.sync_client(api_key="ben")


def test_a_thread_not_started_by_a_user_belongs_to_no_user(
    runtime: Runtime, ada: SyncLangGraphClient
) -> None:
    id = str(uuid.uuid4())
    run = runtime.blocking.start("numbers", {"n": 1}, thread_id=id)
    until(lambda: runtime.blocking.get(run.id).state is State.DONE)
    refused(404, ada.threads.get, id)


@SERVED
def test_a_handler_gives_each_user_a_store(
    ada: SyncLangGraphClient, ben: SyncLangGraphClient, runtime: Runtime
) -> None:
    ada.store.put_item(["notes"], "k", {"n": 1})
    assert ada.store.get_item(["notes"], "k")["namespace"] == ["ada", "notes"]
    assert ben.store.get_item(["notes"], "k") is None
    assert ben.store.search_items([])["items"] == []
    assert ben.store.list_namespaces()["namespaces"] == []
    ben.store.delete_item(["notes"], "k")
    assert ada.store.list_namespaces()["namespaces"] == [["ada", "notes"]]
    assert len(ada.store.search_items(["notes"])["items"]) == 1
    actions = {action for resource, action in asked if resource == "store"}
    assert actions == {"put", "get", "search", "delete", "list_namespaces"}


def test_handlers_are_called_for_each_action(ada: SyncLangGraphClient) -> None:
    id = ada.threads.create(graph_id="numbers")["thread_id"]
    for call, expected in (
        (lambda: ada.threads.get(id), ["read"]),
        (lambda: ada.threads.get_state(id), ["read"]),
        (lambda: ada.threads.get_history(id), ["read"]),
        (lambda: ada.threads.update(id, metadata={}), ["update"]),
        (lambda: ada.threads.update_state(id, {"n": 1}, as_node="add"), ["update"]),
        (lambda: ada.threads.copy(id), ["read", "create"]),
        (lambda: ada.threads.search(), ["search"]),
        (lambda: ada.threads.count(), ["search"]),
        (lambda: ada.threads.delete(id), ["delete"]),
    ):
        asked.clear()
        call()
        assert asked == [("threads", action) for action in expected]
