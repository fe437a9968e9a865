"""A real SQLite without open transactions, as Cloudflare D1 is: it only takes batches, and the
statements of a transactional effect are among them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from perdure.journal import Capabilities, Row, Statement
from perdure.journal.operation import Transaction, UserStatement
from perdure.journal.sqlite import SQLite

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
