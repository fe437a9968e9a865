"""The agent: a chat that remembers its users from one conversation to the next.

It answers with what it remembers of a user. When a conversation has rested for a while, a
background reflection turns what is new in it into memories. Conversations, memories and pending
reflections are in one SQLite file: whenever the process is killed, the next one continues.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.store.sqlite import SqliteStore
from langmem import create_memory_store_manager

import perdure
from perdure.langmem import ReflectionExecutor

NAMESPACE = ("memories", "{user_id}")
"""Each user has their own memories: `user_id` comes from the config of the conversation."""


def build(model: BaseChatModel, executor: Any, rest: float) -> StateGraph[MessagesState]:
    """Build the chat. It reflects on a conversation that has rested for `rest` seconds."""

    def answer(state: MessagesState) -> dict[str, Any]:
        known = [memory["value"]["content"]["content"] for memory in executor.search(limit=50)]
        prompt = "\n- ".join(["You chat with a user. You remember:", *sorted(known)])
        reply = model.invoke([SystemMessage(prompt), *state["messages"]])
        executor.submit({"messages": [*state["messages"], reply]}, after_seconds=rest)
        return {"messages": [reply]}

    return StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")


@contextmanager
def open_chat(path: str, model: BaseChatModel, rest: float) -> Iterator[tuple[Any, Any]]:
    """Open the chat and its executor on one SQLite file."""
    with SqliteStore.from_conn_string(path) as store, perdure.Runtime(f"sqlite:///{path}") as rt:
        store.setup()
        manager = create_memory_store_manager(model, namespace=NAMESPACE, store=store)
        with ReflectionExecutor(manager, store=store, journal=rt) as executor:
            chat = build(model, executor, rest)
            yield chat.compile(checkpointer=rt.saver, store=store), executor


def say(chat: Any, user: str, conversation: str, text: str) -> str:
    """Send one message and return the answer."""
    config = {"configurable": {"user_id": user, "thread_id": conversation}}
    said = chat.invoke({"messages": [("user", text)]}, config)
    return str(said["messages"][-1].text)
