"""A transaction that is collected first and then committed as one batch.

For a database without open transactions (`Capabilities.interactive` is False), such as Cloudflare
D1. The function of a transactional effect runs and its statements are collected; nothing is sent.
When it has returned, all of them are one operation of the queue, in order, between perdure's own:

    insert_effect    stores the intent, unless it is there; refuses if the lease is lost
    fence_intent     refuses unless the intent is ours and open
    ...              the function's own statements, and its messages for the outbox
    count_effect     refuses if the lease is lost
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
    the lease is lost                  `insert_effect` or `count_effect` refuses
    a statement of the function fails  nothing of the batch is stored; `StatementFailed` is the
                                       function's failure. Other operations are committed
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, TypeVar

from perdure.errors import BadArgument, Unsupported
from perdure.journal.operation import (
    ENDED_INSIDE,
    NOTHING,
    Capabilities,
    Op,
    Row,
    Statement,
    Transaction,
    UserStatement,
)

T = TypeVar("T")

ONLY_WRITES = (
    "On D1 a transactional effect only writes: its statements are sent together, after its "
    "function has returned. {} Read before the effect and pass what you found, or put the "
    "condition into the statement: INSERT ... SELECT ... WHERE."
)
_WRITES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER"})
_READS = frozenset({"SELECT", "VALUES", "PRAGMA", "EXPLAIN", "WITH"})
_ENDS = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
_TOKEN = re.compile(
    r"""(?P<blank>\s+|--[^\n]*|/\*.*?(?:\*/|\Z))"""
    r"""|'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|(?P<word>\w+)|(?P<mark>.)""",
    re.DOTALL,
)


class CollectedTransaction:
    """The statements of one transaction, in order, until they are committed."""

    def __init__(self, name: str, capabilities: Capabilities) -> None:
        self._name, self._capabilities = name, capabilities
        self._size = NOTHING
        self.statements: list[Statement] = []
        """Named statements of perdure, and `UserStatement`s."""

    def collect(self, work: Callable[[Transaction], T]) -> T:
        """Do `work` and collect its statements. Raises what it raises; then nothing is to be
        committed. Its connection is of no use afterwards."""
        connection = CollectingConnection(self)
        try:
            return work(Transaction(connection, self._run))
        finally:
            connection.expire()

    def commit(self, proof: Statement) -> Op[None]:
        """The operation that commits them. `proof` finds a row if this was committed."""
        return Op(self._name, self.statements, lambda _: None, write=True, key=proof)

    @property
    def has_user_statements(self) -> bool:
        return any(isinstance(one, UserStatement) for one in self.statements)

    def add(self, statement: Statement) -> None:
        """Raises `Unsupported` for a statement that the database cannot take."""
        size = self._size.plus(self._capabilities.check(self._name, [statement]))
        if not self._capabilities.holds(size):
            self._capabilities.check(self._name, [*self.statements, statement])
        limit, count = self._capabilities.parameters_per_statement, len(statement.params)
        if limit is not None and count > limit and isinstance(statement, UserStatement):
            raise Unsupported(self._name, f"{count:,} parameters in one statement", limit)
        self._size = size
        self.statements.append(statement)

    def _run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        for statement in statements:
            self.add(statement)
        return [[] for _ in statements]


class CollectingConnection:
    """What `perdure.transaction()` gives: `execute` and `executemany`, for writing."""

    def __init__(self, collected: CollectedTransaction) -> None:
        self._collected: CollectedTransaction | None = collected

    def expire(self) -> None:
        self._collected = None

    def execute(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), /
    ) -> WrittenLater:
        """Add a statement, with `?` and a sequence, or `:name` and a mapping."""
        return self.executemany(sql, [parameters])

    def executemany(
        self, sql: str, rows: Iterable[Sequence[Any] | Mapping[str, Any]], /
    ) -> WrittenLater:
        """Add a statement once for each of several parameters."""
        if self._collected is None:
            raise BadArgument("The transaction of this effect is over.")
        check_writes(sql)
        for values in rows:
            self._collected.add(_statement(sql, values))
        return WrittenLater()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
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


def _statement(sql: str, values: Sequence[Any] | Mapping[str, Any]) -> UserStatement:
    if isinstance(values, (str, bytes)) or not isinstance(values, (Sequence, Mapping)):
        raise BadArgument(
            f"The parameters of {shortened(sql)!r} are a {type(values).__name__}: pass a tuple, a "
            "list or a dict."
        )
    return UserStatement(sql, dict(values) if isinstance(values, Mapping) else tuple(values))


def check_writes(sql: str) -> None:
    """Raise `BadArgument` unless this is one statement that writes and gives no rows."""
    words = list(_words(sql))
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


def _words(sql: str) -> Iterator[tuple[str, int]]:
    """The bare words of a statement, in capitals, and in how many parentheses each is."""
    depth, ended = 0, False
    for token in _TOKEN.finditer(sql):
        if token["blank"] is not None:
            continue
        if ended:
            raise BadArgument(f"{shortened(sql)!r} is more than one statement: execute each alone.")
        if token["word"] is not None:
            yield token["word"].upper(), depth
        depth += {"(": 1, ")": -1}.get(token["mark"] or "", 0)
        # A semicolon does not end the statement inside of a trigger.
        ended = token["mark"] == ";" and sqlite3.complete_statement(sql[: token.end()])


def shortened(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 60 else f"{text[:57]}..."
