"""Threads to be imported, and a process that is killed while it imports them."""

from __future__ import annotations

import operator
import os
import signal
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, Send, interrupt

from perdure import Saver, import_threads
from perdure.testing import watch_points


@dataclass
class Address:
    """A type of the graph's schema."""

    to: str


@dataclass
class Secret:
    """A type that no schema names."""

    word: str


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    address: Address
    anything: Any


def on(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


def draft(state: State) -> Any:
    return {
        "messages": [AIMessage("a draft " * 20, id=f"d{len(state['messages'])}")],
        "address": Address("ada@example.com"),
    }


def ask(state: State) -> Any:
    return {"log": [f"answered {interrupt('send it?')}"]}


def work(state: Any) -> Any:
    return {"log": [f"worked on {state['n']}"]}


def fan_out(state: State) -> list[Send]:
    return [Send("work", {"n": n}) for n in range(3)]


def build(saver: BaseCheckpointSaver[Any] | None = None) -> Any:
    inner = StateGraph(State).add_node("ask", ask).add_edge(START, "ask").compile()
    builder = StateGraph(State)
    builder.add_node("draft", draft).add_node("review", inner).add_node("work", work)
    builder.add_edge(START, "draft").add_edge("draft", "review")
    builder.add_conditional_edges("review", fan_out, ["work"])
    return builder if saver is None else builder.compile(checkpointer=saver)


def said(text: str) -> dict[str, Any]:
    return {"messages": [HumanMessage(text, id=text)], "log": [text]}


def fill(saver: BaseCheckpointSaver[Any]) -> None:
    """Three threads: one is done, one waits in a subgraph, one has a fork."""
    graph = build(saver)
    graph.invoke(said("one"), on("done"))
    graph.invoke(Command(resume="yes"), on("done"))
    graph.invoke(said("two"), on("waiting"))
    graph.invoke(said("three"), on("forked"))
    graph.invoke(Command(resume="yes"), on("forked"))
    past = list(graph.get_state_history(on("forked")))
    graph.invoke(None, past[-2].config)


POINTS = ("insert_writes.after", "insert_checkpoint.after", "commit.after")


def live(order: dict[str, Any], tell: Any) -> None:
    """Import, and be killed at the nth of these points."""
    left: int = order["nth"]

    def hook(point: str) -> None:
        nonlocal left
        if point in POINTS:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    with Saver(order["url"], "sync", allow=[Address]) as saver:
        watch_points(hook)
        import_threads(order["where"], saver)
