"""A later reflection of a conversation replaces the earlier one; each is done when it is due."""

from __future__ import annotations

import uuid
from concurrent.futures import wait as wait_for_all
from datetime import timedelta
from typing import Any

from langgraph.store.base import BaseStore

from perdure.errors import ReflectionLeft
from perdure.langmem import ReflectionExecutor
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retry, State
from tests.support.agents import NOON, gate
from tests.support.memory import (
    HOUR,
    ON_A_FILE,
    ONCE,
    SOON,
    keeper,
    manager,
    note,
    notes,
    on_thread,
    runs_on_disk,
    stopping_at,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.polling import until

# -- a later one takes the place


@ON_A_FILE
def test_waiting_for_all_futures_ends_also_for_those_replaced_or_cancelled(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor(keeper(), store=store, journal=url, name="r") as executor:
        made = [executor.submit(note("a"), on_thread("t"), after_seconds=0.2) for _ in range(3)]
        withdrawn = executor.submit(note("b"), after_seconds=600)
        assert withdrawn.cancel()
        assert withdrawn.cancelled()
        over = wait_for_all([*made, withdrawn], SOON)
        assert len(over.done) == 4
        assert notes(store) == {"a": "text"}


def test_what_is_worked_on_is_not_replaced_and_the_new_one_follows(
    url: str, store: BaseStore
) -> None:
    with gate() as place:
        calls: list[str] = []
        reflector = stopping_at(place, calls)
        with ReflectionExecutor(reflector, store=store, journal=url, concurrency=4) as executor:
            first = executor.submit(note("a", "stop"), on_thread("t"))
            until(lambda: place.entered)
            second = executor.submit(note("b"), on_thread("t"))
            third = executor.submit(note("c"), on_thread("t"))
            until(second.cancelled)
            assert calls == ["a"]
            assert not first.done()
            assert not third.done()
            place.open()
            assert (first.result(SOON), third.result(SOON)) == ("went on", "went on")
            assert calls == ["a", "c"]


def test_one_that_is_held_or_waits_to_be_tried_again_is_replaced(
    url: str, store: BaseStore
) -> None:
    def reflect(payload: Any) -> str:
        if payload["text"] == "fail":
            raise ValueError("no")
        return "well"

    for retry, state in ((ONCE, State.HELD), (Retry(first=HOUR), State.PENDING)):
        name = f"r-{state.value}"
        with ReflectionExecutor(
            reflect, store=store, journal=url, name=name, retry=retry
        ) as executor:
            bad = executor.submit(note("a", "fail"), on_thread("t"))

            def failed() -> bool:
                return any(one.error and one.state is state for one in executor.pending())  # noqa: B023

            until(failed)
            good = executor.submit(note("a"), on_thread("t"))
            assert good.result(SOON) == "well"
            assert executor.pending() == []
            assert dict(runs_on_disk(url))[bad.id] == "cancelled"
            if state is State.PENDING:
                until(bad.cancelled)


def test_other_users_namespaces_threads_and_executors_are_left_alone(
    url: str, store: BaseStore
) -> None:
    later: dict[str, Any] = {"after_seconds": 600}
    shared: dict[str, Any] = {"store": store, "journal": url}
    with (
        ReflectionExecutor(manager(), **shared) as executor,
        ReflectionExecutor(manager(), ("facts", "{user}"), **shared) as facts,
        ReflectionExecutor(manager(), name="other", **shared) as other,
    ):
        for one in (executor, facts, other):
            for user in ("ann", "bo"):
                for thread in ("t", "u"):
                    one.submit(talk("fact-tea"), who(user, thread), **later)
        for one in (executor, facts, other):
            assert len(one.pending()) == 4
        executor.submit(talk("fact-tea"), who("ann", "t"), **later)
        assert [len(one.pending()) for one in (executor, facts, other)] == [4, 4, 4]


@ON_A_FILE
def test_labels_that_look_alike_joined_are_different_places(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(
        keeper(), ("{a}", "{b}"), store=store, journal=url, name="r"
    ) as executor:
        for a, b in (("x/y", "z"), ("x", "y/z"), ("x", "y"), ("x y", "z")):
            config = {"configurable": {"a": a, "b": b, "thread_id": "t"}}
            executor.submit(note("a"), config, after_seconds=600)
        assert len(executor.pending()) == 4


@ON_A_FILE
def test_the_conversation_given_by_hand_counts_not_the_one_of_the_config(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        later: dict[str, Any] = {"after_seconds": 600}
        executor.submit(talk("fact-1"), who("ann", "t"), thread_id="u", **later)
        executor.submit(talk("fact-2"), who("ann", "t"), **later)
        executor.submit(talk("fact-3"), who("ann", "v"), thread_id="u", **later)
        executor.submit(talk("fact-4"), who("ann"), thread_id=uuid.UUID(int=7), **later)
        assert [one.thread_id for one in executor.pending()] == ["t", "u", str(uuid.UUID(int=7))]


# -- when


def test_a_delay_means_the_same_after_a_restart(url: str, store: BaseStore) -> None:
    clock = Clock(NOON)
    with TemporaryRuntime(url, clock=clock) as rt:
        with ReflectionExecutor(keeper(), store=store, journal=rt, name="r") as executor:
            made = executor.submit(note("a"), on_thread("t"), after_seconds=3600)
            [kept] = executor.pending()
            assert (kept.due_at, kept.submitted_at) == (NOON + HOUR, NOON)
        assert isinstance(made.exception(0), ReflectionLeft)
    clock.advance(timedelta(seconds=3599))
    with (
        TemporaryRuntime(url, clock=clock) as rt,
        ReflectionExecutor(keeper(), store=store, journal=rt, name="r") as executor,
    ):
        executor.submit(note("b")).result(SOON)  # so it looked what is due
        assert [one.due_at for one in executor.pending()] == [NOON + HOUR]
        clock.advance(timedelta(seconds=1))
        until(lambda: not executor.pending())
        assert notes(store).keys() == {"a", "b"}


@ON_A_FILE
def test_reflections_are_done_in_the_order_they_are_due(url: str, store: BaseStore) -> None:
    clock, calls = Clock(NOON), list[str]()
    with TemporaryRuntime(url, clock=clock) as rt:
        executor = ReflectionExecutor(
            lambda payload: calls.append(payload["key"]), store=store, journal=rt, name="r"
        )
        for key, after in (("c", 30), ("a", 10), ("b", 20)):
            executor.submit(note(key), after_seconds=after)
        executor.shutdown()
        clock.advance(HOUR)
    with (
        TemporaryRuntime(url, clock=clock) as rt,
        ReflectionExecutor(
            lambda payload: calls.append(payload["key"]), store=store, journal=rt, name="r"
        ) as executor,
    ):
        until(lambda: not executor.pending())
    assert calls == ["a", "b", "c"]
