"""An executor on a runtime, in an event loop and beside others; `pending` and `search`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import AsyncSqliteStore
from langmem import create_memory_store_manager
from pydantic import BaseModel

import perdure
from perdure.errors import BadArgument, ReflectionLeft
from perdure.langmem import (
    Pending,
    ReflectionExecutor,
)
from perdure.testing import TemporaryRuntime
from perdure.types import State
from tests.support.agents import Log, chain
from tests.support.memory import (
    HOUR,
    NAMESPACE,
    ON_A_FILE,
    Scripted,
    graph_that,
    keeper,
    manager,
    note,
    notes,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.polling import until
from tests.support.sqlite_only import url as url

# -- on a runtime


async def test_any_worker_of_the_runtime_drives_reflections(url: str) -> None:
    """One without a store drives nothing by itself: a web process that only submits."""
    store = InMemoryStore()
    async with perdure.Runtime(url) as accepting, TemporaryRuntime(url) as working:
        executor = await asyncio.to_thread(
            lambda: ReflectionExecutor(keeper(), store=store, journal=accepting, name="r")
        )
        later = await asyncio.to_thread(executor.submit, note("a"), after_seconds=600)
        await asyncio.to_thread(executor.shutdown)
        bound = ReflectionExecutor(keeper(), journal=working, name="r")
        bound._graph.store = store
        assert bound._live_worker() is None
        working.clock.advance(HOUR)
        counts = await working.tick()
        assert counts.done == 1
        assert notes(store).keys() == {"a"}
        assert (await working.get(later.id)).output == {"result": "kept a"}
        await asyncio.to_thread(bound.shutdown)


@ON_A_FILE
def test_a_worker_of_the_graphs_and_an_executor_on_one_runtime_do_not_mind_each_other(
    url: str, store: BaseStore
) -> None:
    with perdure.Runtime(url) as rt:
        executor = ReflectionExecutor(keeper(), store=store, journal=rt, name="r")

        def node(state: Log) -> Log:
            executor.submit(note("from the node"))
            return {"log": ["answered"]}

        rt.register(chain(("node", node)), name="agent")
        with executor:
            run = rt.blocking.start("agent", {"log": []}, thread_id="t")
            rt.blocking.work(until_idle=True)
            assert rt.blocking.get(run.id).state is State.DONE
            until(lambda: notes(store).keys() == {"from the node"})


# -- looking


def test_pending_comes_in_pages_oldest_first(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        made = [
            executor.submit(talk("fact-tea"), who("ann", f"t{n}"), after_seconds=600 - n).id
            for n in range(7)
        ]
        pages: list[list[Pending]] = [executor.pending(limit=3)]
        while pages[-1]:
            pages.append(executor.pending(after=pages[-1][-1], limit=3))
        assert [len(page) for page in pages] == [3, 3, 1, 0]
        found = [one for page in pages for one in page]
        assert sorted(one.id for one in found) == sorted(made)
        assert [one.submitted_at for one in found] == sorted(one.submitted_at for one in found)
        first = found[0]
        assert (first.executor, first.namespace, first.state, first.attempts, first.error) == (
            executor.name,
            ("memories", "ann"),
            State.PENDING,
            0,
            None,
        )
        with pytest.raises(BadArgument):
            executor.pending(limit=0)


def test_names_that_begin_alike_are_different_executors(sqlite_url: str) -> None:
    options: dict[str, Any] = {"store": InMemoryStore(), "journal": sqlite_url}
    with (
        ReflectionExecutor(keeper(), name="memory", **options) as one,
        ReflectionExecutor(keeper(), name="memory-2", **options) as other,
    ):
        one.submit(note("a"), after_seconds=600)
        other.submit(note("b"), after_seconds=600)
        assert [len(one.pending()), len(other.pending())] == [1, 1]


async def test_search_finds_memories_as_langmems_does(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        made = executor.submit(talk("fact-tea", "fact-rain"), who("ann", "t"))
        await asyncio.wrap_future(made)
        where = ("memories", "ann")
        found = await asyncio.to_thread(executor.search, namespace=where)
        assert found == await executor.asearch(namespace=where)
        assert sorted(one["value"]["content"]["content"] for one in found) == [
            "fact-rain",
            "fact-tea",
        ]
        assert len(executor.search(namespace=where, limit=1)) == 1
        assert len(executor.search(namespace=where, offset=1)) == 1
        assert len(executor.search(namespace="memories")) == 2
        assert executor.search(namespace=where, filter={"kind": "Other"}) == []
        with pytest.raises(BadArgument, match="pass namespace="):
            executor.search()

        def node(state: Log) -> Log:
            return {"log": [one["key"] for one in executor.search()]}

        graph = graph_that(node)
        answer = await asyncio.to_thread(graph.invoke, {"log": []}, who("ann"))
        assert sorted(answer["log"]) == sorted(one["key"] for one in found)


# -- in an event loop, and beside others


async def test_in_the_loop_of_its_store_an_executor_is_left_with_async_with(
    sqlite_url: str,
) -> None:
    async with AsyncSqliteStore.from_conn_string(sqlite_url.removeprefix("sqlite:///")) as store:
        async with ReflectionExecutor(manager(), store=store, journal=sqlite_url) as executor:
            made = executor.submit(talk("fact-tea"), who("ann"))
        assert made.result(0) is not None
        found = await store.asearch(("memories", "ann"))
        assert [item.value["content"]["content"] for item in found] == ["fact-tea"]


async def test_shutdown_in_the_loop_of_its_store_leaves_what_is_due_and_does_not_hang(
    sqlite_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with AsyncSqliteStore.from_conn_string(sqlite_url.removeprefix("sqlite:///")) as store:
        executor = ReflectionExecutor(manager(), store=store, journal=sqlite_url)
        made = executor.submit(talk("fact-tea"), who("ann"))
        executor.shutdown()  # the loop cannot serve the store meanwhile
        assert "await executor.ashutdown()" in caplog.text
        with pytest.raises(ReflectionLeft):
            made.result(0)
        async with ReflectionExecutor(manager(), store=store, journal=sqlite_url) as executor:
            pass
        found = await store.asearch(("memories", "ann"))
        assert [item.value["content"]["content"] for item in found] == ["fact-tea"]


class Profile(BaseModel):
    name: str


class Episode(BaseModel):
    what: str


@ON_A_FILE
def test_managers_of_different_schemas_on_one_namespace_have_different_names(
    url: str, store: BaseStore
) -> None:
    def made(*schemas: type[BaseModel]) -> Any:
        return create_memory_store_manager(Scripted(), schemas=list(schemas), namespace=NAMESPACE)

    names = set()
    for schemas in ((Profile,), (Episode,), (Profile, Episode), ()):
        with ReflectionExecutor(made(*schemas), store=store, journal=url) as executor:
            names.add(executor.name)
    assert len(names) == 4


@ON_A_FILE
@pytest.mark.parametrize("payload", [["hello"], {"text": "hello"}, "hello"])
def test_what_no_memory_manager_can_take_is_refused_at_once(
    url: str, store: BaseStore, payload: Any
) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        with pytest.raises(BadArgument, match="messages"):
            executor.submit(payload, who("ann"))
        assert executor.pending() == []
