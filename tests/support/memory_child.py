"""Processes that submit and drive reflections, and end: children of `tests.support.fork_server`.

A child that is not killed ends as any interpreter does, with what is registered for its exit. What
a child was told and what its model was asked goes to a ledger, which no crash can take back.

A point is a statement, a commit or an effect (`perdure.testing.points`), a call of
the model, or the middle of a write to the store. At the point that was ordered, a child

    kill        is killed with SIGKILL
    term        gets SIGTERM, on which it ends as usual, without `shutdown`
    shutdown    calls `shutdown()`, and is over when that returns
    leave       calls `shutdown(wait=False)`
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import langchain_core.messages.block_translators.langchain_v0
import langchain_core.tracers.context
import langchain_core.tracers.run_collector
import langchain_core.tracers.stdout  # noqa: F401
from langgraph.store.base import BaseStore, Op, PutOp, Result
from langgraph.store.postgres import PostgresStore
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure.langmem import ReflectionExecutor
from perdure.testing import watch_points
from perdure.types import Run, State
from tests.support.fork_server import Tell
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.polling import until
from tests.support.runtime_child import Ledger

LATER = 3600.0
"""Seconds after which something is due that is not due while a child lives."""
PATIENCE = 20.0


class Ahead:
    """The time, some seconds from now."""

    def __init__(self, seconds: float) -> None:
        self._ahead = seconds

    def now(self) -> int:
        return round((time.time() + self._ahead) * 1000)


class Told(Ledger):
    """What a process told that may be killed. The machine goes on: the disk is not waited for."""

    def add(self, line: str) -> None:
        with open(self._path, "a") as file:
            file.write(f"{line}\n")


class Points:
    """What a child comes by, and where it ends."""

    def __init__(self, order: dict[str, Any], ledger: Ledger) -> None:
        fate = order.get("fate") or {}
        self.how: str = fate.get("how", "")
        self._at: list[Any] | None = fate.get("at")
        self._nth: int | None = fate.get("nth")
        self._tells, self._ledger = bool(order.get("tells")), ledger
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self.over = threading.Event()

    def reach(self, point: str) -> None:
        with self._counting:
            self._counts[point] += 1
            count, all = self._counts[point], self._counts.total()
        if [point, count] == self._at or all == self._nth:
            self._end(point)

    def tell(self) -> None:
        if self._tells:
            self._ledger.add(json.dumps(["points", dict(self._counts)]))

    def _end(self, point: str) -> None:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        self._ledger.add(json.dumps(["told", self.how, point]))
        if self.how == "term":
            os.kill(os.getpid(), signal.SIGTERM)
        self.over.set()


# -- stores with a point in the middle of a write


def _in_halves(
    points: Points, batch: Callable[[list[Op]], list[Result]], ops: list[Op]
) -> list[Result]:
    if not any(isinstance(op, PutOp) for op in ops):
        return batch(ops)
    half = len(ops) // 2
    first = batch(ops[:half]) if half else []
    points.reach("half.after")
    return first + batch(ops[half:])


@contextmanager
def store_in_halves(url: str, points: Points) -> Iterator[BaseStore]:
    """LangGraph's store, but for a point in the middle of each write."""
    with opened_store(url) as store:
        if isinstance(store, SqliteStore):

            class HalfSqlite(SqliteStore):
                def batch(self, ops: Iterable[Op]) -> list[Result]:
                    return _in_halves(points, super().batch, list(ops))

            yield HalfSqlite(store.conn)
        else:
            assert isinstance(store, PostgresStore)

            class HalfPostgres(PostgresStore):
                def batch(self, ops: Iterable[Op]) -> list[Result]:
                    return _in_halves(points, super().batch, list(ops))

            yield HalfPostgres(store.conn)


# -- the roles


def live(order: dict[str, Any], tell: Tell) -> None:
    """Submit, and work on what is due, until there is nothing or until told to end."""
    ledger = Told(order["ledger"])
    points = Points(order, ledger)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))

    def asked(facts: list[str]) -> None:
        ledger.add(json.dumps(["asked", facts, os.getpid()]))
        points.reach("model.before")

    stack = contextlib.ExitStack()
    store = stack.enter_context(store_in_halves(order["store"], points))
    executor = ReflectionExecutor(
        manager(before=asked),
        store=store,
        journal=order["url"],
        name=order["name"],
        concurrency=order["concurrency"],
    )
    watch_points(points.reach)
    try:
        submit(executor, order["submissions"], points, ledger)
        work(executor, points)
        executor.shutdown(wait=points.how != "leave")
    except SystemExit:
        if isinstance(store, SqliteStore):  # to close what a thread uses would crash Python
            _left.append(stack.pop_all())
        raise
    finally:
        stack.close()
    watch_points(None)
    points.tell()


_left: list[contextlib.ExitStack] = []


def submit(
    executor: ReflectionExecutor, submissions: list[dict[str, Any]], points: Points, ledger: Ledger
) -> None:
    """Tell before and after what is submitted."""
    for one in submissions:
        if points.over.wait(one["pause"]):
            return
        ledger.add(json.dumps(["tried", one["n"]]))
        reflection = executor.submit(
            talk(*one["facts"]), who(one["user"], one["thread"]), after_seconds=one["after"]
        )
        ledger.add(json.dumps(["accepted", one["n"], reflection.id]))


def work(executor: ReflectionExecutor, points: Points) -> None:
    """Until nothing is left that is due soon."""
    deadline = time.monotonic() + PATIENCE
    while not points.over.wait(0.01) and time.monotonic() < deadline:
        horizon = time.time() + LATER / 2
        left = executor.pending(limit=1000)
        if not any(one.due_at and one.due_at.timestamp() < horizon for one in left):
            return


def finish(order: dict[str, Any], tell: Tell) -> None:
    """Another process with the same names brings everything to its end, also what is due later,
    and tells what it finds."""
    told: dict[str, Any] = {"runs": {}, "held": {}}
    rt = perdure.Runtime(order["url"], clock=Ahead(2 * LATER))
    with rt, opened_store(order["store"]) as store:
        for name in order["names"]:
            with ReflectionExecutor(
                manager(), store=store, journal=rt, name=name, concurrency=order["concurrency"]
            ) as executor:
                told["held"][name] = _drained(executor)
            found = rt.blocking.runs(graph=f"reflection:{name}", limit=1000)
            told["runs"][name] = [_show(rt, run) for run in found]
        told["findings"] = [str(one) for one in rt.blocking.doctor().findings]
        told["memories"] = {user: remembered(store, user) for user in order["users"]}
    Path(order["report"]).write_text(json.dumps(told))


def _drained(executor: ReflectionExecutor) -> list[str]:
    """Wait for the end of all reflections. Gives why some were held, which are tried again."""
    held: list[str] = []

    def is_over() -> bool:
        left = executor.pending(limit=1000)
        for one in left:
            if one.state is State.HELD:
                held.append(f"{one.id}: {one.reason}")
                executor.retry(one.id)
        return not left

    until(is_over, f"an end of all reflections of {executor.name}", PATIENCE)
    return held


def _show(rt: perdure.Runtime, run: Run) -> dict[str, Any]:
    events = rt.blocking.events(run.id)
    return {
        "id": run.id,
        "state": run.state,
        "place": [*run.metadata["namespace"], run.metadata["thread_id"]],
        "reason": run.reason,
        "events": [event.kind for event in events],
        "gap": [event.n for event in events] != list(range(1, len(events) + 1)),
    }
