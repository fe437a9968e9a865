"""What the tests of `ReflectionExecutor` share: stores, reflectors, and a look at the journal."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pytest
from langgraph.config import get_store
from langgraph.store.base import BaseStore

from perdure.types import Retry
from tests.support.agents import Gate, chain
from tests.support.memory import opened_store
from tests.support.raw import execute

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


def runs_on_disk(url: str) -> list[tuple[str, str]]:
    """Id and state of every run, read by somebody else."""
    rows = execute(url, "SELECT id, state FROM perdure_runs ORDER BY created_at, id")
    return [(id, state) for id, state in rows]


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


def graph_that(node: Any, store: BaseStore | None = None, saver: Any = None) -> Any:
    return chain(("node", node)).compile(store=store, checkpointer=saver)


def remember(store: BaseStore, text: str) -> None:
    store.put(("notes",), text, {"text": text})


def embed(texts: Sequence[str]) -> list[list[float]]:
    """What a text is about: tea, or the weather."""
    return [[float("tea" in text), float("rain" in text or "snow" in text), 0.1] for text in texts]


VECTORS = pytest.mark.skipif(
    not hasattr(sqlite3.Connection, "enable_load_extension"),
    reason="this Python's sqlite3 loads no extensions",
)
