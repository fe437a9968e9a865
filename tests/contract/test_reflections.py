"""Reflections are on disk, written once, one at a time, and never dropped."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from datetime import timedelta
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.store.base import BaseStore

import perdure
from perdure.errors import ReflectionFailed
from perdure.langmem import Pending, Reflection, ReflectionExecutor
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retry, State
from tests.support.agents import NOON
from tests.support.memory import (
    ONCE,
    SOON,
    keeper,
    manager,
    note,
    notes,
    on_thread,
    remember,
    remembered,
    runs_on_disk,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.polling import until
from tests.support.raw import execute


def test_it_is_on_disk_when_submit_returns(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        for n in range(3):
            made = executor.submit(talk("fact-tea"), who("ann", f"t{n}"), after_seconds=600)
            assert (made.id, "pending") in runs_on_disk(url)


BROKEN = {
    "sqlite": [
        """CREATE TRIGGER broken BEFORE INSERT ON store
        BEGIN SELECT RAISE(ABORT, 'no memories today'); END"""
    ],
    "postgresql": [
        """CREATE FUNCTION broken() RETURNS trigger LANGUAGE plpgsql
        AS 'BEGIN RAISE EXCEPTION ''no memories today''; END'""",
        "CREATE TRIGGER broken BEFORE INSERT ON store FOR EACH ROW EXECUTE FUNCTION broken()",
    ],
}
MENDED = {
    "sqlite": ["DROP TRIGGER broken"],
    "postgresql": ["DROP TRIGGER broken ON store", "DROP FUNCTION broken"],
}


@pytest.mark.slow
def test_memories_in_the_journals_database_are_committed_with_the_outcome(
    url: str, store: BaseStore
) -> None:
    """The statement of the memory raises: the effect is not recorded as done either."""
    kind = url.partition(":")[0]
    for sql in BROKEN[kind]:
        execute(url, sql)
    with ReflectionExecutor(manager(), store=store, journal=url, retry=ONCE) as executor:
        made = executor.submit(talk("fact-tea"), who("ann", "t"))
        assert isinstance(made.exception(SOON), ReflectionFailed)
        assert remembered(store, "ann") == []
        with perdure.Client(url) as client:
            [record] = client.blocking.effects(made.id)
        assert record.name == "memories"
        assert record.state != "done"
        for sql in MENDED[kind]:
            execute(url, sql)
        executor.retry(made.id)
        until(lambda: not executor.pending())
        assert remembered(store, "ann") == ["fact-tea"]


@pytest.mark.parametrize("count", [2, 3, 10])
def test_of_many_submits_in_one_conversation_the_last_is_done(
    url: str, store: BaseStore, count: int
) -> None:
    asked: list[list[str]] = []
    with ReflectionExecutor(manager(before=asked.append), store=store, journal=url) as executor:
        made = [
            executor.submit(talk(f"fact-{n}"), who("ann", "t"), after_seconds=0.3)
            for n in range(count)
        ]
        made[-1].result(SOON)
        for one in made[:-1]:
            until(one.done)
            with pytest.raises(CancelledError):
                one.result(0)
        assert asked == [[f"fact-{count - 1}"]]
        assert remembered(store, "ann") == [f"fact-{count - 1}"]
        states = [state for _, state in runs_on_disk(url)]
        assert sorted(states) == ["cancelled"] * (count - 1) + ["done"]


@pytest.mark.slow
def test_threads_and_executors_that_submit_at_once_leave_one(url: str, store: BaseStore) -> None:
    options: dict[str, Any] = {"store": store, "journal": url, "name": "r"}
    with (
        ReflectionExecutor(keeper(), **options) as one,
        ReflectionExecutor(keeper(), **options) as other,
    ):

        def submit(n: int) -> Reflection:
            return (one, other)[n % 2].submit(note("a", str(n)), on_thread("t"), after_seconds=2)

        with ThreadPoolExecutor(8) as pool:
            made = list(pool.map(submit, range(24)))
        assert [state for _, state in runs_on_disk(url) if state != "cancelled"] == ["pending"]
        assert len(wait_for_all(made, SOON).done) == 24
        [kept] = [one for one in made if not one.cancelled()]
        assert kept.result(0) == "kept a"
        assert notes(store) == {"a": str(made.index(kept))}


def test_an_error_is_seen_tried_again_and_held_in_the_end(url: str, store: BaseStore) -> None:
    clock, tries = Clock(NOON), list[str]()

    def reflect(payload: Any) -> None:
        tries.append(payload["key"])
        remember(get_store(), "never")
        raise ConnectionError(f"attempt {len(tries)}")

    retry = Retry(attempts=3, first=timedelta(seconds=10), factor=2)
    with (
        TemporaryRuntime(url, clock=clock) as rt,
        ReflectionExecutor(reflect, store=store, journal=rt, name="r", retry=retry) as executor,
    ):
        made = executor.submit(note("a"), on_thread("t"))
        for attempt, pause in ((1, 10), (2, 20)):

            def has_failed() -> list[Pending]:
                message = f"attempt {attempt}"  # noqa: B023
                found = executor.pending()
                return [p for p in found if p.error and p.error.message == message]

            [one] = until(has_failed)
            assert one.state is State.PENDING
            assert not made.done()
            assert one.attempts == attempt
            assert one.due_at == clock.time + timedelta(seconds=pause)
            clock.move_to(one.due_at)
        error = made.exception(SOON)
        assert isinstance(error, ReflectionFailed)
        assert error.id == made.id
        assert "attempt 3" in error.reason
        assert "retry(" in str(error)
        [one] = executor.pending()
        assert (one.state, one.attempts, len(tries)) == (State.HELD, 3, 3)
        assert one.reason == "ConnectionError: attempt 3"
        events = rt.blocking.events(made.id)
        told = [event.data["message"] for event in events if "message" in event.data]
        assert told == ["attempt 1", "attempt 2", "attempt 3"]
        assert events[-1].kind == "held"
    assert notes(store) == {}


class AtOnce:
    """A reflector that knows how many are in it, of each user and together."""

    def __init__(self, meeting: threading.Barrier | None = None) -> None:
        self._lock, self._meeting = threading.Lock(), meeting
        self.now: dict[str, int] = {}
        self.most: dict[str, int] = {}

    def __call__(self, payload: Any) -> None:
        user = payload["user"]
        for one in (user, "all"):
            with self._lock:
                self.now[one] = self.now.get(one, 0) + 1
                self.most[one] = max(self.most.get(one, 0), self.now[one])
        if self._meeting is not None:
            self._meeting.wait(SOON)
        remember(get_store(), payload["key"])
        for one in (user, "all"):
            with self._lock:
                self.now[one] -= 1


def test_those_of_one_namespace_go_one_at_a_time_whoever_works_on_them(
    url: str, store: BaseStore
) -> None:
    inside = AtOnce()
    options: dict[str, Any] = {"store": store, "journal": url, "name": "r", "concurrency": 4}
    with (
        ReflectionExecutor(inside, "{user}", **options) as one,
        ReflectionExecutor(inside, "{user}", **options) as other,
    ):
        made = [
            (one, other)[n % 2].submit(
                {"user": "ann", "key": str(n)}, {"configurable": {"user": "ann"}}
            )
            for n in range(4)
        ]
        for reflection in made:
            reflection.result(2 * SOON)
    assert inside.most["ann"] == 1
    assert len(notes(store)) == 4
