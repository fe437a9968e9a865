"""A lost reply of the database neither loses nor repeats an operation."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Iterator

import pytest

from perdure import Client
from perdure.errors import Unavailable
from perdure.testing.postgres import Server
from tests.support.polling import until
from tests.support.proxy import PASSING, Cut, Fault, FaultyProxy, Proxy
from tests.support.raw import execute

PATIENCE = 20.0


def add(client: Client, n: int) -> None:
    """The least that can be stored: a signal that nobody waits for. The proxies know its name."""
    client.blocking.signal(f"t{n}", "entry", n)


def stored(url: str) -> list[int]:
    """What another process would find now, in order, with what is there twice."""
    rows = execute(url, "SELECT thread_id FROM perdure_signals")
    return sorted(int(thread[1:]) for (thread,) in rows)


@pytest.fixture
def proxy(postgres_url: str) -> Iterator[Proxy]:
    proxy = Proxy(postgres_url)
    yield proxy
    proxy.close()


@pytest.mark.slow
def test_a_server_that_is_killed_under_load_loses_nothing_acknowledged(
    postgres_server: Server, postgres_url: str
) -> None:
    numbers = itertools.count(1)
    acknowledged: list[int] = []
    over = threading.Event()

    def block() -> None:
        while not over.is_set():
            number = next(numbers)
            add(client, number)
            acknowledged.append(number)

    async def wait() -> None:
        while not over.is_set():
            number = next(numbers)
            await client.signal(f"t{number}", "entry", number)
            acknowledged.append(number)

    async def several() -> None:
        await asyncio.gather(*(wait() for _ in range(4)))

    with Client(postgres_url) as client:
        threads = [threading.Thread(target=block, daemon=True) for _ in range(4)]
        threads.append(threading.Thread(target=lambda: asyncio.run(several()), daemon=True))
        for thread in threads:
            thread.start()
        for goal in (40, 80, 120):
            until(lambda goal=goal: len(acknowledged) >= goal)  # type: ignore[misc]
            postgres_server.restart("immediate")
        goal = len(acknowledged) + 40
        until(lambda: len(acknowledged) >= goal)
        over.set()
        for thread in threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
    found = stored(postgres_url)
    assert len(found) == len(set(found)), "each once"
    assert set(acknowledged) <= set(found)


@pytest.mark.parametrize("cut", ["request", "half", "reply"])
def test_a_lost_reply_to_commit_is_settled_and_the_row_is_there_once(
    proxy: Proxy, postgres_url: str, cut: Cut
) -> None:
    with Client(proxy.url) as client:
        add(client, 0)
        proxy.cut(cut)
        add(client, 1)
        assert proxy.cut_count == 1
        add(client, 2)
    assert stored(postgres_url) == [0, 1, 2]


def test_replies_lost_one_after_the_other_end_in_success_or_an_error_but_not_in_a_lie(
    proxy: Proxy, postgres_url: str
) -> None:
    acknowledged = []
    moments: list[Cut] = ["request", "half", "reply"]
    with Client(proxy.url) as client:
        for n, cuts in enumerate(itertools.product(moments, repeat=3)):
            proxy.cut(*cuts)
            try:
                add(client, n)
            except Unavailable:
                continue
            acknowledged.append(n)
        proxy._cuts.clear()
    found = stored(postgres_url)
    assert acknowledged
    assert set(acknowledged) <= set(found)
    assert len(found) == len(set(found))


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.name)
def test_a_commit_that_meets_a_fault_is_stored_once(d1_url: str, fault: Fault) -> None:
    with FaultyProxy(d1_url) as proxy, Client(proxy.url) as client:
        add(client, 1)
        proxy.script(fault)
        add(client, 2)
        add(client, 3)
        assert proxy.seen[fault] == 1
    assert stored(d1_url) == [1, 2, 3]
