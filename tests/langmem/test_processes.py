"""Processes that end, are killed, fork or share one executor's work."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from langgraph.store.base import BaseStore

from perdure.langmem import ReflectionExecutor
from tests.support.memory import SOON, keeper, manager, notes, remembered, runs_on_disk
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


KILLED = """
made = ReflectionExecutor(
    manager(), store=opened_store("memory").__enter__(), journal=url, name="r"
).submit(talk("fact-tea"), who("ann", "t"), after_seconds=1)
print(made.id, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_what_a_killed_process_submitted_is_done_by_the_next_when_it_is_due(
    url: str, store: BaseStore
) -> None:
    with child(KILLED, url) as process:
        assert process.stdout is not None
        id = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
        process.wait(SOON)
    with ReflectionExecutor(manager(), store=store, journal=url, name="r") as executor:
        assert id in dict(runs_on_disk(url))
        until(lambda: not executor.pending())
    assert remembered(store, "ann") == ["fact-tea"]


SHARES = """
def asked(facts):
    os.write(1, (" ".join(facts) + "\\n").encode())

with opened_store(url) as store:
    executor = ReflectionExecutor(manager(before=asked), store=store, journal=url, concurrency=2)
    with executor:
        me = sys.argv[2]
        for n in range(10):
            executor.submit(talk(f"fact-{me}-{n}"), who(f"u{me}-{n % 4}", f"t{n}"))
        while executor.pending():
            time.sleep(0.05)
"""


@pytest.mark.slow
def test_two_processes_share_the_work_and_do_each_reflection_once(
    url: str, store: BaseStore
) -> None:
    with child(SHARES, url, "a") as one, child(SHARES, url, "b") as other:
        out = [process.communicate(timeout=120) for process in (one, other)]
        assert [process.returncode for process in (one, other)] == [0, 0], out
    asked = sorted(" ".join(text for text, _ in out).split())
    expected = sorted(f"fact-{who}-{n}" for who in "ab" for n in range(10))
    assert asked == expected
    kept = [remembered(store, f"u{who}-{n}") for who in "ab" for n in range(4)]
    assert sorted(fact for facts in kept for fact in facts) == expected


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
