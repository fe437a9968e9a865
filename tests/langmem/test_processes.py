"""Processes that end, are killed, fork or share one executor's work."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from langgraph.store.base import BaseStore

from perdure.langmem import ReflectionExecutor
from tests.support.memory import keeper, notes, runs_on_disk
from tests.support.memory import store as store
from tests.support.polling import until

ROOT = Path(__file__).parents[2]


PRELUDE = """
import os, sys, threading, time
from langgraph.config import get_store
from perdure.langmem import ReflectionExecutor
from tests.support.memory import manager, opened_store, remembered, talk, who

url = sys.argv[1]
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, which is ended in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


LEAVES = """
def reflect(payload):
    print("begun", flush=True)
    threading.Event().wait(600)

opening = opened_store(url)
store = opening.__enter__()
executor = ReflectionExecutor(reflect, store=store, journal=url, name="r")
for n in range(3):
    executor.submit({"key": str(n), "text": "x"}, after_seconds=0.3 * (n > 0))
while not any(one.state == "running" for one in executor.pending()):
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_process_that_never_calls_shutdown_exits_and_the_next_goes_on(
    url: str, store: BaseStore
) -> None:
    with child(LEAVES, url) as process:
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    with ReflectionExecutor(keeper(), store=store, journal=url, name="r") as executor:
        until(lambda: not executor.pending())
    assert notes(store).keys() == {"0", "1", "2"}


FORKS = """
def reflect(payload):
    return os.getpid()

store = opened_store("memory").__enter__()
executor = ReflectionExecutor(reflect, store=store, journal=url, name=sys.argv[2])
assert executor.submit({}).result(20) == os.getpid()
child = os.fork()
made = [executor.submit({"n": n}) for n in range(3)]
pids = {one.result(20) for one in made}
executor.shutdown()
if child == 0:
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
print("status", status, "pids", len(pids))
"""


@pytest.mark.slow
def test_a_fork_submits_and_works_and_so_does_its_parent(url: str) -> None:
    with child(FORKS, url, "r") as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.startswith("status 0 pids")
    assert [state for _, state in runs_on_disk(url)] == ["done"] * 7
