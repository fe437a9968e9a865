"""An error is kept, tried again and held in the end; one namespace is worked on one at a time."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

import perdure
from perdure.errors import NotFound, ReflectionFailed, WrongState
from perdure.langmem import ReflectionExecutor
from perdure.types import State
from tests.support.agents import chain, gate
from tests.support.memory import (
    AT_ONCE,
    ON_A_FILE,
    ONCE,
    SOON,
    keeper,
    note,
    notes,
    on_thread,
    remember,
    runs_on_disk,
    stopping_at,
)
from tests.support.memory import store as store
from tests.support.polling import until
from tests.support.sqlite_only import url as url

# -- errors


def test_one_that_is_held_is_done_after_retry_and_its_error_is_gone(
    url: str, store: BaseStore
) -> None:
    broken = threading.Event()
    broken.set()

    def reflect(payload: Any) -> None:
        if broken.is_set():
            raise ConnectionError("no")
        remember(get_store(), payload["key"])

    with ReflectionExecutor(reflect, store=store, journal=url, retry=AT_ONCE) as executor:
        made = executor.submit(note("a"), on_thread("t"))
        assert isinstance(made.exception(SOON), ReflectionFailed)
        broken.clear()
        executor.retry(made.id)
        until(lambda: not executor.pending())
        assert notes(store).keys() == {"a"}
        with pytest.raises(WrongState, match="only a held reflection can"):
            executor.retry(made.id)
        with pytest.raises(WrongState, match="it has ended"):
            executor.cancel(made.id)


@ON_A_FILE
def test_what_is_held_waits_for_a_person_also_over_a_restart(url: str, store: BaseStore) -> None:
    tries: list[Any] = []

    def reflect(payload: Any) -> None:
        tries.append(payload)
        raise ConnectionError("no")

    options: dict[str, Any] = {"store": store, "journal": url, "name": "r", "retry": ONCE}
    with ReflectionExecutor(reflect, **options) as executor:
        executor.submit(note("a")).exception(SOON)
    with ReflectionExecutor(keeper(), **options) as executor:
        executor.submit(note("b")).result(SOON)
        [one] = executor.pending()
        assert one.state is State.HELD
        assert len(tries) == 1
        executor.cancel(one.id)
        assert executor.pending() == []
    assert notes(store).keys() == {"b"}


def test_only_reflections_of_this_executor_are_retried_or_cancelled(sqlite_url: str) -> None:
    store = InMemoryStore()
    options: dict[str, Any] = {"store": store, "journal": sqlite_url}
    with (
        ReflectionExecutor(keeper(), name="one", **options) as one,
        ReflectionExecutor(keeper(), name="other", **options) as other,
    ):
        made = one.submit(note("a"), after_seconds=600)
        for call in (other.cancel, other.retry):
            with pytest.raises(NotFound, match="no reflection"):
                call(made.id)
        with pytest.raises(NotFound):
            one.cancel("no-such-id")
        with perdure.Runtime(sqlite_url) as rt:
            rt.register(chain(("note", lambda state: {})), name="agent")
            run = rt.blocking.start("agent", {"log": []})
            with pytest.raises(NotFound):
                one.cancel(run.id)
        assert other.pending() == []
        assert [p.id for p in one.pending()] == [made.id]


def test_cancelling_one_that_is_worked_on_leaves_nothing_of_it(url: str, store: BaseStore) -> None:
    with gate() as place:
        reflector = stopping_at(place)
        with ReflectionExecutor(reflector, store=store, journal=url, name="r") as executor:
            made = executor.submit(note("a", "stop"), on_thread("t"))
            until(lambda: place.entered)
            assert made.cancel() is False
            assert not made.done()
            executor.cancel(made.id)
            place.open()
            until(made.cancelled)
            assert notes(store) == {}
            assert dict(runs_on_disk(url)) == {made.id: "cancelled"}


@ON_A_FILE
def test_a_future_that_is_cancelled_takes_its_reflection_along(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(keeper(), store=store, journal=url, name="r") as executor:
        made = executor.submit(note("a"), on_thread("t"), after_seconds=600)
        called: list[Any] = []
        made.add_done_callback(called.append)
        assert made.cancel()
        assert made.cancel()
        assert called == [made]
        assert executor.pending() == []
        done = executor.submit(note("b"))
        assert done.result(SOON) == "kept b"
        assert not done.cancel()
        other = executor.submit(note("c"), after_seconds=600)
        executor.cancel(other.id)
        until(other.cancelled)
    assert notes(store).keys() == {"b"}


def test_one_that_takes_too_long_is_tried_again(sqlite_url: str) -> None:
    calls: list[str] = []

    async def reflect(payload: Any) -> str:
        calls.append("call")
        if len(calls) == 1:
            await asyncio.sleep(600)
        return "second"

    with ReflectionExecutor(
        reflect,
        store=InMemoryStore(),
        journal=sqlite_url,
        retry=AT_ONCE,
        timeout=timedelta(seconds=0.3),
    ) as executor:
        assert executor.submit({}).result(SOON) == "second"


# -- one at a time


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


def test_those_of_different_namespaces_go_at_once(url: str, store: BaseStore) -> None:
    inside = AtOnce(threading.Barrier(3))  # three must be in it together, or none comes out
    options: dict[str, Any] = {"store": store, "journal": url, "name": "r", "concurrency": 4}
    with ReflectionExecutor(inside, "{user}", **options) as executor:
        made = [
            executor.submit({"user": user, "key": user}, {"configurable": {"user": user}})
            for user in ("ann", "bo", "cy")
        ]
        for reflection in made:
            reflection.result(SOON)
    assert inside.most["all"] == 3
