"""A database that went back in time: a standby without the last commits was promoted, a backup was
restored, Time Travel was used. What is missing is named, in the log, on the runs, in metrics and by
`doctor`; nothing is written on top of an older history by those who knew the newer one.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.errors import NotFound, Unavailable, WentBack
from perdure.observe import Metrics
from perdure.testing.d1 import local_d1
from tests.contract.replicated import Pair, execute, replicated
from tests.support.agent_server import served
from tests.support.agents import Calls, Gate, chain, driving, gate
from tests.support.polling import auntil, until
from tests.support.proxy import Proxy

pytestmark = pytest.mark.slow


@dataclass
class Database:
    """A journal that can go back to where it was copied."""

    url: str
    copy: Callable[[], None]
    go_back: Callable[[], None]


@contextmanager
def replaced_file(folder: Path) -> Iterator[Database]:
    """A backup takes the place of a SQLite file, as an operator restores one."""
    path, backup = folder / "journal.db", folder / "backup.db"

    def go_back() -> None:
        shutil.copy(backup, folder / "new")
        for name in ("journal.db-wal", "journal.db-shm"):
            (folder / name).unlink(missing_ok=True)
        (folder / "new").rename(path)

    yield Database(f"sqlite:///{path}", lambda: backed_up(path, backup), go_back)


@contextmanager
def restored_file(folder: Path) -> Iterator[Database]:
    """The same by SQLite's own command, `.restore`, which writes into the file."""
    path, backup = folder / "journal.db", folder / "backup.db"
    yield Database(
        f"sqlite:///{path}", lambda: backed_up(path, backup), lambda: backed_up(backup, path)
    )


def backed_up(source: Path, target: Path) -> None:
    with closing(sqlite3.connect(source)) as begin, closing(sqlite3.connect(target)) as end:
        begin.backup(end)


@contextmanager
def failed_over(_: Path) -> Iterator[Database]:
    """An asynchronous standby is promoted."""
    with replicated(synchronous=False) as pair:
        perdure.connect(pair.url).close()

        def copy() -> None:
            pair.catch_up()
            pair.detach()

        yield Database(pair.url, copy, pair.fail_over)


@contextmanager
def travelled(folder: Path) -> Iterator[Database]:
    """D1 with the data of an earlier moment."""
    data = folder / "data"
    with local_d1(databases=1, directory=folder) as server:
        server.start()

        def copy() -> None:
            server.stop()
            shutil.copytree(data, folder / "copy")
            server.start()

        def go_back() -> None:
            server.kill()
            shutil.rmtree(data)
            (folder / "copy").rename(data)
            server.start()

        yield Database(server.url(0), copy, go_back)


KINDS = {
    "replaced file": replaced_file,
    "restored file": restored_file,
    "failover": failed_over,
    "time travel": travelled,
}
MARKS = {"failover": pytest.mark.postgres, "time travel": pytest.mark.d1}


@pytest.fixture(params=[pytest.param(kind, marks=MARKS.get(kind, ())) for kind in KINDS])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    with KINDS[request.param](tmp_path) as database:
        yield database


def errors(caplog: pytest.LogCaptureFixture) -> str:
    return "\n".join(one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR)


async def again(call: Callable[[], Any]) -> Any:
    """What a call returns, made again as its errors say."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return await call()
        except Unavailable:
            assert time.monotonic() < deadline


async def test_a_driver_drops_what_it_did_on_the_lost_history_and_all_that_is_missing_is_named(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    calls = Calls()
    with gate() as first, gate() as second:

        async def wait(gate: Gate) -> None:
            await gate.wait()

        rt = perdure.Runtime(database.url, observe=Metrics())
        agent = chain(
            calls.coroutine("a", lambda _: wait(first)),
            calls.coroutine("b", lambda _: wait(second)),
        )
        rt.register(agent, name="g")
        rt.register(chain(calls.node("c")), name="other")
        async with rt, driving(rt) as work:
            run = await rt.start("g", {})
            await first.reached()
            database.copy()
            first.open()
            await second.reached()
            await auntil(lambda: has_step(rt, run.id))
            lost = await again(lambda: rt.start("other", {}))
            await rt.join(lost.id)
            database.go_back()
            await auntil(lambda: "went back in time" in errors(caplog), "a word of it")
            second.open()
            ended = await again(lambda: rt.join(run.id))
            assert not work.done()
            assert (ended.state, ended.output["log"]) == ("done", ["a", "b"])
            kinds = [event.kind for event in await rt.events(run.id)]
            assert kinds.count("rewound") == 1
            assert kinds.count("done") == 1
            with pytest.raises(NotFound, match="went back in time") as error:
                await rt.get(lost.id)
            assert error.value.lost is not None
            found = await rt.doctor()
            assert found.findings == ()
            for one in (lost.id, run.id):
                assert one in errors(caplog)
                assert [remark for remark in found.remarks if one in remark]
            with served(rt, worker=False) as server:
                said = server.http().get("/metrics").text
            assert float(said.partition("\nperdure_lost_changes ")[2].split()[0]) >= 2
    # On the history that is left both nodes ran again.
    assert [one for one in calls if one != "c"] == ["a", "b", "a", "b"]


async def has_step(rt: perdure.Runtime, run_id: str) -> bool:
    """Whether the first node's step is stored."""
    events = await rt.events(run_id)
    return [event.kind for event in events].count("step") >= 2


async def test_a_worker_without_work_notices_it_at_its_next_heartbeat(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with restored_file(tmp_path) as database:
        rt = perdure.Runtime(database.url)
        rt.register(chain(Calls().node("a")), name="g")
        async with rt, driving(rt):
            await rt.runs()
            database.copy()
            lost = await rt.start("g", {})
            await rt.join(lost.id)
            await auntil(rt.workers, "its first heartbeat")
            database.go_back()
            await auntil(lambda: lost.id in errors(caplog), "its name")


def test_nothing_is_acknowledged_that_is_not_in_the_file_at_the_path(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    with replaced_file(tmp_path) as database, perdure.Client(database.url) as client:
        first = client.blocking.start("g", {})
        database.copy()
        lost = client.blocking.start("g", {})
        database.go_back()
        with pytest.raises(WentBack) as error:
            client.blocking.start("g", {})
        assert [loss.run_id for loss in error.value.losses] == [lost.id]
        after = client.blocking.start("g", {})
        with closing(sqlite3.connect(path)) as connection:
            found = {id for (id,) in connection.execute("SELECT id FROM perdure_runs")}
        assert found == {first.id, after.id}
        path.rename(tmp_path / "away")
        with pytest.raises(Unavailable, match="was moved or deleted"):
            client.blocking.start("g", {})
        with pytest.raises(Unavailable, match="was moved or deleted"):
            client.blocking.get(after.id)
        (tmp_path / "away").rename(path)
        assert client.blocking.get(after.id).id == after.id


@pytest.fixture
def pair() -> Iterator[Pair]:
    with replicated(synchronous=False) as pair:
        perdure.connect(pair.url).close()
        yield pair


@pytest.mark.postgres
def test_a_ghost_of_a_multi_host_url_is_left_and_what_it_acknowledged_is_named(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with perdure.Client(pair.url) as client:
        client.blocking.start("g", {})
        pair.catch_up()
        pair.detach()
        pair.promote()  # the old primary lives, and is the first host of the URL
        acknowledged = set()

        def is_left() -> bool:
            try:
                run = client.blocking.start("g", {})
            except WentBack:
                return False
            acknowledged.add(run.id)
            return bool(execute(pair.standby, f"SELECT 1 FROM perdure_runs WHERE id = '{run.id}'"))

        until(is_left, "a run on the new primary", 20)
        there = {id for (id,) in execute(pair.standby, "SELECT id FROM perdure_runs")}
        assert all(lost in errors(caplog) for lost in acknowledged - there)
        remarks = " ".join(client.blocking.doctor().remarks)
        assert all(lost in remarks for lost in acknowledged - there)


@pytest.mark.postgres
def test_an_old_primary_behind_one_address_is_refused_by_those_who_saw_a_newer_one(
    pair: Pair,
) -> None:
    with (
        closing(Proxy(pair.primary.url)) as switch,
        perdure.Client(switch.url) as client,
        ThreadPoolExecutor() as threads,
    ):
        client.blocking.start("g", {})
        pair.catch_up()
        pair.promote()
        until(lambda: not execute(pair.standby, "SELECT 1 WHERE pg_is_in_recovery()"))
        switch.lead_to(pair.standby.url)
        run = client.blocking.start("g", {})
        switch.lead_to(pair.primary.url)
        tried = switch.connections
        calls = [
            threads.submit(client.blocking.start, "g", {}),
            threads.submit(client.blocking.get, run.id),
        ]
        until(lambda: switch.connections > tried + 10, "calls that are tried again")
        assert not [one for one in calls if one.done()]
        assert execute(pair.primary, "SELECT COUNT(*) FROM perdure_runs") == [(1,)]
        switch.lead_to(pair.standby.url)
        assert calls[1].result().id == run.id
        assert client.blocking.get(calls[0].result().id).graph == "g"


@pytest.mark.postgres
async def test_standbys_that_no_commit_waits_for_are_warned_of(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with perdure.Client(pair.url) as client:
        await client.runs()
        assert "synchronous_standby_names is empty" in caplog.text
        remarks = (await client.doctor()).remarks
        assert [one for one in remarks if "synchronous_standby_names is empty" in one]
        execute(pair.primary, "ALTER SYSTEM SET synchronous_standby_names = '*'")
        execute(pair.primary, "SELECT pg_reload_conf()")
        assert not [one for one in (await client.doctor()).remarks if "synchronous" in one]
