"""Whatever can be called reflects: managers, graphs, coroutines, and those found by name."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime as NodeRuntime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langmem.utils import NamespaceTemplate

import perdure
from perdure.errors import BadArgument, ReflectionFailed
from perdure.langmem import ReflectionExecutor
from perdure.types import Retry, State
from tests.support.agents import Log
from tests.support.memory import (
    AT_ONCE,
    HOUR,
    ON_A_FILE,
    SOON,
    keeper,
    manager,
    note,
    notes,
    on_thread,
    opened_store,
    remember,
    remembered,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.polling import until
from tests.support.sqlite_only import url as url


def reads_and_writes(payload: Any) -> str:
    remember(get_store(), payload["key"])
    return f"kept {payload['key']}"


class Words(Log, total=False):
    """The state of a graph that reflects."""

    key: str
    text: str


def reflecting_graph(*, is_async: bool = False, saver: Any = None, store: Any = None) -> Any:
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
    return builder.compile(checkpointer=saver, store=store)


async def coroutine_reflector(payload: Any) -> str:
    await get_store().aput(("notes",), payload["key"], {"text": "a"})
    return f"kept {payload['key']}"


class Notes:
    """What LangMem's executor takes too: an object with `invoke` and `namespace`."""

    namespace: Any = ("notes",)

    def invoke(self, input: Any) -> str:
        return reads_and_writes(input)


class NotesWithConfig(Notes):
    def invoke(self, input: Any, config: Any = None) -> str:
        assert config["configurable"]["thread_id"] == "t"
        return reads_and_writes(input)

    def __call__(self, input: Any) -> str:
        raise AssertionError("LangMem calls invoke")


class AsyncNotes:
    async def ainvoke(self, input: Any) -> str:
        return await coroutine_reflector(input)


class NotesWithStore(Notes):
    """Writes to a store of its own, and fails after that the first time."""

    def __init__(self, store: BaseStore) -> None:
        self.store, self.stores = store, list[BaseStore]()

    def invoke(self, input: Any) -> str:
        self.stores.append(self.store)
        remember(self.store, input["key"])
        if len(self.stores) == 1:
            raise ConnectionError("after it wrote")
        return "kept"


class RunnableWithStore(NotesWithStore, Runnable[Any, Any]):
    steps = 3  # not those of a sequence

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> str:
        return NotesWithStore.invoke(self, input)


@pytest.mark.parametrize(
    ("reflector", "keys"),
    [
        pytest.param(Notes(), {"a"}, id="object"),
        pytest.param(NotesWithConfig(), {"a"}, id="object-with-config"),
        pytest.param(AsyncNotes(), {"a"}, id="async-object"),
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


@pytest.mark.parametrize("kind", [NotesWithStore, RunnableWithStore])
def test_an_object_with_a_store_is_copied_and_its_writes_are_staged(
    sqlite_url: str, kind: type[NotesWithStore]
) -> None:
    with opened_store(sqlite_url) as store:
        reflector = kind(store)
        with ReflectionExecutor(
            reflector, journal=sqlite_url, retry=Retry(attempts=2, first=HOUR)
        ) as executor:
            made = executor.submit(note("a"), on_thread("t"))
            until(lambda: any(one.error for one in executor.pending()))
            assert notes(store) == {}
            executor._runtime.blocking.pause(made.id)
            executor._runtime.blocking.resume(made.id)
            assert made.result(SOON) == "kept"
            assert notes(store).keys() == {"a"}
        assert len(reflector.stores) == 2
        assert store not in reflector.stores
        assert reflector.store is store


def test_a_graph_compiled_with_a_store_gives_it_to_its_executor(sqlite_url: str) -> None:
    own = InMemoryStore()
    graph = reflecting_graph(store=own)
    with ReflectionExecutor(graph, journal=sqlite_url, name="r") as executor:
        executor.submit(note("a")).result(SOON)
    assert notes(own).keys() == {"a-1", "a-2"}


@pytest.mark.parametrize(
    "namespace",
    [
        ("notes", "{user}"),
        ["notes", "{user}"],
        NamespaceTemplate(("notes", "{user}")),
        lambda: ("notes", "{user}"),
    ],
    ids=["tuple", "list", "template", "callable"],
)
def test_an_object_gives_its_namespace_and_a_name_that_stays(
    sqlite_url: str, namespace: Any
) -> None:
    names = set()
    for user in ("ann", "bo"):
        reflector = Notes()
        reflector.namespace = namespace
        with ReflectionExecutor(reflector, store=InMemoryStore(), journal=sqlite_url) as executor:
            executor.submit(note("a"), who(user, "t"), after_seconds=600)
            names.add(executor.name)
    assert names == {"Notes(notes/{user})"}
    with ReflectionExecutor(Notes(), name=names.pop(), journal=sqlite_url) as executor:
        assert [one.namespace for one in executor.pending()] == [("notes", "ann"), ("notes", "bo")]


@pytest.mark.parametrize("namespace", [5, ("notes", 5), {"notes": 1}])
def test_what_is_not_a_namespace_is_refused(sqlite_url: str, namespace: Any) -> None:
    with pytest.raises(BadArgument, match="a tuple of strings"):
        ReflectionExecutor(keeper(), namespace, journal=sqlite_url)


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
def test_a_sequence_around_a_manager_is_staged_each_time(url: str, store: BaseStore) -> None:
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
        module("their_memory", inner=types.SimpleNamespace(reflector=Notes())),
        ReflectionExecutor("their_memory:inner.reflector", store=store, journal=url) as executor,
    ):
        assert executor.submit(note("a")).result(SOON) == "kept a"
        executor.submit(note("b"), on_thread("t"), after_seconds=600)
        assert executor.pending()[0].namespace == ("notes",)
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
    assert "is not stored" in caplog.text
