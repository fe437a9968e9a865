"""Thousands of pending reflections cost a start and the memory nothing."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
from langgraph.store.memory import InMemoryStore

from perdure.langmem import Reflection, ReflectionExecutor
from perdure.langmem.background_worker import BATCH
from tests.support.polling import until

MONTH = 30 * 86_400
MANY = 2_000
PAYLOAD = {"messages": [{"role": "user", "content": "I moved to Lisbon."}]}


@contextmanager
def opened(url: str, reflector: Callable[[Any], Any], **options: Any) -> Iterator[Any]:
    executor = ReflectionExecutor(
        reflector, ("memories", "{user_id}"), store=InMemoryStore(), journal=url, **options
    )
    try:
        yield executor
    finally:
        executor.shutdown(wait=False)


def nothing(payload: Any) -> None:
    return None


def submit(executor: Any, n: int, *, after: float = MONTH, thread: str = "") -> Reflection:
    config = {"configurable": {"user_id": f"user-{n}", "thread_id": thread or f"thread-{n}"}}
    found: Reflection = executor.submit(PAYLOAD, config, after_seconds=after)
    return found


# -- what a process keeps


@pytest.mark.slow
def test_a_process_that_submitted_thousands_keeps_none_of_them(sqlite_url: str) -> None:
    with opened(sqlite_url, nothing, name="scale") as executor:
        for n in range(MANY):
            submit(executor, n)
        gc.collect()
        worker = executor._worker
        assert [one for one in gc.get_objects() if isinstance(one, Reflection)] == []
        assert len(worker._futures) == len(worker._latest) == 0
        assert len(executor.pending(limit=MANY)) == MANY


def test_a_future_that_is_kept_is_told_among_many_that_are_not(url: str) -> None:
    """What clears away the others leaves it alone."""
    with opened(url, nothing, name="scale") as executor:
        kept = submit(executor, 0, after=0.3)
        for n in range(1, 2 * BATCH + 50):
            submit(executor, n)
        assert kept.result(30) is None


# -- start-up


def test_a_start_claims_no_more_than_it_works_on(url: str) -> None:
    """The others stay for whoever has time for them."""
    with opened(url, nothing, name="scale") as executor:
        for n in range(50):
            submit(executor, n, after=1)
        executor._worker.stop()
        begun: list[Any] = []
        gate = threading.Event()

    def stuck(payload: Any) -> None:
        begun.append(payload)
        gate.wait(30)

    with opened(url, stuck, name="scale", concurrency=3) as executor:
        try:
            until(lambda: len(begun) == 3)
            running = [one for one in executor.pending() if one.state == "running"]
            assert len(running) == 3
            assert len(begun) == 3
        finally:
            gate.set()


def test_a_worker_is_not_woken_for_what_is_due_later(sqlite_url: str) -> None:
    """It looks often enough by itself; to wake it for each would take turns with who submits."""
    with opened(sqlite_url, nothing, name="scale") as executor:
        woken: list[None] = []
        executor._runtime.look_now = lambda: woken.append(None)
        submit(executor, 1, after=timedelta(hours=1).total_seconds())
        assert woken == []
        submit(executor, 2, after=0)
        assert woken == [None]
