"""Processes that write and checkpoint one SQLite file lose nothing, with SQLite's WAL-reset bug.

A checkpoint of an affected SQLite loses commits if another connection restarts the WAL while it
reads how long the WAL is. So the promise has two halves: no connection can commit while perdure
checkpoints, and perdure checkpoints often enough.
"""

from __future__ import annotations

import itertools
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_store

import perdure
from tests.support.agents import Log, chain
from tests.support.disk import VFS, Disk, SqliteOutOfReach
from tests.support.fork_server import Child, ForkServer, Tell
from tests.support.polling import until
from tests.support.sweep import EVERY_POINT


def commit(order: dict[str, Any], tell: Tell) -> None:
    """Store signals of several pages until it is killed, or as many as it is told."""
    with perdure.Client(order["url"]) as client:
        for number in itertools.islice(itertools.count(), order.get("times")):
            thread = f"{order['name']}-{number}"
            client.blocking.signal(thread, "stored", thread * 6000)
            tell("stored", thread)


PAGE = 4096 + 24
LONG = 512 * PAGE
"""A WAL that perdure moves into the file."""


@pytest.fixture
def disk() -> Iterator[Disk]:
    try:
        disk = Disk.install(default=False)
    except SqliteOutOfReach as error:
        pytest.skip(str(error))
    yield disk
    disk.uninstall()


def connect(path: Path | str, *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path, isolation_level=None, timeout=0, check_same_thread=False, uri=uri
    )
    connection.execute("PRAGMA wal_autocheckpoint = 0")
    return connection


def acknowledged(child: Child) -> set[str]:
    ended = child.ended()
    assert ended is not None
    return {thread for (thread,) in ended.all("stored")}


def is_larger(path: Path, size: int) -> bool:
    return path.stat().st_size > size


def wal_size(url: str) -> int:
    return Path(url.removeprefix("sqlite:///") + "-wal").stat().st_size


def test_the_note_of_doctor_says_if_this_sqlite_loses_commits(disk: Disk, sqlite_url: str) -> None:
    """The bug itself, without perdure: a commit between the two reads of a second checkpoint."""
    path = Path(sqlite_url.removeprefix("sqlite:///")).with_name("plain.db")
    with closing(connect(path)) as writer:
        writer.execute("PRAGMA journal_mode = WAL")
        writer.execute("CREATE TABLE t (a INTEGER PRIMARY KEY, b)")
        with closing(connect(f"file:{path}?vfs={VFS}", uri=True)) as slow:
            assert slow.execute("SELECT count(*) FROM t").fetchone() == (0,)
            for _ in range(50):
                writer.execute("INSERT INTO t (b) VALUES (randomblob(3000))")
            with closing(connect(path)) as fast:
                fast.execute("PRAGMA wal_checkpoint").fetchall()
            paused: list[str] = []

            def restart(what: str, _: str) -> None:
                if what == "unfetch" and not paused:
                    paused.append(what)
                    writer.execute("INSERT INTO t (b) VALUES ('restarts the WAL')")

            disk.before = restart
            slow.execute("PRAGMA wal_checkpoint").fetchall()
            disk.before = None
            if not paused:
                pytest.skip("this SQLite is built without xUnfetch: a checkpoint cannot be paused")
        for _ in range(10):
            writer.execute("INSERT INTO t (b) VALUES ('committed')")
        assert writer.execute("SELECT count(*) FROM t").fetchone() == (61,)
    with closing(connect(path)) as reader:
        lost = 61 - reader.execute("SELECT count(*) FROM t").fetchone()[0]
    with perdure.Client(sqlite_url) as client:
        notes = client.blocking.doctor().remarks
    assert (lost > 0) == any("WAL-reset bug" in note for note in notes), (lost, notes)


def test_no_connection_can_commit_while_perdure_checkpoints(disk: Disk, sqlite_url: str) -> None:
    """In a WAL, only a checkpoint writes to the database file itself."""
    path = sqlite_url.removeprefix("sqlite:///")
    on: RunnableConfig = {"configurable": {"thread_id": "t"}}
    free: list[str] = []
    locked: list[str] = []

    def attempt(what: str, written: str) -> None:
        if what == "write" and (connection := other.get(written)):
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                locked.append(written)
            else:
                connection.execute("ROLLBACK")
                free.append(written)

    def remember(state: Log) -> Log:
        for number in range(state["value"]):
            get_store().put(("a",), f"item {number}", {"text": "value " * 10_000})
        return {}

    store_path = path.replace(".db", "-store.db")
    Disk.install(default=True)
    with perdure.Runtime(sqlite_url) as rt:
        rt.use_store(True)
        graph = rt.register(chain(remember), name="remembers")
        graph.invoke({"value": 1}, on)
        other = {path: connect(path), store_path: connect(store_path)}
        with closing(other[path]), closing(other[store_path]):
            disk.before = attempt
            for number in range(40):
                rt.blocking.signal(f"thread-{number}", "stored", "value " * 20_000)
            graph.invoke({"value": 40}, on)
            rt.blocking.scrub()
            disk.before = None
    assert {*locked} == {path, store_path}, "both were checkpointed"
    assert free == []


@pytest.mark.slow
def test_processes_that_are_killed_while_they_checkpoint_lose_no_commit(
    sqlite_url: str, fork_server: ForkServer
) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    stored: set[str] = set()
    longest = 0
    children: list[Child] = []
    for kill in range(40 if EVERY_POINT else 4):
        while len(children) < 3:
            name = f"{kill}-{len(children)}"
            children.append(fork_server.start(commit, url=sqlite_url, name=name))
        size = path.stat().st_size
        until(partial(is_larger, path, size), "a checkpoint that grows the file")
        longest = max(longest, wal_size(sqlite_url))
        children[0].kill()
        stored |= acknowledged(children.pop(0))
    for child in children:
        child.kill()
        stored |= acknowledged(child)
    with closing(connect(path)) as reader:
        assert reader.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        found = reader.execute("SELECT thread_id FROM perdure_signals WHERE name = 'stored'")
        assert stored <= {thread for (thread,) in found}
    with perdure.Client(sqlite_url) as client:
        assert client.blocking.doctor().findings == ()
    assert len(stored) > 100
    assert longest < 4 * LONG  # the killed one may have been about to move it back


def test_a_wal_grows_while_a_reader_stays_and_is_cut_after_it(sqlite_url: str) -> None:
    path = sqlite_url.removeprefix("sqlite:///")

    def commit(name: str) -> int:
        for number in range(40):
            client.blocking.signal(f"{name}-{number}", "stored", "value " * 20_000)  # 30 pages
        return wal_size(sqlite_url)

    with perdure.Client(sqlite_url) as client:
        assert commit("alone") < 2 * LONG
        with closing(connect(path)) as reader:
            reader.execute("BEGIN")
            reader.execute("SELECT count(*) FROM perdure_runs").fetchone()
            grown = max(commit("read"), commit("read more"))
            assert grown > 4 * LONG
        assert commit("alone again") <= 4 * LONG
