"""Faults of LangMem's own executor, in the version that is installed.

When one of these tests fails, LangMem has corrected the fault: then
docs/evidence.md is no longer true.
"""

from __future__ import annotations

import functools
import json
import logging
import pickle
import signal
import time
from types import SimpleNamespace
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from tests.langmem.faults import (
    SIGNALS,
    USERS,
    Breaks,
    Playing,
    Refuses,
    cancel_all,
    chat,
    corrected,
    failing,
    is_hit,
    langmems,
    raised_by,
    stop_while_it_fails,
    submit_and_change,
    submit_for_two,
    submit_in_graph,
    submit_thrice,
    unaware,
)
from tests.langmem.faults import busy as busy
from tests.langmem.faults import playing as playing
from tests.langmem.faults import stopped as stopped
from tests.langmem.faults import store as store
from tests.langmem.stock_child import FACTS, HOUR, Model, made
from tests.support.agents import Gate
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.polling import until


@pytest.mark.slow
@SIGNALS
def test_a_signal_loses_what_is_pending_with_langmems_executor(
    number: signal.Signals, sqlite_url: str, playing: Playing
) -> None:
    is_hit(number, playing("pends", "langmem", sqlite_url))
    with opened_store(sqlite_url) as store:
        after = made("langmem", manager(), store, sqlite_url)
        after.shutdown()  # does all that it has, whenever it is due
        assert remembered(store, "ana") == [], corrected(f"{number.name} loses reflections")


def test_a_third_submit_does_not_replace_the_second_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        second = submit_thrice(executor, busy)
        assert not second.cancelled(), corrected("the third of a conversation replaces no second")


@USERS
def test_a_user_cancels_what_another_one_submitted_with_langmems_executor(
    store: BaseStore, thread: str | None
) -> None:
    with langmems(manager(), store) as executor:
        first = submit_for_two(executor, thread)
        assert first.cancelled(), corrected("users cancel each other")


def test_what_is_worked_on_is_called_cancelled_when_the_next_comes_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        first = executor.submit(talk("fact-busy"), who("ana", "t"))
        until(lambda: busy.entered, "the first being worked on")
        second = executor.submit(talk("fact-2"), who("ana", "t"))
        busy.open()
        second.result(30)
        assert "fact-busy" in remembered(store, "ana")
        assert first.cancelled(), corrected("what is worked on is called cancelled")


def test_a_future_is_cancelled_while_its_reflection_goes_on_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        future = executor.submit(talk("fact-busy"), who("ana", "t"))
        until(lambda: busy.entered, "it being worked on")
        said = future.cancel()
        busy.open()
        executor.submit(talk("fact-behind"), who("ana", "behind")).result(30)
        assert (said, remembered(store, "ana")) == (True, ["fact-behind", "fact-busy"]), corrected(
            "cancel() says that it cancelled what goes on"
        )


@pytest.mark.slow
def test_shutdown_while_busy_hangs_with_langmems_executor(stopped: Any) -> None:
    assert (stopped["works"], stopped["hangs"]) == (False, True), corrected("shutdown() hangs")


@pytest.mark.slow
def test_shutdown_does_what_was_superseded_with_langmems_executor(stopped: Any) -> None:
    assert "fact-old" in stopped["asked"], corrected("shutdown() does what was superseded")
    assert "fact-old" in stopped["remembered"]


@pytest.mark.slow
def test_shutdown_drops_what_is_due_with_langmems_executor(stopped: Any) -> None:
    lost = {"fact-new", "fact-last"} - set(stopped["remembered"])
    assert lost == {"fact-new", "fact-last"}, corrected("shutdown() drops what is due")


def test_shutdown_does_early_what_is_not_due_with_langmems_executor(store: BaseStore) -> None:
    with langmems(manager(), store) as executor:
        executor.submit(talk("fact-1"), who("ana", "t"), after_seconds=HOUR)
        executor.shutdown()
        assert remembered(store, "ana") == ["fact-1"], corrected("shutdown() does it all at once")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_shutdown_does_what_it_cancelled_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    model = Model(busy=busy)
    with langmems(manager(before=model), store) as executor:
        cancel_all(executor, busy)
        executor._worker.join(30)
        assert "fact-cancelled" in remembered(store, "ana"), corrected(
            "shutdown(cancel_futures=True) does what it cancelled"
        )


def test_shutdown_raises_what_a_reflection_raised_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=failing(busy)), store) as executor:
        raised = stop_while_it_fails(executor, busy)
        assert isinstance(raised, ValueError), corrected("shutdown() raises a reflection's error")


def test_submit_after_shutdown_is_accepted_and_forgotten_with_langmems_executor(
    store: BaseStore,
) -> None:
    with langmems(manager(), store) as executor:
        executor.shutdown()
        future = executor.submit(talk("fact-1"), who("ana", "t"))
        alive = executor._worker.is_alive()
        assert (alive, future.done()) == (False, False), corrected("submit() after shutdown()")


@pytest.mark.slow
def test_a_process_does_not_end_without_shutdown_with_langmems_executor(
    sqlite_url: str, playing: Playing
) -> None:
    with playing("ends", "langmem", sqlite_url) as (child, told):
        assert told == "over"
        ended = any(child.is_over() for _ in range(100))  # two seconds
        assert not ended, corrected("a process does not end without shutdown()")


def test_an_error_is_seen_by_nobody_and_not_tried_again_with_langmems_executor(
    store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    model = Refuses()
    with langmems(manager(before=model), store) as executor, caplog.at_level(logging.DEBUG):
        executor.submit(talk("fact-1"), who("ana", "t"))
        executor.submit(talk("fact-2"), who("ana", "u")).result(30)
        assert remembered(store, "ana") == ["fact-2"], corrected("a reflection that raised is lost")
        assert model.times == 1
        assert "no model today" not in caplog.text, corrected("errors are only in the future")


def test_without_a_store_of_its_own_nothing_is_stored_with_langmems_executor(
    store: BaseStore,
) -> None:
    with langmems(manager(), None) as executor:
        raised = submit_in_graph(executor, store).exception(30)
        what = "an executor without store= stores nothing"
        assert isinstance(raised, AttributeError), corrected(what)
        assert remembered(store, "ana") == [], corrected(what)


def test_without_a_store_of_its_own_nothing_can_be_searched_with_langmems_executor(
    store: BaseStore,
) -> None:
    with langmems(manager(), None) as executor:
        submit_in_graph(executor, store).exception(30)
        raised = raised_by(lambda: executor.search(namespace=("memories", "ana")))
        what = "an executor without store= cannot search"
        assert isinstance(raised, AttributeError), corrected(what)


def test_a_manager_writes_into_the_first_store_it_saw_with_langmems_executor() -> None:
    shared, first, second = manager(), InMemoryStore(), InMemoryStore()
    for each, fact in ((first, "fact-1"), (second, "fact-2")):
        with langmems(shared, each) as executor:
            executor.submit(talk(fact), who("ana", "t")).result(30)
    found = remembered(first, "ana"), remembered(second, "ana")
    assert found == (["fact-1", "fact-2"], []), corrected("a manager keeps the first store")


def test_a_write_that_failed_is_called_done_with_langmems_executor() -> None:
    store = Breaks(before=True)
    with langmems(manager(), store) as executor:
        said = executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    assert store.broken
    assert ([one["value"]["content"] for one in said], remembered(store, "ana")) == (
        [{"content": "fact-1"}],
        [],
    ), corrected("a memory that was not written is called written")


def test_a_reflection_that_is_done_twice_makes_two_memories_with_langmems_executor() -> None:
    store = Breaks(before=False)
    with langmems(unaware(), store) as executor:
        for _ in range(2):  # as nobody was told that the first was written
            executor.submit(talk("fact-1"), who("ana", "t")).result(30)
    found = remembered(store, "ana")
    assert found == ["fact-1", "fact-1"], corrected("doing one twice makes two memories")


def test_two_that_are_due_at_once_raise_with_langmems_executor(
    store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    standing = SimpleNamespace(time=lambda: 1_700_000_000.0, sleep=time.sleep)
    monkeypatch.setattr("langmem.reflection.time", standing)
    with langmems(manager(), store) as executor:
        submit = functools.partial(executor.submit, after_seconds=HOUR, thread_id=None)
        raised = [  # one of three may be in the hands of its thread
            raised_by(functools.partial(submit, talk(fact), who("ana"))) for fact in FACTS[:3]
        ]
        what = "two that are due at once raise TypeError"
        assert any(isinstance(one, TypeError) for one in raised), corrected(what)


def test_what_waits_cannot_be_written_down_with_langmems_executor(store: BaseStore) -> None:
    with langmems(manager(), store) as executor:
        waiting: list[Any] = []

        def node() -> None:
            executor.submit(talk("fact-1"), after_seconds=HOUR)
            waiting.append(executor._pending_tasks["t"].config)

        chat(node, store)
        for write in (json.dumps, pickle.dumps):
            raised = raised_by(functools.partial(write, waiting[0]))
            assert raised is not None, corrected("what waits cannot be written down")


def test_what_was_submitted_changes_with_the_callers_objects_with_langmems_executor(
    store: BaseStore, busy: Gate
) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        submit_and_change(executor, busy)
    found = remembered(store, "bo")
    assert found == ["fact-1", "fact-2"], corrected("a later change is seen by what waits")


def test_the_callers_config_is_changed_with_langmems_executor(store: BaseStore, busy: Gate) -> None:
    with langmems(manager(before=Model(busy=busy)), store) as executor:
        config = submit_and_change(executor, busy)
    added = config["configurable"].keys() - {"user", "thread_id"}
    assert added, corrected("the config of who submits is changed")
