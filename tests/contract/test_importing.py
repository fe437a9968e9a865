"""An import that was killed continues where it stopped."""

from __future__ import annotations

import contextlib
import sqlite3
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command

import perdure
from perdure import Saver, import_threads
from perdure.commands import threads
from perdure.errors import BadArgument
from perdure.types import State
from tests.contract import import_child
from tests.contract.import_child import Address, Secret, build, fill, on, said
from tests.support.commands import main
from tests.support.fork_server import ForkServer
from tests.support.raw import execute
from tests.support.scripts import Graph, plain
from tests.support.stories import build_delta


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
    child = fork_server.start(import_child.live, url=sqlite_url, where=where, nth=nth)
    assert child.wait() == -9
    with Saver(sqlite_url, allow=[Address]) as saver:
        assert import_threads(where, saver).refused == []
        with opened() as source:
            assert told(build(saver), saver) == told(build(source), source)
            stored = execute(sqlite_url, "SELECT count(*) FROM perdure_checkpoints")
            assert stored == [(len(list(source.list(None))),)]


def test_every_thread_is_carried_as_it_is(stock: Any, sqlite_url: str) -> None:
    where, opened = stock
    seen: list[tuple[str, int, int]] = []
    with Saver(sqlite_url, allow=[Address]) as saver:
        done = import_threads(where, saver, progress=lambda t, n, of: seen.append((t.id, n, of)))
        assert seen == [("done", 1, 3), ("forked", 2, 3), ("waiting", 3, 3)]
        assert done.refused == []
        assert [one.id for one in done.waiting] == ["forked", "waiting"]
        with opened() as source:
            assert told(build(saver), saver) == told(build(source), source)
            assert done.checkpoints == len(list(source.list(None)))


def test_a_thread_that_waits_is_answered_and_goes_on(stock: Any, url: str) -> None:
    where, _ = stock
    with Saver(url, allow=[Address]) as saver:
        import_threads(where, saver)
    with Saver(url) as saver:
        graph = build(saver)
        done = graph.invoke(Command(resume="yes"), on("waiting"))
        assert done["log"][-4:] == ["answered yes", *[f"worked on {n}" for n in range(3)]]
        assert done["address"] == Address("ada@example.com")
        assert "__interrupt__" in graph.invoke(said("more"), on("done"))


async def test_it_goes_on_through_a_runtime_and_its_inbox(stock: Any, url: str) -> None:
    where, _ = stock
    async with perdure.Runtime(url) as rt:
        graph = rt.register(build(), name="mail")
        import_threads(where, rt.saver)
        for _ in range(2):  # a second time changes nothing
            await rt.start("mail", None, thread_id="waiting", key="import:waiting")
        await rt.tick()
        [wait] = await rt.waits()
        assert (wait.thread_id, wait.value) == ("waiting", "send it?")
        await rt.answer(wait.id, "yes")
        await rt.tick()
        [run] = await rt.runs(thread_id="waiting")
        assert run.state == State.DONE
        assert run.output["log"][-4] == "answered yes"
        # Or by a bound graph, as before.
        forked = await graph.ainvoke(Command(resume="no"), on("forked"))
        assert "answered no" in forked["log"]


def test_what_is_there_is_not_stored_twice(stock: Any, url: str) -> None:
    where, opened = stock
    rows = "SELECT count(*) FROM perdure_{}"
    with Saver(url, allow=[Address]) as saver:
        first = import_threads(where, saver)
        counts = [execute(url, rows.format(t)) for t in ("checkpoints", "values", "writes")]
        again = import_threads(where, saver)
        assert again.checkpoints == 0
        assert sum(one.known for one in again.threads) == first.checkpoints
        assert counts == [execute(url, rows.format(t)) for t in ("checkpoints", "values", "writes")]
        with opened() as source:  # the old application went on meanwhile
            build(source).invoke(Command(resume="yes"), on("waiting"))
            assert import_threads(where, saver).checkpoints > 0
            assert told(build(saver), saver) == told(build(source), source)


@pytest.mark.parametrize("as_object", [False, True], ids=["by its path", "as an open saver"])
def test_a_thread_with_a_type_that_is_not_allowed_is_named_and_the_others_come(
    tmp_path: Path, sqlite_url: str, as_object: bool
) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "stock.db")) as source:
        fill(source)
        build(source).update_state(on("done"), {"anything": [Secret("x")]}, as_node="work")
        with Saver(sqlite_url, allow=[Address]) as saver:
            done = import_threads(source if as_object else str(tmp_path / "stock.db"), saver)
            [refused] = done.refused
            assert refused.id == "done"
            assert f"{Secret.__module__}.Secret" in (refused.refused or "")
            assert len(done.threads) == 3
            assert list(saver.list(on("done"))) == []
            assert len(list(saver.list(on("waiting")))) > 0
        with Saver(sqlite_url, allow=[Address, Secret]) as saver:
            assert import_threads(source, saver).refused == []
            assert build(saver).get_state(on("done")).values["anything"] == [Secret("x")]


def test_a_type_in_the_middle_leaves_nothing_of_its_thread(tmp_path: Path, sqlite_url: str) -> None:
    with SqliteSaver.from_conn_string(str(tmp_path / "stock.db")) as source:
        fill(source)
        graph = build(source)
        graph.update_state(on("done"), {"anything": Secret("x")}, as_node="work")
        graph.update_state(on("done"), {"anything": None}, as_node="work")
    with Saver(sqlite_url, allow=[Address]) as saver:
        done = import_threads(str(tmp_path / "stock.db"), saver)
        assert [one.id for one in done.refused] == ["done"]
        assert list(saver.list(on("done"))) == []
    assert execute(sqlite_url, "SELECT * FROM perdure_writes WHERE thread_id = 'done'") == []


def test_a_thread_that_went_on_in_both_is_left_alone(stock: Any, sqlite_url: str) -> None:
    where, opened = stock
    with Saver(sqlite_url, allow=[Address]) as saver, opened() as source:
        import_threads(where, saver)
        build(saver).invoke(Command(resume="here"), on("waiting"))
        assert import_threads(where, saver).refused == []  # it only went on here
        build(source).invoke(Command(resume="there"), on("waiting"))
        [refused] = import_threads(where, saver).refused
        assert refused.id == "waiting"
        assert "checkpoints of its own" in (refused.refused or "")
        assert "answered here" in build(saver).get_state(on("waiting")).values["log"]


def test_delta_channels_are_carried_with_the_writes_they_are_made_of(sqlite_url: str) -> None:
    source = InMemorySaver()
    graph = build_delta(source, [])
    for n in range(9):
        graph.invoke({"fast": [n], "messages": [HumanMessage(f"{n}", id=f"h{n}")]}, on("a"))
    with Saver(sqlite_url) as saver:
        assert import_threads(source, saver).refused == []
        ours = build_delta(saver, [])
        assert plain(ours.get_state(on("a"))) == plain(graph.get_state(on("a")))
        ours.invoke({"fast": ["more"]}, on("a"))
        assert "more" in ours.get_state(on("a")).values["fast"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/no/such/file.db", "There is no file /no/such/file.db"),
        ("mysql://localhost/agents", "'mysql' names no checkpointer"),
    ],
)
def test_a_source_that_is_none_is_named(sqlite_url: str, source: str, words: str) -> None:
    with Saver(sqlite_url) as saver, pytest.raises(BadArgument, match=words):
        import_threads(source, saver)


def test_a_file_without_checkpoints_is_named(sqlite_url: str, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "empty.db").execute("CREATE TABLE t (a)").connection.close()
    with (
        Saver(sqlite_url) as saver,
        pytest.raises(BadArgument, match="holds no checkpoints of LangGraph's SqliteSaver"),
    ):
        import_threads(str(tmp_path / "empty.db"), saver)


def test_the_command_imports_lists_what_it_could_not_and_starts_runs(
    tmp_path: Path, sqlite_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(tmp_path / "stock.db")
    with SqliteSaver.from_conn_string(file) as source:
        fill(source)
    command = ["import", file, "--at", sqlite_url]
    assert main(command) == 1
    out = capsys.readouterr().out
    assert "not imported: thread 'done': " in out
    assert f"{Address.__module__}.Address" in out
    assert "0 threads imported, 0 new checkpoints; 0 threads waiting; 3 not" in out
    assert "Allow types with --allow MODULE:CLASS" in out
    command += ["--allow", f"{Address.__module__}:Address", "--start", "mail"]
    for _ in range(2):
        assert main(command) == 0
        out = capsys.readouterr().out
        assert "3 threads imported" in out
        assert "2 threads waiting; 0 not imported." in out
        assert "in `perdure inbox` once a worker has driven it." in out
    with perdure.Runtime(sqlite_url) as rt:
        rt.register(build(), name="mail")
        assert {run.thread_id for run in rt.blocking.runs()} == {"waiting", "forked"}
        assert rt.blocking.run(found_thread(rt, "done"))  # before it has had a run
        rt.blocking.tick()
        assert len(rt.blocking.waits()) == 2


def test_a_graph_that_the_target_does_not_have_is_refused_before_anything_is_imported(
    tmp_path: Path,
    sqlite_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    file = str(tmp_path / "stock.db")
    with SqliteSaver.from_conn_string(file) as source:
        fill(source)
    agents = types.ModuleType("agents_with_mail")
    monkeypatch.setitem(sys.modules, agents.__name__, agents)
    agents.runtime = perdure.Runtime(sqlite_url)  # type: ignore[attr-defined]
    agents.runtime.register(build(), name="mail")
    place = f"{agents.__name__}:runtime"
    assert main(["import", file, "--at", place, "--start", "mial"]) == 2
    assert "No graph 'mial' is registered here; there is mail." in capsys.readouterr().err
    with Saver(sqlite_url) as saver:
        assert list(saver.list(None)) == []


KEYS = {"2026": b"n" * 16}


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("sqlite", perdure.Runtime),
        pytest.param("postgres", perdure.Client, marks=pytest.mark.postgres),
        pytest.param("d1", perdure.Client, marks=pytest.mark.d1),
    ],
    indirect=["url"],
)
def test_the_command_encrypts_with_the_keys_of_its_target(
    tmp_path: Path, url: str, target: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = str(tmp_path / "stock.db")
    with SqliteSaver.from_conn_string(file) as source:
        fill(source)
    agents = types.ModuleType("agents_with_keys")
    monkeypatch.setitem(sys.modules, agents.__name__, agents)
    command = ["import", file, "--at", f"{agents.__name__}:target", "--start", "mail"]
    for _ in range(2):  # the second finds all of it
        agents.target = target(url, encryption_keys=KEYS)  # type: ignore[attr-defined]
        assert main([*command, "--allow", f"{Address.__module__}:Address"]) == 0
    for table, column in (("checkpoints", "state"), ("values", "body"), ("writes", "body")):
        rows = execute(url, f"SELECT {column} FROM perdure_{table}")
        assert rows
        assert not any(b"ada@example.com" in bytes(blob) for (blob,) in rows)
    with perdure.Runtime(url, encryption_keys=KEYS) as rt:
        graph = rt.register(build(), name="mail")
        rt.blocking.tick()
        [wait] = rt.blocking.waits(thread_id="waiting")
        rt.blocking.answer(wait.id, "yes")
        rt.blocking.tick()
        [run] = rt.blocking.runs(thread_id="waiting")
        assert run.output["log"][-4] == "answered yes"
        assert graph.get_state(on("done")).values["address"] == Address("ada@example.com")


class Anything(TypedDict, total=False):
    anything: Any


def test_a_type_that_a_script_stored_is_read_as_the_allowed_type_of_its_name(
    tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`python chat.py` stores `__main__.Secret`; a worker knows the class by its module."""
    file, script = str(tmp_path / "stock.db"), sys.modules["__main__"]
    with SqliteSaver.from_conn_string(file) as source, monkeypatch.context() as as_script:
        as_script.setattr(Secret, "__module__", "__main__")
        as_script.setattr(script, "Secret", Secret, raising=False)
        builder = StateGraph(Anything).add_node("keep", lambda _: {"anything": Secret("tip")})
        builder.add_edge(START, "keep").compile(checkpointer=source).invoke({}, on("ana"))
    with Saver(sqlite_url) as saver:
        [refused] = import_threads(file, saver).refused
        assert "__main__.Secret" in str(refused.refused)
    with Saver(sqlite_url, allow=[Secret]) as saver:
        assert not import_threads(file, saver).refused
        [found, *_] = saver.list(on("ana"))
        assert found.checkpoint["channel_values"]["anything"] == Secret("tip")
    assert not hasattr(script, "Secret")


def found_thread(client: perdure.Client, thread_id: str) -> Any:
    return client.journal.arun(threads.find(client.engine, thread_id))
