"""Our executor does right what LangMem's own does wrong: see tests/neighbours/test_langmem.py.

Most of it is in the other files of this folder."""

from __future__ import annotations

import contextlib
import gc

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from perdure import Runtime
from perdure.testing import Clock
from tests.langmem.faults import (
    ONCE,
    SOON,
    Breaks,
    Stopped,
    cancel_all,
    failing,
    later,
    ours,
    stop_while_it_fails,
    submit_and_change,
    submit_in_graph,
    submit_thrice,
    unaware,
)
from tests.langmem.faults import busy as busy
from tests.langmem.faults import playing as playing
from tests.langmem.faults import sqlite_store as sqlite_store
from tests.langmem.faults import stopped_ours as stopped_ours
from tests.langmem.faults import store as store
from tests.langmem.stock_child import FACTS, HOUR, Model
from tests.support.agents import Gate
from tests.support.memory import manager, remembered, talk, who
from tests.support.polling import until


def test_a_third_submit_replaces_the_second(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), sqlite_store) as executor:
        second = submit_thrice(executor, busy)
        until(second.cancelled, "the second being cancelled")
        [pending] = executor.pending()
        assert pending.thread_id == "t"
        assert pending.id != getattr(second, "id", None)
        assert remembered(sqlite_store, "ana") == ["fact-behind", "fact-busy"]


def test_a_future_is_not_cancelled_while_its_reflection_goes_on(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), sqlite_store) as executor:
        future = executor.submit(talk("fact-busy"), who("ana", "t"))
        until(lambda: busy.entered, "it being worked on")
        assert not future.cancel()
        busy.open()
        assert future.result(30)


def test_shutdown_while_busy_ends(stopped_ours: Stopped) -> None:
    assert stopped_ours["done"] == [True, True, True]


def test_shutdown_does_nothing_that_was_superseded(stopped_ours: Stopped) -> None:
    assert "fact-old" not in stopped_ours["asked"]


def test_shutdown_does_nothing_that_it_cancelled(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate
) -> None:
    model = Model(busy=busy)
    with ours(sqlite_url, manager(before=model), sqlite_store) as executor:
        cancel_all(executor, busy)
    with later(sqlite_url, manager(before=model), sqlite_store):
        until(lambda: remembered(sqlite_store, "ana") == ["fact-busy"], "the first being done")
    assert "fact-cancelled" not in model.asked


def test_shutdown_in_the_midst_leaves_no_task_behind(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), sqlite_store) as executor:
        executor.submit(talk("fact-busy"), who("ana", "t"))
        until(lambda: busy.entered, "it being worked on")
        executor.shutdown(wait=False)
        busy.open()
    gc.collect()  # a task that was not over would complain now
    assert [one.message for one in caplog.records if one.name == "asyncio"] == []


def test_shutdown_raises_nothing_that_a_reflection_raised(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=failing(busy)), sqlite_store, retry=ONCE) as executor:
        assert stop_while_it_fails(executor, busy) is None


def test_without_a_store_of_its_own_the_graphs_is_searched(
    sqlite_url: str, sqlite_store: BaseStore
) -> None:
    with ours(sqlite_url, manager(), None) as executor:
        submit_in_graph(executor, sqlite_store).result(30)
        [found] = executor.search(namespace=("memories", "ana"))
        assert found["value"]["content"] == {"content": "fact-1"}


def test_a_manager_writes_into_the_store_of_its_executor(sqlite_url: str) -> None:
    shared, first, second = manager(), InMemoryStore(), InMemoryStore()
    for each, fact in ((first, "fact-1"), (second, "fact-2")):
        with ours(sqlite_url, shared, each, name=fact) as executor:
            executor.submit(talk(fact), who("ana", "t")).result(30)
    assert (remembered(first, "ana"), remembered(second, "ana")) == (["fact-1"], ["fact-2"])


def test_a_write_that_failed_is_tried_again(sqlite_url: str) -> None:
    store = Breaks(before=True)
    with ours(sqlite_url, manager(), store, retry=SOON) as executor:
        executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    assert store.broken
    assert remembered(store, "ana") == ["fact-1"]


def test_a_reflection_that_is_done_twice_makes_one_memory(url: str) -> None:
    store = Breaks(before=False)
    with ours(url, unaware(), store, retry=SOON) as executor:
        executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    assert store.broken
    assert remembered(store, "ana") == ["fact-1"]


def test_any_number_can_be_due_at_once(sqlite_url: str, sqlite_store: BaseStore) -> None:
    with (
        contextlib.closing(Runtime(sqlite_url, clock=Clock())) as rt,
        ours(rt, manager(), sqlite_store) as executor,
    ):
        for fact in FACTS:
            executor.submit(talk(fact), who("ana"), after_seconds=HOUR, thread_id=None)
        assert len({one.due_at for one in executor.pending()}) == 1
    with later(sqlite_url, manager(), sqlite_store):
        until(lambda: remembered(sqlite_store, "ana") == FACTS, "all being done")


def test_what_was_submitted_is_as_it_was_then(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), sqlite_store) as executor:
        submit_and_change(executor, busy)
    assert remembered(sqlite_store, "bo") == []
    assert remembered(sqlite_store, "ana") == ["fact-1", "fact-busy"]


def test_the_callers_config_is_not_changed(
    sqlite_url: str, sqlite_store: BaseStore, busy: Gate
) -> None:
    with ours(sqlite_url, manager(before=Model(busy=busy)), sqlite_store) as executor:
        config = submit_and_change(executor, busy)
    assert config == {"configurable": {"user": "bo", "thread_id": "t"}}
