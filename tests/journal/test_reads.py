"""Reads of coroutines share a visit to the database, and each gets its own result or error."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

from perdure.errors import Unavailable
from perdure.journal import Op, Row, Statement, connect
from perdure.journal.journal import TOGETHER, Reads
from perdure.journal.operation import Backend
from tests.support.entries import HUGE, PATIENCE, add, entries


class Visits:
    """A database that counts the visits to it, and can be made to wait in one."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self.capabilities = backend, backend.capabilities
        self.sizes: list[int] = []
        self.gate = threading.Event()
        self.entered = threading.Event()

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self.sizes.append(len(statements))
        self.entered.set()
        assert self.gate.wait(PATIENCE)
        return self._backend.read(statements)


async def test_reads_that_come_together_are_one_visit(url: str) -> None:
    journal = connect(url)
    for n in range(3):
        journal.do(add(n, f"t{n}"))
    visits = Visits(journal._backend)
    visits.gate.set()
    reads = Reads(visits)  # type: ignore[arg-type]
    futures = [reads.read(entries(f"t{n % 3}")) for n in range(2 * TOGETHER)]
    assert await asyncio.gather(*futures) == [[n % 3] for n in range(2 * TOGETHER)]
    assert sum(visits.sizes) == 2 * TOGETHER
    if not journal.capabilities.bounded:
        assert len(visits.sizes) < 2 * TOGETHER
    assert max(visits.sizes) <= TOGETHER
    reads.close()
    journal.close()


async def test_a_read_does_not_wait_for_one_of_another_kind(sqlite_url: str) -> None:
    journal = connect(sqlite_url)
    journal.do(add(1))
    visits = Visits(journal._backend)
    reads = Reads(visits)  # type: ignore[arg-type]
    slow = reads.read(entries())
    assert await asyncio.to_thread(visits.entered.wait, PATIENCE)
    visits.entered.clear()
    other = reads.read(entries()._replace(name="other"))
    assert await asyncio.to_thread(visits.entered.wait, PATIENCE)  # in a thread of its own
    visits.gate.set()
    assert (await slow, await other) == ([1], [1])
    reads.close()
    journal.close()


async def test_a_read_that_fails_does_not_fail_those_beside_it(url: str) -> None:
    journal = connect(url)
    journal.do(add(1))
    wrong = Op("entries", [Statement("all_writes", {"thread_id": HUGE})], lambda rows: [0])

    def refuse(rows: object) -> list[int]:
        raise ValueError("no")

    refused = entries()._replace(result=refuse)
    every = [entries(), wrong, entries(), refused, entries()]
    found = await asyncio.gather(*map(journal.aread_committed, every), return_exceptions=True)
    assert [found[0], found[2], found[4]] == [[1], [1], [1]]
    assert isinstance(found[1], Exception)
    assert isinstance(found[3], ValueError)
    journal.close()


async def test_a_cancelled_read_leaves_the_others(sqlite_url: str) -> None:
    journal = connect(sqlite_url)
    journal.do(add(1))
    tasks = [asyncio.create_task(journal.aread_committed(entries())) for _ in range(4)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(found[1], asyncio.CancelledError)
    assert [found[0], found[2], found[3]] == [[1], [1], [1]]
    journal.close()


async def test_a_database_that_is_away_is_asked_once_for_all_of_them(sqlite_url: str) -> None:
    journal = connect(sqlite_url)
    asked = 0

    class Away:
        capabilities = journal.capabilities

        def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
            nonlocal asked
            asked += 1
            raise Unavailable("it is away")

    reads = Reads(Away())  # type: ignore[arg-type]
    futures = [reads.read(entries()) for _ in range(TOGETHER)]
    found = await asyncio.gather(*futures, return_exceptions=True)
    assert all(isinstance(one, Unavailable) for one in found)
    assert asked < TOGETHER
    reads.close()
    journal.close()
