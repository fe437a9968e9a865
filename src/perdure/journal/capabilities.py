"""What a database can do, as a value.

Each backend declares its own; `Journal.capabilities` shows it. The layers above read it instead of
assuming SQLite or PostgreSQL.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The limits of a database. None: a limit that no operation of perdure reaches."""

    interactive: bool = True
    """Code can run inside of a transaction, between its statements."""
    statements_per_batch: int | None = None
    parameters_per_statement: int | None = None
    largest_value: int | None = None
    """Bytes of one text or blob."""
    largest_row: int | None = None
    """Bytes of all texts and blobs of one statement."""
    poll: float = 0.2
    """Seconds between two looks for what other processes changed. A request takes longer, or costs
    more, on some databases than on others."""

    @property
    def bounded(self) -> bool:
        """Whether an operation can be too large, so that each has to be checked."""
        limits = (self.statements_per_batch, self.largest_value, self.largest_row)
        return any(limit is not None for limit in limits)

    def check(self, operation: str, statements: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        """Raise `Unsupported` for an operation that this database cannot take."""
        found, limit = len(statements), self.statements_per_batch
        if limit is not None and found > limit:
            raise Unsupported(operation, f"{found:,} statements in one transaction", limit)
        for name, params in statements:
            sizes = list(_sizes(params))
            for what, size, most in (
                ("value", max(sizes, default=0), self.largest_value),
                ("row", sum(sizes), self.largest_row),
            ):
                if most is not None and size > most:
                    raise Unsupported(operation, f"a {what} of {size:,} bytes ({name})", most)


def _sizes(params: Mapping[str, Any]) -> Iterator[int]:
    for value in params.values():
        if isinstance(value, str):
            yield len(value) if value.isascii() else len(value.encode())
        elif isinstance(value, (bytes, bytearray, memoryview)):
            yield len(value)
