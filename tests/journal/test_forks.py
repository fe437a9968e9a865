"""A process that forks keeps its queue and its connections; the child gets its own, and does no
harm to its parent's, whatever it calls and however it ends."""

from __future__ import annotations

import atexit
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator

import pytest

from perdure.journal import Journal, connect, group_commit
from tests.support.entries import PATIENCE, add, in_threads, stored

# Python 3.12 and later warn when a process with threads forks, which is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


@pytest.fixture
def journal(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Journal]:
    monkeypatch.setattr(
        group_commit, "HOLD", 60.0
    )  # however slow the machine, the clock commits nothing
    journal = connect(url, deadline=10.0)
    yield journal
    journal.close()


def in_child(work: Callable[[], object]) -> None:
    """Run `work` in a forked process that ends as programs do, handlers of atexit included."""
    if (pid := os.fork()) == 0:
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(60)
            work()
            atexit._run_exitfuncs()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0


def test_a_forked_process_has_its_own_queue_and_connections(url: str, journal: Journal) -> None:
    journal.do(add(1))
    mine = journal.defer(add(2), hold=True)
    in_child(lambda: journal.do(add(3)))
    assert stored(url) == [1, 3], "the child left the parent's queue alone"
    assert journal.wait(mine) == [1, 2, 3]


@pytest.mark.parametrize("use", ["flush", "close", "nothing"])
def test_a_forked_process_neither_commits_nor_closes_what_its_parent_has(
    url: str, journal: Journal, use: str
) -> None:
    journal.do(add(1))
    mine = journal.defer(add(2), hold=True)
    in_child(lambda: None if use == "nothing" else getattr(journal, use)())
    assert stored(url) == [1]
    assert journal.wait(mine) == [1, 2], "the parent's connections still work"


@pytest.mark.slow
def test_forks_and_commits_and_reads_at_once_do_no_harm(journal: Journal) -> None:
    done = threading.Event()

    def use(n: int) -> None:
        number = 1000 * (n + 1)
        while not done.is_set():
            journal.do(add(number))
            number += 1

    busy = in_threads(3, use)
    for n in range(10):
        in_child(lambda n=n: journal.do(add(n)))  # type: ignore[misc]
    done.set()
    for thread in busy:
        thread.join(PATIENCE)
    there = journal.do(add(99))
    assert set(range(10)) < set(there)
    for n in range(3):
        mine = [x for x in there if x // 1000 == n + 1]
        assert mine == list(range(1000 * (n + 1), 1000 * (n + 1) + len(mine))), "none is lost"
