"""What a database can do, as a value.

Each backend declares its own; `Journal.capabilities` shows it. The layers above read it instead of
assuming SQLite or PostgreSQL.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from perdure.errors import Unsupported
from perdure.journal.sql import parameters

S = TypeVar("S", bound=tuple[str, Mapping[str, Any]])


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
        size = self.size(statements)
        values = []
        for name, params in statements:
            for what, found, is_text in _values(name, params):
                whole = is_text or name not in parameters()  # a blob of the user's is not split
                most = self.largest_text if whole else self.largest_blob
                if most is not None and found > most:
                    raise Unsupported(operation, f"{found:,} bytes for {what}", most)
                values.append((found, what, is_text))
        if self.holds(size):
            return size
        if self.bytes_per_batch is not None and size.bytes > self.bytes_per_batch:
            most_of_it, what, _ = max(values)
            need = f"{size.bytes:,} bytes in one transaction, {most_of_it:,} of them for {what}"
            raise Unsupported(operation, need, self.bytes_per_batch)
        need = f"{size.statements:,} statements in one transaction"
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
