"""The journal keeps the order in which it took operations, commits them in groups, tells whoever
waits, and loses nothing: on both databases, from threads, event loops and forked processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from perdure.errors import Closed, Error, WriteLost
from perdure.journal import Journal, Refused, connect
from tests.support.cli_process import run_python
from tests.support.entries import HUGE, PATIENCE, Commits, add, entries, in_threads, stored


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    journal = connect(url, deadline=10.0)
    yield journal
    journal.close()


@pytest.fixture
def commits(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


# -- order and groups


def test_an_operation_runs_after_every_one_taken_before_it(journal: Journal) -> None:
    tickets = [journal.defer(add(n), hold=True) for n in range(5)]
    assert journal.do(add(5)) == [0, 1, 2, 3, 4, 5]
    assert [journal.wait(ticket) for ticket in tickets] == [list(range(n + 1)) for n in range(5)]


def test_whoever_waits_commits_everything_queued_in_one_transaction(
    journal: Journal, commits: Commits
) -> None:
    for n in range(20):
        journal.defer(add(n), hold=True)
    assert commits.count == 0
    journal.do(add(20))
    assert commits.count == 1


@pytest.mark.smoke
def test_threads_that_wait_at_the_same_time_share_commits(
    journal: Journal, commits: Commits
) -> None:
    commits.hold()
    first = in_threads(1, lambda n: journal.do(add(100)))
    assert commits.reached.wait(PATIENCE)
    tickets = [journal.defer(add(n), hold=True) for n in range(8)]
    rest = in_threads(8, lambda n: journal.wait(tickets[n]))
    commits.go.set()
    for thread in first + rest:
        thread.join(PATIENCE)
    assert commits.count == 2
    assert journal.do(entries()) == [*range(8), 100]


def test_what_nobody_waits_for_is_committed_by_the_clock(
    url: str, journal: Journal, commits: Commits
) -> None:
    journal.defer(add(1))
    assert commits.done.wait(PATIENCE)
    assert stored(url) == [1]


def test_what_is_held_is_not_committed_by_the_clock(journal: Journal, commits: Commits) -> None:
    journal.defer(add(1), hold=True)
    assert not commits.done.wait(0.2)
    assert journal.do(entries()) == [1]


def test_a_queue_that_is_full_says_so_until_it_is_flushed(url: str) -> None:
    journal = connect(url)
    journal._group.capacity = 4
    for n in range(4):
        assert not journal.full
        journal.defer(add(n), hold=True)
    queued: bool = journal.full
    assert queued
    for n in range(4, 10):
        journal.defer(add(n), hold=True)
    journal.flush()
    assert not journal.full
    assert journal.do(entries()) == list(range(10))
    journal.close()


# -- durability


async def test_flush_makes_everything_taken_so_far_durable(url: str, journal: Journal) -> None:
    journal.defer(add(1), hold=True)
    journal.flush()
    assert stored(url) == [1]
    journal.defer(add(2), hold=True)
    await journal.aflush()
    assert stored(url) == [1, 2]


async def test_a_read_sees_what_was_queued_before_it(journal: Journal) -> None:
    journal.defer(add(1), hold=True)
    assert journal.do(entries()) == [1]
    journal.defer(add(2), hold=True)
    assert await journal.ado(entries()) == [1, 2]


def test_a_read_sees_what_is_just_being_committed_by_another_thread(
    journal: Journal, commits: Commits
) -> None:
    commits.hold()
    journal.defer(add(1))  # the clock takes it out of the queue, and is held in the middle
    assert commits.reached.wait(PATIENCE)
    found: list[list[int]] = []
    reader = in_threads(1, lambda n: found.append(journal.do(entries())))[0]
    reader.join(0.1)
    commits.go.set()
    reader.join(PATIENCE)
    assert found == [[1]]


async def test_a_coroutine_reads_what_is_just_being_committed(
    journal: Journal, commits: Commits
) -> None:
    commits.hold()
    journal.defer(add(1))
    assert await asyncio.to_thread(commits.reached.wait, PATIENCE)
    reading = asyncio.create_task(journal.ado(entries()))
    await asyncio.wait([reading], timeout=0.1)
    commits.go.set()
    assert await reading == [1]


def test_close_commits_what_is_queued(url: str) -> None:
    journal = connect(url)
    journal.defer(add(1), hold=True)
    journal.close()
    journal.close()
    assert stored(url) == [1]


async def test_a_closed_journal_says_that_it_is_closed(url: str) -> None:
    journal = connect(url)
    journal.close()
    for use in (
        lambda: journal.do(add(1)),
        lambda: journal.do(entries()),
        lambda: journal.defer(add(1)),
    ):
        with pytest.raises(Closed, match="is closed"):
            use()
    with pytest.raises(Closed):
        await journal.ado(add(1))
    with pytest.raises(Closed):
        await journal.ado(entries())


def test_a_process_that_ends_without_closing_commits_what_it_queued(url: str) -> None:
    program = """
        import sys
        from perdure.journal import connect
        from tests.support.entries import add
        journal = connect(sys.argv[1])
        journal.defer(add(1), hold=True)
    """
    run_python(program, url)
    assert stored(url) == [1]


# -- errors


def test_one_that_fails_does_not_harm_the_others_of_its_group(journal: Journal) -> None:
    first = journal.defer(add(1), hold=True)
    bad = journal.defer(add(HUGE), hold=True)
    refused = journal.defer(add(2, thread=None), hold=True)
    last = journal.defer(add(3), hold=True)
    for ticket in (first, bad, refused, last):
        ticket.waited = True
    assert journal.wait(last) == [1, 3]
    assert journal.wait(first) == [1]
    with pytest.raises(Error, match=f"add {HUGE} failed"):
        journal.wait(bad)
    with pytest.raises(Refused):
        journal.wait(refused)


def test_one_that_nobody_waited_for_and_that_fails_is_told_at_the_next_call_once(
    journal: Journal,
) -> None:
    journal.defer(add(HUGE), hold=True)
    with pytest.raises(WriteLost, match=f"add {HUGE}"):
        journal.flush()
    assert journal.do(add(1)) == [1]
    journal.defer(add(HUGE), hold=True)
    journal.do(add(2))
    with pytest.raises(WriteLost):
        journal.do(entries())
    assert journal.do(entries()) == [1, 2]


def test_close_tells_of_a_write_that_was_lost_and_closes_all_the_same(url: str) -> None:
    journal = connect(url)
    journal.defer(add(HUGE), hold=True)
    journal.defer(add(1), hold=True)
    with pytest.raises(WriteLost):
        journal.close()
    assert stored(url) == [1]
    with pytest.raises(Closed):
        journal.do(entries())


def test_when_a_guard_refuses_the_alternative_is_run_in_its_place(journal: Journal) -> None:
    tickets = [
        journal.defer(add(1), hold=True),
        journal.defer(add(2, thread=None, otherwise=add(20)), hold=True),
        journal.defer(add(3), hold=True),
    ]
    journal.flush()
    assert [ticket.get() for ticket in tickets] == [[1], [1, 20], [1, 3, 20]]


# -- coroutines


async def test_a_coroutine_that_is_cancelled_leaves_the_others_and_its_write_in_order(
    journal: Journal, commits: Commits
) -> None:
    commits.hold()
    cancelled = asyncio.create_task(journal.ado(add(1)))
    assert await asyncio.to_thread(commits.reached.wait, PATIENCE)
    queued = asyncio.create_task(journal.ado(add(2)))
    other = asyncio.create_task(journal.ado(add(3)))
    await asyncio.sleep(0)
    cancelled.cancel()
    queued.cancel()
    commits.go.set()
    assert await other == [1, 2, 3]
    for task in (cancelled, queued):
        with pytest.raises(asyncio.CancelledError):
            await task


def test_several_event_loops_use_one_journal_at_once(journal: Journal) -> None:
    async def work(n: int) -> None:
        await asyncio.gather(*(journal.ado(add(100 * n + k)) for k in range(20)))

    for thread in in_threads(4, lambda n: asyncio.run(work(n))):
        thread.join(PATIENCE)
    assert journal.do(entries()) == [100 * n + k for n in range(4) for k in range(20)]


def test_a_loop_that_ended_while_its_write_was_under_way_stops_nobody(
    journal: Journal, commits: Commits
) -> None:
    async def leave() -> None:
        asyncio.create_task(journal.ado(add(1)))  # noqa: RUF006 (it is left behind on purpose)
        await asyncio.to_thread(commits.reached.wait, PATIENCE)

    commits.hold()
    asyncio.run(leave())
    commits.go.set()
    assert asyncio.run(journal.ado(add(2))) == [1, 2]
    assert commits.count == 2
