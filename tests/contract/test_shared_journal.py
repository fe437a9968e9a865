"""Processes and threads that share a journal neither lose nor tear data."""

from __future__ import annotations

import asyncio
import contextlib
import operator
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from perdure import Saver
from perdure.errors import Error
from tests.contract.crowd import SHARED, Telling, atalk, build, crowd, digest, lines, on, play
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
    crowded = [fork_server.start(play, number=number, **order) for number in range(PROCESSES)]
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


ROOT = Path(__file__).parents[2]


def test_threads_and_event_loops_share_one_saver(url: str) -> None:
    with Telling(url) as saver:
        assert crowd(saver, 0, 6, 2) == []
        told = list(saver.told)
    with Saver(url) as later:
        is_all_there(later, told)
        has_all_that_was_said(later, 0, 6, 2)


def test_many_coroutines_of_several_loops_share_one_saver(url: str) -> None:
    with Telling(url) as saver:
        graph = build(saver)
        errors: list[BaseException] = []

        async def all_of(number: int) -> None:
            await asyncio.gather(*(atalk(graph, lines(number, n, 2)) for n in range(5)))

        def run(number: int) -> None:
            try:
                asyncio.run(all_of(number))
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=[number]) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        # One loop after the other, too: nothing of a closed one is waited for.
        asyncio.run(all_of(3))
        told = list(saver.told)
    with Saver(url) as later:
        is_all_there(later, told)
        for number in range(4):
            has_all_that_was_said(later, number, 5, 2)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["exit", "_exit"])
def test_both_go_on_after_a_fork(url: str, how: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.contract.crowd", url, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    with Saver(url) as saver:
        graph = build(saver)
        for name, said in (
            ("known", [f"before {n}" for n in range(3)] + [f"after {n}" for n in range(3)]),
            ("parent", [f"parent {n}" for n in range(3)]),
            ("child", [f"child {n}" for n in range(3)]),
        ):
            messages = graph.get_state(on(name)).values["messages"]
            assert [m.content for m in messages if isinstance(m, HumanMessage)] == said
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        connection.close()
