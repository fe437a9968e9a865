"""Processes and threads that share a journal neither lose nor tear data."""

from __future__ import annotations

import contextlib
import operator
import sqlite3
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from perdure import Saver
from perdure.errors import Error
from tests.support.crowd import SHARED, build, digest, lines, on
from tests.support.fork_server import ForkServer

PROCESSES = THREADS = 8


TURNS = 3


def is_all_there(saver: Saver, told: list[Any]) -> None:
    """Every checkpoint that was acknowledged is there and holds what was put."""
    found = {
        (*where(one.config), digest(one.checkpoint["channel_values"])) for one in saver.list(None)
    }
    assert {tuple(line) for line in told} <= found


def where(config: Any) -> tuple[str, str, str]:
    place = config["configurable"]
    return place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"]


def has_all_that_was_said(saver: Saver, number: int, threads: int, turns: int) -> None:
    graph = build(saver)
    for thread in range(threads):
        own = f"own {number} {thread}"
        said = [text for name, text in lines(number, thread, turns) if name == own]
        messages = graph.get_state(on(own)).values["messages"]
        assert [m.content for m in messages if isinstance(m, HumanMessage)] == said
        assert len(messages) == 2 * turns


@pytest.mark.slow
def test_eight_processes_of_eight_threads_lose_and_tear_nothing(
    fork_server: ForkServer, url: str
) -> None:
    order: dict[str, Any] = {"url": url, "threads": THREADS, "turns": TURNS}
    crowded = [
        fork_server.start("crowd:play", number=number, **order) for number in range(PROCESSES)
    ]
    told: list[Any] = []
    for child in crowded:
        assert child.wait(120) == 0
        told += child.facts
    # Of each turn the input, its start and two nodes; on its own and on a shared thread.
    assert len(told) == PROCESSES * THREADS * TURNS * 2 * 4
    with Saver(url) as saver:
        is_all_there(saver, told)
        for number in range(PROCESSES):
            has_all_that_was_said(saver, number, THREADS, TURNS)
        shared = [len(list(saver.list(on(f"shared {n}")))) for n in range(SHARED)]
        assert sum(shared) == PROCESSES * THREADS * TURNS * 4
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()


def test_a_checkpoint_is_not_stored_on_a_base_that_is_gone(url: str) -> None:
    """One process deletes the thread while another one is in the middle of a step of it."""
    deletes: list[bool] = []

    class State(TypedDict, total=False):
        log: Annotated[list[str], operator.add]

    def reply(state: State) -> State:
        if deletes and deletes.pop():
            with Saver(url) as other:
                other.delete_thread("t")
        return {"log": [f"reply {len(state['log'])} " * 20]}

    builder = StateGraph(State)
    builder.add_node("reply", reply)
    builder.add_edge(START, "reply")
    said: Any = {"log": ["a question that is long enough for a row of its own " * 10]}
    with Saver(url) as saver:
        graph: Any = builder.compile(checkpointer=saver)
        for _ in range(3):
            graph.invoke(said, on("t"), durability="sync")
        deletes.append(True)
        with contextlib.suppress(Error):
            graph.invoke(said, on("t"), durability="sync")
    with Saver(url) as saver:
        graph = builder.compile(checkpointer=saver)
        for state in graph.get_state_history(on("t")):  # what is there is whole
            assert len(state.values["log"]) in (7, 8)
        graph.invoke(said, on("t"))
        assert graph.get_state(on("t")).values["log"][-2:-1] == said["log"]
