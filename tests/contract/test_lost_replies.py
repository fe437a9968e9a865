"""A lost reply of the database neither loses nor repeats an operation."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator

import pytest

from perdure import connect
from perdure.errors import Unavailable
from perdure.testing.postgres import Server
from tests.support.entries import PATIENCE, add, entries, in_threads, stored
from tests.support.polling import until
from tests.support.proxy import Cut, Proxy


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    proxy = Proxy(postgres_url)
    yield proxy
    proxy.close()


@pytest.mark.slow
def test_a_server_that_is_killed_under_load_loses_nothing_acknowledged(
    postgres_server: Server, postgres_url: str
) -> None:
    journal = connect(postgres_url)
    numbers = itertools.count(1)
    acknowledged: list[int] = []
    over = threading.Event()

    def block(_: int) -> None:
        while not over.is_set():
            number = next(numbers)
            journal.do(add(number))
            acknowledged.append(number)

    async def wait() -> None:
        while not over.is_set():
            number = next(numbers)
            await journal.ado(add(number))
            acknowledged.append(number)

    async def several() -> None:
        await asyncio.gather(*(wait() for _ in range(4)))

    threads = in_threads(4, block) + in_threads(1, lambda n: asyncio.run(several()))
    for goal in (40, 80, 120):
        until(lambda goal=goal: len(acknowledged) >= goal)  # type: ignore[misc]
        postgres_server.restart("immediate")
    goal = len(acknowledged) + 40
    until(lambda: len(acknowledged) >= goal)
    over.set()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    found = journal.do(entries())
    assert len(found) == len(set(found)), "each once"
    assert set(acknowledged) <= set(found)
    journal.close()


@pytest.mark.parametrize("cut", ["request", "half", "reply"])
def test_a_lost_reply_to_commit_is_settled_and_the_row_is_there_once(
    proxy: Proxy, postgres_url: str, cut: Cut
) -> None:
    journal = connect(proxy.url)
    journal.do(add(0))
    deferred = [journal.defer(add(n), hold=True) for n in (1, 2)]
    proxy.cut(cut)
    journal.do(add(3))
    assert proxy.cut_count == 1
    assert [ticket.error for ticket in deferred] == [None, None]
    journal.close()
    assert stored(postgres_url) == [0, 1, 2, 3]


def test_replies_lost_one_after_the_other_end_in_success_or_an_error_but_not_in_a_lie(
    proxy: Proxy, postgres_url: str
) -> None:
    journal = connect(proxy.url)
    acknowledged = []
    moments: list[Cut] = ["request", "half", "reply"]
    for n, cuts in enumerate(itertools.product(moments, repeat=3)):
        proxy.cut(*cuts)
        journal.defer(add(2 * n), hold=True)
        try:
            journal.do(add(2 * n + 1))
        except Unavailable:
            continue
        acknowledged += [2 * n, 2 * n + 1]
    proxy._cuts.clear()
    journal.flush()
    journal.close()
    found = stored(postgres_url)
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))
