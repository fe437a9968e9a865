"""Many processes, threads and event loops use one journal at once: nothing is lost, nothing torn.

Every acknowledged checkpoint can be loaded and holds what was put. Who talks on a thread alone
finds exactly what was said. On a shared thread runs overwrite each other, as with any checkpointer,
but each checkpoint is whole.
"""

import asyncio
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from perdure import Saver
from tests.support.crowd import Telling, atalk, build, crowd, digest, lines, on

ROOT = Path(__file__).parents[2]


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
    command = [sys.executable, "-W", "error", "-m", "tests.support.forker", url, how]
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
