"""On D1 every failure is settled or surfaces: nothing acknowledged is lost or stored twice.

The proxy stands where Cloudflare's edge does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

import perdure
from perdure.errors import BadURL, Unavailable, Unsupported
from perdure.journal import Journal, connect
from perdure.journal.d1_client import D1Client, D1Error
from perdure.testing.d1 import Workerd
from perdure.types import State
from tests.support.agents import Log, chain
from tests.support.entries import add, entries, stored
from tests.support.polling import auntil
from tests.support.proxy import PASSING, Fault, FaultyProxy

WRONG = "w" * 32


@pytest.fixture
def proxy(d1_url: str) -> Iterator[FaultyProxy]:
    with FaultyProxy(d1_url) as proxy:
        yield proxy


@pytest.fixture
def journal(proxy: FaultyProxy) -> Iterator[Journal]:
    journal = connect(proxy.url)
    yield journal
    journal.close()


@pytest.fixture
def impatient(proxy: FaultyProxy) -> Iterator[Journal]:
    journal = connect(proxy.url, deadline=0.5)
    yield journal
    journal.close()


# -- settled: the caller does not notice


@pytest.mark.parametrize("fault", PASSING, ids=lambda fault: fault.name)
def test_a_read_that_meets_a_fault_is_read_again(
    proxy: FaultyProxy, journal: Journal, fault: Fault
) -> None:
    journal.do(add(1))
    proxy.script(fault)
    assert journal.do(entries()) == [1]
    assert proxy.seen[fault] == 1


def test_a_connection_that_the_edge_closed_while_it_was_idle_is_not_used_again(
    proxy: FaultyProxy, journal: Journal
) -> None:
    journal.do(add(1))
    before = proxy.requests
    proxy.hang_up()
    assert journal.do(add(2)) == [1, 2]
    assert proxy.requests == before + 1, "no reply was missed, so nothing had to be asked"


def test_a_commit_waits_for_a_worker_that_is_down(d1_server: Workerd, d1_url: str) -> None:
    with closing(connect(d1_url)) as journal:
        d1_server.kill()
        starting = threading.Timer(0.2, d1_server.start)
        starting.start()
        journal.do(add(1))
        starting.join()
        assert journal.do(entries()) == [1]


# -- surfaces: the caller is told, and nothing is written


@pytest.mark.parametrize("fault", [Fault.TOO_MANY, Fault.BUSY], ids=lambda fault: fault.name)
def test_what_is_not_taken_in_until_the_deadline_is_unavailable_and_not_written(
    proxy: FaultyProxy, impatient: Journal, d1_url: str, fault: Fault
) -> None:
    proxy.script(*[fault] * 50)
    with pytest.raises(Unavailable) as error:
        impatient.do(add(1))
    assert "Nothing was written" in str(error.value)
    proxy.clear()
    assert stored(d1_url) == []
    assert impatient.do(add(2)) == [2]


def test_a_database_that_is_full_is_unavailable_at_once(
    proxy: FaultyProxy, journal: Journal, d1_url: str
) -> None:
    proxy.script(Fault.FULL)
    with pytest.raises(Unavailable, match=r"full|maximum DB size"):
        journal.do(add(1))
    assert stored(d1_url) == []


def test_a_value_over_the_limit_is_refused_before_it_is_sent(
    proxy: FaultyProxy, journal: Journal
) -> None:
    before = proxy.requests
    with pytest.raises(Unsupported, match="bytes"):
        journal.do(add(1, thread="t" * 2_500_000))
    assert proxy.requests == before
    assert journal.do(add(2)) == [2]


@pytest.mark.parametrize(
    ("sql", "params"),
    [
        ("SELECT length(zeroblob(2147483648))", []),
        (f"SELECT {' + '.join('?' * 101)}", [0] * 101),
        ("SELECT * FROM nowhere", []),
        ("SELEKT 1", []),
    ],
    ids=["too big", "too many parameters", "no such table", "syntax"],
)
def test_a_statement_that_d1_cannot_run_raises_d1_error(
    d1_url: str, sql: str, params: list[Any]
) -> None:
    with closing(D1Client(d1_url)) as client, pytest.raises(D1Error):
        client.batch([(sql, params)])


# -- the secret and the address


def test_a_wrong_secret_is_a_bad_url_at_open_and_is_not_tried_again(
    proxy: FaultyProxy,
) -> None:
    proxy.secret = WRONG
    with pytest.raises(BadURL, match="secret") as error:
        connect(proxy.url)
    assert proxy.requests == 1
    assert WRONG not in str(error.value)


def test_a_secret_that_is_changed_while_a_journal_is_open_surfaces_and_nothing_is_written(
    proxy: FaultyProxy, journal: Journal, d1_url: str
) -> None:
    proxy.secret = WRONG
    before = proxy.requests
    with pytest.raises(Unavailable, match="secret"):
        journal.do(add(1))
    assert proxy.requests == before + 1
    proxy.secret = None
    assert stored(d1_url) == []
    assert journal.do(add(2)) == [2]


def test_an_address_with_no_d1_behind_it_is_a_bad_url(d1_server: Workerd) -> None:
    with pytest.raises(BadURL, match="address"):
        connect(d1_server.url(999))


# -- runs


def steps(calls: list[str], after_call: Callable[[], None] = lambda: None) -> Any:
    """A graph of two nodes with an effect each."""

    @perdure.effect
    def mail(name: str) -> str:
        calls.append(name)
        after_call()
        return name

    def first(state: Log) -> Log:
        return {"log": [mail(f"{state['log'][0]} first")]}

    def second(state: Log) -> Log:
        return {"log": [mail(f"{state['log'][0]} second")]}

    return chain(first, second)


RUNS = 8
EXPECTED = sorted(f"{n} {step}" for n in range(RUNS) for step in ("first", "second"))


async def drive(rt: perdure.testing.TemporaryRuntime) -> None:
    """Start the runs and tick until all are done."""
    ids = [(await rt.start("steps", {"log": [f"{n}"]})).id for n in range(RUNS)]

    async def all_done() -> bool:
        await rt.tick()
        return all([(await rt.get(id)).state is State.DONE for id in ids])

    await auntil(all_done, "the end of all runs")


@pytest.mark.parametrize("seed", range(2))
async def test_runs_come_to_their_right_end_while_every_third_request_fails(
    d1_url: str, seed: int
) -> None:
    calls: list[str] = []
    with FaultyProxy(d1_url, seed=seed) as proxy:
        async with perdure.testing.runtime(proxy.url) as rt:
            rt.register(steps(calls), name="steps")
            proxy.rate = 0.33
            await drive(rt)
            proxy.rate = 0.0
            assert (await rt.doctor()).findings == ()
        assert proxy.seen.total() > 3
    assert sorted(calls) == EXPECTED, "each effect was called once"


async def test_runs_come_to_their_right_end_though_workerd_is_killed_in_the_middle(
    d1_server: Workerd, d1_url: str
) -> None:
    calls: list[str] = []
    restarting = threading.Lock()

    def restart() -> None:
        with restarting:
            if len(calls) in (5, 11):
                d1_server.kill()
                d1_server.start()

    async with perdure.testing.runtime(d1_url) as rt:
        rt.register(steps(calls, restart), name="steps")
        await drive(rt)
        assert (await rt.doctor()).findings == ()
    assert sorted(calls) == EXPECTED, "each effect was called once"
