"""LangMem's own executor with its queue in a LangGraph store: what `submit` keeps."""

from __future__ import annotations

import time
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langmem import ReflectionExecutor as StockExecutor

from perdure.errors import Unserializable
from perdure.langmem import persist, resume_pending_reflections
from perdure.langmem.kept import Ticket
from perdure.langmem.records import Records
from perdure.types import State
from tests.support.agents import chain
from tests.support.agents import gate as a_gate
from tests.support.kept import (
    LATER,
    items,
    left,
    noting,
    records,
)
from tests.support.kept import alone as alone
from tests.support.kept import quick as quick
from tests.support.kept import store as store
from tests.support.kept_child import NAME
from tests.support.memory import manager, opened_store, remembered, talk, who
from tests.support.runtime_child import eventually


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
def test_a_reflection_is_in_the_store_before_submit_returns_and_gone_when_it_is_done(
    kind: str, request: pytest.FixtureRequest
) -> None:
    url = kind if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    with opened_store(url) as store:
        with persist(StockExecutor(manager(), store=store), store) as executor:
            executor.submit(talk("fact-later"), who("u", "a"), after_seconds=LATER)
            [later] = executor.pending()
            assert (later.namespace, later.thread_id) == (("memories", "u"), "a")
            assert later.state is State.PENDING
            done = executor.submit(talk("fact-now"), who("u", "b")).result(30)
            assert [one["value"]["content"]["content"] for one in done] == ["fact-now"]
            assert [one.id for one in executor.pending()] == [later.id]
            assert remembered(store, "u") == ["fact-now"]
            executor.cancel(later.id)
        assert items(store) == []


def test_only_the_last_of_many_submits_of_a_conversation_is_run(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        futures = [
            executor.submit({"n": n}, who("u", "t"), after_seconds=LATER if n < 4 else 0)
            for n in range(5)
        ]
        assert futures[-1].result(30) == {"n": 4}
        assert [one.cancelled() for one in futures] == [True] * 4 + [False]
        assert executor.pending() == []
    assert seen == [{"n": 4}]
    assert items(quick) == []


def test_submit_in_a_node_of_a_graph_knows_its_user_and_conversation(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):

        def node(state: Any) -> Any:
            executor.submit({"n": 1}, after_seconds=LATER)
            return {"log": ["submitted"]}

        graph = chain(node).compile(store=quick)
        graph.invoke({"log": []}, {"configurable": {"user": "ana", "thread_id": "t"}})
        [one] = executor.pending()
        assert (one.namespace, one.thread_id) == (("memories", "ana"), "t")
    assert seen == []


def test_conversations_of_two_users_and_those_without_one_do_not_take_each_others_place(
    quick: BaseStore,
) -> None:
    with noting(quick) as (executor, seen):
        for user in ("u", "v"):
            executor.submit({"user": user}, who(user, "t"), after_seconds=LATER)
        for n in range(3):
            executor.submit({"n": n}, who("u"), after_seconds=LATER)
        assert len(executor.pending()) == 5
    assert seen == []


def test_what_is_begun_is_not_replaced_by_a_later_one(quick: BaseStore) -> None:
    with a_gate() as gate, noting(quick, gate.block) as (executor, seen):
        first = executor.submit({"n": 1}, who("u", "t"))
        eventually(lambda: gate.entered, "the first")
        second = executor.submit({"n": 2}, who("u", "t"))
        assert sorted(one.state for one in executor.pending()) == [State.PENDING, State.RUNNING]
        gate.open()
        assert (first.result(30), second.result(30)) == ({"n": 1}, {"n": 2})
    assert seen == [{"n": 1}, {"n": 2}]


def test_a_superseded_record_is_not_run_whatever_the_stock_queue_does(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        executor.submit({"n": 1}, who("u", "t"), after_seconds=LATER)
        [first] = executor.pending()
        executor.submit({"n": 2}, who("u", "t"), after_seconds=LATER)
        assert executor._executor._reflector.invoke(Ticket(first.id)) is None
    assert seen == []


@pytest.mark.usefixtures("alone")
def test_of_two_that_two_processes_accepted_at_once_the_earlier_is_not_run(
    store: BaseStore,
) -> None:
    now = time.time()
    earlier = left(store, "earlier", thread="t", submitted_at=now - 1)
    left(store, "later", thread="t", submitted_at=now, due=LATER)
    Records(store, NAME).put(earlier)  # as if the later one had not seen it
    with noting(store) as (executor, seen):
        assert len(resume_pending_reflections(executor, store)) == 2
        eventually(lambda: len(executor.pending()) == 1, "the end of the earlier")
    assert seen == []
    assert [one.request.payload for one in records(store)] == ["later"]


def test_what_is_due_at_the_same_moment_is_run_each_once(
    quick: BaseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    with noting(quick) as (executor, seen):
        monkeypatch.setattr(time, "time", lambda: now)
        futures = [executor.submit({"n": n}, who("u", "t" + str(n))) for n in range(20)]
        monkeypatch.undo()
        for one in futures:
            one.result(30)
        assert sorted(one["n"] for one in seen) == list(range(20))


def test_what_is_due_now_does_not_wait_for_what_is_due_later(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        executor.submit({"n": 1}, who("u"), after_seconds=LATER)
        assert executor.submit({"n": 2}, who("u")).result(30) == {"n": 2}
        assert executor.submit({"n": 3}, who("u"), after_seconds=0.05).result(30) == {"n": 3}
    assert seen == [{"n": 2}, {"n": 3}]


def test_to_cancel_the_future_deletes_the_record(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        assert executor.submit({"n": 1}, who("u", "t"), after_seconds=LATER).cancel()
        assert executor.pending() == []
    assert seen == []
    assert items(quick) == []


def test_what_is_cancelled_while_it_is_worked_on_writes_nothing(quick: BaseStore) -> None:
    with a_gate() as gate:
        executor = persist(
            StockExecutor(manager(before=lambda _: gate.block()), store=quick), quick
        )
        with executor:
            executor.submit(talk("fact-1"), who("u", "t"))
            eventually(lambda: gate.entered, "the model")
            [one] = executor.pending()
            executor.cancel(one.id)
            gate.open()
    assert remembered(quick, "u") == []
    assert items(quick) == []


def test_records_are_invisible_to_search_and_have_no_vectors() -> None:
    embedded: list[str] = []

    def embed(texts: list[str]) -> list[list[float]]:
        embedded.extend(texts)
        return [[1.0, 0.0] for _ in texts]

    index: Any = {"dims": 2, "embed": embed}
    store = InMemoryStore(index=index)
    with persist(StockExecutor(manager(), store=store), store) as executor:
        executor.submit(talk("fact-later"), who("u", "t"), after_seconds=LATER)
        assert embedded == []
        assert executor.search(namespace=("memories", "u")) == []
        assert executor.search("anything", namespace="memories") == []
        executor.submit(talk("fact-now"), who("u", "now")).result(30)
        [found] = executor.search("fact-now", namespace=("memories", "u"))
        assert found["value"]["content"]["content"] == "fact-now"
    assert not [text for text in embedded if "later" in text]


@pytest.mark.usefixtures("alone")
def test_names_may_have_odd_characters(store: BaseStore) -> None:
    for name in ("a.b", "a/b%2E", "ä ö'\"", "*?[x]", "%_", "x" * 200):
        with noting(store, name=name) as (executor, _):
            executor.submit({"n": 1}, who("u", f"{name} of\nsomebody"), after_seconds=LATER)
        with noting(store, name=name[:-1] + "z") as (other, _):
            assert (other.pending(), other.resume()) == ([], []), name
        with noting(store, name=name) as (executor, _):
            [one] = executor.resume()
            assert one.thread_id == f"{name} of\nsomebody"


def test_a_name_that_begins_like_another_has_its_own_records(quick: BaseStore) -> None:
    with noting(quick, name="chat") as (executor, _), noting(quick, name="chatter") as (other, _):
        other.submit({"n": 1}, who("u"), after_seconds=LATER)
        assert executor.pending() == []


def test_a_payload_that_json_cannot_say_comes_back_as_it_was(store: BaseStore) -> None:
    said: Any = {
        "text": "nul \x00 and \U0001f600",
        "bytes": b"\x00\xff",
        "nan": float("inf"),
        3: (1, 2),
    }
    with noting(store) as (executor, _):
        executor.submit(said, who("u", "t"), after_seconds=LATER)
    [one] = records(store)
    assert one.request.payload == said


def test_a_payload_that_cannot_be_kept_is_refused_and_nothing_is_written(quick: BaseStore) -> None:
    with noting(quick) as (executor, seen):
        with pytest.raises(Unserializable, match="payload"):
            executor.submit({"lambda": lambda: 1}, who("u", "t"))
        assert executor.pending() == []
    assert (seen, items(quick)) == ([], [])
