"""LangMem's `RemoteReflectionExecutor` against our server: reflections are runs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store

from perdure.types import Retry
from tests.support.agent_server import AgentServer, served
from tests.support.polling import until
from tests.support.wire_agents import Talk, row, wire_runtime

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from langmem.reflection import RemoteReflectionExecutor


async def remember(state: Talk, config: RunnableConfig) -> Talk:
    """A reflector: it stores what was said under the namespace it is given."""
    namespace = tuple(config["configurable"]["namespace"])
    for text in state["said"]:
        await get_store().aput(namespace, str(text), {"text": text})
    return {}


@pytest.fixture
def server(url: str) -> Iterator[AgentServer]:
    with closing(wire_runtime(url, store=True)) as runtime:
        runtime.register(row(Talk, remember), name="remember", retry=Retry(attempts=1))
        with served(runtime) as running:
            yield running


@pytest.fixture
def executor(server: AgentServer) -> Iterator[Any]:
    client: Any = server.sync_client()
    made = RemoteReflectionExecutor(
        ("memories", "ada"), "remember", client=server.client(), sync_client=client
    )
    yield made
    made.shutdown()


def texts(executor: Any) -> list[str]:
    return sorted(item["value"]["text"] for item in executor.search())


def test_a_reflection_is_stored_and_found(executor: Any) -> None:
    t = str(uuid4())
    executor.submit({"said": ["likes tea"]}, config={"tags": []}, thread_id=t).result(30)
    until(lambda: texts(executor) == ["likes tea"])
    [item] = executor.search(filter={"text": "likes tea"})
    assert (item["namespace"], item["key"]) == (("memories", "ada"), "likes tea")


def test_a_later_reflection_replaces_one_that_has_not_begun(
    executor: Any, server: AgentServer
) -> None:
    t, client = str(uuid4()), server.sync_client()
    executor.submit({"said": ["old"]}, config={"tags": []}, thread_id=t, after_seconds=3600).result(
        30
    )
    [first] = client.runs.list(t)
    assert first["status"] == "pending"
    executor.submit({"said": ["new"]}, config={"tags": []}, thread_id=t).result(30)
    until(lambda: texts(executor) == ["new"])
    [second] = client.runs.list(t)
    assert second["run_id"] != first["run_id"]


def test_a_submission_without_a_thread_is_refused(executor: Any) -> None:
    with pytest.raises(Exception, match="is not a UUID"):
        executor.submit({"said": ["lost"]}, config={"tags": []}).result(30)
