"""An exception at any instruction of the main thread takes no lock of the journal with it.

Ctrl-C, or a user's handler of SIGTERM that raises, comes between two instructions of the main
thread. CPython looks for signals when a function begins and after each call, which is where a
profile function is called: raising there is what a signal does, at a place that can be chosen.
"""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint

import perdure
from tests.support.sweep import examples, sample

pytestmark = [
    # A call that never began, and a connection that was just made.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Exception ignored in.*BaseConnection.__del__"),
]
PATIENCE = 20.0


@pytest.fixture(autouse=True)
def no_garbage() -> Iterator[None]:
    """What an interrupt left open is not reported in a later test."""
    yield
    gc.collect()


class Interrupted(BaseException):
    pass


def interrupted(work: Callable[[], Any], at: int) -> int:
    """Do `work`, and raise at moment number `at` in perdure's or threading's code. Returns how
    many moments there were."""
    moments = 0

    def profile(frame: FrameType, event: str, _: Any) -> None:
        nonlocal moments
        file = frame.f_code.co_filename
        if event in ("call", "c_return") and ("/perdure/" in file or file.endswith("threading.py")):
            moments += 1
            if moments == at:
                raise Interrupted

    sys.setprofile(profile)
    try:
        work()
    except Interrupted:
        pass
    finally:
        sys.setprofile(None)
    return moments


def in_another_thread(work: Callable[[], Any]) -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive(), "a lock was lost"
    assert not errors, errors


def put(saver: perdure.Saver, thread_id: str) -> None:
    """Commit in this thread, not in that of the blocking methods."""
    config: Any = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    saver.put(config, empty_checkpoint(), {"source": "input", "step": -1, "parents": {}}, {})
    saver.flush()


def test_a_commit_that_is_interrupted_anywhere_leaves_the_journal_usable(url: str) -> None:
    saver = perdure.Saver(url)
    put(saver, "first")
    last = interrupted(lambda: put(saver, "all"), 0)
    assert last > 50
    for at in sample(range(1, last + 1), 30 if url.startswith("sqlite") else 10):
        interrupted(partial(put, saver, f"interrupted-{at}"), at)
        in_another_thread(partial(put, saver, f"beside-{at}"))
        put(saver, f"here-{at}")
        for thread in (f"beside-{at}", f"here-{at}"):
            assert saver.get_tuple({"configurable": {"thread_id": thread}}) is not None
    saver.close()


def test_a_call_that_is_interrupted_anywhere_leaves_the_client_usable(sqlite_url: str) -> None:
    with perdure.Client(sqlite_url) as client:
        send = client.blocking.signal
        send("first", "stored", 0)
        last = interrupted(lambda: send("all", "stored", 0), 0)
        for at in range(1, last + 1):
            interrupted(partial(send, f"interrupted-{at}", "stored", at), at)
            in_another_thread(partial(send, f"beside-{at}", "stored", at))
        assert client.blocking.doctor().findings == ()


def test_a_journal_whose_close_is_interrupted_anywhere_is_closed_by_the_next(
    sqlite_url: str,
) -> None:
    def close(at: int) -> int:
        client = perdure.Client(sqlite_url)
        client.blocking.signal(f"close {at}", "stored", at)
        found = interrupted(client.close, at)
        in_another_thread(client.close)
        return found

    for at in sample(range(1, close(0) + 1), 12):
        close(at)


# Hypothesis times the garbage collector with a function in which a signal may arrive too.
@pytest.mark.filterwarnings(
    "ignore:Exception ignored in.*gc_:pytest.PytestUnraisableExceptionWarning"
)
def test_signals_at_random_moments_leave_the_journal_usable(sqlite_url: str) -> None:
    def interrupt(*_: Any) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    saver = perdure.Saver(sqlite_url)
    put(saver, "first")
    try:
        for number in range(examples(2000, 100)):
            with contextlib.suppress(Interrupted):
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-4 + number % 100 * 3e-5)
                    # Where Python ignores exceptions, as in __del__, it interrupts nothing.
                    ends = time.monotonic() + 0.1
                    while time.monotonic() < ends:
                        put(saver, f"thread-{number}")
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            in_another_thread(partial(put, saver, "beside"))
    finally:
        signal.signal(signal.SIGALRM, before)
    saver.close()
