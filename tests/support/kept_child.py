"""Processes that keep reflections in a store, and die: `python -m tests.support.kept_child`.

It imports LangMem once and then forks a child for each order it reads. What a child was promised
and what its model was asked goes to a ledger, which no crash of the child can take back.

    live        submit what `STORY` says and work on it; killed after the n-th call of the store,
                or in the middle of writing memories
    resume      with another child at the same moment, for each of several executors
    take_over   into a journal; killed before the record is deleted
    exit        submit, and end without `shutdown`
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from langgraph.store.base import BaseStore, Op, PutOp, Result
from langmem import ReflectionExecutor as StockExecutor

from perdure.langmem import Persisted, ReflectionExecutor, persist, resume_pending_reflections
from tests.support.memory import manager, opened_store, talk, who
from tests.support.runtime_child import Ledger, eventually

NAME = "memory"
STORY = (("one", "fact-old", 3600.0), ("one", "fact-1 fact-2", 0.0), ("two", "fact-3", 0.0))
"""Conversation, what is told in it, and when it is due; the second takes the place of the first."""


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def watched(store: BaseStore, look: Callable[[list[Op], Callable[[list[Op]], Any]], Any]) -> None:
    """Have `look` in the place of a store's `batch`, through which everything goes."""
    real = store.batch

    def batch(ops: Iterable[Op]) -> list[Result]:
        found: list[Result] = look(list(ops), real)
        return found

    store.batch = batch  # type: ignore[method-assign]


def deadly(last: int) -> Callable[[list[Op], Callable[[list[Op]], Any]], Any]:
    """Who is killed after his n-th call; after half of his first memories, if that is -1."""
    calls = 0

    def look(ops: list[Op], real: Callable[[list[Op]], Any]) -> Any:
        nonlocal calls
        calls += 1
        memories = [op for op in ops if isinstance(op, PutOp) and op.namespace[0] == "memories"]
        if last < 0 and len(memories) > 1:
            real(list(memories[:1]))
            die()
        found = real(ops)
        if calls == last:
            die()
        return found

    return look


def wrapped(store: BaseStore, ledger: Ledger, name: str = NAME) -> Persisted:
    def asked(facts: list[str]) -> None:
        ledger.add(f"asked {' '.join(facts)}")

    return persist(StockExecutor(manager(before=asked), store=store), store, name=name)


def live(url: str, ledger: Ledger, last: int) -> None:
    with opened_store(url) as store:
        watched(store, deadly(last))
        executor = wrapped(store, ledger)
        for thread, facts, after in STORY:
            executor.submit(talk(*facts.split()), who("u", thread), after_seconds=after)
            ledger.add(f"accepted {facts}")
        executor.shutdown()


def resume(url: str, ledger: Ledger, names: list[str]) -> None:
    with opened_store(url) as store:
        executors = [wrapped(store, ledger, name) for name in names]
        for name, executor in zip(names, executors, strict=True):
            ledger.add(f"ready {name}")
            eventually(lambda name=name: ledger.count()[f"ready {name}"] == 2, "the other one")  # type: ignore[misc]
            for one in resume_pending_reflections(executor, store):
                ledger.add(f"resumed {one.id}")
        for executor in executors:
            executor.shutdown()


def take_over(url: str, ledger: Ledger) -> None:
    def look(ops: list[Op], real: Callable[[list[Op]], Any]) -> Any:
        if any(isinstance(op, PutOp) and op.value is None for op in ops):
            die()
        return real(ops)

    with opened_store(url) as store:
        watched(store, look)
        executor = ReflectionExecutor(manager(), store=store, journal=url, name=NAME)
        resume_pending_reflections(executor, store)


def exit(url: str, ledger: Ledger) -> None:
    with opened_store(url) as store:
        executor = wrapped(store, ledger)
        done = executor.submit(talk("fact-now"), who("u", "now"))
        executor.submit(talk("fact-later"), who("u", "later"), after_seconds=3600)
        done.result(30)


def _fork(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid:
        return pid
    role = globals()[order.pop("role")]
    order["ledger"] = Ledger(order["ledger"])
    try:
        role(**order)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    sys.stdin.close()
    sys.exit(0)


def main() -> None:
    for line in sys.stdin:
        order = json.loads(line)
        count = order.pop("count")
        pids = [_fork(dict(order)) for _ in range(count)]
        print(json.dumps([_ended(pid) for pid in pids]), flush=True)


def _ended(pid: int) -> int | None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


class Nursery:
    """The process that forks the others."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.kept_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def order(self, role: str, *, count: int = 1, **order: Any) -> list[int | None]:
        """How as many children as that ended; None if one had to be killed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"role": role, "count": count, **order}) + "\n")
        self._process.stdin.flush()
        found: list[int | None] = json.loads(self._process.stdout.readline())
        return found

    def close(self) -> None:
        self._process.communicate(timeout=30)


if __name__ == "__main__":
    main()
