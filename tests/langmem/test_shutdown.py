"""`shutdown` finishes what is due, leaves what is not, and leaves no future hanging."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

import perdure
from perdure.errors import ReflectionLeft, Unavailable
from perdure.langmem import ReflectionExecutor
from perdure.langmem.reflector import ReflectionRequest
from perdure.types import State
from tests.support.agents import gate
from tests.support.memory import (
    ON_A_FILE,
    ONCE,
    SOON,
    keeper,
    note,
    notes,
    on_thread,
    opened_store,
    runs_on_disk,
    stopping_at,
)
from tests.support.memory import store as store
from tests.support.polling import until
from tests.support.sqlite_only import url as url

REQUEST = ReflectionRequest(note("a", "stop"), (), "t")


def test_shutdown_finishes_what_is_due_and_leaves_what_is_not(url: str, store: BaseStore) -> None:
    executor = ReflectionExecutor(keeper(), store=store, journal=url, name="r")
    due = [executor.submit(note(f"due-{n}"), on_thread(f"d{n}")) for n in range(5)]
    later = [
        executor.submit(note(f"later-{n}"), on_thread(f"l{n}"), after_seconds=600) for n in range(3)
    ]
    executor.shutdown()
    assert [one.result(0) for one in due] == [f"kept due-{n}" for n in range(5)]
    for one in later:
        error = one.exception(0)
        assert isinstance(error, ReflectionLeft)
        assert error.executor == "r"
    executor.shutdown()  # and again
    executor.shutdown(wait=False, cancel_futures=True)
    assert sorted(state for _, state in runs_on_disk(url)) == ["done"] * 5 + ["pending"] * 3


@pytest.mark.slow
def test_every_future_of_what_was_done_knows_it_when_shutdown_returns(sqlite_url: str) -> None:
    with ReflectionExecutor(
        lambda payload: payload["n"], store=InMemoryStore(), journal=sqlite_url, name="r"
    ) as executor:
        executor._concurrency = 10
        made = [executor.submit({"n": n}) for n in range(220)]
    assert [one.result(0) for one in made] == list(range(220))


def test_without_wait_what_is_worked_on_is_given_back_and_done_by_the_next(
    url: str, store: BaseStore
) -> None:
    options: dict[str, Any] = {"store": store, "journal": url, "name": "r"}
    with gate() as place:
        executor = ReflectionExecutor(stopping_at(place), **options)
        made = [executor.submit(note("a", "stop")), executor.submit(note("b"))]
        until(lambda: place.entered)
        executor.shutdown(wait=False)
        assert all(isinstance(one.exception(0), ReflectionLeft) for one in made)
        assert notes(store) == {}
        with ReflectionExecutor(keeper(), **options) as after:
            until(lambda: not after.pending())
        assert notes(store).keys() == {"a", "b"}


@ON_A_FILE
def test_after_shutdown_no_reflector_uses_the_store_so_it_can_be_closed(url: str) -> None:
    refused: list[Unavailable] = []

    def reflect(payload: Any) -> None:
        place.block()
        try:
            get_store().put(("notes",), payload["key"], {"text": payload["text"]})
        except Unavailable as error:
            refused.append(error)
            raise

    with gate() as place:
        with opened_store(url) as store:
            executor = ReflectionExecutor(reflect, store=store, journal=url, name="r", retry=ONCE)
            executor.submit(note("a"))
            until(lambda: place.entered)
            executor.shutdown(wait=False)
        place.open()
        until(lambda: refused)
    with opened_store(url) as store:
        with ReflectionExecutor(keeper(), store=store, journal=url, name="r") as after:
            until(lambda: not after.pending())
        assert notes(store).keys() == {"a"}


@ON_A_FILE
async def test_a_reflection_that_a_worker_of_the_runtime_runs_is_released_by_shutdown(
    url: str, store: BaseStore
) -> None:
    """The attempt does not count: the next executor runs it."""
    rt = perdure.Runtime(url)
    async with rt:
        with gate() as place:
            executor = ReflectionExecutor(stopping_at(place), journal=rt, name="r", retry=ONCE)
            executor._graph.store = store  # without a worker of its own
            made = await asyncio.to_thread(executor._accept, "t", REQUEST, 0.0)
            working = asyncio.create_task(rt.work(handle_signals=False))
            await asyncio.to_thread(until, lambda: place.entered)
            await executor.ashutdown(wait=False)
            place.open()
            await asyncio.to_thread(until, lambda: runs_on_disk(url) == [(made, "pending")])
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
    with ReflectionExecutor(keeper(), store=store, journal=url, name="r") as after:
        await asyncio.to_thread(until, lambda: not after.pending())
    assert notes(store).keys() == {"a"}


def test_cancel_futures_cancels_what_is_not_begun(url: str, store: BaseStore) -> None:
    with gate() as place:
        executor = ReflectionExecutor(stopping_at(place), store=store, journal=url, name="r")
        first = executor.submit(note("a", "stop"))
        until(lambda: place.entered)
        others = [executor.submit(note("b"), after_seconds=after) for after in (0, 600)]
        place.open()
        executor.shutdown(cancel_futures=True)
        assert first.result(0) == "went on"
        assert all(one.cancelled() for one in others)
    assert sorted(state for _, state in runs_on_disk(url)) == ["cancelled", "cancelled", "done"]


def test_a_runtime_that_is_closed_first_leaves_no_future_hanging(url: str) -> None:
    rt = perdure.Runtime(url)
    executor = ReflectionExecutor(keeper(), store=InMemoryStore(), journal=rt, name="r")
    made = executor.submit(note("a"), after_seconds=600)
    rt.close()
    assert isinstance(made.exception(SOON), ReflectionLeft)
    executor.shutdown()


@ON_A_FILE
def test_shutdown_leaves_the_runtime_it_was_given_open(url: str, store: BaseStore) -> None:
    with perdure.Runtime(url) as rt:
        with ReflectionExecutor(keeper(), store=store, journal=rt, name="r") as executor:
            executor.submit(note("a")).result(SOON)
        assert [run.state for run in rt.blocking.runs()] == [State.DONE]
