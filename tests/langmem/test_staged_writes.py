"""The writes of a reflector are staged until it has ended, then committed with the outcome."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_store
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.store.sqlite import SqliteStore

from perdure.langmem import ReflectionExecutor
from perdure.types import Retry
from tests.support.entries import batches_url as batches_url
from tests.support.memory import (
    ON_A_FILE,
    SOON,
    VECTORS,
    embed,
    manager,
    notes,
    opened_store,
    remember,
    remembered,
    store_url,
    talk,
    who,
)
from tests.support.memory import store as store
from tests.support.raw import execute

# -- staging


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
        staged = get_store()
        staged.put(where, "new", {"text": "new"})
        staged.put(where, "old", {"text": "changed"})
        staged.delete(where, "gone")
        fresh = str(uuid.uuid4())
        staged.put(where, fresh, {"text": "first"})
        staged.put(where, fresh, {"text": "second"})
        passing = str(uuid.uuid4())
        staged.put(where, passing, {"text": "passing"})
        staged.delete(where, passing)
        get = {key: staged.get(where, key) for key in ("new", "old", "gone", "kept", fresh)}
        seen["get"] = [None if one is None else one.value["text"] for one in get.values()]
        seen["passing"] = staged.get(where, passing)
        seen["search"] = sorted(notes(staged).values())
        found = staged.search(where, filter={"text": "changed"})
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
        staged = get_store()
        seen.append(sorted(notes(staged)))
        remember(staged, f"attempt-{len(seen)}")
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
        staged = get_store().search(("memories", "ann"))
        if len(made) < 3:
            made[-1] = sorted(one.key for one in staged)
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
    assert execute(store_url(url), query) == [("long", None, False), ("short", 5, True)]


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
        assert executor._graph.committer is not None
        assert executor._graph.committer.shares_database == (place == "same")
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


def test_a_journal_without_open_transactions_has_no_store_in_its_database(batches_url: str) -> None:
    with (
        opened_store(batches_url) as store,
        ReflectionExecutor(manager(), store=store, journal=batches_url) as executor,
    ):
        executor.submit(talk("fact-tea"), who("ann")).result(SOON)
        assert executor._graph.committer is not None
        assert not executor._graph.committer.shares_database
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
                assert executor._graph.committer is not None
                assert executor._graph.committer.shares_database is together, (journal, place)
                assert f"fact-{together}" in remembered(store, "ann")
    finally:
        postgres_server.drop(other)
