"""An import that was killed continues where it stopped."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver

from perdure import Saver, import_threads
from tests.support.fork_server import ForkServer
from tests.support.import_child import Address, build, fill, on
from tests.support.raw import execute
from tests.support.scripts import Graph, plain


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def stock(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Callable[[], Any]]:
    """Where a filled saver of LangGraph is, and how to open it."""
    kind: Any = SqliteSaver if request.param == "sqlite" else PostgresSaver
    if request.param == "sqlite":
        where = str(tmp_path / "stock.db")
    else:
        where = request.getfixturevalue("empty_postgres_url")

    @contextlib.contextmanager
    def opened() -> Iterator[Any]:
        with kind.from_conn_string(where) as saver:
            saver.setup()
            yield saver

    with opened() as saver:
        fill(saver)
    return where, opened


def told(graph: Graph, saver: BaseCheckpointSaver[Any]) -> dict[str, Any]:
    """Everything that can be read of all threads."""
    found: dict[str, Any] = {}
    for one in saver.list(None):
        place: Any = one.config["configurable"]
        writes = [(*write[:2], plain(write[2])) for write in one.pending_writes or ()]
        parent = (one.parent_config or {"configurable": {}})["configurable"].get("checkpoint_id")
        values = {name: plain(value) for name, value in one.checkpoint["channel_values"].items()}
        key = str((place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"]))
        found[key] = (
            {**one.checkpoint, "channel_values": values},
            dict(one.metadata),
            parent,
            writes,
        )
    for thread in ("done", "waiting", "forked"):
        past = list(graph.get_state_history(on(thread)))
        found[thread] = [(one.next, one.values, plain(one.interrupts)) for one in past]
        found[f"{thread} tasks"] = [(one.config, one.created_at, len(one.tasks)) for one in past]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("nth", [1, 2, 3, 7, 20, 33, 50])
def test_an_import_that_is_killed_goes_on_where_it_was(
    stock: Any, sqlite_url: str, fork_server: ForkServer, nth: int
) -> None:
    where, opened = stock
    child = fork_server.start("import_child:live", url=sqlite_url, where=where, nth=nth)
    assert child.wait() == -9
    with Saver(sqlite_url, allow=[Address]) as saver:
        assert import_threads(where, saver).refused == []
        with opened() as source:
            assert told(build(saver), saver) == told(build(source), source)
            stored = execute(sqlite_url, "SELECT count(*) FROM perdure_checkpoints")
            assert stored == [(len(list(source.list(None))),)]
