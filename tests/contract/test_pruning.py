"""Pruning keeps the newest checkpoint as it was."""

from __future__ import annotations

import threading
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from perdure import Saver
from tests.support.scripts import Graph, plain


class Chat(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    notes: dict[str, Any]
    count: int


def reply(state: Chat) -> Any:
    n = state.get("count", 0)
    notes = {**state.get("notes", {}), str(n): "n" * 100}
    return {"messages": [AIMessage(f"reply {n} " * 20)], "notes": notes, "count": n + 1}


def chat(saver: Saver) -> Graph:
    builder = StateGraph(Chat)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    return builder.compile(checkpointer=saver)


def on(thread_id: str, **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, **more}}


def say(n: int) -> Any:
    return {"messages": [HumanMessage(f"hello {n} " * 20)]}


def snapshots(graph: Graph, thread_id: str) -> dict[str, Any]:
    """Every checkpoint of a thread by id: what it holds, next nodes, and its tasks' results."""
    return {
        one.config["configurable"]["checkpoint_id"]: (
            plain(one.values),
            one.next,
            plain([task.result for task in one.tasks]),
        )
        for one in graph.get_state_history(on(thread_id))
    }


class Meeting(Saver):
    """Waits after its first load until others have loaded too: they go on from one place."""

    def __init__(self, url: str, others: threading.Barrier) -> None:
        super().__init__(url)
        self.others: threading.Barrier | None = others

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if self.others is not None:
            others, self.others = self.others, None
            others.wait(10)
        return found


def forked(url: str) -> Saver:
    """A thread with three branches: processes ran it at the same time, on one chain of values."""
    with Saver(url) as saver:
        for n in range(4):
            chat(saver).invoke(say(n), on("a"))
    barrier = threading.Barrier(3)

    def run(n: int) -> None:
        with Meeting(url, barrier) as saver:
            graph = chat(saver)
            graph.invoke(say(n), on("a"))

    threads = [threading.Thread(target=run, args=[n]) for n in (10, 20, 30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return Saver(url)


@pytest.mark.smoke
def test_pruning_keeps_the_newest_checkpoint_as_it_was(url: str) -> None:
    with forked(url) as saver:
        graph = chat(saver)
        before = snapshots(graph, "a")
        saver.prune(["a"])
        newest = max(before)
        assert snapshots(graph, "a") == {newest: before[newest]}
        graph.invoke(say(30), on("a"))
        assert (
            len(graph.get_state(on("a")).values["messages"]) == len(messages_in(before[newest])) + 2
        )


def messages_in(told: Any) -> Any:
    """The messages in what `snapshots` told of a checkpoint."""
    return next(value[1] for key, value in told[0][1] if key[1] == "messages")
