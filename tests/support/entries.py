"""The smallest operations there are, on the journal's own tables: an entry is a row with a number.

They let tests speak to a journal without a saver above it.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import pytest

from perdure import failpoints
from perdure.journal import (
    Capabilities,
    Journal,
    Op,
    Row,
    Statement,
    connect,
    connect_later,
    sqlite,
)
from perdure.journal.operation import (
    Ambiguous,
    Backend,
    InteractiveBackend,
    Transaction,
    UserStatement,
)
from perdure.journal.sqlite import SQLite
from tests.support.databases import DATABASES

T = TypeVar("T")

HUGE = 2**80  # neither database can store it
PATIENCE = 20.0
"""Seconds until a test gives up on something that must happen."""


def add(
    n: int, thread: str | None = "t", *, keyed: bool = True, otherwise: Op[Any] | None = None
) -> Op[list[int]]:
    """Store an entry. The result is what is stored right after it, inside its transaction.

    Without a thread a guard refuses it; a number over 64 bits is the operation's own fault.
    """
    row = {
        "thread_id": thread or "t",
        "ns": "",
        "checkpoint_id": "",
        "task_id": "",
        "stamp": n,
        "run_id": None,
        "token": None,
        "refs": None,
        "body": b"entry",
    }
    guards = [] if thread else [Statement("require_thread", {"thread_id": "none"})]
    return Op(
        f"add {n}",
        [*guards, Statement("insert_writes", row), Statement("all_writes", row)],
        lambda rows: _numbers(rows[-1]),
        write=True,
        key=Statement("find_writes", row) if keyed else None,
        otherwise=None if otherwise is None else lambda: otherwise,
    )


def entries(thread: str = "t") -> Op[list[int]]:
    """What is stored."""
    return Op(
        "entries", [Statement("all_writes", {"thread_id": thread})], lambda rows: _numbers(rows[0])
    )


def _numbers(rows: Sequence[Row]) -> list[int]:
    return sorted(row[3] for row in rows if len(row) > 3)


def stored(url: str, thread: str = "t") -> list[int]:
    """What another process would find now."""
    journal = connect(url)
    try:
        return journal.do(entries(thread))
    finally:
        journal.close()


class Commits:
    """Counts commits, and can hold the next one until it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.reached, self.go = threading.Event(), threading.Event()
        self.done = threading.Event()
        self.go.set()
        monkeypatch.setattr(failpoints, "hook", self._at)

    def hold(self) -> None:
        self.reached.clear()
        self.go.clear()

    def _at(self, point: str) -> None:
        if point == "commit.before":
            self.reached.set()
            assert self.go.wait(PATIENCE)
        if point == "commit.after":
            self.count += 1
            self.done.set()


class Faulty:
    """A real backend whose next commits end as told: an error before it, or one after it."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.capabilities = backend.capabilities
        self.before: list[BaseException | None] = []
        self.after: list[BaseException | None] = []
        self.undone: list[BaseException | None] = []
        """Errors of the next commits, which the database takes back at the last moment."""
        self.unreadable: list[BaseException | None] = []
        self.late = 0
        """How many of the next batches get no answer, and arrive before the one after them."""
        self.late_with = ""
        """The name of a statement that they have: other batches are not late."""
        self.late_at = 0
        """Of all commits, the number of one that does so."""
        self._held: list[Sequence[Statement]] = []
        self.commits = 0

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self.commits += 1
        _raise_next(self.before)
        _raise_next(self.undone)
        if (self.late and self.late_with in str(statements)) or self.commits == self.late_at:
            self.late = max(0, self.late - 1)
            self._held.append(statements)
            raise Ambiguous("no answer yet")
        while self._held:
            self._backend.commit(self._held.pop(0))
        rows = self._backend.commit(statements)
        _raise_next(self.after)
        return rows

    def transact(self, work: Callable[[Transaction], T]) -> T:
        self.commits += 1
        _raise_next(self.before)

        def undone(transaction: Transaction) -> T:
            result = work(transaction)
            _raise_next(self.undone)
            return result

        result = cast(InteractiveBackend, self._backend).transact(undone)
        _raise_next(self.after)
        return result

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        _raise_next(self.unreadable)
        return self._backend.read(statements)

    def settle(self, statements: Sequence[Statement]) -> list[list[Row]]:
        _raise_next(self.unreadable)
        return self._backend.settle(statements)

    def hints(self) -> None: ...

    def reopen(self) -> None:
        self._backend.reopen()

    def close(self) -> None:
        self._backend.close()


def _raise_next(faults: list[BaseException | None]) -> None:
    if faults and (fault := faults.pop(0)) is not None:
        raise fault


def faulty(journal: Journal) -> Faulty:
    """Put a `Faulty` between a journal and its database."""
    backend = Faulty(journal._backend)
    journal._backend = journal._group.committer.backend = backend
    return backend


def in_threads(count: int, work: Callable[[int], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    return threads


# -- A real SQLite without open transactions, as Cloudflare D1 is: it only takes batches, and
# the statements of a transactional effect are among them.


class BatchSQLite(SQLite):
    """A `Backend` that takes only batches."""

    capabilities = Capabilities(interactive=False)

    def transact(self, work: Callable[[Transaction], T]) -> T:
        raise AssertionError("this database has no open transactions")

    def _run(
        self, connection: sqlite3.Connection, statements: Sequence[Statement]
    ) -> list[list[Row]]:
        rows: list[list[Row]] = []
        for statement in statements:
            if isinstance(statement, UserStatement):
                values: Any = statement.values
                assert connection.execute(statement.sql, values).fetchall() == []
                rows.append([])
            else:
                rows += super()._run(connection, [statement])
        return rows


def takes_only_batches(url: str) -> bool:
    return not connect_later(url).capabilities.interactive


@pytest.fixture
def batches_url(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A SQLite journal that takes only batches."""
    monkeypatch.setattr(sqlite, "SQLite", BatchSQLite)
    return sqlite_url


@pytest.fixture(params=["batches", pytest.param("d1", marks=pytest.mark.d1)])
def only_batches(request: pytest.FixtureRequest) -> str:
    """A journal that takes only batches."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture(params=[*DATABASES, "batches"])
def url(request: pytest.FixtureRequest) -> str:
    """A journal. A test that takes it runs once per database, and once with batches only."""
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found
