"""What the tests of `persist` and `resume_pending_reflections` share."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.runnables import Runnable
from langgraph.store.base import BaseStore
from langmem import ReflectionExecutor as StockExecutor

from perdure.langmem import Persisted, persist
from perdure.langmem.records import Kept, Records
from perdure.langmem.reflection import Request
from tests.support.kept_child import NAME, Nursery
from tests.support.memory import opened_store

LATER = 3600.0


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def store(url: str) -> Iterator[BaseStore]:
    with opened_store(url) as opened:
        yield opened


@pytest.fixture
def quick() -> Iterator[BaseStore]:
    """A store for what has nothing to do with databases."""
    with opened_store("sqlite:///:memory:") as opened:
        yield opened


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody else claims anything, so there is nobody to agree with."""
    monkeypatch.setattr("perdure.langmem.records.AGREE", 0.0)


class Noting(Runnable[Any, Any]):
    """A reflector that notes what it was given, after `then`."""

    namespace = ("memories", "{user}")

    def __init__(self, then: Callable[[], None] | None = None) -> None:
        self.seen: list[Any] = []
        self._then = then

    def invoke(self, input: Any, config: Any = None, **kwargs: Any) -> Any:
        self.seen.append(input)
        if self._then is not None:
            self._then()
        return input


@contextmanager
def noting(
    store: BaseStore, then: Callable[[], None] | None = None, name: str = NAME
) -> Iterator[tuple[Persisted, list[Any]]]:
    """An executor, and what its reflector was given."""
    reflector = Noting(then)
    with persist(StockExecutor(reflector, store=store), store, name=name) as executor:
        yield executor, reflector.seen


def left(
    store: BaseStore, what: Any, *, thread: str | None = None, due: float = -1.0, **fields: Any
) -> Kept:
    """A record as a process leaves it behind that was told to stop."""
    request = Request(what, ("memories", "u"), thread, {"user": "u"})
    now = fields.pop("submitted_at", time.time())
    one = Kept(f"id-{what!r}"[:40], request, now + due, now, **fields)
    Records(store, NAME).add(one)
    return one


def records(store: BaseStore) -> list[Kept]:
    return Records(store, NAME).all()


def items(store: BaseStore) -> list[Any]:
    """Everything that is in a store because of reflections."""
    return store.search(("perdure",), limit=1000)
