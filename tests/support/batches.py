"""A real SQLite without open transactions, as Cloudflare D1 is: it only takes batches, and the
statements of a transactional effect are among them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from perdure.journal import Capabilities, Row, Statement, connect_later, sqlite
from perdure.journal.operation import Transaction, UserStatement
from perdure.journal.sqlite import SQLite
from tests.support.databases import DATABASES

T = TypeVar("T")


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


def use_batches() -> None:
    """Open every SQLite journal of this process as one that takes only batches."""
    sqlite.SQLite = BatchSQLite  # type: ignore[misc]


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
