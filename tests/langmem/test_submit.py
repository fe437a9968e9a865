"""What `submit` accepts and refuses, in a node and outside, and what is on disk when it returns.

The managers are LangMem's own, on a model whose answers are scripted; the stores are LangGraph's.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

import pytest
from langgraph.config import get_config
from langgraph.store.base import BaseStore

import perdure
from perdure.errors import BadArgument, Closed, Unserializable
from perdure.langmem import Reflection, ReflectionExecutor
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retry, State
from tests.support.agents import NOON, Log, chain
from tests.support.memory import (
    ON_A_FILE,
    SOON,
    graph_that,
    keeper,
    manager,
    note,
    notes,
    on_thread,
    opened_store,
    remembered,
    runs_on_disk,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.polling import until


@ON_A_FILE
def test_in_a_node_it_uses_the_config_and_the_store_of_the_graph(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor(manager(), journal=url) as executor:
        made: list[Reflection] = []

        def node(state: Log) -> Log:
            made.append(executor.submit(talk("fact-tea")))
            made.append(executor.submit(talk("fact-rain"), {}, thread_id=None))  # as LangMem's
            return {"log": ["answered"]}

        graph_that(node, store).invoke({"log": []}, who("ann", "t"))
        for one in made:
            one.result(SOON)
        assert remembered(store, "ann") == ["fact-rain", "fact-tea"]


@ON_A_FILE
def test_a_reflection_inherits_nothing_from_the_node_that_started_the_worker(
    sqlite_url: str, store: BaseStore
) -> None:
    where: ContextVar[str] = ContextVar("where", default="nowhere")

    def reflect(payload: Any) -> str:
        return where.get()

    with ReflectionExecutor(reflect, ("notes",), journal=sqlite_url) as executor:
        made: list[Reflection] = []

        def node(state: Log) -> Log:
            where.set("in a node")
            made.append(executor.submit(note("a")))
            return {"log": ["answered"]}

        graph_that(node, store).invoke({"log": []}, who("ann", "t"))
        assert made[0].result(SOON) == "nowhere"


@ON_A_FILE
def test_the_conversation_of_the_node_is_the_one_a_later_submit_replaces(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor(manager(store=store), journal=url) as executor:
        made: list[Reflection] = []

        def node(state: Log) -> Log:
            made.append(executor.submit(talk("fact-tea"), after_seconds=600))
            return {"log": ["answered"]}

        graph = graph_that(node)
        for thread in ("t", "t", "u"):
            graph.invoke({"log": []}, who("ann", thread))
        assert [one.thread_id for one in executor.pending()] == ["t", "u"]
        assert [one.namespace for one in executor.pending()] == [("memories", "ann")] * 2
        until(made[0].cancelled)


async def test_a_node_that_is_run_again_submits_once(url: str, store: BaseStore) -> None:
    asked: list[Any] = []
    with ReflectionExecutor(manager(before=asked.append), store=store, journal=url) as executor:
        tries: list[str] = []

        def node(state: Log) -> Log:
            tries.append(executor.submit(talk("fact-tea")).id)
            if len(tries) < 3:
                raise ConnectionError("the node fails after it submitted")
            return {"log": ["answered"]}

        async with TemporaryRuntime(url, clock=Clock(NOON)) as rt:
            rt.register(chain(("node", node)), name="g", retry=Retry(first=timedelta(0)))
            run = await rt.start("g", {"log": []}, thread_id="t", config=who("ann"))
            await rt.tick()
            assert (await rt.get(run.id)).state is State.DONE
        assert len(tries) == 3
        assert len(set(tries)) == 1
        until(lambda: not executor.pending())
        assert (remembered(store, "ann"), asked) == (["fact-tea"], [["fact-tea"]])


def test_with_only_the_saver_a_run_that_is_resumed_submits_once(url: str, store: BaseStore) -> None:
    with (
        ReflectionExecutor(manager(), store=store, journal=url) as executor,
        perdure.Saver(url) as saver,
    ):
        tries: list[str] = []

        def node(state: Log) -> Log:
            tries.append(executor.submit(talk("fact-tea"), thread_id=None).id)
            if len(tries) < 2:
                raise ConnectionError("the process ends")
            return {"log": ["answered"]}

        graph = graph_that(node, saver=saver)
        with pytest.raises(ConnectionError):
            graph.invoke({"log": []}, who("ann", "t"))
        graph.invoke(None, who("ann", "t"))
        assert len(tries) == 2
        assert len(set(tries)) == 1


@ON_A_FILE
def test_two_submits_of_one_node_are_two_reflections(url: str, store: BaseStore) -> None:
    with (
        ReflectionExecutor(keeper(), store=store, journal=url, name="r") as executor,
        perdure.Saver(url) as saver,
    ):

        def node(state: Log) -> Log:
            executor.submit(note("a"), thread_id=None)
            executor.submit(note("b"), thread_id=None)
            return {"log": ["answered"]}

        graph_that(node, saver=saver).invoke({"log": []}, on_thread("t"))
        until(lambda: notes(store).keys() == {"a", "b"})


@ON_A_FILE
def test_the_config_of_who_submitted_is_the_one_a_reflector_sees(
    url: str, store: BaseStore
) -> None:
    seen: list[Any] = []

    def reflect(payload: Any) -> None:
        seen.append(get_config())

    config = {
        "configurable": {
            "thread_id": "t",
            "user": "ann",
            "n": 3,
            "socket": object(),
            "state": State.DONE,
            "openai_api_key": "sk-1",
        },
        "metadata": {"source": "chat", "lock": threading.Lock()},
        "tags": ["memory"],
        "callbacks": [],
    }
    with ReflectionExecutor(reflect, store=store, journal=url) as executor:
        executor.submit({}, config).result(SOON)
    [found] = seen
    kept = {k: v for k, v in found["configurable"].items() if not k.startswith("__")}
    assert kept == {"thread_id": "t", "user": "ann", "n": 3}
    assert found["metadata"]["source"] == "chat"
    assert "memory" in found["tags"]


@ON_A_FILE
def test_the_payload_comes_back_as_it_was_when_it_was_submitted(url: str, store: BaseStore) -> None:
    seen: list[Any] = []
    payload = talk("fact-tea") | {"at": NOON, "id": uuid.uuid4(), "pair": (1, 2)}
    config = who("ann", "t")
    with ReflectionExecutor(seen.append, store=store, journal=url, name="r") as executor:
        made = executor.submit(payload | {"log": (log := ["first"])}, config)
        log.append("changed afterwards")
        made.result(SOON)
    assert seen == [payload | {"log": ["first"]}]
    assert config == who("ann", "t")


def refused(executor: ReflectionExecutor, error: type[Exception], match: str) -> Any:
    """Inside, a submit raises; and nothing is stored."""

    @contextmanager
    def block() -> Iterator[None]:
        with pytest.raises(error, match=match):
            yield
        assert executor.pending() == []

    return block()


@ON_A_FILE
def test_what_cannot_be_done_is_refused_and_nothing_is_stored(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        with refused(executor, BadArgument, "needs 'user'.*there is 'thread_id'"):
            executor.submit(talk("fact-tea"), on_thread("t"))
        with refused(executor, BadArgument, "empty or contain a '.'"):
            executor.submit(talk("fact-tea"), who("ann.b", "t"))
        with refused(executor, BadArgument, "empty or contain a '.'"):
            executor.submit(talk("fact-tea"), who("", "t"))
        late: Any
        for late in (-1, float("nan"), float("inf"), 1e12, "soon", None):
            with refused(executor, BadArgument, "after_seconds"):
                executor.submit(talk("fact-tea"), who("ann", "t"), after_seconds=late)
        with refused(executor, Unserializable, "cannot be stored"):
            executor.submit({"messages": [], "lock": threading.Lock()}, who("ann", "t"))
    assert runs_on_disk(url) == []


@ON_A_FILE
def test_a_closed_executor_accepts_nothing(url: str, store: BaseStore) -> None:
    executor = ReflectionExecutor(manager(), store=store, journal=url)
    executor.shutdown()
    with pytest.raises(Closed, match="was shut down; make a new one"):
        executor.submit(talk("fact-tea"), who("ann", "t"))
    assert runs_on_disk(url) == []


@ON_A_FILE
def test_without_any_store_submit_says_where_to_get_one(url: str) -> None:
    with ReflectionExecutor(manager(), journal=url) as executor:
        with refused(executor, BadArgument, "has no store: pass store="):
            executor.submit(talk("fact-tea"), who("ann", "t"))
        with pytest.raises(BadArgument, match="has no store"):
            executor.search("tea", namespace="memories")


def test_what_cannot_reflect_is_refused(sqlite_url: str) -> None:
    with pytest.raises(BadArgument, match="is not a reflector"):
        ReflectionExecutor(7, journal=sqlite_url)
    with pytest.raises(BadArgument, match="concurrency=0"):
        ReflectionExecutor(manager(), journal=sqlite_url, concurrency=0)
    with pytest.raises(BadArgument, match="namespace=7"):
        ReflectionExecutor(manager(), 7, journal=sqlite_url)  # type: ignore[arg-type]


def test_the_journal_is_by_default_the_one_of_the_environment(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_URL", sqlite_url)
    with (
        opened_store(sqlite_url) as store,
        ReflectionExecutor(manager(), store=store) as executor,
    ):
        executor.submit(talk("fact-tea"), who("ann"))
        assert len(runs_on_disk(sqlite_url)) == 1


@ON_A_FILE
def test_a_node_that_runs_again_cancels_a_reflection_once(
    sqlite_url: str, store: BaseStore
) -> None:
    with (
        ReflectionExecutor(keeper(), store=store, journal=sqlite_url) as executor,
        perdure.Saver(sqlite_url) as saver,
    ):
        made = executor.submit(note("a"), on_thread("t"), after_seconds=3600)
        fails = iter([True, False])

        def node(state: Log) -> Log:
            executor.cancel(made.id)
            if next(fails):
                raise ConnectionError("afterwards")
            return {"log": ["cancelled"]}

        graph, config = graph_that(node, saver=saver), who("ann", "conversation")
        with pytest.raises(ConnectionError):
            graph.invoke({"log": []}, config)
        assert graph.invoke(None, config)["log"] == ["cancelled"]
        assert executor.pending() == []
