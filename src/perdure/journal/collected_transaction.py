"""A transaction that is collected first and then committed as one batch.

For a database without open transactions (`Capabilities.interactive` is False), such as Cloudflare
D1. The function of a transactional effect runs and its statements are collected; nothing is sent.
When it has returned, all of them are one operation of the queue, in order, between perdure's own:

    insert_effect    stores the intent, unless it is there; refuses if the lease is lost
    fence_intent     refuses unless the intent is ours and open
    ...              the function's own statements, and its messages for the outbox
    record_effect     refuses if the lease is lost
    write_effect     stores the outcome

So a backend only needs a `commit` that takes a `UserStatement` beside the named ones, and that
raises `Refused` for guards of perdure's own tables only. Everything else is as with any operation.
Crash points, lost answers, and what decides:

    the function raises                nothing was sent; the effect fails as it does elsewhere
    killed before the batch is sent    nothing is stored; the function is called again
    killed after it is committed       the record has the outcome; nothing is called again
    the answer is lost                 `find_intent` reads our intent with its outcome. If it is
                                       missing, the same batch is sent again; the function is not
                                       called again
    a lost batch arrives late          whichever comes second is refused by `fence_intent`, since
                                       the intent is no longer open; then `find_intent` decides
    another process has the key        its intent is there: `fence_intent` refuses
    another process took it over       the intent is no longer ours: `fence_intent` refuses
    the lease is lost                  `insert_effect` or `record_effect` refuses
    a statement of the function fails  nothing of the batch is stored; `StatementFailed` is the
                                       function's failure. Other operations are committed
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from perdure.errors import BadArgument, Unsupported
from perdure.journal.operation import (
    ENDED_INSIDE,
    NOTHING,
    Capabilities,
    Row,
    Statement,
    Transaction,
    UserStatement,
)
from perdure.journal.sql import tokens

T = TypeVar("T")

ONLY_WRITES = (
    "On D1 a transactional effect only writes: its statements are sent together, after its "
    "function has returned. {} Read before the effect and pass what you found, or put the "
    "condition into the statement: INSERT ... SELECT ... WHERE."
)
_WRITES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER"})
_READS = frozenset({"SELECT", "VALUES", "PRAGMA", "EXPLAIN", "WITH"})
_ENDS = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})


def collect(
    name: str, capabilities: Capabilities, work: Callable[[Transaction], T]
) -> tuple[T, list[Statement]]:
    """Do `work`; its result, and the statements to commit. Raises what it raises; then nothing is
    to be committed. Raises `Unsupported` for a statement that the database cannot take."""
    collected: list[Statement] = []
    size = NOTHING

    def run(statements: Sequence[Statement]) -> list[list[Row]]:
        nonlocal size
        for statement in statements:
            whole = size.plus(capabilities.check(name, [statement]))
            if not capabilities.holds(whole):
                capabilities.check(name, [*collected, statement])
            limit, count = capabilities.parameters_per_statement, len(statement.params)
            if limit is not None and count > limit and isinstance(statement, UserStatement):
                raise Unsupported(name, f"{count:,} parameters in one statement", limit)
            size = whole
            collected.append(statement)
        return [[] for _ in statements]

    connection = CollectingConnection(run)
    try:
        return work(Transaction(connection, run)), collected
    finally:
        connection.expire()


class CollectingConnection:
    """What `perdure.transaction()` gives: `execute` and `executemany`, for writing."""

    def __init__(self, run: Callable[[Sequence[Statement]], object]) -> None:
        self._run: Callable[[Sequence[Statement]], object] | None = run

    def expire(self) -> None:
        self._run = None

    def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /
    ) -> WrittenLater:
        """Add a statement, with `?` and a sequence, or `:name` and a mapping."""
        return self.executemany(sql, [parameters])

    def executemany(
        self, sql: str, rows: Iterable[Sequence[Any] | Mapping[str, Any]], /
    ) -> WrittenLater:
        """Add a statement once for each of several parameters."""
        if self._run is None:
            raise BadArgument("The transaction of this effect is over.")
        check_writes(sql)
        for values in rows:
            if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, Mapping)):
                raise BadArgument(
                    f"The parameters of {shortened(sql)!r} are a {type(values).__name__}: pass a "
                    "tuple, a list or a dict."
                )
            is_mapping = isinstance(values, Mapping)
            self._run([UserStatement(sql, dict(values) if is_mapping else tuple(values))])
        return WrittenLater()

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"The connection of a transactional effect on D1 has no {name!r}: it has execute and "
            "executemany, which only write, and is committed by perdure."
        )


class WrittenLater:
    """What `execute` returns: a cursor without rows, of a statement that is not sent yet."""

    description = None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise BadArgument(ONLY_WRITES.format(f"{name} has no result yet."))

    def __iter__(self) -> Iterator[Any]:
        return iter(self.fetchall())


def check_writes(sql: str) -> None:
    """Raise `BadArgument` unless this is one statement that writes and gives no rows."""
    words: list[tuple[str, int]] = []
    """In capitals, each with the number of parentheses that it is in."""
    has_ended = False
    for token in tokens(sql):
        if token.kind == "space":
            continue
        if has_ended:
            raise BadArgument(f"{shortened(sql)!r} is more than one statement: execute each alone.")
        if token.kind == "word":
            words.append((token.text.upper(), token.depth))
        # A semicolon does not end the statement inside of a trigger.
        has_ended = token.text == ";" and sqlite3.complete_statement(sql[: token.end])
    first = words[0][0] if words else ""
    if first == "WITH":  # of a common table expression, the statement after it
        first = next((word for word, depth in words if not depth and word in _WRITES), "WITH")
    rolls_back = any(
        word == "ROLLBACK" and before in ("OR", "CONFLICT", "RAISE")
        for (before, _), (word, _) in pairwise(words)
    )
    if first in _ENDS or rolls_back:
        raise BadArgument(ENDED_INSIDE)
    if first in _READS:
        raise BadArgument(ONLY_WRITES.format(f"{shortened(sql)!r} reads."))
    if first not in _WRITES:
        raise BadArgument(
            f"{shortened(sql)!r} is not for a transactional effect on D1: it takes INSERT, UPDATE, "
            "DELETE and statements that change tables."
        )
    if any(word == "RETURNING" for word, _ in words):
        raise BadArgument(ONLY_WRITES.format(f"{shortened(sql)!r} has a RETURNING clause."))


def shortened(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
