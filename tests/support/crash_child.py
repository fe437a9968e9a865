"""The process that is killed, a child of `tests.support.fork_server`: it plays a whole conversation
and dies by SIGKILL at the point it is told. What it tells is what it acknowledged."""

from __future__ import annotations

import itertools
import operator
import os
import signal
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Command, interrupt

from perdure import Saver, connect
from perdure.testing import set_commit_interval, watch_points
from perdure.types import Durability
from tests.support.fork_server import Tell

TURNS = 2
NEVER = 3600.0


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[str], operator.add]
    turn: int


def _says(name: str, state: State) -> dict[str, Any]:
    id = f"{name}-{state['turn']}"
    return {"messages": [AIMessage(f"{id} thought about it. " * 6, id=id)], "log": [id]}


def think(state: State) -> dict[str, Any]:
    return _says("think", state)


def left(state: State) -> dict[str, Any]:
    return {"log": [f"left-{state['turn']} " * 12]}


def right(state: State) -> dict[str, Any]:
    return {"log": [f"right-{state['turn']}"]}


def inner(state: State) -> dict[str, Any]:
    return _says("inner", state)


def approve(state: State) -> dict[str, Any]:
    answer = interrupt(f"approve turn {state['turn']}?")
    return {"log": [f"approved: {answer}"]}


def build(saver: Saver) -> Any:
    """A chain with messages, two parallel branches, a subgraph and an interrupt."""
    nested = StateGraph(State)
    nested.add_sequence([inner])
    nested.add_edge(START, "inner")
    graph = StateGraph(State)
    for node in (think, left, right, approve):
        graph.add_node(node)
    graph.add_node("nested", nested.compile())
    graph.add_edge(START, "think")
    graph.add_edge("think", "left")
    graph.add_edge("think", "right")
    graph.add_edge(["left", "right"], "nested")
    graph.add_edge("nested", "approve")
    graph.add_edge("approve", END)
    return graph.compile(checkpointer=saver)


class Told:
    """Where acknowledgements go, and what the saver last stored."""

    def __init__(self, tell: Tell | None) -> None:
        self._tell = tell
        self.newest = ""

    def __call__(self, *fact: Any) -> None:
        if self._tell is not None:
            self._tell(*fact)


class TellingSaver(Saver):
    """Acknowledges a checkpoint once `put` has returned, when that is a promise."""

    told = Told(None)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        after = super().put(config, checkpoint, metadata, new_versions)
        ns = config["configurable"].get("checkpoint_ns") or ""
        if self.durability == "sync":
            self.told("put", ns, checkpoint["id"])
        if ns == "":
            self.told.newest = checkpoint["id"]
        return after


def converse(saver: Saver, thread: str, told: Told) -> None:
    """Play the conversation to its end, from wherever the thread stands."""
    graph = build(saver)
    config: RunnableConfig = {"configurable": {"thread_id": thread}}
    while True:
        state = graph.get_state(config)
        turn = state.values.get("turn", -1)
        if state.interrupts:
            given: Any = Command(resume=f"yes to {turn}")
        elif state.tasks:  # not `next`, which leaves out tasks that have written already
            given = None
        elif turn + 1 < TURNS:
            words = HumanMessage(f"question {turn + 1} " * 10, id=f"human-{turn + 1}")
            given = {"messages": [words], "turn": turn + 1}
        else:
            return
        mode = "sync" if saver.durability == "sync" else None
        result = graph.invoke(given, config, durability=mode)
        told("returned", told.newest, len(result.get("__interrupt__", ())))


def open_saver(url: str, mode: Durability, interval: float | None = None) -> TellingSaver:
    saver = TellingSaver(durability=mode, journal=connect(url))
    if interval is not None:
        set_commit_interval(
            saver, interval
        )  # a clock that stands still: the same point is the same
    return saver


def live(order: dict[str, Any], tell: Tell) -> None:
    numbers = itertools.count(1)

    def hook(point: str) -> None:
        number = next(numbers)
        if number == order["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)
        if order["kill"] is None:
            told("point", point)

    told = Told(tell)
    saver = open_saver(order["url"], order["mode"], order["interval"])
    saver.told = told
    watch_points(hook)
    converse(saver, order["thread"], told)
    saver.journal.close()
