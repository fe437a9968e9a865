"""Stores with coroutines: in the loop of another thread, and when that loop has stopped."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.postgres import AsyncPostgresStore
from langgraph.store.sqlite import AsyncSqliteStore

from perdure.langmem import ReflectionExecutor
from tests.support.memory import (
    ONCE,
    SOON,
    VECTORS,
    embed,
    manager,
    remembered,
    store_url,
    talk,
    who,
)


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


@contextmanager
def loop_in_a_thread() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@contextmanager
def coroutine_store(url: str, loop: asyncio.AbstractEventLoop, **options: Any) -> Iterator[Any]:
    """A store whose connection belongs to a loop in another thread."""
    kind: Any = AsyncSqliteStore if url.startswith("sqlite") else AsyncPostgresStore
    opening = kind.from_conn_string(url.removeprefix("sqlite:///"), **options)

    def do(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(SOON)

    store = do(opening.__aenter__())
    try:
        do(store.setup())
        yield store
    finally:
        do(opening.__aexit__(None, None, None))
        do(ended(store._task))


async def ended(task: Any) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("place", ["same", "apart"])
def test_a_store_with_coroutines_may_live_in_the_loop_of_another_thread(
    url: str, tmp_path: Path, place: str
) -> None:
    there = store_url(url) if place == "same" else f"sqlite:///{tmp_path}/apart.db"
    with (
        loop_in_a_thread() as loop,
        coroutine_store(there, loop) as store,
        ReflectionExecutor(manager(), store=store, journal=url) as executor,
    ):
        executor.submit(talk("fact-tea"), who("ann", "t")).result(SOON)
        executor.submit(talk("fact-rain", "fact-tea"), who("ann", "u")).result(SOON)
        assert executor._graph.committer is not None
        assert executor._graph.committer.shares_database == (there == url)
        assert remembered(store, "ann") == ["fact-rain", "fact-tea"]
        found = asyncio.run(executor.asearch(namespace=("memories", "ann")))
        assert len(found) == 2


@VECTORS
def test_a_store_whose_texts_are_embedded_by_a_coroutine_works(sqlite_url: str) -> None:
    index = {"dims": 3, "embed": aembed}
    with (
        loop_in_a_thread() as loop,
        coroutine_store(sqlite_url, loop, index=index) as store,
        ReflectionExecutor(manager(), store=store, journal=sqlite_url) as executor,
    ):
        executor.submit(talk("fact-tea", "fact-rain"), who("ann")).result(SOON)
        [found] = executor.search("snow", namespace=("memories", "ann"), limit=1)
        assert found["value"]["content"]["content"] == "fact-rain"


def test_a_store_whose_loop_is_over_is_an_error_and_no_hang(sqlite_url: str) -> None:
    with loop_in_a_thread() as loop, coroutine_store(sqlite_url, loop) as store:
        executor = ReflectionExecutor(manager(), store=store, journal=sqlite_url, retry=ONCE)
        store._loop = asyncio.new_event_loop()  # which nobody runs
        try:
            made = executor.submit(talk("fact-tea"), who("ann"))
            assert "belongs to an event loop that has stopped" in str(made.exception(SOON))
        finally:
            store._loop.close()
            store._loop = loop
            executor.shutdown()
