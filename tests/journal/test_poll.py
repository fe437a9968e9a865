"""A caller that waits for other processes looks less and less often; a commit of this process is
seen at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace

import pytest

from perdure.journal import Journal, Poll
from perdure.journal.sqlite import SQLite
from tests.support.entries import PATIENCE, add
from tests.support.polling import auntil, until


class Seldom(SQLite):
    """A SQLite that is polled once an hour."""

    capabilities = replace(SQLite.capabilities, poll=3600.0)


@pytest.fixture
def journal(sqlite_url: str) -> Iterator[Journal]:
    journal = Journal(Seldom(sqlite_url.removeprefix("sqlite:///")))
    yield journal
    journal.close()


@pytest.fixture
def grown() -> Poll:
    """Pauses that have become as long as they get."""
    poll = Poll(0.001)
    while poll.next_rest(3600.0) < 3599.0:
        pass
    return poll


@pytest.mark.parametrize(("longest", "grown"), [(0.0, 0.2), (0.5, 0.5)])
def test_pauses_grow_to_what_the_database_says_or_to_what_is_asked_for(
    longest: float, grown: float
) -> None:
    poll = Poll(0.05, longest)
    pauses = [poll.first + poll.next_rest(0.2) for _ in range(20)]
    assert pauses[0] == 0.05
    assert pauses == sorted(pauses)
    assert pauses[-1] == pytest.approx(grown)


def test_a_commit_ends_the_pause_of_a_thread(journal: Journal, grown: Poll) -> None:
    journal.pause(grown)  # before the first look it is short
    waiting = threading.Thread(target=journal.pause, args=(grown,))
    waiting.start()
    until(lambda: journal._group.watch.is_waited_for, "a thread that pauses")
    journal.do(add(1))
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


async def test_a_commit_ends_the_pause_of_a_coroutine(journal: Journal, grown: Poll) -> None:
    await journal.apause(grown)
    waiting = asyncio.create_task(journal.apause(grown))
    await auntil(lambda: journal._group.watch.is_waited_for, "a coroutine that pauses")
    await journal.ado(add(1))
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_a_commit_between_a_look_and_its_pause_is_not_missed(
    journal: Journal, grown: Poll
) -> None:
    await journal.apause(grown)
    await journal.ado(add(1))
    async with asyncio.timeout(PATIENCE):
        await journal.apause(grown)
