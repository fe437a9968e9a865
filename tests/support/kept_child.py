"""Processes that keep reflections in a store, and die: children of `tests.support.fork_server`.

What a child was promised and what its model was asked goes to a ledger, which no crash of the child
can take back.

    live        submit what `STORY` says and work on it; killed after the n-th call of the store,
                or in the middle of writing memories
    resume      with another child at the same moment, for each of several executors
    take_over   into a journal; killed before the record is deleted
    exit        submit, and end without `shutdown`
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

from langgraph.store.base import BaseStore, Op, PutOp, Result
from langmem import ReflectionExecutor as StockExecutor

from perdure.langmem import Persisted, ReflectionExecutor, persist, resume_pending_reflections
from tests.support.fork_server import ForkServer, Tell
from tests.support.memory import manager, opened_store, talk, who
from tests.support.polling import until
from tests.support.runtime_child import Ledger

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
            until(lambda name=name: ledger.count()[f"ready {name}"] == 2, "the other one")  # type: ignore[misc]
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


def play(order: dict[str, Any], tell: Tell) -> None:
    role = {"live": live, "resume": resume, "take_over": take_over, "exit": exit}[order.pop("role")]
    role(ledger=Ledger(order.pop("ledger")), **order)


def ends(server: ForkServer, role: str, *, count: int = 1, **order: Any) -> list[int]:
    """How as many children as that ended."""
    children = [
        server.start("kept_child:play", exits=True, role=role, **order) for _ in range(count)
    ]
    return [child.wait() for child in children]
