"""Threads that wait share commits, and none of them waits for a commit that is not its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from perdure import failpoints
from perdure.journal import Journal, connect
from tests.support.entries import PATIENCE, add, entries, in_threads
from tests.support.polling import until


class OneByOne:
    """Holds each commit until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reached, self._go = threading.Semaphore(0), threading.Semaphore(0)
        self.open = False
        monkeypatch.setattr(failpoints, "hook", self._at)

    def _at(self, point: str) -> None:
        if point == "commit.before" and not self.open:
            self._reached.release()
            assert self._go.acquire(timeout=PATIENCE)

    def reach(self) -> None:
        """Wait until the next one is about to be made."""
        assert self._reached.acquire(timeout=PATIENCE)

    def end_segment(self) -> None:
        self._go.release()


@pytest.fixture
def journal(url: str) -> Iterator[Journal]:
    journal = connect(url, deadline=10.0)
    yield journal
    journal.close()


def test_threads_whose_operations_are_committed_do_not_wait_for_the_next_commit(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    commits = OneByOne(monkeypatch)
    in_threads(1, lambda n: journal.do(add(100)))
    commits.reach()
    group = in_threads(8, lambda n: journal.do(add(n)))
    until(lambda: len(journal._group.waiting) == 8)
    commits.end_segment()
    commits.reach()  # that of the group
    last = in_threads(1, lambda n: journal.do(add(200)))
    until(lambda: any(ticket.op.name == "add 200" for ticket in [*journal._group.waiting.values()]))
    commits.end_segment()
    commits.reach()  # that of the last one
    for thread in group:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    commits.open = True
    commits.end_segment()
    for thread in last:
        thread.join(PATIENCE)
    assert journal.do(entries()) == [*range(8), 100, 200]


def test_the_interval_of_an_open_journal_can_be_changed(journal: Journal) -> None:
    journal.set_interval(3600.0)  # as crash tests do, so that only what they kill commits
    journal.defer(add(1))
    assert journal._group._due is not None
    assert journal._group._due - time.monotonic() > 3000
    assert journal.read_committed(entries()) == []
    journal.flush()
    assert journal.read_committed(entries()) == [1]


def test_nobody_sleeps_on_when_whoever_committed_was_stopped(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stopped(BaseException):
        pass

    stops = iter([Stopped()])
    reached, go = threading.Event(), threading.Event()

    def at(point: str) -> None:
        if point == "commit.before" and (stop := next(stops, None)) is not None:
            reached.set()
            assert go.wait(PATIENCE)
            raise stop

    monkeypatch.setattr(failpoints, "hook", at)

    def stopped(n: int) -> None:
        with pytest.raises(Stopped):
            journal.do(add(100))

    first = in_threads(1, stopped)
    assert reached.wait(PATIENCE)
    rest = in_threads(3, lambda n: journal.do(add(n)))
    until(lambda: len(journal._group.waiting) == 3)
    go.set()
    for thread in first + rest:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert journal.do(entries()) == [0, 1, 2, 100]
