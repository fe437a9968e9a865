"""On PostgreSQL nothing acknowledged is lost, stored twice or waited for without end: the server
is killed under load, replies to COMMIT are lost, the network swallows everything."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure import connect
from perdure.errors import Unavailable
from perdure.journal.postgres import CONNECTIONS, Postgres
from tests.support.entries import PATIENCE, Commits, add, entries, in_threads, stored
from tests.support.polling import until
from tests.support.proxy import Proxy


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    proxy = Proxy(postgres_url)
    yield proxy
    proxy.close()


def sql(url: str, statement: str) -> Any:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else None


# -- the server is killed


def test_connections_that_the_server_closed_while_idle_are_replaced_unnoticed(
    postgres_url: str,
) -> None:
    backend = Postgres(postgres_url)
    statements = list(add(1).render())
    backend.commit(statements)
    sql(postgres_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name = 'perdure'")  # fmt: skip
    (idle,) = backend._pool._idle
    until(idle.hung_up)
    until(lambda: not connected(postgres_url))
    backend.commit(statements)  # not even Ambiguous: it was known before anything was sent
    backend.close()


# -- a black hole


def test_a_black_hole_ends_at_the_deadline_and_work_goes_on_after_it(
    proxy: Proxy, postgres_url: str
) -> None:
    journal = connect(proxy.url, deadline=1.0)
    journal.do(add(1))
    for op in (add(2), entries()):
        proxy.hold()
        start = time.monotonic()
        with pytest.raises(Unavailable):
            journal.do(op)
        # The call itself, then once more to settle it; libpq connects for 2 s at least.
        assert time.monotonic() - start < 30.0
        proxy.release()
        assert journal.do(add(3))[-1:] in ([3], [])
    found = journal.do(entries())
    assert {1, 3} <= set(found)
    journal.close()


async def test_a_coroutine_is_not_held_by_a_black_hole_nor_is_its_loop(proxy: Proxy) -> None:
    journal = connect(proxy.url, deadline=1.0)
    await journal.ado(add(1))
    proxy.hold()
    call = asyncio.create_task(journal.ado(add(2)))
    turns = 0
    while not call.done():
        await asyncio.sleep(0.05)
        turns += 1
    assert turns > 5, "the loop went on meanwhile"
    with pytest.raises(Unavailable):
        await call
    proxy.release()
    await journal.ado(add(3))
    found = await journal.ado(entries())
    assert {1, 3} <= set(found)
    journal.close()


def test_connecting_into_a_black_hole_ends_too(proxy: Proxy) -> None:
    proxy.hold()
    with pytest.raises(Unavailable, match="cannot be reached"):
        connect(proxy.url, deadline=1.0)


def test_what_was_deferred_into_a_black_hole_is_stored_when_it_ends(
    proxy: Proxy, postgres_url: str
) -> None:
    journal = connect(proxy.url, deadline=1.0)
    proxy.hold()
    journal.defer(add(1))
    with pytest.raises(Unavailable):
        journal.flush()
    proxy.release()
    journal.flush()
    journal.close()
    assert stored(postgres_url) == [1]


# -- others on the same server


def test_a_row_locked_by_somebody_else_is_not_waited_for_longer_than_the_deadline(
    postgres_url: str,
) -> None:
    journal = connect(postgres_url, deadline=1.0)
    with psycopg.connect(postgres_url) as other:
        other.execute("LOCK TABLE perdure_writes IN EXCLUSIVE MODE")
        with pytest.raises(Unavailable, match="Nothing was written"):
            journal.do(add(1))
        other.rollback()
    assert journal.do(add(2)) == [2]
    journal.close()


def test_a_deadlock_with_somebody_else_is_undone_and_tried_again(postgres_url: str) -> None:
    journal = connect(postgres_url)
    insert = "INSERT INTO perdure_writes VALUES ('t', '', '', '', {}, NULL, '')"
    with psycopg.connect(postgres_url) as other:
        other.execute(insert.format(2).encode())
        tickets = [journal.defer(add(n), hold=True) for n in (1, 2)]
        ours = in_threads(1, lambda n: journal.flush())[0]
        until(lambda: sql(postgres_url, "SELECT 1 FROM pg_locks WHERE NOT granted"))
        try:
            other.execute(insert.format(1).encode())
            other.commit()
        except psycopg.errors.DeadlockDetected:
            other.rollback()
        ours.join(PATIENCE)
    assert [ticket.error for ticket in tickets] == [None, None]
    assert journal.do(entries()) == [1, 2]
    journal.close()


def test_reads_go_on_beside_a_write_that_takes_its_time(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = connect(postgres_url)
    journal.do(add(1))
    commits = Commits(monkeypatch)
    commits.hold()
    writing = in_threads(1, lambda n: journal.do(add(2)))[0]
    assert commits.reached.wait(PATIENCE)
    found: list[Any] = []
    reading = in_threads(
        20, lambda n: found.append(len(journal._backend.read(entries().render())[0]))
    )
    for thread in reading:
        thread.join(PATIENCE)
    assert found == [1] * 20
    commits.go.set()
    writing.join(PATIENCE)
    count = sql(postgres_url, "SELECT count(*) FROM pg_stat_activity "
                "WHERE application_name = 'perdure'")  # fmt: skip
    assert count[0][0] <= CONNECTIONS
    journal.close()
    until(lambda: not connected(postgres_url))


def connected(url: str) -> Any:
    return sql(url, "SELECT 1 FROM pg_stat_activity WHERE application_name = 'perdure'")


def test_when_every_connection_is_in_use_the_next_caller_waits_until_its_deadline(
    postgres_url: str,
) -> None:
    backend = Postgres(postgres_url, deadline=0.5)
    entered = [backend._pool.connection(time.monotonic() + 5) for _ in range(CONNECTIONS)]
    for one in entered:
        one.__enter__()
    with pytest.raises(Unavailable, match="in use"):
        backend.read(entries().render())
    for one in entered:
        one.__exit__(None, None, None)
    assert backend.read(entries().render()) == [[]]
    backend.close()


def test_a_database_that_acknowledges_before_it_has_written_is_overruled(
    postgres_url: str,
) -> None:
    name = postgres_url.rsplit("/", 1)[-1]
    sql(postgres_url, f"ALTER DATABASE {name} SET synchronous_commit = off")
    with contextlib.closing(connect(postgres_url)) as journal:
        backend: Any = journal._backend
        with backend.open()._pool.connection(time.monotonic() + 5) as connection:
            assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
