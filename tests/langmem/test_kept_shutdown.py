"""Reflections that are kept in a store outlive shutdown and a crash."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langmem import ReflectionExecutor as StockExecutor

from perdure.errors import Closed, ReflectionLeft
from perdure.langmem import persist, resume_pending_reflections
from perdure.langmem.records import Kept, Records
from perdure.langmem.reflection import Request
from tests.support.agents import gate as a_gate
from tests.support.kept import (
    LATER,
    Noting,
    items,
    noting,
    records,
)
from tests.support.kept import alone as alone
from tests.support.kept import nursery as nursery
from tests.support.kept import quick as quick
from tests.support.kept_child import NAME, STORY, Nursery, wrapped
from tests.support.memory import opened_store, remembered, talk, who
from tests.support.runtime_child import Ledger, eventually

KILLS = {"sqlite": range(1, 40, 2), "postgresql": range(2, 40, 2)}
"""After which calls of the store a process is killed; each database has its part. The last is one
that is not reached."""

# -- shutdown


@pytest.mark.usefixtures("alone")
def test_shutdown_runs_what_is_due_and_leaves_the_rest_for_the_next_start(
    quick: BaseStore,
) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        later = executor.submit({"n": 9}, who("u", "later"), after_seconds=LATER)
        superseded = executor.submit({"n": 0}, who("u", "t0"))
        due = [executor.submit({"n": n}, who("u", f"t{n}")) for n in range(3)]
        eventually(lambda: gate.entered, "the first")
        gate.open()
        executor.shutdown()
        executor.shutdown()
        assert [one.result(0) for one in due[1:]] == [{"n": 1}, {"n": 2}]
        assert superseded.done()
        with pytest.raises(ReflectionLeft):
            later.result(0)
        with pytest.raises(Closed):
            executor.submit({}, who("u"))
        with pytest.raises(Closed):
            executor.resume()
    assert {"n": 9} not in seen
    assert [one.request.payload for one in records(quick)] == [{"n": 9}]
    with noting(quick) as (executor, seen):
        assert len(executor.resume()) == 1


def test_shutdown_without_waiting_returns_while_one_is_worked_on(quick: BaseStore) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        working = executor.submit({"n": 1}, who("u", "t1"))
        eventually(lambda: gate.entered, "the first")
        waiting = executor.submit({"n": 2}, who("u", "t2"))
        executor.shutdown(wait=False)
        with pytest.raises(ReflectionLeft):
            waiting.result(0)
        assert not working.done()
        gate.open()
        assert working.result(30) == {"n": 1}
        executor.shutdown()
    assert seen == [{"n": 1}]
    assert [one.owner for one in records(quick)] == [""]


def test_shutdown_that_cancels_deletes_all_that_is_not_begun(quick: BaseStore) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        working = executor.submit({"n": 1}, who("u", "t1"))
        eventually(lambda: gate.entered, "the first")
        futures = [
            executor.submit({"n": n}, who("u", f"t{n}"), after_seconds=0 if n < 4 else LATER)
            for n in range(2, 6)
        ]
        stopping = threading.Thread(target=executor.shutdown, kwargs={"cancel_futures": True})
        stopping.start()
        eventually(lambda: all(one.cancelled() for one in futures), "cancelling")
        gate.open()
        stopping.join(30)
        assert working.result(0) == {"n": 1}
    assert (seen, items(quick)) == ([{"n": 1}], [])


def test_shutdown_in_a_callback_of_a_future_does_not_wait_for_itself(quick: BaseStore) -> None:
    over = threading.Event()

    def stop(_: Any) -> None:
        executor.shutdown()
        over.set()

    with a_gate() as gate, noting(quick, gate.block) as (executor, _):
        future = executor.submit({"n": 1}, who("u", "t"))
        future.add_done_callback(stop)
        gate.open()
        assert over.wait(30)


def test_when_langmems_own_executor_was_shut_down_nothing_is_accepted_any_more(
    quick: BaseStore,
) -> None:
    reflector = Noting()
    inner = StockExecutor(reflector, store=quick)
    with persist(inner, quick, name=NAME) as executor:
        executor.submit({"n": 1}, who("u", "t1"), after_seconds=LATER)
        inner.shutdown()
        with pytest.raises(Closed):
            executor.submit({"n": 2}, who("u", "t2"))
    assert reflector.seen == []
    assert [(one.request.payload, one.owner) for one in records(quick)] == [({"n": 1}, "")]


def test_a_process_that_forgot_shutdown_ends_and_leaves_what_is_not_due(
    nursery: Nursery, sqlite_url: str, tmp_path: Path
) -> None:
    assert nursery.order("exit", url=sqlite_url, ledger=str(tmp_path / "ledger")) == [0]
    with opened_store(sqlite_url) as store:
        assert remembered(store, "u") == ["fact-now"]
        with noting(store) as (executor, _):
            [one] = executor.resume()
            assert one.thread_id == "later"


# -- crashes


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_process_that_is_killed_anywhere_loses_and_doubles_nothing(
    nursery: Nursery, url: str, tmp_path: Path
) -> None:
    status: list[int | None] = []
    for last in (-1, *KILLS[url.partition(":")[0]]):
        told = f"killed after call {last}"
        ledger = Ledger(tmp_path / f"ledger{last}")
        status = nursery.order("live", url=url, ledger=ledger._path, last=last)
        with opened_store(url) as store:
            with wrapped(store, ledger) as executor:
                resume_pending_reflections(executor, store)
                eventually(lambda e=executor: not [one for one in e.pending() if is_due(one)], told)  # type: ignore[misc]
                waiting = executor.pending()
                assert [one.attempts for one in waiting] == [0] * len(waiting), told
                for one in waiting:
                    executor.cancel(one.id)
            accepted = [one.removeprefix("accepted ") for one in ledger.lines() if one[1] == "c"]
            assert status in ([-9], [0]), told
            assert status == [-9] or len(accepted) == len(STORY), told
            must = {f for facts in accepted for f in facts.split()} - {"fact-old"}
            found = remembered(store, "u")
            assert len(set(found)) == len(found), (told, found)
            assert must <= set(found) <= {"fact-1", "fact-2", "fact-3"}, (told, found)
            assert items(store) == [], told
            if last < 0:
                assert sorted(found) == ["fact-1", "fact-2", "fact-3"]
                assert ledger.count()["asked fact-1 fact-2"] == 1, "a redo asks no model"
            for item in store.search(("memories",), limit=100):
                store.delete(item.namespace, item.key)
    assert status == [0], "there are more calls than those after which it was killed"


def is_due(one: Any) -> bool:
    return bool(one.due_at.timestamp() < time.time() + LATER / 2)


@pytest.mark.slow
def test_two_processes_that_resume_at_the_same_moment_run_nothing_twice(
    nursery: Nursery, url: str, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    rounds = [f"round-{n}" for n in range(20)]
    facts = set()
    with opened_store(url) as store:
        for name in rounds:
            for n in range(3):
                fact = f"fact-{name}-{n}"
                facts.add(fact)
                request = Request(talk(fact), ("memories", fact), str(n), {"user": fact})
                now = time.time()
                Records(store, name).add(Kept(fact, request, now - 1, now))
        assert nursery.order(
            "resume", count=2, url=url, ledger=str(tmp_path / "ledger"), names=rounds
        ) == [0, 0]
        for fact in facts:
            assert remembered(store, fact) == [fact]
        assert items(store) == []
    assert ledger.count() == (
        {f"ready {name}": 2 for name in rounds}
        | {f"resumed {fact}": 1 for fact in facts}
        | {f"asked {fact}": 1 for fact in facts}
    )
