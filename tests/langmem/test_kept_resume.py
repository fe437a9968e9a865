"""What `resume_pending_reflections` takes up after a restart, and what it leaves alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore, Op, PutOp
from langgraph.store.memory import InMemoryStore
from langmem import ReflectionExecutor as StockExecutor

from perdure.errors import NotFound
from perdure.langmem import persist, resume_pending_reflections
from perdure.langmem.records import Records
from perdure.types import State
from tests.support.agents import gate as a_gate
from tests.support.kept import (
    LATER,
    items,
    left,
    noting,
    records,
)
from tests.support.kept import alone as alone
from tests.support.kept import quick as quick
from tests.support.kept import store as store
from tests.support.kept_child import NAME, watched, wrapped
from tests.support.memory import manager, remembered, talk, who
from tests.support.runtime_child import Ledger, eventually


@pytest.mark.usefixtures("alone")
def test_overdue_ones_run_at_once_and_the_others_when_they_are_due(store: BaseStore) -> None:
    first = left(store, {"n": 1}, due=-100)
    second = left(store, {"n": 2}, due=0.3)
    last = left(store, {"n": 3}, due=LATER)
    with noting(store) as (executor, seen):
        resumed = resume_pending_reflections(executor, store)
        assert [one.id for one in resumed] == [first.id, second.id, last.id]
        eventually(lambda: len(executor.pending()) == 1, "the first two")
        assert seen == [{"n": 1}, {"n": 2}]
        assert [one.id for one in executor.pending()] == [last.id]
        assert resume_pending_reflections(executor, store) == []


def test_two_threads_that_resume_at_once_run_nothing_twice(store: BaseStore) -> None:
    for n in range(5):
        left(store, {"n": n})
    with noting(store) as (executor, seen):
        resumed: list[Any] = []
        threads = [
            threading.Thread(target=lambda: resumed.extend(executor.resume())) for _ in range(4)
        ]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        eventually(lambda: not executor.pending(), "all of them")
    assert len({one.id for one in resumed}) == len(resumed) == 5
    assert sorted(one["n"] for one in seen) == list(range(5))


@pytest.mark.usefixtures("alone")
def test_what_another_submits_while_an_older_one_is_claimed_is_not_lost(quick: BaseStore) -> None:
    older = left(quick, {"n": 1}, thread="t", due=LATER)
    with noting(quick) as (other, _), noting(quick) as (executor, seen):
        futures: list[Any] = []

        def look(ops: list[Op], real: Callable[[list[Op]], Any]) -> Any:
            is_claim = [op for op in ops if isinstance(op, PutOp) and op.key == older.id]
            if is_claim and not futures:
                futures.append(None)
                futures[0] = other.submit({"n": 2}, who("u", "t"))
            return real(ops)

        watched(quick, look)
        executor.resume()
        assert futures[0].result(30) == {"n": 2}
    assert seen == []


@pytest.mark.usefixtures("alone")
def test_what_a_living_owner_has_is_left_alone(store: BaseStore) -> None:
    with a_gate() as gate, noting(store, gate.block) as (executor, seen):
        executor.submit({"n": 1}, who("u", "now"))
        executor.submit({"n": 2}, who("u", "later"), after_seconds=LATER)
        eventually(lambda: gate.entered, "the first")
        with noting(store) as (other, taken):
            assert other.resume() == []
            assert executor.resume() == []
        gate.open()
    assert (seen, taken) == ([{"n": 1}], [])


@pytest.mark.usefixtures("alone")
def test_the_owner_of_a_record_that_another_took_does_not_begin_it(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with a_gate() as gate, noting(store, gate.block) as (executor, seen):
        executor.submit({"n": 1}, who("u", "first"))
        executor.submit({"n": 2}, who("u", "second"))
        eventually(lambda: gate.entered, "the first")
        [second] = [one for one in records(store) if not one.begun]
        Records(store, NAME).put(replace(second, until=time.time() - 1))  # it waits for too long
        with noting(store) as (other, taken):
            assert [one.id for one in other.resume()] == [second.id]
            eventually(lambda: taken, "it")
        gate.open()
    assert (seen, taken) == ([{"n": 1}], [{"n": 2}])


@pytest.mark.usefixtures("alone")
def test_who_lost_a_record_while_the_model_was_asked_writes_nothing(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    with a_gate() as gate:
        slow = manager(before=lambda _: gate.block())
        with persist(StockExecutor(slow, store=store), store, name=NAME) as executor:
            lost = executor.submit(talk("fact-1"), who("u", "t"))
            eventually(lambda: gate.entered, "the model")
            [one] = records(store)
            Records(store, NAME).put(replace(one, owner="another:1:host", until=time.time() + 99))
            gate.open()
            assert lost.result(30) is None
    assert "not ours any more" in caplog.text
    assert remembered(store, "u") == []
    assert [one.owner for one in records(store)] == ["another:1:host"]


@pytest.mark.usefixtures("alone")
def test_the_lease_decides_about_an_owner_on_another_host(store: BaseStore) -> None:
    now = time.time()
    left(store, {"n": 1}, owner="elsewhere:1:abc", until=now + 60)
    left(store, {"n": 2}, owner="elsewhere:1:abc", until=now - 60)
    with noting(store) as (executor, seen):
        assert [one.id for one in executor.resume()] == ["id-{'n': 2}"]
        eventually(lambda: len(seen) == 1, "it")


@pytest.mark.usefixtures("alone")
def test_a_record_with_a_draft_is_finished_without_asking_the_model(store: BaseStore) -> None:
    place = ("memories", "u")
    writes = [
        PutOp(place, str(n), {"content": {"content": f"fact-{n}"}})._asdict() | {"before": None}
        for n in range(3)
    ]
    store.put(place, "0", writes[0]["value"])
    left(store, {"n": 1}, begun=True, attempts=1, writes=writes)
    with noting(store) as (executor, seen):
        assert len(executor.resume()) == 1
        eventually(lambda: not executor.pending(), "the rest of it")
    assert (seen, remembered(store, "u")) == ([], ["fact-0", "fact-1", "fact-2"])


@pytest.mark.usefixtures("alone")
def test_more_records_than_fit_on_a_page_are_all_resumed(store: BaseStore) -> None:
    example = left(store, {"n": 0}, due=LATER)
    Records(store, NAME).put(*(replace(example, id=f"id-{n}") for n in range(259)))
    with noting(store) as (executor, _):
        resumed = executor.resume()
        assert len({one.id for one in resumed}) == 260
        assert executor.resume() == []


def test_no_record_is_missed_in_a_store_that_gives_few_at_once_the_last_changed_first() -> None:
    class Meagre(InMemoryStore):
        def search(self, *args: Any, **options: Any) -> Any:
            offset, limit = options["offset"], min(100, options["limit"])
            found = super().search(*args, limit=1000)
            return sorted(found, key=lambda one: one.updated_at, reverse=True)[offset:][:limit]

    store = Meagre()
    for n in range(260):
        left(store, {"n": n}, due=LATER)
    assert len(records(store)) == 260


@pytest.mark.usefixtures("alone")
def test_an_error_is_kept_retried_by_the_next_resume_and_held_after_the_last(
    store: BaseStore,
) -> None:
    broken = True

    def then() -> None:
        if broken:
            raise ValueError("no model today")

    with noting(store, then) as (executor, seen):
        with pytest.raises(ValueError, match="no model today"):
            executor.submit({"n": 1}, who("u", "t")).result(30)
        for attempt in range(1, 6):
            eventually(lambda n=attempt: len(seen) == n, "an attempt")  # type: ignore[misc]
            eventually(lambda: not executor._here, "its end")
            [one] = executor.pending()
            assert one.attempts == attempt
            assert str(one.error) == "ValueError: no model today"
            assert one.state is (State.HELD if attempt == 5 else State.PENDING)
            assert len(executor.resume()) == (0 if attempt == 5 else 1)
        [one] = executor.pending()
        assert one.reason == "ValueError: no model today"
        broken = False
        executor.retry(one.id)
        assert [found.id for found in executor.resume()] == [one.id]
        eventually(lambda: not executor.pending(), "the end of it")
        with pytest.raises(NotFound):
            executor.retry(one.id)


@pytest.mark.usefixtures("alone")
def test_when_memories_cannot_be_written_the_draft_is_kept_and_the_model_not_asked_again(
    store: BaseStore, tmp_path: Path
) -> None:
    ledger = Ledger(tmp_path / "ledger")
    full = True

    def look(ops: list[Op], real: Callable[[list[Op]], Any]) -> Any:
        if full and any(isinstance(op, PutOp) and op.namespace[0] == "memories" for op in ops):
            raise OSError("disk full")
        return real(ops)

    watched(store, look)
    with wrapped(store, ledger) as executor:
        with pytest.raises(OSError, match="disk full"):
            executor.submit(talk("fact-1"), who("u", "t")).result(30)
        full = False
        assert len(executor.resume()) == 1
        eventually(lambda: not executor.pending(), "the second attempt")
    assert remembered(store, "u") == ["fact-1"]
    assert ledger.lines() == ["asked fact-1"]


@pytest.mark.usefixtures("alone")
def test_a_record_that_cannot_be_read_stays_and_does_not_keep_the_others_back(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    one = left(store, {"n": 1}, due=LATER)
    [item] = items(store)
    store.put(item.namespace, "newer", {**item.value, "id": "newer", "of_a_later_version": 1})
    store.put(item.namespace, "broken", {**item.value, "id": "broken", "request": "bm90aGluZw=="})
    with noting(store) as (executor, _):
        assert [found.id for found in executor.resume()] == [one.id]
    assert caplog.text.count("cannot be read") == 2
    assert len(items(store)) == 3
