"""What `perdure.langmem.ReflectionExecutor` promises: to who submits, who waits, and to the store.

The managers are LangMem's own, on a model whose answers are scripted; the stores are LangGraph's.
"""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import subprocess
import sys
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from concurrent.futures import wait as wait_for_all
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as NodeRuntime
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.store.postgres import AsyncPostgresStore
from langgraph.store.sqlite import AsyncSqliteStore, SqliteStore
from langgraph.types import RetryPolicy, interrupt
from langmem import create_memory_store_manager
from pydantic import BaseModel

import perdure
from perdure.doctor import examine
from perdure.errors import (
    BadArgument,
    Closed,
    NotFound,
    ReflectionFailed,
    ReflectionLeft,
    UnknownReflector,
    Unserializable,
    WrongState,
)
from perdure.langmem import Pending, Reflection, ReflectionExecutor
from perdure.langmem.memories import missing
from perdure.testing import Clock, TemporaryRuntime
from perdure.types import Retry, State
from tests.support.agents import NOON, Gate, Log, chain, gate
from tests.support.memory import NAMESPACE, Scripted, manager, opened_store, remembered, talk, who

ROOT = Path(__file__).parents[2]
HOUR = timedelta(hours=1)
AT_ONCE = Retry(attempts=2, first=timedelta(0))
ONCE = Retry(attempts=1)
SOON = 20.0
"""Seconds after which a test gives up."""
ON_A_FILE = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For tests in which it makes no difference which database it is."""


@pytest.fixture
def store(url: str) -> Iterator[BaseStore]:
    """LangGraph's own, in the journal's database."""
    with opened_store(url) as found:
        yield found


def until(condition: Callable[[], Any], seconds: float = SOON) -> Any:
    """What `condition` gives as soon as that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.01)
    return found


def runs_on_disk(url: str) -> list[tuple[str, str]]:
    """Id and state of every run, read by somebody else."""
    query = "SELECT id, state FROM perdure_runs ORDER BY created_at, id"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            return [(id, state) for id, state in file.execute(query)]
    with psycopg.connect(url) as server:
        return [(id, state) for id, state in server.execute(query)]


def state_of(executor: ReflectionExecutor, reflection: Reflection) -> State | None:
    """Of one that is not over."""
    found = {one.id: one for one in executor.pending()}.get(reflection.id)
    return None if found is None else found.state


def keeper() -> Callable[[Any], Any]:
    """A reflector that writes down what it is told, under a key of its own."""

    def keep(payload: Any) -> str:
        get_store().put(("notes",), payload["key"], {"text": payload["text"]})
        return f"kept {payload['key']}"

    return keep


def notes(store: BaseStore) -> dict[str, str]:
    return {item.key: item.value["text"] for item in store.search(("notes",), limit=1000)}


def note(key: str, text: str = "text") -> dict[str, str]:
    return {"key": key, "text": text}


def on_thread(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread}}


def stopping_at(place: Gate, calls: list[Any] | None = None) -> Callable[[Any], Any]:
    """A reflector that stands still; then it writes."""

    def stop(payload: Any) -> str:
        if calls is not None:
            calls.append(payload["key"])
        get_store().put(("notes",), payload["key"], {"text": payload["text"]})
        if payload["text"] == "stop":
            place.block()
        return "went on"

    return stop


# -- submit


def test_submit_gives_a_future_with_what_the_reflector_returned(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        reflection = executor.submit(talk("fact-tea", "fact-rain"), who("ann", "t"))
        assert isinstance(reflection, Reflection)
        kept = reflection.result(SOON)
        assert sorted(one["value"]["content"]["content"] for one in kept) == [
            "fact-rain",
            "fact-tea",
        ]
        assert remembered(store, "ann") == ["fact-rain", "fact-tea"]
        assert reflection.done()
        assert not reflection.cancelled()
        assert executor.pending() == []


def test_it_is_on_disk_when_submit_returns(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        for n in range(3):
            made = executor.submit(talk("fact-tea"), who("ann", f"t{n}"), after_seconds=600)
            assert (made.id, "pending") in runs_on_disk(url)


def test_the_journal_is_sound_after_all_that_can_become_of_reflections(
    url: str, store: BaseStore
) -> None:
    def reflect(payload: Any) -> None:
        if payload["text"] == "fail":
            raise ValueError("no")

    with ReflectionExecutor(reflect, store=store, journal=url, name="r", retry=ONCE) as executor:
        failed = executor.submit(note("a", "fail"), on_thread("a"))
        executor.submit(note("b"), on_thread("b"), after_seconds=600)
        executor.submit(note("b"), on_thread("b"), after_seconds=600)
        executor.submit(note("c")).result(SOON)
        assert isinstance(failed.exception(SOON), ReflectionFailed)
        assert executor._runtime.journal.do(examine()) == []


def graph_that(node: Any, store: BaseStore | None = None, saver: Any = None) -> Any:
    return chain(("node", node)).compile(store=store, checkpointer=saver)


@ON_A_FILE
def test_in_a_node_it_uses_the_config_and_the_store_of_the_graph(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor(manager(), journal=url) as executor:
        made: list[Reflection] = []

        def node(state: Log) -> Log:
            made.append(executor.submit(talk("fact-tea")))
            return {"log": ["answered"]}

        graph_that(node, store).invoke({"log": []}, who("ann", "t"))
        made[0].result(SOON)
        assert remembered(store, "ann") == ["fact-tea"]


@ON_A_FILE
async def test_in_a_coroutine_node_too(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), journal=url) as executor:
        made: list[Reflection] = []

        async def node(state: Log) -> Log:
            made.append(executor.submit(talk("fact-tea"), after_seconds=0.1))
            return {"log": ["answered"]}

        await graph_that(node, store).ainvoke({"log": []}, who("ann", "t"))
        await asyncio.wait_for(asyncio.wrap_future(made[0]), SOON)
        assert remembered(store, "ann") == ["fact-tea"]


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


@ON_A_FILE
def test_with_only_the_saver_a_node_under_a_retry_policy_submits_once(
    url: str, store: BaseStore
) -> None:
    with (
        ReflectionExecutor(manager(), store=store, journal=url) as executor,
        perdure.Saver(url) as saver,
    ):
        tries: list[str] = []

        def node(state: Log) -> Log:
            tries.append(executor.submit(talk("fact-tea")).id)
            if len(tries) < 3:
                raise ConnectionError("the node fails after it submitted")
            return {"log": ["answered"]}

        builder = StateGraph(Log)
        policy = RetryPolicy(initial_interval=0.01, max_attempts=3)
        builder.add_node("node", node, retry_policy=policy)
        builder.add_edge(START, "node")
        graph: Any = builder.compile(checkpointer=saver)
        graph.invoke({"log": []}, who("ann", "t"))
        assert len(tries) == 3
        assert len(set(tries)) == 1


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
def test_the_payload_comes_back_as_it_was(url: str, store: BaseStore) -> None:
    seen: list[Any] = []
    payload = talk("fact-tea") | {"at": NOON, "id": uuid.uuid4(), "pair": (1, 2)}
    with ReflectionExecutor(seen.append, store=store, journal=url, name="r") as executor:
        executor.submit(payload).result(SOON)
    assert seen == [payload]


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
        with refused(executor, BadArgument, "empty or has a '.'"):
            executor.submit(talk("fact-tea"), who("ann.b", "t"))
        with refused(executor, BadArgument, "empty or has a '.'"):
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
    with pytest.raises(BadArgument, match="cannot reflect"):
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


# -- a later one takes the place


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
def test_without_a_conversation_nothing_is_replaced(url: str, store: BaseStore) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        for n in range(3):
            executor.submit(talk(f"fact-{n}"), who("ann"), after_seconds=600)
        executor.submit(talk("fact-3"), who("ann", "t"), thread_id=None, after_seconds=600)
        executor.submit(talk("fact-4"), who("ann", "t"), thread_id="", after_seconds=600)
        assert [one.thread_id for one in executor.pending()] == [None] * 5


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


def test_what_is_overdue_runs_at_the_start_without_a_call(url: str, store: BaseStore) -> None:
    clock = Clock(NOON)
    with TemporaryRuntime(url, clock=clock) as rt:
        executor = ReflectionExecutor(keeper(), store=store, journal=rt, name="r")
        for key in "abc":
            executor.submit(note(key), on_thread(key), after_seconds=3600)
        executor.shutdown()
    clock.advance(timedelta(days=30))
    with (
        TemporaryRuntime(url, clock=clock) as rt,
        ReflectionExecutor(keeper(), store=store, journal=rt, name="r"),
    ):
        until(lambda: notes(store).keys() == {"a", "b", "c"})


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


# -- reflectors


def remember(store: BaseStore, text: str) -> None:
    store.put(("notes",), text, {"text": text})


def reads_and_writes(payload: Any) -> str:
    remember(get_store(), payload["key"])
    return f"kept {payload['key']}"


class Words(Log, total=False):
    """The state of a graph that reflects."""

    key: str
    text: str


def reflecting_graph(*, is_async: bool = False, saver: Any = None) -> Any:
    """Two nodes: the second sees in the store what the first wrote."""

    def first(state: Words, runtime: NodeRuntime[None]) -> Words:
        assert runtime.store is not None
        remember(runtime.store, f"{state['key']}-1")
        return {"log": ["first"]}

    def second(state: Words) -> Words:
        assert get_store().get(("notes",), f"{state['key']}-1") is not None
        remember(get_store(), f"{state['key']}-2")
        return {"log": ["second"]}

    async def afirst(state: Words, runtime: NodeRuntime[None]) -> Words:
        assert runtime.store is not None
        await runtime.store.aput(("notes",), f"{state['key']}-1", {"text": "1"})
        return {"log": ["first"]}

    async def asecond(state: Words) -> Words:
        assert await get_store().aget(("notes",), f"{state['key']}-1") is not None
        await get_store().aput(("notes",), f"{state['key']}-2", {"text": "2"})
        return {"log": ["second"]}

    nodes: Any = [("first", first), ("second", second)]
    if is_async:
        nodes = [("first", afirst), ("second", asecond)]
    builder = StateGraph(Words)
    builder.add_sequence(nodes)
    builder.add_edge(START, "first")
    return builder.compile(checkpointer=saver)


async def coroutine_reflector(payload: Any) -> str:
    await get_store().aput(("notes",), payload["key"], {"text": "a"})
    return f"kept {payload['key']}"


@pytest.mark.parametrize(
    ("reflector", "keys"),
    [
        pytest.param(reads_and_writes, {"a"}, id="function"),
        pytest.param(coroutine_reflector, {"a"}, id="coroutine"),
        pytest.param(RunnableLambda(reads_and_writes), {"a"}, id="lambda"),
        pytest.param(
            RunnableLambda(lambda p: p) | RunnableLambda(reads_and_writes), {"a"}, id="sequence"
        ),
        pytest.param(reflecting_graph(), {"a-1", "a-2"}, id="graph"),
        pytest.param(reflecting_graph(is_async=True), {"a-1", "a-2"}, id="async-graph"),
        pytest.param(reflecting_graph(saver=InMemorySaver()), {"a-1", "a-2"}, id="saved-graph"),
    ],
)
def test_whatever_can_be_called_reflects(sqlite_url: str, reflector: Any, keys: set[str]) -> None:
    with (
        opened_store(sqlite_url) as store,
        ReflectionExecutor(reflector, store=store, journal=sqlite_url, name="r") as executor,
    ):
        executor.submit(note("a"), on_thread("t")).result(SOON)
        assert notes(store).keys() == keys


@ON_A_FILE
def test_a_graph_that_fails_in_its_second_node_leaves_nothing_of_the_first(
    url: str, store: BaseStore
) -> None:
    tries: list[str] = []

    def first(state: Words) -> Words:
        tries.append("first")
        remember(get_store(), "a")
        return {"log": ["first"]}

    def second(state: Words) -> Words:
        tries.append("second")
        if len(tries) == 2:
            raise ConnectionError("once")
        return {"log": ["second"]}

    saver = InMemorySaver()
    builder = StateGraph(Words)
    builder.add_sequence([first, second])
    builder.add_edge(START, "first")
    graph = builder.compile(checkpointer=saver)
    with ReflectionExecutor(
        graph, store=store, journal=url, name="r", retry=Retry(attempts=2, first=HOUR)
    ) as executor:
        made = executor.submit(note("a"), on_thread("t"))
        until(lambda: any(one.error for one in executor.pending()))
        assert notes(store) == {}
        executor._runtime.blocking.pause(made.id)
        executor._runtime.blocking.resume(made.id)
        made.result(SOON)
        assert notes(store).keys() == {"a"}
        assert tries == ["first", "second"] * 2
    assert list(saver.list(None)) == []  # it is one step of ours, and none of theirs


@ON_A_FILE
def test_a_manager_keeps_its_own_store_and_the_one_given_counts_first(url: str) -> None:
    own, given = InMemoryStore(), InMemoryStore()
    reflector = manager(store=own)
    with ReflectionExecutor(reflector, journal=url, name="own") as executor:
        executor.submit(talk("fact-own"), who("ann")).result(SOON)
        assert executor.search(namespace=("memories", "ann"))[0]["key"]
    with ReflectionExecutor(reflector, journal=url, store=given, name="given") as executor:
        executor.submit(talk("fact-given"), who("ann")).result(SOON)
    assert (remembered(own, "ann"), remembered(given, "ann")) == (["fact-own"], ["fact-given"])
    assert reflector._store is own  # it was not changed


def test_a_namespace_given_to_the_executor_is_where_a_manager_writes(sqlite_url: str) -> None:
    with (
        opened_store(sqlite_url) as store,
        ReflectionExecutor(
            manager(), ("facts", "{user}"), store=store, journal=sqlite_url
        ) as executor,
    ):
        [kept] = executor.submit(talk("fact-tea"), who("ann")).result(SOON)
        assert kept["namespace"] == ("facts", "ann")
        assert store.get(("facts", "ann"), kept["key"]) is not None
        assert remembered(store, "ann") == []


@ON_A_FILE
def test_a_sequence_around_a_manager_writes_through_the_draft_each_time(
    url: str, store: BaseStore
) -> None:
    """The manager inside keeps the store it found first."""
    fails = ["fact-one", "fact-two"]

    def check(kept: Any) -> Any:
        facts = [one["value"]["content"]["content"] for one in kept]
        if facts and facts[0] in fails:
            fails.remove(facts[0])
            raise ConnectionError("after it wrote")
        return facts

    reflector = manager() | RunnableLambda(check)
    with ReflectionExecutor(
        reflector, store=store, journal=url, name="r", retry=AT_ONCE
    ) as executor:
        for n, fact in enumerate(("fact-one", "fact-two")):
            assert executor.submit(talk(fact), who("ann", f"t{n}")).result(SOON) == [fact]
        assert remembered(store, "ann") == ["fact-one", "fact-two"]


@contextmanager
def module(name: str, **attributes: Any) -> Iterator[None]:
    """A module that users wrote."""
    found = types.ModuleType(name)
    vars(found).update(attributes)
    sys.modules[name] = found
    try:
        yield
    finally:
        del sys.modules[name]


@ON_A_FILE
def test_a_reflector_is_found_by_the_name_of_its_module(url: str, store: BaseStore) -> None:
    with (
        module("their_memory", inner=types.SimpleNamespace(reflector=reads_and_writes)),
        ReflectionExecutor("their_memory:inner.reflector", store=store, journal=url) as executor,
    ):
        assert executor.submit(note("a")).result(SOON) == "kept a"
        assert notes(store).keys() == {"a"}


def test_a_manager_by_name_has_its_namespace_and_its_store(sqlite_url: str) -> None:
    own = InMemoryStore()
    with (
        module("their_memory", manager=manager(store=own)),
        ReflectionExecutor("their_memory:manager", journal=sqlite_url) as executor,
    ):
        with pytest.raises(BadArgument, match="needs 'user'"):
            executor.submit(talk("fact-tea"), on_thread("t"))
        executor.submit(talk("fact-tea"), who("ann", "t"), after_seconds=600)
        executor.submit(talk("fact-rain"), who("bo", "t"), after_seconds=600)
        assert [one.namespace[1] for one in executor.pending()] == ["ann", "bo"]
        executor.submit(talk("fact-snow"), who("cy", "t")).result(SOON)
        assert remembered(own, "cy") == ["fact-snow"]


def test_executors_of_two_names_do_not_take_each_others_work(sqlite_url: str) -> None:
    shared: dict[str, Any] = {"store": InMemoryStore(), "journal": sqlite_url}
    with module("their_memory", one=lambda p: "one", other=lambda p: "other"):
        one = ReflectionExecutor("their_memory:one", **shared)
        other = ReflectionExecutor("their_memory:other", **shared)
        with one, other:
            assert (one.name, other.name) == ("their_memory:one", "their_memory:other")
            assert [e.submit({}).result(SOON) for e in (one, other)] == ["one", "other"]


@ON_A_FILE
def test_a_graph_of_the_runtime_is_found_by_its_name(url: str, store: BaseStore) -> None:
    with perdure.Runtime(url) as rt:
        rt.register(reflecting_graph(), name="learn")
        with ReflectionExecutor("learn", store=store, journal=rt) as executor:
            executor.submit(note("a"), on_thread("t")).result(SOON)
            assert notes(store).keys() == {"a-1", "a-2"}
            assert rt.blocking.runs(graph="learn") == []


def test_one_of_an_unknown_name_is_held_and_done_when_the_name_is_known_again(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor("their_memory:reflector", "n", store=store, journal=url) as executor:
        made = executor.submit(note("a"), on_thread("t"))
        error = made.exception(SOON)
        assert isinstance(error, ReflectionFailed)
        assert "their_memory:reflector" in error.reason
        [held] = executor.pending()
        assert (held.id, held.state, held.attempts) == (made.id, State.HELD, 1)
        assert "Bring it back under this name" in (held.reason or "")
        with module("their_memory", reflector=reads_and_writes):
            executor.retry(made.id)
            until(lambda: not executor.pending())
        assert notes(store).keys() == {"a"}


def test_the_name_is_the_same_after_a_restart_and_says_what_it_is(sqlite_url: str) -> None:
    names = []
    for _ in range(2):
        for reflector in (manager(), reads_and_writes, RunnableLambda(reads_and_writes)):
            with ReflectionExecutor(reflector, journal=sqlite_url) as executor:
                names.append(executor.name)
    expected = ["MemoryStoreManager(memories/{user})", "reads_and_writes", "reads_and_writes"]
    assert names == expected * 2


@ON_A_FILE
def test_what_a_reflector_returns_need_not_be_storable(
    url: str, store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    def reflect(payload: Any) -> Any:
        remember(get_store(), "a")
        return threading.Lock()

    with ReflectionExecutor(reflect, store=store, journal=url) as executor:
        assert executor.submit({}).result(SOON) is None
    assert notes(store).keys() == {"a"}
    assert "is not kept" in caplog.text


def test_a_large_result_is_given_too(sqlite_url: str) -> None:
    large = ["x" * 1000] * 100
    with ReflectionExecutor(
        lambda payload: large, store=InMemoryStore(), journal=sqlite_url, name="r"
    ) as executor:
        assert executor.submit({}).result(SOON) == large


# -- the draft


EVERY_STORE = pytest.mark.parametrize("kind", ["memory", "same", "apart"])


@contextmanager
def store_of(kind: str, url: str, tmp_path: Path) -> Iterator[BaseStore]:
    """In memory, in the journal's database, or in another one."""
    place = {"memory": "memory", "same": url, "apart": f"sqlite:///{tmp_path}/apart.db"}[kind]
    with opened_store(place) as found:
        yield found


@EVERY_STORE
def test_a_reflector_reads_what_it_wrote_and_nobody_else_does(
    url: str, tmp_path: Path, kind: str
) -> None:
    seen: dict[str, Any] = {}
    given: list[BaseStore] = []
    where = ("notes",)

    def reflect(payload: Any) -> None:
        drafted = get_store()
        drafted.put(where, "new", {"text": "new"})
        drafted.put(where, "old", {"text": "changed"})
        drafted.delete(where, "gone")
        fresh = str(uuid.uuid4())
        drafted.put(where, fresh, {"text": "first"})
        drafted.put(where, fresh, {"text": "second"})
        passing = str(uuid.uuid4())
        drafted.put(where, passing, {"text": "passing"})
        drafted.delete(where, passing)
        get = {key: drafted.get(where, key) for key in ("new", "old", "gone", "kept", fresh)}
        seen["get"] = [None if one is None else one.value["text"] for one in get.values()]
        seen["passing"] = drafted.get(where, passing)
        seen["search"] = sorted(notes(drafted).values())
        found = drafted.search(where, filter={"text": "changed"})
        seen["filter"] = [one.key for one in found]
        seen["outside"] = sorted(notes(given[0]).values())

    with store_of(kind, url, tmp_path) as store:
        given.append(store)
        for key in ("old", "gone", "kept"):
            store.put(where, key, {"text": key})
        with ReflectionExecutor(reflect, store=store, journal=url) as executor:
            executor.submit({}).result(SOON)
        assert seen == {
            "get": ["new", "changed", None, "kept", "second"],
            "passing": None,
            "search": ["changed", "kept", "new", "second"],
            "filter": ["old"],
            "outside": ["gone", "kept", "old"],
        }
        assert sorted(notes(store).values()) == ["changed", "kept", "new", "second"]


def test_a_search_with_a_limit_finds_what_was_just_written(sqlite_url: str) -> None:
    """As a store does, which gives the newest first."""
    found: list[str] = []

    def reflect(payload: Any) -> None:
        remember(get_store(), "new")
        found.extend(item.key for item in get_store().search(("notes",), limit=2))

    with opened_store(sqlite_url) as store:
        for key in ("a", "b", "c"):
            remember(store, key)
        with ReflectionExecutor(reflect, store=store, journal=sqlite_url) as executor:
            executor.submit({}).result(SOON)
        assert "new" in found
        assert len(found) == 2


@EVERY_STORE
def test_an_exception_leaves_nothing_and_the_next_attempt_starts_anew(
    sqlite_url: str, tmp_path: Path, kind: str
) -> None:
    seen: list[list[str]] = []

    def reflect(payload: Any) -> None:
        drafted = get_store()
        seen.append(sorted(notes(drafted)))
        remember(drafted, f"attempt-{len(seen)}")
        if len(seen) < 3:
            raise ConnectionError("no")

    retry = Retry(attempts=3, first=timedelta(0))
    with (
        store_of(kind, sqlite_url, tmp_path) as store,
        ReflectionExecutor(reflect, store=store, journal=sqlite_url, retry=retry) as executor,
    ):
        executor.submit({}).result(SOON)
        assert notes(store).keys() == {"attempt-3"}
    assert seen == [[], [], []]


@EVERY_STORE
@ON_A_FILE
def test_the_keys_a_manager_returns_are_those_in_the_store(
    url: str, tmp_path: Path, kind: str
) -> None:
    with (
        store_of(kind, url, tmp_path) as store,
        ReflectionExecutor(manager(), store=store, journal=url) as executor,
    ):
        kept = executor.submit(talk("fact-tea", "fact-rain"), who("ann")).result(SOON)
        there = store.search(("memories", "ann"))
        assert {one["key"] for one in kept} == {one.key for one in there}
        assert {uuid.UUID(one.key).version for one in there} == {5}


def test_new_memories_have_the_same_keys_however_often_they_are_made(sqlite_url: str) -> None:
    made: list[list[Any]] = []

    def fail(kept: Any) -> Any:
        made.append(kept)
        drafted = get_store().search(("memories", "ann"))
        if len(made) < 3:
            made[-1] = sorted(one.key for one in drafted)
            raise ConnectionError("no")
        return kept

    with (
        opened_store(sqlite_url) as store,
        ReflectionExecutor(
            manager() | RunnableLambda(fail),
            store=store,
            journal=sqlite_url,
            name="r",
            retry=Retry(attempts=3, first=timedelta(0)),
        ) as executor,
    ):
        executor.submit(talk("fact-tea", "fact-rain"), who("ann")).result(SOON)
        there = sorted(one.key for one in store.search(("memories", "ann")))
        assert made[0] == made[1] == there


def test_two_memories_that_say_the_same_are_two(sqlite_url: str) -> None:
    def reflect(payload: Any) -> None:
        for _ in range(2):
            get_store().put(("notes",), str(uuid.uuid4()), {"text": "same"})

    with (
        opened_store(sqlite_url) as store,
        ReflectionExecutor(reflect, store=store, journal=sqlite_url) as executor,
    ):
        for _ in range(2):
            executor.submit({}).result(SOON)
        assert list(notes(store).values()) == ["same"] * 4


@ON_A_FILE
def test_a_memory_that_is_there_is_changed_under_its_own_key(url: str, store: BaseStore) -> None:
    key = str(uuid.uuid4())
    store.put(("notes",), key, {"text": "old"})

    def reflect(payload: Any) -> None:
        get_store().put(("notes",), key, {"text": "new"})

    with ReflectionExecutor(reflect, store=store, journal=url) as executor:
        executor.submit({}).result(SOON)
    assert notes(store) == {key: "new"}


def test_how_long_a_memory_lives_comes_to_the_store(tmp_path: Path, url: str) -> None:
    def reflect(payload: Any) -> None:
        get_store().put(("notes",), "short", {"text": "short"}, ttl=5)
        get_store().put(("notes",), "long", {"text": "long"}, ttl=None)

    with opened_store(url) as store:
        store.ttl_config = {"refresh_on_read": False, "default_ttl": None}  # type: ignore[misc]
        with ReflectionExecutor(reflect, store=store, journal=url) as executor:
            executor.submit({}).result(SOON)
        assert notes(store).keys() == {"short", "long"}
    query = "SELECT key, ttl_minutes, expires_at IS NOT NULL FROM store ORDER BY key"
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            rows: Sequence[Any] = file.execute(query).fetchall()
    else:
        with psycopg.connect(url) as server:
            rows = server.execute(query).fetchall()
    assert [tuple(row) for row in rows] == [("long", None, False), ("short", 5, True)]


def embed(texts: Sequence[str]) -> list[list[float]]:
    """What a text is about: tea, or the weather."""
    return [[float("tea" in text), float("rain" in text or "snow" in text), 0.1] for text in texts]


async def aembed(texts: Sequence[str]) -> list[list[float]]:
    return embed(texts)


VECTORS = pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension"),
    reason="this Python's sqlite3 loads no extensions",
)


@contextmanager
def indexed_store(url: str) -> Iterator[BaseStore]:
    if url == "memory":
        yield InMemoryStore(index={"dims": 3, "embed": embed})
        return
    path = url.removeprefix("sqlite:///")
    with closing(
        sqlite3.connect(path, check_same_thread=False, isolation_level=None, timeout=30)
    ) as connection:
        found = SqliteStore(connection, index={"dims": 3, "embed": embed})
        found.setup()
        yield found


@pytest.mark.parametrize(
    "place", ["memory", pytest.param("same", marks=VECTORS), pytest.param("apart", marks=VECTORS)]
)
def test_what_a_reflection_stored_is_found_by_meaning(
    sqlite_url: str, tmp_path: Path, place: str
) -> None:
    url = {"memory": "memory", "same": sqlite_url}.get(place, f"sqlite:///{tmp_path}/apart.db")
    with (
        indexed_store(url) as store,
        ReflectionExecutor(manager(), store=store, journal=sqlite_url) as executor,
    ):
        executor.submit(talk("fact-tea", "fact-rain", "fact-x"), who("ann")).result(SOON)
        assert executor._means.memories is not None
        assert executor._means.memories.together == (place == "same")
        for query, fact in (("tea", "fact-tea"), ("snow", "fact-rain")):
            [found] = executor.search(query, namespace=("memories", "ann"), limit=1)
            assert found["value"]["content"]["content"] == fact
            assert found["score"] > 0.9


@VECTORS
def test_what_is_not_to_be_indexed_is_not(sqlite_url: str) -> None:
    def reflect(payload: Any) -> None:
        get_store().put(("notes",), "hidden", {"text": "tea"}, index=False)
        get_store().put(("notes",), "shown", {"text": "green tea"}, index=["text"])

    with (
        indexed_store(sqlite_url) as store,
        ReflectionExecutor(reflect, store=store, journal=sqlite_url) as executor,
    ):
        executor.submit({}).result(SOON)
        found = {item.key: item.score for item in store.search(("notes",), query="tea")}
        assert found["shown"] is not None
        assert found["shown"] > 0.9
        assert found.get("hidden") is None


# -- one transaction


@pytest.mark.slow
def test_memories_in_the_journals_database_are_committed_with_the_outcome(
    url: str, store: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second statement of the transaction raises: of the first one nothing is left, and the
    effect is not recorded as done."""
    from perdure.langmem import memories

    real, broken = memories.queries, [("INSERT INTO there_is_no_such_table VALUES (1)", ())]
    monkeypatch.setattr(memories, "queries", lambda store, writes: real(store, writes) + broken)
    with ReflectionExecutor(manager(), store=store, journal=url, retry=ONCE) as executor:
        made = executor.submit(talk("fact-tea"), who("ann", "t"))
        assert isinstance(made.exception(SOON), ReflectionFailed)
        assert remembered(store, "ann") == []
        [record] = executor._runtime.blocking.effects(made.id)
        assert record.name == "memories"
        assert record.state != "done"
        monkeypatch.undo()
        executor.retry(made.id)
        until(lambda: not executor.pending())
        assert remembered(store, "ann") == ["fact-tea"]


def test_a_store_in_another_database_is_not_taken_for_the_journals(
    sqlite_url: str, postgres_url: str, tmp_path: Path, postgres_server: Any
) -> None:
    other = postgres_server.database()
    try:
        for journal, place, together in (
            (sqlite_url, sqlite_url, True),
            (sqlite_url, f"sqlite:///{tmp_path}/apart.db", False),
            (sqlite_url, "memory", False),
            (sqlite_url, postgres_url, False),
            (postgres_url, postgres_url, True),
            (postgres_url, other, False),
        ):
            with (
                opened_store(place) as store,
                ReflectionExecutor(manager(), store=store, journal=journal) as executor,
            ):
                executor.submit(talk(f"fact-{together}"), who("ann")).result(SOON)
                assert executor._means.memories is not None
                assert executor._means.memories.together is together, (journal, place)
                assert f"fact-{together}" in remembered(store, "ann")
    finally:
        postgres_server.drop(other)


# -- stores with coroutines


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
    there = url if place == "same" else f"sqlite:///{tmp_path}/apart.db"
    with (
        loop_in_a_thread() as loop,
        coroutine_store(there, loop) as store,
        ReflectionExecutor(manager(), store=store, journal=url) as executor,
    ):
        executor.submit(talk("fact-tea"), who("ann", "t")).result(SOON)
        executor.submit(talk("fact-rain", "fact-tea"), who("ann", "u")).result(SOON)
        assert executor._means.memories is not None
        assert executor._means.memories.together == (place == "same")
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


def test_a_store_in_memory_whose_texts_are_embedded_by_a_coroutine_works(sqlite_url: str) -> None:
    store = InMemoryStore(index={"dims": 3, "embed": aembed})
    with ReflectionExecutor(manager(), store=store, journal=sqlite_url) as executor:
        executor.submit(talk("fact-tea", "fact-rain"), who("ann")).result(SOON)
        [found] = asyncio.run(executor.asearch("snow", namespace=("memories", "ann"), limit=1))
        assert found["value"]["content"]["content"] == "fact-rain"


def test_a_store_whose_loop_is_over_is_an_error_and_no_hang(sqlite_url: str) -> None:
    with loop_in_a_thread() as loop, coroutine_store(sqlite_url, loop) as store:
        executor = ReflectionExecutor(manager(), store=store, journal=sqlite_url, retry=ONCE)
        store._loop = asyncio.new_event_loop()  # which nobody runs
        try:
            made = executor.submit(talk("fact-tea"), who("ann"))
            assert "belongs to an event loop that is over" in str(made.exception(SOON))
        finally:
            store._loop.close()
            store._loop = loop
            executor.shutdown()


# -- errors


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
        with pytest.raises(WrongState, match="only one that is held can"):
            executor.retry(made.id)
        with pytest.raises(WrongState, match="it is over"):
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


# -- the end


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


def test_who_waits_for_a_future_in_another_thread_does_not_hang(sqlite_url: str) -> None:
    executor = ReflectionExecutor(keeper(), store=InMemoryStore(), journal=sqlite_url, name="r")
    made = executor.submit(note("a"), after_seconds=600)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(made.exception, SOON)
        executor.shutdown()
        assert isinstance(waiting.result(SOON), ReflectionLeft)


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


# -- other processes


PRELUDE = """
import os, sys, threading, time
from langgraph.config import get_store
from perdure.langmem import ReflectionExecutor
from tests.support.memory import manager, opened_store, remembered, talk, who

url = sys.argv[1]
"""


@contextmanager
def child(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process of its own, which is ended in the end."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


LEAVES = """
def reflect(payload):
    print("begun", flush=True)
    threading.Event().wait(600)

opening = opened_store(url)
store = opening.__enter__()
executor = ReflectionExecutor(reflect, store=store, journal=url, name="r")
for n in range(3):
    executor.submit({"key": str(n), "text": "x"}, after_seconds=0.3 * (n > 0))
while not any(one.state == "running" for one in executor.pending()):
    time.sleep(0.01)
"""


@pytest.mark.slow
def test_a_process_that_never_calls_shutdown_exits_and_the_next_goes_on(
    url: str, store: BaseStore
) -> None:
    with child(LEAVES, url) as process:
        assert process.wait(60) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
    with ReflectionExecutor(keeper(), store=store, journal=url, name="r") as executor:
        until(lambda: not executor.pending())
    assert notes(store).keys() == {"0", "1", "2"}


KILLED = """
made = ReflectionExecutor(
    manager(), store=opened_store("memory").__enter__(), journal=url, name="r"
).submit(talk("fact-tea"), who("ann", "t"), after_seconds=1)
print(made.id, flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_what_a_killed_process_submitted_is_done_by_the_next_when_it_is_due(
    url: str, store: BaseStore
) -> None:
    with child(KILLED, url) as process:
        assert process.stdout is not None
        id = process.stdout.readline().strip()
        process.send_signal(signal.SIGKILL)
        process.wait(SOON)
    with ReflectionExecutor(manager(), store=store, journal=url, name="r") as executor:
        assert id in dict(runs_on_disk(url))
        until(lambda: not executor.pending())
    assert remembered(store, "ann") == ["fact-tea"]


SHARES = """
def asked(facts):
    os.write(1, (" ".join(facts) + "\\n").encode())

with opened_store(url) as store:
    executor = ReflectionExecutor(manager(before=asked), store=store, journal=url, concurrency=2)
    with executor:
        me = sys.argv[2]
        for n in range(10):
            executor.submit(talk(f"fact-{me}-{n}"), who(f"u{me}-{n % 4}", f"t{n}"))
        while executor.pending():
            time.sleep(0.05)
"""


@pytest.mark.slow
def test_two_processes_share_the_work_and_do_each_reflection_once(
    url: str, store: BaseStore
) -> None:
    with child(SHARES, url, "a") as one, child(SHARES, url, "b") as other:
        out = [process.communicate(timeout=120) for process in (one, other)]
        assert [process.returncode for process in (one, other)] == [0, 0], out
    asked = sorted(" ".join(text for text, _ in out).split())
    expected = sorted(f"fact-{who}-{n}" for who in "ab" for n in range(10))
    assert asked == expected
    kept = [remembered(store, f"u{who}-{n}") for who in "ab" for n in range(4)]
    assert sorted(fact for facts in kept for fact in facts) == expected


FORKS = """
def reflect(payload):
    return os.getpid()

store = opened_store("memory").__enter__()
executor = ReflectionExecutor(reflect, store=store, journal=url, name=sys.argv[2])
assert executor.submit({}).result(20) == os.getpid()
child = os.fork()
made = [executor.submit({"n": n}) for n in range(3)]
pids = {one.result(20) for one in made}
executor.shutdown()
if child == 0:
    sys.stdout.flush()
    os._exit(0)
_, status = os.waitpid(child, 0)
print("status", status, "pids", len(pids))
"""


@pytest.mark.slow
def test_a_fork_submits_and_works_and_so_does_its_parent(url: str) -> None:
    with child(FORKS, url, "r") as process:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out.startswith("status 0 pids")
    assert [state for _, state in runs_on_disk(url)] == ["done"] * 7


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
        bound._means.store = store
        assert bound._mine() is None
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
def test_two_executors_of_one_name_in_one_process_are_told_of(
    url: str, store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url):
        assert "share their reflections" not in caplog.text
        with ReflectionExecutor(manager(), store=store, journal=url):
            assert "share their reflections" in caplog.text
    caplog.clear()
    with ReflectionExecutor(manager(), store=store, journal=url):
        assert "share their reflections" not in caplog.text


@ON_A_FILE
def test_what_is_pending_and_has_no_store_yet_is_told_of(
    url: str, store: BaseStore, caplog: pytest.LogCaptureFixture
) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        executor.submit(talk("fact-tea"), who("ann"), after_seconds=600)
    with ReflectionExecutor(manager(), journal=url):
        assert "wait until it is known where their memories are" in caplog.text


@ON_A_FILE
@pytest.mark.parametrize("payload", [["hello"], {"text": "hello"}, "hello"])
def test_what_no_memory_manager_can_take_is_refused_at_once(
    url: str, store: BaseStore, payload: Any
) -> None:
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        with pytest.raises(BadArgument, match="messages"):
            executor.submit(payload, who("ann"))
        assert executor.pending() == []


# -- what others tried


def test_a_user_who_calls_himself_like_a_variable_writes_to_himself(
    url: str, store: BaseStore
) -> None:
    config = {"configurable": {"user": "{friend}", "friend": "bob", "thread_id": "t"}}
    with ReflectionExecutor(manager(), store=store, journal=url) as executor:
        executor.submit(talk("fact-tea"), config).result(SOON)
    assert (remembered(store, "bob"), remembered(store, "{friend}")) == ([], ["fact-tea"])


@ON_A_FILE
def test_an_unknown_name_whose_namespace_nobody_knows_is_refused(
    url: str, store: BaseStore
) -> None:
    with ReflectionExecutor("their_memory:reflector", store=store, journal=url) as executor:
        with pytest.raises(UnknownReflector):
            executor.submit(talk("fact-tea"), who("ann", "t"))
        assert executor.pending() == []


def written(key: str, value: Any, before: Any) -> dict[str, Any]:
    return PutOp(("m",), key, value)._asdict() | {"before": before}


def test_a_draft_is_written_where_the_store_has_what_it_was_made_of() -> None:
    store = InMemoryStore()
    store.put(("m",), "same", {"n": 1})
    store.put(("m",), "there", {"n": 2})
    store.put(("m",), "changed", {"n": "by a person"})
    store.put(("m",), "kept", {"n": "by a person"})
    drafted = [
        written("same", {"n": 2}, {"n": 1}),
        written("there", {"n": 2}, {"n": 1}),
        written("changed", {"n": 2}, {"n": 1}),
        written("kept", None, {"n": 1}),
        written("gone", {"n": 2}, {"n": 1}),
        written("new", {"n": (2, 3)}, None),
    ]
    assert [op.key for op in missing(store, drafted)] == ["same", "new"]
    store.put(("m",), "new", {"n": [2, 3]})
    assert [op.key for op in missing(store, drafted)] == ["same"]


@ON_A_FILE
@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt()])
def test_a_coroutine_that_would_end_the_process_is_held_and_others_go_on(
    url: str, store: BaseStore, error: BaseException
) -> None:
    async def reflect(payload: Any) -> str:
        if payload["ends"]:
            raise error
        return "done"

    with ReflectionExecutor(reflect, store=store, journal=url, retry=ONCE) as executor:
        bad = executor.submit({"ends": True})
        good = executor.submit({"ends": False})
        assert isinstance(bad.exception(SOON), ReflectionFailed)
        assert good.result(SOON) == "done"


@ON_A_FILE
@pytest.mark.parametrize("how", ["interrupt", "before"])
def test_a_graph_that_would_wait_for_somebody_is_held_and_writes_nothing_or_does_not_wait(
    url: str, store: BaseStore, how: str
) -> None:
    def first(state: Log) -> Log:
        remember(get_store(), "half")
        return {"log": ["first"]}

    def second(state: Log) -> Log:
        if how == "interrupt":
            interrupt("may I?")
        remember(get_store(), "whole")
        return {"log": ["second"]}

    builder = StateGraph(Log).add_node(first).add_node(second)
    builder.add_edge(START, "first").add_edge("first", "second")
    graph = builder.compile(
        checkpointer=InMemorySaver(), interrupt_before=["second"] if how == "before" else None
    )
    with ReflectionExecutor(graph, store=store, journal=url, retry=ONCE, name="g") as executor:
        made = executor.submit({"log": []}, on_thread("t"))
        if how == "interrupt":
            assert "cannot wait for somebody" in str(made.exception(SOON))
            assert notes(store) == {}
        else:
            made.result(SOON)
            assert notes(store).keys() == {"half", "whole"}


@ON_A_FILE
def test_a_manager_with_a_store_of_its_own_inside_of_others_writes_into_the_draft(
    url: str, store: BaseStore
) -> None:
    def fails(result: Any) -> None:
        raise ConnectionError

    chain = manager(store=store).with_config(tags=["x"]) | fails
    with ReflectionExecutor(
        chain, NAMESPACE, store=store, journal=url, retry=ONCE, name="c"
    ) as executor:
        made = executor.submit(talk("fact-tea"), who("ann"))
        assert isinstance(made.exception(SOON), ReflectionFailed)
    assert remembered(store, "ann") == []


@ON_A_FILE
def test_a_thread_of_a_reflector_writes_into_its_draft_and_none_afterwards(
    url: str, store: BaseStore
) -> None:
    kept: list[BaseStore] = []

    def reflect(payload: Any) -> None:
        kept.append(get_store())
        with ThreadPoolExecutor() as threads:
            threads.submit(remember, kept[0], "a").result()
        raise ConnectionError

    with ReflectionExecutor(reflect, store=store, journal=url, retry=ONCE) as executor:
        assert executor.submit({}).exception(SOON) is not None
        assert notes(store) == {}
        remember(kept[0], "later")  # nobody's draft any more: as it would be without one
    assert notes(store).keys() == {"later"}


@ON_A_FILE
def test_a_reflector_that_shuts_its_executor_down_does_not_wait_for_itself(
    url: str, store: BaseStore
) -> None:
    def reflect(payload: Any) -> None:
        executor.shutdown()

    executor = ReflectionExecutor(reflect, store=store, journal=url)
    made = executor.submit({})
    assert isinstance(made.exception(SOON), ReflectionLeft)


def test_an_error_whose_text_no_database_can_hold_is_kept(url: str, store: BaseStore) -> None:
    def reflect(payload: Any) -> None:
        raise ValueError("a \0 and a \ud800")

    with ReflectionExecutor(reflect, store=store, journal=url, retry=ONCE) as executor:
        made = executor.submit({})
        assert "ValueError" in str(made.exception(SOON))
        [held] = executor.pending()
        assert (held.state, held.attempts) == (State.HELD, 1)


@ON_A_FILE
def test_a_runtime_can_have_an_executor_of_the_same_name_after_shutdown(
    url: str, store: BaseStore
) -> None:
    with perdure.Runtime(url) as rt:
        for fact in ("fact-a", "fact-b"):
            with ReflectionExecutor(manager(), store=store, journal=rt) as executor:
                executor.submit(talk(fact), who("ann")).result(SOON)
    assert remembered(store, "ann") == ["fact-a", "fact-b"]


class Closing(InMemoryStore):
    """A store that cannot be reached for a while, from the first question about a memory on."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 2

    def batch(self, ops: Any) -> Any:
        made = list(ops)
        if self.failures and any(isinstance(op, GetOp) for op in made):
            self.failures -= 1
            raise ConnectionError("the store is away")
        return super().batch(made)


@ON_A_FILE
def test_a_write_of_a_manager_that_failed_in_its_thread_is_not_forgotten(url: str) -> None:
    at_once = Retry(attempts=5, first=timedelta(0))
    store = Closing()
    with ReflectionExecutor(manager(), store=store, journal=url, retry=at_once) as executor:
        executor.submit(talk("fact-a", "fact-b"), who("ann")).result(SOON)
    assert store.failures == 0
    assert remembered(store, "ann") == ["fact-a", "fact-b"]
