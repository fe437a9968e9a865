"""What was acknowledged under synchronous replication is on the standby, whatever happened to the
commit: its reply was lost with its server process, or its wait was cancelled.

A read does not wait for the standby: it finds the run as soon as the commit is visible, which is
when its wait ends, in any way. What such a read acknowledges is lost when the standby is promoted.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import psycopg
import pytest

import perdure
from perdure.testing.postgres import Server
from perdure.types import Run
from tests.contract.replicated import Pair, execute, replicated, waiting_for_standby
from tests.support.polling import until

pytestmark = [pytest.mark.postgres, pytest.mark.slow]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with replicated(synchronous=True) as pair:
        perdure.connect(pair.url).close()
        yield pair


def kill(server: Server, pid: int) -> None:
    """The server recovers from it as from a crash, and all its connections are lost."""
    os.kill(pid, signal.SIGKILL)


def terminate(server: Server, pid: int) -> None:
    execute(server, f"SELECT pg_terminate_backend({pid})")


def cancel(server: Server, pid: int) -> None:
    """Its client is told that it is committed, with a warning."""
    execute(server, f"SELECT pg_cancel_backend({pid})")


def wait_again(server: Server, before: set[int], call: Future[Run]) -> None:
    """Until another commit than those waits for the standby. Fails if the call returns first."""

    def waits() -> bool:
        assert not call.done(), f"{call.result().id} was acknowledged, and no standby has it"
        try:
            return bool({*waiting_for_standby(server)} - before)
        except psycopg.OperationalError:  # it recovers
            return False

    until(waits, "a second wait")


def is_on(server: Server, run: Run) -> bool:
    return bool(execute(server, f"SELECT 1 FROM perdure_runs WHERE id = '{run.id}'"))


@pytest.mark.parametrize("interrupt", [kill, terminate, cancel])
def test_a_run_is_not_acknowledged_before_the_standby_has_it(
    pair: Pair, interrupt: Callable[[Server, int], None]
) -> None:
    name = interrupt.__name__
    with perdure.Client(pair.url) as client, ThreadPoolExecutor() as threads:
        pair.detach()
        try:
            start = threads.submit(client.blocking.start, "letters", {}, thread_id=name, key="k")
            [pid] = until(lambda: waiting_for_standby(pair.primary), "the commit")
            interrupt(pair.primary, pid)
            wait_again(pair.primary, {pid}, start)
        finally:
            pair.attach()
        until(lambda: is_on(pair.standby, start.result()), "the standby, which replays what it has")


def test_a_run_that_a_key_finds_is_not_acknowledged_before_the_standby_has_it(pair: Pair) -> None:
    with (
        perdure.Client(pair.url) as first,
        perdure.Client(pair.url) as second,
        ThreadPoolExecutor() as threads,
    ):
        pair.detach()
        try:
            start = threads.submit(first.blocking.start, "letters", {}, thread_id="t", key="k")
            [pid] = until(lambda: waiting_for_standby(pair.primary), "the commit")
            terminate(pair.primary, pid)
            wait_again(pair.primary, {pid}, start)
            before = {*waiting_for_standby(pair.primary)}
            again = threads.submit(second.blocking.start, "letters", {}, thread_id="t", key="k")
            wait_again(pair.primary, before, again)
        finally:
            pair.attach()
        assert again.result().id == start.result().id
        until(lambda: is_on(pair.standby, again.result()), "the standby, which replays what it has")
