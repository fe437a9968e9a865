"""Erasing leaves nothing of a thread, and nobody else loses anything."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import WrongState
from perdure.types import State
from tests.contract import delete_child
from tests.support.agents import Log, chain
from tests.support.fork_server import ForkServer
from tests.support.raw import execute
from tests.support.sweep import sample

ADA, BEN = "zoe lovelace " * 12, "ben johnson " * 12


@perdure.effect(key=lambda who, time: [who, time])
def greet(who: str, time: int) -> str:
    return f"greeted {who}"


def write(state: Log) -> Log:
    who, time = state["log"][0], len(state["log"])
    perdure.now()
    perdure.outbox("news", who)
    perdure.label(about=who)
    return {"log": [greet(who, time)]}


def ask(state: Log) -> Log:
    return {"log": [perdure.ask(f"Write to {state['log'][0]}?"), perdure.wait_for("more")]}


def registered(url: str) -> perdure.Runtime:
    rt = perdure.Runtime(url)
    rt.register(chain(write, ask), name="g")
    return rt


def live(rt: perdure.Runtime, thread: str, who: str) -> None:
    """A run with rows in every table: it asked, heard and was scored."""
    client = rt.blocking
    run = client.start("g", {"log": [who]}, thread_id=thread, metadata={"who": who})
    client.work(until_idle=True)
    [question] = client.waits(thread_id=thread)
    client.answer(question.id, who, by=who)
    client.score(run.id, "good", 1.0, comment=who)
    client.signal(thread, "more", who)
    client.signal(thread, "never heard", who)
    client.work(until_idle=True)
    assert client.get(run.id).state is State.DONE


def contents(url: str) -> dict[str, list[bytes]]:
    """Every row of the journal, by table."""
    names = "SELECT name FROM sqlite_master WHERE type = 'table'"
    if url.startswith("postgres"):
        names = "SELECT tablename FROM pg_tables"
    ours = [name for (name,) in execute(url, names) if name.startswith("perdure_")]
    return {name: [_bytes(row) for row in execute(url, f"SELECT * FROM {name}")] for name in ours}


def _bytes(row: tuple[Any, ...]) -> bytes:
    values = [bytes(one) if isinstance(one, list) else one for one in row]  # a blob, as JSON has it
    return b"|".join(one if isinstance(one, bytes) else str(one).encode() for one in values)


def holding(url: str, words: str) -> set[str]:
    """The tables that have these words in any column."""
    found = contents(url).items()
    return {name for name, rows in found if any(words.encode() in row for row in rows)}


def test_nothing_of_an_erased_thread_is_left_in_any_table(url: str) -> None:
    with registered(url) as rt:
        live(rt, "zoe", ADA)
        rt.blocking.prune(older_than=timedelta(0))
        assert {"perdure_effects"} <= holding(url, "zoe love"), "a business key guards for good"
        live(rt, "ben", BEN)
        before = contents(url)
        live(rt, "zoe", ADA)
        waits = rt.blocking.start("g", {"log": [ADA]}, thread_id="zoe")
        rt.blocking.work(until_idle=True)
        with pytest.raises(WrongState, match=f"{waits.id} is waiting and cannot be erased: cancel"):
            rt.blocking.erase("zoe")
        assert rt.blocking.get(waits.id).state is State.WAITING
        rt.blocking.cancel(waits.id)
        report = rt.blocking.erase("zoe")
        assert holding(url, "zoe") == set()
        assert {"runs": 2, "outbox": 3, "signals": 3, "threads": 1}.items() <= (report.items())
        assert report["effects"] > 3, "also the one of the pruned run"
        after = contents(url)
        for table, rows in before.items():
            assert {row for row in rows if b"ben" in row} <= {*after[table]}
        assert rt.blocking.erase("zoe") == {}
        again = rt.blocking.start("g", {"log": [ADA]}, thread_id="zoe")
        assert again.state is State.PENDING
        assert not rt.blocking.doctor().findings


def test_scrubbing_removes_what_was_deleted_from_the_files_of_sqlite(
    sqlite_url: str, tmp_path: Path
) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    with registered(sqlite_url) as rt:
        live(rt, "zoe", ADA)
        live(rt, "ben", BEN)
        rt.blocking.signal("nobody yet", "more", ADA)  # a thread without runs
        assert rt.blocking.erase("nobody yet") == {"signals": 1}
        rt.blocking.erase("zoe")
        assert rt.blocking.scrub()
        files = b"".join(one.read_bytes() for one in path.parent.glob(f"{path.name}*"))
        assert b"zoe" not in files
        assert b"ben johnson" in files
        assert not rt.blocking.doctor().findings


@pytest.mark.slow
def test_an_erasure_that_was_killed_is_finished_by_the_next(
    sqlite_url: str, fork_server: ForkServer
) -> None:
    """On a database that deletes four rows at a time, as D1 deletes a thousand."""

    def erase(nth: int) -> int:
        with registered(sqlite_url) as rt:
            live(rt, "zoe", ADA)
        child = fork_server.start(
            delete_child.live, url=sqlite_url, what="erase", thread="zoe", nth=nth
        )
        assert child.wait() == (-9 if nth else 0)
        return 0 if nth else int(child.facts[0][1])

    with registered(sqlite_url) as rt:
        live(rt, "ben", BEN)
    before = contents(sqlite_url)
    for nth in sample(range(3, erase(0) + 1), 2):
        erase(nth)
        with perdure.Client(sqlite_url) as client:
            assert not client.blocking.doctor().findings
            for run in client.blocking.runs(thread_id="zoe"):
                assert run.state in (State.DONE, State.CANCELLED)
            client.blocking.erase("zoe")
        assert contents(sqlite_url) == before
