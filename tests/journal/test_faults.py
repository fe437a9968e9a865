"""When something goes wrong in the middle of a commit, the journal neither loses nor reorders nor
hangs: the database goes away, a reply is lost, somebody presses Ctrl-C, a process ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from perdure.checkpoint.rows import delete_thread
from perdure.commands import messages, question_links, threads, workers
from perdure.commands.threads import ThreadContent
from perdure.commands.workers import WorkerRow
from perdure.errors import Closed, Unavailable
from perdure.journal import Journal, Op, connect
from perdure.journal.names import random_number
from perdure.journal.operation import Ambiguous
from perdure.serde.serializer import Serializer
from tests.support.cli_process import run_python
from tests.support.entries import (
    HUGE,
    PATIENCE,
    Commits,
    Faulty,
    add,
    faulty,
    in_threads,
    stored,
)
from tests.support.raw import execute

pytestmark = pytest.mark.timeout(30)


@dataclass
class Bench:
    url: str
    journal: Journal
    faults: Faulty


@pytest.fixture
def bench(url: str) -> Iterator[Bench]:
    journal = connect(url, deadline=10.0)
    yield Bench(url, journal, faulty(journal))
    journal.close()


def gone() -> Unavailable:
    return Unavailable("gone for a moment")


def unsure() -> Ambiguous:
    return Ambiguous("no reply")


# -- the database is away


def test_what_nobody_waits_for_stays_queued_in_order_while_the_database_is_away(
    bench: Bench,
) -> None:
    tickets = [bench.journal.defer(add(n), hold=True) for n in range(3)]
    bench.faults.before = [gone()]
    with pytest.raises(Unavailable):
        bench.journal.flush()
    bench.journal.flush()
    assert [ticket.get() for ticket in tickets] == [[0], [0, 1], [0, 1, 2]]


def test_who_waits_is_told_that_the_database_is_away_and_nothing_of_it_is_stored(
    bench: Bench,
) -> None:
    bench.journal.defer(add(1), hold=True)
    bench.faults.before = [gone()]
    with pytest.raises(Unavailable, match="gone for a moment"):
        bench.journal.do(add(2))
    assert bench.journal.do(add(3)) == [1, 3]


def test_a_database_that_goes_away_while_a_group_is_taken_apart_does_not_change_the_order(
    bench: Bench,
) -> None:
    first = bench.journal.defer(add(1), hold=True)
    bad = bench.journal.defer(add(HUGE), hold=True)
    last = [bench.journal.defer(add(n), hold=True) for n in (2, 3)]
    bad.waited = True
    bench.faults.before = [None, gone()]  # the group fails by its own fault; then it is away
    with pytest.raises(Unavailable):
        bench.journal.flush()
    bench.journal.flush()
    assert [first.get(), *(ticket.get() for ticket in last)] == [[1], [1, 2], [1, 2, 3]]


async def test_a_coroutine_is_told_that_the_database_is_away(bench: Bench) -> None:
    bench.faults.before = [gone()]
    with pytest.raises(Unavailable):
        await bench.journal.ado(add(1))
    assert await bench.journal.ado(add(2)) == [2]


# -- a reply is lost


@pytest.mark.parametrize("committed", [True, False])
def test_a_lost_reply_is_settled_by_reading_and_stored_once(bench: Bench, committed: bool) -> None:
    tickets = [bench.journal.defer(add(n), hold=True) for n in range(3)]
    if committed:
        bench.faults.after = [unsure()]
    else:
        bench.faults.before = [unsure()]
    bench.journal.do(add(3))
    assert bench.faults.commits == (1 if committed else 2)
    for ticket in tickets:
        assert ticket.settled
        assert ticket.error is None
    assert stored(bench.url) == [0, 1, 2, 3]


def test_an_outcome_that_stays_unknown_is_not_mistaken_for_that_of_a_later_batch(
    bench: Bench,
) -> None:
    # The first batch is stored, but neither its reply nor the look after it comes through.
    bench.journal.defer(add(1), hold=True)
    bench.faults.after = [unsure()]
    bench.faults.unreadable = [gone()]
    with pytest.raises(Unavailable):
        bench.journal.flush()
    # It is tried again together with a new one. That batch does not arrive, and its reply is lost:
    # the key of the first is there, and says nothing about the second.
    bench.faults.before = [unsure()]
    bench.journal.do(add(2))
    assert stored(bench.url) == [1, 2], "what was acknowledged is there"


def test_an_operation_without_a_key_is_not_thought_done_because_an_older_one_is(
    bench: Bench,
) -> None:
    bench.journal.defer(add(1), hold=True)
    bench.faults.after = [unsure()]
    bench.faults.unreadable = [gone()]
    with pytest.raises(Unavailable):
        bench.journal.flush()
    bench.faults.before = [unsure()]
    bench.journal.do(add(2, keyed=False))
    assert stored(bench.url) == [1, 2]


def test_when_a_reply_is_lost_an_operation_without_a_key_does_not_run_again_behind_later_ones(
    bench: Bench,
) -> None:
    bench.journal.do(add(1))
    deleted = bench.journal.defer(delete_thread("t", 100), hold=True)
    deleted.waited = True
    bench.journal.defer(add(2), hold=True)
    bench.faults.after = [unsure()]
    bench.journal.flush()
    assert stored(bench.url) == [2], "deleting came first, so what came after it stays"


SERIALIZER = Serializer()
THREAD = ThreadContent(metadata={"a": 1})
LEAVES_NO_TRACE: dict[str, Callable[[], Op[Any]]] = {
    "drain": lambda: workers.request_drain("w", "ana", 1),
    "server secret": lambda: question_links._insert(b"secret"),
    "redeliver": lambda: messages.make_due("m", 1),
    "thread": lambda: threads.create_row(SERIALIZER, "t", THREAD, random_number(), 1),
}


@pytest.mark.parametrize("name", LEAVES_NO_TRACE)
def test_a_batch_is_not_thought_stored_because_one_of_it_finds_what_was_there_before(
    bench: Bench, name: str
) -> None:
    row = WorkerRow("w", "h", 1, "[]", 1, 1, 1)
    bench.journal.do(workers.announce(row, is_new=True))
    columns = "thread_id, id, run_id, topic, attempts, change, due_at, sent_at, body"
    values = "'t', 'm', 'r', 'x', 0, 1, 1, 1, ?"
    execute(bench.url, f"INSERT INTO perdure_outbox ({columns}) VALUES ({values})", b"body")
    bench.journal.do(LEAVES_NO_TRACE[name]())
    bench.journal.defer(add(1), hold=True)
    bench.faults.before = [unsure()]
    assert bench.journal.do(LEAVES_NO_TRACE[name]()) is not False
    assert stored(bench.url) == [1]


def test_replies_that_are_lost_again_and_again_end_in_an_error(bench: Bench) -> None:
    bench.faults.before = [unsure() for _ in range(50)]
    with pytest.raises(Unavailable, match="unknown"):
        bench.journal.do(add(1))
    assert bench.faults.commits < 50
    bench.faults.before = []
    assert bench.journal.do(add(2))[-1] == 2


# -- mistakes of operations


def test_an_alternative_that_cannot_be_made_is_an_error_of_its_own_caller(bench: Bench) -> None:
    def otherwise() -> Op[Any]:
        raise ValueError("no alternative")

    journal = bench.journal
    broken = journal.defer(add(1, thread=None)._replace(otherwise=otherwise), hold=True)
    broken.waited = True
    other = journal.defer(add(2), hold=True)
    assert journal.wait(other) == [2]
    with pytest.raises(Exception, match="no alternative"):
        journal.wait(broken)
    assert journal.do(add(3)) == [2, 3]


# -- closing


def test_what_is_taken_while_another_thread_closes_is_stored_or_refused(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = connect(url)
    commits = Commits(monkeypatch)
    commits.hold()
    journal.defer(add(0), hold=True)
    closing = in_threads(1, lambda n: journal.close())[0]
    assert commits.reached.wait(PATIENCE)
    try:
        ticket = journal.defer(add(1), hold=True)
    except Closed:
        ticket = None
    commits.go.set()
    closing.join(PATIENCE)
    assert stored(url) == ([0] if ticket is None else [0, 1])


def test_at_exit_a_journal_whose_database_is_gone_does_not_keep_the_others_from_being_stored(
    sqlite_url: str, postgres_url: str
) -> None:
    program = """
        import sys
        from perdure.errors import Unavailable
        from perdure.journal import connect
        from tests.support.entries import add, faulty
        journals = [connect(url) for url in sys.argv[1:] for _ in range(3)]
        for n, journal in enumerate(journals):
            journal.defer(add(n), hold=True)
        for journal in journals[::2]:
            faulty(journal).before = [Unavailable("gone")] * 10
    """
    run_python(program, sqlite_url, postgres_url)
    assert stored(sqlite_url) + stored(postgres_url) == [1, 3, 5]
