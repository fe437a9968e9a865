"""Where no transaction stays open, a transaction is collected and committed as one batch. What it
cannot be asked meanwhile is refused with a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from perdure.errors import BadArgument, StatementFailed, Unavailable, WriteLost
from perdure.journal import Capabilities, Journal, Refused, Statement, connect
from perdure.journal.collected_transaction import check_writes, collect
from perdure.journal.operation import Ambiguous, Transaction, UserStatement
from tests.support.entries import Faulty, add, entries, faulty
from tests.support.entries import batches_url as batches_url
from tests.support.entries import only_batches as only_batches
from tests.support.raw import execute

WRITES = [
    "INSERT INTO seats VALUES (?)",
    "insert or replace into seats values ('SELECT; COMMIT')",
    "UPDATE seats SET rollback = 1 WHERE a = 'or' OR 'ROLLBACK'",
    "REPLACE INTO seats VALUES (1);",
    " -- a note\n/* and; another */ UPDATE seats SET seat = (SELECT 1)",
    'DELETE FROM "returning" WHERE [select] = 1 AND `commit` = 2 -- RETURNING',
    "INSERT INTO seats SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM seats)",
    "WITH free AS (SELECT 1) INSERT INTO seats SELECT * FROM free",
    "WITH a (x) AS (SELECT 1), b AS (DELETE) UPDATE seats SET seat = (SELECT x FROM a)",
    "CREATE TABLE IF NOT EXISTS seats (seat TEXT PRIMARY KEY)",
    "CREATE TRIGGER note AFTER INSERT ON seats BEGIN DELETE FROM notes; SELECT 1; END;",
    "DROP TABLE seats",
    "ALTER TABLE seats ADD COLUMN note TEXT",
]
REFUSED = [
    ("SELECT 1", "only writes.*'SELECT 1' reads.*Read before the effect.*INSERT ... SELECT"),
    ("/* INSERT */ select 1", "only writes"),
    ("VALUES (1)", "only writes"),
    ("EXPLAIN DELETE FROM seats", "only writes"),
    ("WITH free AS (SELECT 1) SELECT * FROM free", "only writes"),
    ("WITH t AS (SELECT 1 WHERE 'DELETE' = 1) SELECT 1", "only writes"),
    ("INSERT INTO seats VALUES (1) RETURNING seat", "RETURNING"),
    ("DELETE FROM seats WHERE seat = 1 returning *", "RETURNING"),
    ("PRAGMA user_version = 1", "only writes"),
    ("BEGIN", "leave BEGIN, COMMIT and ROLLBACK out"),
    (" commit;", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("END", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("ROLLBACK", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("SAVEPOINT a", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("RELEASE a", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("INSERT OR ROLLBACK INTO seats VALUES (1)", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("CREATE TABLE s (a UNIQUE ON CONFLICT ROLLBACK)", "leave BEGIN, COMMIT and ROLLBACK out"),
    ("ATTACH 'x' AS y", "is not for a transactional effect"),
    ("VACUUM", "is not for a transactional effect"),
    ("", "is not for a transactional effect"),
    ("DELETE FROM seats; COMMIT", "more than one statement"),
    ("CREATE TRIGGER t AFTER INSERT ON s BEGIN SELECT 1; END; COMMIT", "more than one statement"),
]


@pytest.mark.parametrize("sql", WRITES)
def test_a_statement_that_writes_is_taken(sql: str) -> None:
    check_writes(sql)


@pytest.mark.parametrize(("sql", "sentence"), REFUSED)
def test_a_statement_that_reads_or_ends_the_transaction_is_refused(sql: str, sentence: str) -> None:
    with pytest.raises(BadArgument, match=f"(?s){sentence}"):
        check_writes(sql)


def test_statements_are_collected_in_order_and_the_connection_is_of_no_use_afterwards() -> None:
    kept: list[Any] = []
    ours = Statement("fence", {})

    def work(transaction: Transaction) -> str:
        connection = transaction.connection
        kept.append(connection)
        assert transaction.run([ours]) == [[]]
        connection.execute("DELETE FROM a")
        connection.executemany("INSERT INTO a VALUES (?, ?)", [(1, "x"), [2, b"y"]])
        connection.execute("INSERT INTO a VALUES (:one)", {"one": 1})
        transaction.run([ours])
        return "done"

    result, [first, *users, last] = collect("a trial", Capabilities(interactive=False), work)
    assert result == "done"
    assert (first, last) == (ours, ours)
    assert [(one.sql, one.values) for one in users if isinstance(one, UserStatement)] == [
        ("DELETE FROM a", ()),
        ("INSERT INTO a VALUES (?, ?)", (1, "x")),
        ("INSERT INTO a VALUES (?, ?)", (2, b"y")),
        ("INSERT INTO a VALUES (:one)", {"one": 1}),
    ]
    with pytest.raises(BadArgument, match="over"):
        kept[0].execute("DELETE FROM a")


@pytest.mark.parametrize(
    "ask",
    [
        lambda made: made.fetchone(),
        lambda made: made.fetchmany(2),
        lambda made: made.fetchall(),
        list,
        lambda made: made.rowcount,
        lambda made: made.lastrowid,
    ],
)
def test_what_a_statement_did_cannot_be_asked_yet(ask: Callable[[Any], Any]) -> None:
    def work(transaction: Transaction) -> None:
        made = transaction.connection.execute("DELETE FROM a")
        assert made.description is None
        ask(made)

    with pytest.raises(BadArgument, match="only writes"):
        collect("a trial", Capabilities(interactive=False), work)


@pytest.mark.parametrize("name", ["commit", "rollback", "cursor", "executescript"])
def test_the_connection_has_nothing_but_execute_and_executemany(name: str) -> None:
    def work(transaction: Transaction) -> None:
        getattr(transaction.connection, name)()

    with pytest.raises(AttributeError, match=f"has no '{name}'"):
        collect("a trial", Capabilities(interactive=False), work)


@pytest.mark.parametrize("values", ["text", b"bytes", 5, {1, 2}])
def test_parameters_are_a_sequence_or_a_mapping(values: Any) -> None:
    def work(transaction: Transaction) -> None:
        transaction.connection.execute("INSERT INTO a VALUES (?)", values)

    with pytest.raises(BadArgument, match="pass a tuple, a list or a dict"):
        collect("a trial", Capabilities(interactive=False), work)


# -- committed


@pytest.fixture
def journal(only_batches: str) -> Iterator[Journal]:
    journal = connect(only_batches)
    execute(only_batches, "CREATE TABLE seats (seat TEXT PRIMARY KEY, holder TEXT NOT NULL)")
    yield journal
    journal.close()


@pytest.fixture
def faults(journal: Journal) -> Faulty:
    return faulty(journal)


def seats(url: str) -> list[Any]:
    return [seat for (seat,) in execute(url, "SELECT seat FROM seats ORDER BY seat")]


def take(n: int, *more: tuple[str, Any]) -> tuple[Callable[[Transaction], int], Statement, Any]:
    """Work that stores an entry, takes a seat and does more; its proof; how often it was done."""
    calls: list[int] = []
    [stored, _], key = add(n).render(), add(n).key

    def work(transaction: Transaction) -> int:
        calls.append(n)
        transaction.run([stored])
        transaction.connection.execute("INSERT INTO seats VALUES (?, 'ana')", (str(n),))
        for sql, values in more:
            transaction.connection.execute(sql, values)
        return len(calls)

    assert key is not None
    return work, key, calls


def test_everything_is_one_batch_after_what_was_queued(
    journal: Journal, faults: Faulty, only_batches: str
) -> None:
    journal.defer(add(1), hold=True)
    work, proof, _ = take(2)
    assert journal.transact("a trial", work, proof) == 1
    assert (seats(only_batches), journal.do(entries()), faults.commits) == (["2"], [1, 2], 1)


def test_a_lost_answer_is_settled_by_reading_and_the_work_is_not_done_again(
    journal: Journal, faults: Faulty, only_batches: str
) -> None:
    for n, (before, after) in enumerate([(None, Ambiguous()), (Ambiguous(), None)]):
        faults.before, faults.after = [before], [after]
        work, proof, calls = take(n)
        assert journal.transact("a trial", work, proof) == 1
        assert calls == [n]
    assert seats(only_batches) == ["0", "1"]


@pytest.mark.parametrize(
    ("sql", "values", "reason"),
    [
        ("INSERT INTO none_such VALUES (1)", (), "no such table"),
        ("INSERT INTO seats VALUES (?, ?)", ("1", "ben"), "UNIQUE"),
        ("INSERT INTO seats VALUES (?, ?)", ("2", None), "NOT NULL"),
        (
            "INSERT INTO seats VALUES (?, ?)",
            ("2",),
            "bindings|No value is given for parameter number 2",
        ),
        ("INSERT INTO", (), "incomplete input"),
    ],
)
def test_a_statement_that_fails_takes_back_its_own_batch_and_no_other(
    journal: Journal, only_batches: str, sql: str, values: Any, reason: str
) -> None:
    queued = journal.defer(add(5), hold=True)
    work, proof, calls = take(1, (sql, values))
    with pytest.raises(StatementFailed, match=f"a trial were sent.*({reason})") as caught:
        journal.transact("a trial", work, proof)
    assert caught.value.__cause__ is not None
    assert journal.wait(queued) == [5]
    assert journal.do(add(6)) == [5, 6]
    assert (seats(only_batches), calls) == ([], [1])


def test_an_exception_of_the_work_sends_nothing(journal: Journal, faults: Faulty) -> None:
    work, proof, _ = take(1)

    def raises(transaction: Transaction) -> None:
        work(transaction)
        raise KeyError("mine")

    with pytest.raises(KeyError):
        journal.transact("a trial", raises, proof)
    assert faults.commits == 0


def test_a_guard_that_refuses_and_a_database_that_is_away_are_what_they_are(
    journal: Journal, faults: Faulty, only_batches: str
) -> None:
    _, proof, _ = take(1)

    def refused(transaction: Transaction) -> None:
        transaction.connection.execute("DELETE FROM seats")
        lost = {"thread_id": "t", "id": "r", "token": 1}
        transaction.run([Statement("fence", lost)])

    with pytest.raises(Refused):
        journal.transact("a trial", refused, proof)
    work, proof, _ = take(2)
    faults.before = [Unavailable("gone for a moment")]
    with pytest.raises(Unavailable, match="gone for a moment"):
        journal.transact("a trial", work, proof)
    try:
        journal.flush()
    except WriteLost as lost:  # a caller was told already
        raise AssertionError from lost
    assert (journal.do(entries()), seats(only_batches)) == ([], [])
