"""The store of a LangGraph project: beside its journal, as its langgraph.json says."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

from perdure.cli.graph_loading import ProjectRuntime, load_project
from perdure.cli.project import find_project
from perdure.errors import BadArgument, Error
from perdure.journal_store import JournalStore

AGENT = """
from typing import TypedDict
from langgraph.graph import START, StateGraph
from langgraph.store.memory import InMemoryStore

class State(TypedDict, total=False):
    n: int

def remember(state, *, store):
    store.put(("memories",), "last", {"n": state["n"]})
    return {}

graph = StateGraph(State).add_node("remember", remember).add_edge(START, "remember")
store = InMemoryStore()
number = 7

def make_store():
    return store

def embed(texts):
    return [[float(len(text)), 1.0] for text in texts]
"""


@pytest.fixture(autouse=True)
def restored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.delenv("PERDURE_URL", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def loaded(folder: Path, **said: Any) -> ProjectRuntime:
    (folder / "agent.py").write_text(AGENT)
    content = {"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."], **said}
    (folder / "langgraph.json").write_text(json.dumps(content))
    project = find_project(folder)
    assert project is not None
    return load_project(project)


async def test_the_graphs_of_a_project_have_a_store_beside_the_journal(tmp_path: Path) -> None:
    rt = loaded(tmp_path)
    async with rt:
        await rt.start("agent", {"n": 5}, thread_id="t")
        await rt.tick()
        assert isinstance(rt.store, JournalStore)
        found = await rt.store.aget(("memories",), "last")
        assert found is not None
        assert found.value == {"n": 5}
    assert [one.name for one in tmp_path.rglob("*-store.db")] == ["agents-store.db"]


async def test_an_index_makes_items_searchable_by_meaning(tmp_path: Path) -> None:
    index = {"dims": 2, "embed": "./agent.py:embed", "fields": ["text"]}
    rt = loaded(tmp_path, store={"index": index, "ttl": {"default_ttl": 60}})
    async with rt:
        store: Any = rt.store
        if not hasattr(sqlite3.Connection, "enable_load_extension"):
            with pytest.raises(Error, match="built without"):
                await store.aput(("a",), "short", {"text": "x"})
            return
        await store.aput(("a",), "short", {"text": "x"})
        await store.aput(("a",), "long", {"text": "x" * 90})
        found = await store.asearch(("a",), query="y" * 80)
        assert [one.key for one in found] == ["long", "short"]
        assert all(one.score is not None for one in found)


@pytest.mark.parametrize("name", ["store", "make_store"])
def test_a_project_may_bring_a_store_of_its_own(tmp_path: Path, name: str) -> None:
    rt = loaded(tmp_path, store={"path": f"./agent.py:{name}"})
    store: BaseStore | None = rt.store
    assert isinstance(store, InMemoryStore)
    assert rt.compiled("agent").store is store
    rt.close()


def test_a_store_of_the_project_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(BadArgument, match=r"store\.path"):
        loaded(tmp_path, store={"path": "./agent.py:number"})
