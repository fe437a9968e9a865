"""Odd users, names, reflectors and stores: each of these was tried in order to break a promise."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_store
from langgraph.graph import START, StateGraph
from langgraph.store.base import BaseStore, GetOp, PutOp
from langgraph.store.memory import InMemoryStore
from langgraph.types import interrupt

from perdure.errors import ReflectionFailed, ReflectionLeft, UnknownReflector
from perdure.langmem import ReflectionExecutor
from perdure.langmem.store_commit import missing_writes
from perdure.types import Retry
from tests.support.agents import Log
from tests.support.memory import (
    NAMESPACE,
    ON_A_FILE,
    ONCE,
    SOON,
    manager,
    notes,
    on_thread,
    remember,
    remembered,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.sqlite_only import url as url


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


def test_a_staged_write_applies_where_the_store_has_what_it_was_based_on() -> None:
    store = InMemoryStore()
    store.put(("m",), "same", {"n": 1})
    store.put(("m",), "there", {"n": 2})
    store.put(("m",), "changed", {"n": "by a person"})
    store.put(("m",), "kept", {"n": "by a person"})
    staged = [
        written("same", {"n": 2}, {"n": 1}),
        written("there", {"n": 2}, {"n": 1}),
        written("changed", {"n": 2}, {"n": 1}),
        written("kept", None, {"n": 1}),
        written("gone", {"n": 2}, {"n": 1}),
        written("new", {"n": (2, 3)}, None),
    ]
    assert [op.key for op in missing_writes(store, staged)] == ["same", "new"]
    store.put(("m",), "new", {"n": [2, 3]})
    assert [op.key for op in missing_writes(store, staged)] == ["same"]


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
            assert "cannot wait for an answer" in str(made.exception(SOON))
            assert notes(store) == {}
        else:
            made.result(SOON)
            assert notes(store).keys() == {"half", "whole"}


@ON_A_FILE
def test_a_manager_with_a_store_of_its_own_inside_of_others_writes_into_the_staged_writes(
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
def test_a_thread_of_a_reflector_writes_into_its_staged_writes_and_none_afterwards(
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
        remember(kept[0], "later")  # no reflection's any more: written directly
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
