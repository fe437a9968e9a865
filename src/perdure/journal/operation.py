"""What passes between the journal and a database: operations, their statements, and what the
database can do.

Each backend declares its `Capabilities`; `Journal.capabilities` shows them. The layers above read
them instead of assuming SQLite or PostgreSQL.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import repeat
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, cast, get_args, get_type_hints

from perdure.errors import Unsupported
from perdure.journal.sql import parameters
from perdure.serde.encryption import Unreadable

T = TypeVar("T")
S = TypeVar("S", bound=tuple[str, Mapping[str, Any]])
R = TypeVar("R", bound=NamedTuple)
Row = tuple[Any, ...]
Rows = Sequence[Sequence[Row]]
"""The rows of each statement of an operation."""

USER = "a statement of its function"
"""The name of a statement that is not one of `queries.sql`."""


class Statement(NamedTuple):
    """A statement of `queries.sql` by name, and its parameters."""

    name: str
    params: Mapping[str, Any]


class EventStatement(Statement):
    """A statement that stores an event, and the data of the event for `Journal.listen`."""

    event: Mapping[str, Any]

    def __new__(
        cls, name: str, params: Mapping[str, Any], event: Mapping[str, Any]
    ) -> EventStatement:
        self = super().__new__(cls, name, params)
        self.event = event
        return self


class UserStatement(Statement):
    """A statement of the user's own, in a transactional effect on a database without open
    transactions. It gives no rows.

    sql      as the user wrote it, with `?`, `?1` or `:name` for its parameters
    values   of the parameters, by position or by name
    """

    sql: str
    values: Sequence[Any] | Mapping[str, Any]

    def __new__(cls, sql: str, values: Sequence[Any] | Mapping[str, Any]) -> UserStatement:
        by_position = isinstance(values, Sequence)
        pairs = enumerate(values, 1) if by_position else cast(Mapping[str, Any], values).items()
        self = super().__new__(cls, USER, {str(name): value for name, value in pairs})
        self.sql, self.values = sql, values
        return self


Read = Callable[[Sequence[Statement]], list[list[Row]]]
"""Runs statements that read, on one snapshot."""


class Op(NamedTuple, Generic[T]):
    """One atomic batch of statements and a pure function from their rows to a result.

    An operation that does not `write` is run on one snapshot, after everything queued before it.
    `statements` may be a function: it is called when the transaction is formed, after every
    `prepare` of the operations that go into the same transaction, in order. `key` finds a row if
    the operation is committed: with it a lost reply to COMMIT is settled by reading, for all that
    were in the batch. If it may find one that an earlier operation left, `proof` finds only our
    own; `NO_PROOF` says that there is none, and that doing it again does no harm.
    An operation without a key must do no harm when its batch is run twice, and must make its
    result without rows. If a statement refuses (a guard finds its base gone), `otherwise` gives
    the operation to run in its place.
    """

    name: str
    statements: Sequence[Statement] | Callable[[], Sequence[Statement]]
    result: Callable[[Rows], T]
    write: bool = False
    key: Statement | None = None
    proof: Statement | None = None
    otherwise: Callable[[], Any] | None = None
    prepare: Callable[[], None] | None = None

    def render(self) -> Sequence[Statement]:
        return self.statements() if callable(self.statements) else self.statements


def no_result(rows: object) -> None:
    """The `result` of an operation that has none."""


NO_PROOF = Statement("nothing", {})
"""The `proof` of an operation whose `key` only finds its result."""

CONFIRM = Op("confirm", [NO_PROOF], no_result, write=True)
"""Changes nothing. Once it is committed, what was read before is as durable as a commit: a read
does not wait for synchronous standbys, and what it acknowledges must be on them."""


def with_params(params: Mapping[str, Any], *names: str) -> list[Statement]:
    """Statements that share their parameters, in order."""
    return [*map(Statement, names, repeat(params))]


def read_op(name: str, params: Mapping[str, Any], result: Callable[[Rows], T]) -> Op[T]:
    """An operation that reads with one statement and is named after it."""
    return Op(name, [Statement(name, params)], result)


def write_op(params: Mapping[str, Any], *names: str) -> Op[None]:
    """An operation without a result, whose statements share their parameters; it is named after the
    last of them."""
    return Op(names[-1], with_params(params, *names), no_result, write=True)


def read_together(name: str, *ops: Op[Any]) -> Op[list[Any]]:
    """Several reads in one, on one snapshot. Its result has theirs, in order."""
    batches = [op.render() for op in ops]

    def result(rows: Rows) -> list[Any]:
        results, at = [], 0
        for op, batch in zip(ops, batches, strict=True):
            results.append(op.result(rows[at : at + len(batch)]))
            at += len(batch)
        return results

    return Op(name, [statement for batch in batches for statement in batch], result)


class _Column(NamedTuple):
    name: str
    kind: type
    allowed: frozenset[type]


_ALSO: dict[type, tuple[type, ...]] = {float: (int,), bool: (int,), bytes: (memoryview,)}
"""Types that a database may return for a type."""


@cache
def _columns(kind: Any) -> list[_Column]:
    columns = []
    for name, hint in get_type_hints(kind).items():
        types: tuple[type, ...] = get_args(hint) or (hint,)
        columns.append(_Column(name, types[0], frozenset(types + _ALSO.get(types[0], ()))))
    return columns


def row_as(kind: type[R], values: Sequence[Any]) -> R:
    """A row of a kind.

    SQLite stores a value of any type in any column. A row with a value of another type than its
    column's keeps what can be shown, and its blob is replaced by an `Unreadable`: reading it raises
    `Damaged`, so the row is listed as damaged and never acted on.
    """
    columns = _columns(kind)
    wrong = [
        column
        for column, value in zip(columns, values, strict=False)
        if type(value) not in column.allowed
    ]
    row = kind(*values)
    return _mended(row, columns, wrong) if wrong else row


def _mended(row: Any, columns: list[_Column], wrong: list[_Column]) -> Any:
    changes: dict[str, Any] = {}
    for column in wrong:
        value = getattr(row, column.name)
        if column.kind is str:
            is_blob = isinstance(value, bytes)
            changes[column.name] = value.decode(errors="replace") if is_blob else str(value)
        elif column.kind is not bytes:
            changes[column.name] = column.kind()
    name, expected, _ = wrong[0]
    is_type = type(getattr(row, name)).__name__
    reason = f"its column {name!r} is of type {is_type}, not {expected.__name__}"
    blobs = [column.name for column in columns if column.kind is bytes]
    return row._replace(**changes, **dict.fromkeys(blobs[:1], Unreadable(reason)))


def rows_as(kind: type[R]) -> Callable[[Rows], list[R]]:
    """The `result` of an operation: the rows of all its statements."""
    return lambda rows: [row_as(kind, row) for some in rows for row in some]


def changed(at: int) -> Callable[[Rows], bool]:
    """The `result` of an operation: whether its statement `at` changed a row. If the reply was
    lost, `rows` are those of its `key`."""
    return lambda rows: bool(rows[at] if len(rows) > at else rows[0])


def all_rows(rows: Rows) -> list[Row]:
    """The `result` of an operation: the rows of all its statements, as they are."""
    return [row for some in rows for row in some]


def first_as(kind: type[R]) -> Callable[[Rows], R | None]:
    """The `result` of an operation: the first row of its first statement, if it has one."""
    return lambda rows: row_as(kind, rows[0][0]) if rows[0] else None


def as_time(rows: Rows) -> int | None:
    """The `result` of an operation: the time in the only column of the only row; None if it is not
    a time."""
    at = rows[0][0][0] if rows[0] else None
    return int(at) if isinstance(at, (int, float)) else None


class Action(Protocol):
    """Something other than an operation that a plan waits for, in either colour."""

    def run(self) -> Any: ...

    def arun(self) -> Awaitable[Any]: ...


@dataclass(frozen=True, slots=True)
class Blocking:
    """An action that blocks, such as making a file. A coroutine does it in a thread."""

    work: Callable[[], Any]

    def run(self) -> Any:
        return self.work()

    async def arun(self) -> Any:
        return await asyncio.to_thread(self.work)


class Poll:
    """The pauses of one caller that waits for what others do, between two looks.

    They grow to what the database says, or to `longest` if that is more. A commit of this process
    ends one early, though not before it was as long as the first.
    """

    def __init__(self, first: float, longest: float = 0.0) -> None:
        self.first, self._longest = first, longest
        self._pause = first
        self.seen: int | None = None
        """How often this process had committed at the last look. None: it was the first one."""

    def next_rest(self, poll: float) -> float:
        """Seconds of the next pause beyond `first`: the part that a commit ends early."""
        pause = self._pause
        self._pause = min(1.5 * pause, max(self.first, self._longest, poll))
        return pause - self.first


Plan = Generator[Op[Any] | float | Poll | Action, Any, T]
"""Several operations: a plan yields each, or how long to wait, and gets the result back.

A plan has no colour either: `Journal.run` and `Journal.arun` follow any of them.
"""


def is_left(rows: Rows) -> bool:
    """The result of a piece of work: whether its last statement says, with 1, that more is left."""
    return not rows[-1] or bool(rows[-1][0][0])  # no row: the answer was lost, so ask again


def in_pieces(piece: Op[bool]) -> Plan[None]:
    """Repeat an operation that does a bounded piece of the work, until nothing is left."""
    while (yield piece):
        pass


class Transaction(NamedTuple):
    """A transaction of the journal's database while it is open."""

    connection: Any
    """The database's connection for the user's own statements, without commit and rollback."""
    run: Callable[[Sequence[Statement]], list[list[Row]]]
    """Runs named statements."""


ENDED_INSIDE = (
    "A transactional effect ended the transaction it was given. Its outcome is committed with its "
    "writes, by perdure: leave BEGIN, COMMIT and ROLLBACK out."
)


class Size(NamedTuple):
    """How much of a batch an operation takes."""

    statements: int = 0
    bytes: int = 0

    def plus(self, other: Size) -> Size:
        return Size(self.statements + other.statements, self.bytes + other.bytes)


NOTHING = Size()


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The limits of a database. None: a limit that no operation of perdure reaches."""

    interactive: bool = True
    """Code can run inside of a transaction, between its statements."""
    statements_per_batch: int | None = None
    bytes_per_batch: int | None = None
    """Bytes of all texts and blobs of one transaction."""
    parameters_per_statement: int | None = None
    largest_text: int | None = None
    """Bytes of one text."""
    largest_blob: int | None = None
    """Bytes of one blob."""
    blob_piece: int | None = None
    """Bytes of a blob that one statement takes; the backend sends a larger one in several."""
    rows_per_delete: int | None = None
    """Rows that one statement deletes at most."""
    bills_rows: bool = False
    """Whether each row that is read costs money."""
    poll: float = 0.2
    """Seconds between two looks for what other processes changed. A request takes longer, or costs
    more, on some databases than on others."""

    @property
    def bounded(self) -> bool:
        """Whether an operation can be too large, so that each has to be checked."""
        limits = (self.statements_per_batch, self.bytes_per_batch)
        return any(limit is not None for limit in (*limits, self.largest_text, self.largest_blob))

    @property
    def delete_count(self) -> int:
        """The `:count` of a statement that deletes."""
        return sys.maxsize if self.rows_per_delete is None else self.rows_per_delete

    def size(self, statements: Iterable[tuple[str, Mapping[str, Any]]]) -> Size:
        """How much of a batch these statements take."""
        count = total = 0
        for name, params in statements:
            count += 1
            for _, size, is_text in _values(name, params):
                total += size
                if self.blob_piece is not None and not is_text:
                    count += size // self.blob_piece
        return Size(count, total)

    def holds(self, size: Size) -> bool:
        """Whether one batch holds that much."""
        limits = (self.statements_per_batch, self.bytes_per_batch)
        return all(most is None or n <= most for n, most in zip(size, limits, strict=True))

    def check(self, operation: str, statements: Sequence[tuple[str, Mapping[str, Any]]]) -> Size:
        """The size of an operation. Raises `Unsupported` if this database cannot take it."""
        whole = self.size(statements)
        values = []
        for name, params in statements:
            for what, size, is_text in _values(name, params):
                is_whole = is_text or name not in parameters()  # a blob of the user's is not split
                most = self.largest_text if is_whole else self.largest_blob
                if most is not None and size > most:
                    raise Unsupported(operation, f"{size:,} bytes for {what}", most)
                values.append((size, what, is_text))
        if self.holds(whole):
            return whole
        if self.bytes_per_batch is not None and whole.bytes > self.bytes_per_batch:
            most_of_it, what, _ = max(values)
            need = f"{whole.bytes:,} bytes in one transaction, {most_of_it:,} of them for {what}"
            raise Unsupported(operation, need, self.bytes_per_batch)
        need = f"{whole.statements:,} statements in one transaction"
        raise Unsupported(operation, need, self.statements_per_batch)

    def batches(self, statements: Iterable[S], most: int) -> Iterator[list[S]]:
        """Statements in their order, in lists of at most `most` that one batch holds."""
        batch: list[S] = []
        taken = NOTHING
        for statement in statements:
            size = self.size([statement])
            if batch and (len(batch) >= most or not self.holds(taken.plus(size))):
                yield batch
                batch, taken = [], NOTHING
            batch.append(statement)
            taken = taken.plus(size)
        if batch:
            yield batch


def _values(name: str, params: Mapping[str, Any]) -> Iterator[tuple[str, int, bool]]:
    """Each text and blob that a statement sends: what it is, its bytes, whether it is a text.

    Statements may share their parameters: those that a statement does not use are not sent. A
    statement of the user's uses all of its own.
    """
    for parameter in parameters().get(name, params):
        value = params.get(parameter)
        if isinstance(value, str):
            size = len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, (bytes, bytearray, memoryview)):
            size = len(value)
        else:
            continue
        what = f"channel {params['channel']!r}" if "channel" in params else f"{name} ({parameter})"
        yield what, size, isinstance(value, str)


class Backend(Protocol):
    """A database that runs batches. It may be called from any thread, one commit at a time."""

    capabilities: Capabilities

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run all statements in one transaction and commit it.

        There are `UserStatement`s among them only if the database has no open transactions.
        Raises `Refused` when a guard of perdure's tables refused, `Ambiguous` when the outcome of
        the commit is unknown, `Unavailable` when it failed and may be tried again; anything else is
        the statement's own fault. After all but `Ambiguous` the database is as before.
        """

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """Run all statements on one snapshot."""

    def settle(self, statements: Sequence[Statement]) -> list[list[Row]]:
        """The same, for reads that acknowledge what they find: they return once that is as durable
        as what `commit` acknowledges, on a synchronous standby if there is one."""

    def hints(self) -> Any:
        """The source of hints that something was committed, see `changes.Hints`; or None."""

    def reopen(self) -> None:
        """Forget connections that belong to the process this one was forked from."""

    def close(self) -> None: ...


class InteractiveBackend(Backend, Protocol):
    """A database with transactions that stay open: `Capabilities.interactive`."""

    def transact(self, work: Callable[[Transaction], T]) -> T:
        """Commit what `work` does in one transaction. Raises like `commit`, and what it raises."""


class Refused(Exception):
    """A guard refused: the batch was not applied."""


class Ambiguous(Exception):
    """The database may or may not have committed the batch."""
