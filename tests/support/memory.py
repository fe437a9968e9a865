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
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore
from langmem import create_memory_store_manager

from tests.support.d1_databases import store_file

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
