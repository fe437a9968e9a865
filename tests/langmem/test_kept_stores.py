"""Reflections that are kept: into a journal, in stores with coroutines, and what is refused."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres.aio import AsyncPostgresStore
from langgraph.store.sqlite.aio import AsyncSqliteStore
from langmem import ReflectionExecutor as StockExecutor
from langmem import reflection as stock

from perdure.errors import BadArgument
from perdure.langmem import ReflectionExecutor, persist, resume_pending_reflections
from perdure.langmem.kept import Due, Instead
from tests.support.kept import (
    LATER,
    Noting,
    items,
    left,
    noting,
    records,
)
from tests.support.kept import alone as alone
from tests.support.kept import nursery as nursery
from tests.support.kept import store as store
from tests.support.kept_child import NAME, Nursery
from tests.support.memory import manager, remembered, talk, who
from tests.support.runtime_child import eventually

# -- into a journal


@contextmanager
def journalled(url: str, store: BaseStore, reflector: Any) -> Iterator[ReflectionExecutor]:
    with ReflectionExecutor(reflector, store=store, journal=url, name=NAME) as executor:
        yield executor


@pytest.mark.usefixtures("alone")
def test_a_durable_executor_takes_the_records_over_into_its_journal(
    url: str, store: BaseStore
) -> None:
    left(store, {"n": 1}, thread="t1")
    left(
        store,
        {"n": 2},
        thread="t2",
        attempts=5,
        error={"kind": "E", "message": "", "traceback": ""},
    )
    left(store, {"n": 3}, thread="t3", due=LATER)
    left(store, {"n": 4}, owner="elsewhere:1:abc", until=time.time() + 60)
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        resumed = resume_pending_reflections(executor, store)
        assert "t3" in {one.thread_id for one in resumed}
        eventually(lambda: len(executor.pending()) == 1, "what is due")
        assert [one.thread_id for one in resume_pending_reflections(executor, store)] == ["t3"]
    assert sorted(one["n"] for one in reflector.seen) == [1, 2]
    assert [one.request.payload for one in records(store)] == [{"n": 4}]


@pytest.mark.usefixtures("alone")
def test_to_take_the_same_record_over_twice_gives_one_reflection(
    url: str, store: BaseStore
) -> None:
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        for _ in range(3):
            left(store, {"n": 1}, thread="t", due=LATER)
            assert len(resume_pending_reflections(executor, store)) == 1


@pytest.mark.usefixtures("alone")
def test_a_draft_that_is_taken_over_is_written_without_asking_the_model(
    url: str, store: BaseStore
) -> None:
    op = PutOp(("memories", "u"), "k", {"content": {"content": "x"}})
    writes = [op._asdict() | {"before": None}]
    left(store, {"n": 1}, begun=True, attempts=1, writes=writes)
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        resume_pending_reflections(executor, store)
        eventually(lambda: not executor.pending(), "the end of it")
    assert (reflector.seen, remembered(store, "u")) == ([], ["x"])


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_process_that_dies_between_accepting_and_deleting_a_record_leaves_one_reflection(
    nursery: Nursery, url: str, store: BaseStore, tmp_path: Path
) -> None:
    one = left(store, talk("fact-1"), thread="t", due=LATER)
    assert nursery.order("take_over", url=url, ledger=str(tmp_path / "ledger")) == [-9]
    assert [found.id for found in records(store)] == [one.id]
    with journalled(url, store, manager()) as executor:
        [accepted] = executor.pending()
        assert [found.id for found in resume_pending_reflections(executor, store)] == [accepted.id]
    assert items(store) == []


@pytest.mark.usefixtures("alone")
def test_a_later_one_in_the_journal_is_not_replaced_by_an_older_record(
    url: str, store: BaseStore
) -> None:
    reflector = Noting()
    with journalled(url, store, reflector) as executor:
        later = executor.submit({"n": 2}, who("u", "t"), after_seconds=LATER)
        left(store, {"n": 1}, thread="t", submitted_at=time.time() - 100)
        resumed = resume_pending_reflections(executor, store)
        assert later.id in {one.id for one in resumed}
        assert not later.done()
    assert items(store) == []


# -- stores with coroutines


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_with_coroutines_can_be_used_from_threads(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        store: Any
        if kind == "sqlite":
            opened: Any = AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db"))
        else:
            url = request.getfixturevalue("postgres_url")
            opened = AsyncPostgresStore.from_conn_string(url)
        store = await stack.enter_async_context(opened)
        await store.setup()
        executor = persist(StockExecutor(manager(), store=store), store)
        with pytest.raises(BadArgument, match=r"asyncio\.to_thread"):
            executor.submit(talk("fact-1"), who("u", "t"))
        future = await asyncio.to_thread(executor.submit, talk("fact-1"), who("u", "t"))
        await asyncio.to_thread(future.result, 30)
        assert await asyncio.to_thread(resume_pending_reflections, executor, store) == []
        assert await asyncio.to_thread(remembered, store, "u") == ["fact-1"]
        await asyncio.to_thread(executor.shutdown)


def test_a_store_whose_loop_is_over_is_refused(tmp_path: Path) -> None:
    async def opened() -> Any:
        async with AsyncSqliteStore.from_conn_string(str(tmp_path / "store.db")) as store:
            return store

    store = asyncio.run(opened())
    with noting(store) as (executor, _), pytest.raises(RuntimeError, match="is over"):
        executor.submit({}, who("u"))


# -- what cannot be meant


def test_what_cannot_be_wrapped_or_resumed_is_refused_with_what_to_do() -> None:
    store = InMemoryStore()
    plain = StockExecutor(Noting(), store=store)
    other: Any = object()
    with pytest.raises(BadArgument, match=r"wrap it with persist\(executor, store\)"):
        resume_pending_reflections(plain, store)
    with pytest.raises(BadArgument, match=r"wrap it with persist\(executor, store\)"):
        resume_pending_reflections(other, store)
    with pytest.raises(BadArgument, match=r"langmem\.ReflectionExecutor"):
        persist(other, store)
    with pytest.raises(BadArgument, match="BaseStore"):
        persist(plain, other)
    with persist(plain, store) as executor:
        with pytest.raises(BadArgument, match="wrapped already"):
            persist(plain, store)
        with pytest.raises(BadArgument, match="another store"):
            resume_pending_reflections(executor, InMemoryStore())
        with pytest.raises(BadArgument, match="after_seconds"):
            executor.submit({}, who("u"), after_seconds=-1)
        with pytest.raises(BadArgument, match="'user'"):
            executor.submit({}, {"configurable": {"name": "u"}})
    over = StockExecutor(Noting(), store=store)
    over.shutdown()
    with pytest.raises(BadArgument, match="shut down"):
        persist(over, store)


def test_an_executor_that_has_something_pending_already_is_refused() -> None:
    store = InMemoryStore()
    executor = StockExecutor(Noting(), store=store)
    future = executor.submit({}, who("u", "t"), after_seconds=30)
    with pytest.raises(BadArgument, match="before the first submit"):
        persist(executor, store)
    future.cancel()
    with pytest.raises(CancelledError):
        future.result(0)
    executor.shutdown(cancel_futures=True, wait=False)


def test_the_memories_are_in_the_store_of_the_executor_and_the_records_in_the_other() -> None:
    memories, pending = InMemoryStore(), InMemoryStore()
    for made in (
        StockExecutor(manager(), store=memories),
        StockExecutor(manager(store=memories), store=None),
    ):
        with persist(made, pending) as executor:
            executor.submit(talk("fact-1"), who("u", "a"), after_seconds=LATER)
            executor.submit(talk("fact-2"), who("u", "b")).result(30)
            [one] = executor.pending()
            executor.cancel(one.id)
        assert (remembered(memories, "u"), remembered(pending, "u")) == (["fact-2"], [])


def test_langmem_is_still_built_the_way_persist_needs() -> None:
    told = "LangMem changed: look at perdure.langmem.kept.Persisted, and what it sets in there."
    executor = StockExecutor(Noting(), store=InMemoryStore())
    try:
        for name in ("_reflector", "_store", "_task_queue", "_pending_tasks", "_worker"):
            assert hasattr(executor, name), f"{told} There is no {name}."
        assert executor._worker_running is True, told
        assert executor._worker.is_alive(), told
    finally:
        executor.shutdown()
    worker = inspect.getsource(stock._process_queue)
    for line in (
        "while self._worker_running:",
        "self._task_queue.get(timeout=1)",
        "if task.future.cancelled():",
        "self._reflector.invoke(task.payload)",
        "while not self._task_queue.empty():",
    ):
        assert line in worker, f"{told} Its thread no longer does {line!r}."
    submit = inspect.getsource(stock.LocalReflectionExecutor.submit)
    assert "self._task_queue.put((time.time() + after_seconds, task))" in submit, told
    assert issubclass(Due, type(executor._task_queue)), told
    assert issubclass(Instead, Runnable), told


@pytest.mark.parametrize("seconds", [-1, float("inf"), float("nan"), "soon", None])
def test_a_delay_that_is_none_is_refused_and_nothing_is_kept(seconds: Any) -> None:
    store = InMemoryStore()
    with noting(store) as (executor, seen):
        with pytest.raises(BadArgument, match="after_seconds"):
            executor.submit({"n": 1}, who("u"), after_seconds=seconds)
        assert (executor.pending(), seen) == ([], [])
