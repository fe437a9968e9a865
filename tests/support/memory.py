"""A real LangMem memory manager on a model whose answers are scripted, and stores to keep what it
learns in.

The model remembers each word `fact-...` of the conversation, unless it is shown that memory among
those that are there already: as a good model would.
"""

from __future__ import annotations

import re
import sqlite3
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.config import get_store
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from langmem import create_memory_store_manager

from perdure.types import Retry
from tests.support.agents import Gate, chain
from tests.support.databases import store_file
from tests.support.raw import execute

NAMESPACE = ("memories", "{user}")
FACT = re.compile(r"fact-[\w-]+")


class Scripted(BaseChatModel):
    """Remembers facts. `before` is called with them each time it is asked."""

    before: Callable[[list[str]], None] | None = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Scripted:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        known = " ".join(str(one.content) for one in messages if isinstance(one, SystemMessage))
        said = " ".join(str(one.content) for one in messages if isinstance(one, HumanMessage))
        fresh = [one for one in dict.fromkeys(FACT.findall(said)) if one not in FACT.findall(known)]
        if self.before is not None:
            self.before(fresh)
        calls = [
            {"name": "Memory", "args": {"content": fact}, "id": uuid.uuid4().hex} for fact in fresh
        ]
        answer = AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=answer)])


def manager(
    *, before: Callable[[list[str]], None] | None = None, store: BaseStore | None = None
) -> Any:
    """What LangMem gives for this model. It writes for the `user` of the config."""
    model = Scripted(before=before)
    return create_memory_store_manager(model, namespace=NAMESPACE, query_limit=100, store=store)


def talk(*facts: str) -> dict[str, Any]:
    """A conversation in which facts are told."""
    return {"messages": [HumanMessage(f"I tell you {fact}.") for fact in facts]}


def who(user: str, thread: str | None = None) -> dict[str, Any]:
    """The config of a conversation."""
    inner = {"user": user} if thread is None else {"user": user, "thread_id": thread}
    return {"configurable": inner}


def remembered(store: BaseStore, user: str) -> list[str]:
    """The facts in a user's memories, each as often as it is there."""
    found = store.search(("memories", user), limit=10_000)
    return sorted(item.value["content"]["content"] for item in found)


def store_url(url: str) -> str:
    """Where LangGraph's own store of a journal is: there, or for D1 in a file of this machine."""
    return f"sqlite:///{store_file(url)}" if url.startswith("d1") else url


@contextmanager
def opened_store(url: str) -> Iterator[BaseStore]:
    """LangGraph's own store of a journal's URL, or in memory."""
    url = store_url(url)
    if url == "memory":
        yield InMemoryStore()
    elif url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        connection = sqlite3.connect(
            path, check_same_thread=False, isolation_level=None, timeout=30
        )
        try:
            store = SqliteStore(connection)
            store.setup()
            yield store
        finally:
            connection.close()
    else:
        with PostgresStore.from_conn_string(
            url, pool_config={"min_size": 1, "max_size": 4}
        ) as kept:
            kept.setup()
            yield kept


# -- What the tests of `ReflectionExecutor` share: stores, reflectors, and a look at the
# journal.

HOUR = timedelta(hours=1)
AT_ONCE = Retry(attempts=2, first=timedelta(0))
ONCE = Retry(attempts=1)
SOON = 20.0
"""Seconds after which a test gives up."""
ON_A_FILE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For tests in which it makes no difference which database it is."""


@pytest.fixture
def store(url: str) -> Iterator[BaseStore]:
    """LangGraph's own, in the journal's database."""
    with opened_store(url) as found:
        yield found


def runs_on_disk(url: str) -> list[tuple[str, str]]:
    """Id and state of every run, read by somebody else."""
    rows = execute(url, "SELECT id, state FROM perdure_runs ORDER BY created_at, id")
    return [(id, state) for id, state in rows]


def keeper() -> Callable[[Any], Any]:
    """A reflector that writes down what it is told, under a key of its own."""

    def keep(payload: Any) -> str:
        get_store().put(("notes",), payload["key"], {"text": payload["text"]})
        return f"kept {payload['key']}"

    return keep


def notes(store: BaseStore) -> dict[str, str]:
    return {item.key: item.value["text"] for item in store.search(("notes",), limit=1000)}


def note(key: str, text: str = "text") -> dict[str, str]:
    return {"key": key, "text": text}


def on_thread(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def stopping_at(place: Gate, calls: list[Any] | None = None) -> Callable[[Any], Any]:
    """A reflector that stands still; then it writes."""

    def stop(payload: Any) -> str:
        if calls is not None:
            calls.append(payload["key"])
        get_store().put(("notes",), payload["key"], {"text": payload["text"]})
        if payload["text"] == "stop":
            place.block()
        return "went on"

    return stop


def graph_that(node: Any, store: BaseStore | None = None, saver: Any = None) -> Any:
    return chain(("node", node)).compile(store=store, checkpointer=saver)


def remember(store: BaseStore, text: str) -> None:
    store.put(("notes",), text, {"text": text})


def embed(texts: Sequence[str]) -> list[list[float]]:
    """What a text is about: tea, or the weather."""
    return [[float("tea" in text), float("rain" in text or "snow" in text), 0.1] for text in texts]


VECTORS = pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension"),
    reason="this Python's sqlite3 loads no extensions",
)
