"""`resume_pending_reflections(executor, store)`: what a process does at start-up to continue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langmem import ReflectionExecutor as LangMemExecutor

from perdure.errors import BadArgument
from perdure.langmem import ReflectionExecutor, resume_pending_reflections
from perdure.runtime import Runtime
from perdure.testing import Clock
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.polling import until

HOUR = 3600.0


@pytest.fixture
def store(url: str) -> Iterator[BaseStore]:
    with opened_store(url) as opened:
        yield opened


def leave_pending(url: str, store: BaseStore, count: int = 2) -> None:
    """Submit reflections, due in an hour, and end the executor."""
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        for n in range(count):
            executor.submit(talk(f"fact-{n}"), who(f"user-{n}", str(n)), after_seconds=HOUR)


def test_pending_reflections_are_returned_and_run_when_they_are_due(
    url: str, store: BaseStore
) -> None:
    leave_pending(url, store)
    with ReflectionExecutor(manager(), journal=url) as executor:
        resumed = resume_pending_reflections(executor, store)
        assert [one.thread_id for one in resumed] == ["0", "1"]
        assert remembered(store, "user-0") == []
    clock = Clock(datetime.now(UTC) + timedelta(hours=2))
    with (
        Runtime(url, clock=clock) as runtime,
        ReflectionExecutor(manager(), journal=runtime) as executor,
    ):
        assert len(resume_pending_reflections(executor, store)) == 2
        until(lambda: not executor.pending(), "the overdue reflections")
    assert (remembered(store, "user-0"), remembered(store, "user-1")) == (["fact-0"], ["fact-1"])


def test_resuming_twice_and_in_two_executors_runs_nothing_twice(url: str, store: BaseStore) -> None:
    leave_pending(url, store)
    asked: list[list[str]] = []
    clock = Clock(datetime.now(UTC) + timedelta(hours=2))
    with Runtime(url, clock=clock) as first, Runtime(url, clock=clock) as second:
        executors = [
            ReflectionExecutor(manager(before=asked.append), journal=runtime)
            for runtime in (first, second)
        ]
        for executor in executors * 2:
            resume_pending_reflections(executor, store)
        until(lambda: not executors[0].pending(), "the overdue reflections")
        for executor in executors:
            executor.shutdown()
    assert sorted(fact for facts in asked for fact in facts) == ["fact-0", "fact-1"]


def test_more_reflections_than_fit_on_a_page_are_all_returned(
    sqlite_url: str,
) -> None:
    store = InMemoryStore()
    leave_pending(sqlite_url, store, count=101)
    with ReflectionExecutor(manager(), journal=sqlite_url) as executor:
        assert len(resume_pending_reflections(executor, store)) == 101


def test_an_executor_that_keeps_its_queue_in_memory_is_refused_with_what_to_use() -> None:
    store = InMemoryStore()
    stock: Any = LangMemExecutor(manager(), store=store)
    try:
        with pytest.raises(BadArgument, match=r"perdure\.langmem\.ReflectionExecutor"):
            resume_pending_reflections(stock, store)
    finally:
        stock.shutdown()


def test_what_is_not_a_store_is_refused(sqlite_url: str) -> None:
    not_a_store: Any = {}
    with (
        ReflectionExecutor(manager(), journal=sqlite_url) as executor,
        pytest.raises(BadArgument, match="BaseStore"),
    ):
        resume_pending_reflections(executor, not_a_store)
