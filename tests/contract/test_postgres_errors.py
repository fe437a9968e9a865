"""No error of PostgreSQL ends a worker, and one that passes by itself ends no call: the server
becomes a standby under open connections, it is away while a process starts, its tables or a
permission are gone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import perdure
from perdure.testing.postgres import Server
from tests.contract.pooler import Pooler
from tests.support.agents import Calls, chain, driving
from tests.support.cli_process import cli_process
from tests.support.fork_server import ForkServer
from tests.support.polling import auntil

AGENTS = """
import os, perdure
from langgraph.graph import START, StateGraph

builder = StateGraph(dict)
builder.add_node("a", lambda state: {})
builder.add_edge(START, "a")
rt = perdure.Runtime(os.environ["JOURNAL"])
rt.register(builder, name="g")
"""


@pytest.fixture
def server(postgres_server: Server) -> Iterator[Server]:
    """The server, which accepts writes again in the end."""
    yield postgres_server
    postgres_server.start()
    promote(postgres_server)


def demote(server: Server) -> None:
    """Restart it as a standby: it answers, and accepts no writes."""
    (server._data / "standby.signal").touch()
    server.restart("fast")


def promote(server: Server) -> None:
    execute(server.url, "SELECT pg_promote() WHERE pg_is_in_recovery()")


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def runtime(url: str) -> perdure.Runtime:
    rt = perdure.Runtime(url)
    rt.register(chain(Calls().node("a")), name="g")
    return rt


@pytest.mark.slow
async def test_a_server_that_becomes_a_standby_behind_a_pooler_ends_no_worker_and_no_call(
    server: Server, postgres_url: str
) -> None:
    pooler = Pooler(postgres_url)
    with closing(pooler):
        async with runtime(pooler.url) as rt, driving(rt) as work:
            first = await rt.start("g", {})
            await rt.join(first.id)
            await asyncio.to_thread(demote, server)
            starting = asyncio.create_task(rt.start("g", {}))
            served = pooler.served
            await auntil(lambda: pooler.served > served + 20)
            assert not starting.done()
            await asyncio.to_thread(promote, server)
            await rt.join((await starting).id)
            assert not work.done()
            ended = [run.state.value for run in await rt.runs()]
    assert ended == ["done", "done"]


@pytest.mark.slow
async def test_a_transactional_effect_on_a_standby_waits_for_the_primary(
    server: Server, postgres_url: str
) -> None:
    @perdure.effect(transactional=True)
    def book() -> int:
        found: int = perdure.transaction().execute("SELECT 7").fetchone()[0]
        return found

    pooler = Pooler(postgres_url)
    rt = perdure.Runtime(pooler.url)
    rt.register(chain(("a", lambda state: {"value": book()})), name="g")
    with closing(pooler):
        async with rt, driving(rt) as work:
            await asyncio.to_thread(demote, server)
            starting = asyncio.create_task(rt.start("g", {}))
            await asyncio.to_thread(promote, server)
            ended = await rt.join((await starting).id)
            assert ended.output == {"value": 7, "log": []}
            assert not work.done()


@pytest.mark.slow
def test_workers_that_start_during_a_failover_begin_when_the_server_accepts_writes(
    server: Server, postgres_url: str, fork_server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "agents.py").write_text(AGENTS)
    demote(server)
    with cli_process(fork_server, tmp_path, "worker", "agents:rt", JOURNAL=postgres_url) as worker:
        worker.says("is a standby .* Trying again")
        promote(server)
        with closing(perdure.Client(postgres_url)) as client:
            run = client.blocking.start("g", {})
            client.blocking.join(run.id)
        assert worker.stop() == 0


async def test_a_worker_in_a_program_waits_for_its_journal_too(
    postgres_server: Server, postgres_url: str
) -> None:
    postgres_server.stop()
    rt = runtime(postgres_url)
    with closing(rt):
        starting = asyncio.create_task(rt.start("g", {}))
        async with driving(rt) as work:
            await auntil(lambda: rt.journal.opening_problem)
            postgres_server.start()
            await rt.join((await starting).id)
            assert not work.done()


async def test_tables_that_are_gone_for_a_while_end_no_worker(postgres_url: str) -> None:
    async with runtime(postgres_url) as rt, driving(rt) as work:
        await rt.join((await rt.start("g", {})).id)
        execute(postgres_url, "ALTER SCHEMA public RENAME TO elsewhere", "CREATE SCHEMA public")
        with pytest.raises(perdure.Unavailable, match=r"does not exist .*Nothing was written"):
            await rt.start("g", {})
        execute(postgres_url, "DROP SCHEMA public", "ALTER SCHEMA elsewhere RENAME TO public")
        await rt.join((await rt.start("g", {})).id)
        assert not work.done()


async def test_a_permission_that_is_missing_for_a_while_ends_no_worker(postgres_url: str) -> None:
    execute(
        postgres_url,
        "DROP ROLE IF EXISTS agents",
        "CREATE ROLE agents LOGIN",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO agents",
    )
    try:
        async with (
            runtime(postgres_url.replace("postgres@", "agents@")) as rt,
            driving(rt) as work,
        ):
            await rt.join((await rt.start("g", {})).id)
            execute(postgres_url, "REVOKE UPDATE, INSERT ON perdure_runs FROM agents")
            with pytest.raises(perdure.Unavailable, match="permission denied for table"):
                await rt.start("g", {})
            execute(postgres_url, "GRANT UPDATE, INSERT ON perdure_runs TO agents")
            await rt.join((await rt.start("g", {})).id)
            assert not work.done()
    finally:
        execute(postgres_url, "DROP OWNED BY agents", "DROP ROLE agents")
