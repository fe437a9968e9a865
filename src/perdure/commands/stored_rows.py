"""Rows as they were read, each column of its own type.

SQLite stores a value of any type in any column. A row with one of another type keeps what can be
shown, and its blob is replaced by an `Unreadable`: reading it raises `Damaged`, so the row is
listed as damaged and never acted on.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from perdure.journal import Row
from perdure.serde.encryption import Unreadable

R = TypeVar("R", bound=NamedTuple)

_ALSO: dict[type, tuple[type, ...]] = {float: (int,), bool: (int,), bytes: (memoryview,)}
"""Types that a database may return for a type."""


class Column(NamedTuple):
    name: str
    kind: type
    allowed: frozenset[type]


@cache
def _columns(kind: Any) -> list[Column]:
    columns = []
    for name, hint in get_type_hints(kind).items():
        types: tuple[type, ...] = get_args(hint) or (hint,)
        columns.append(Column(name, types[0], frozenset(types + _ALSO.get(types[0], ()))))
    return columns


def stored(kind: type[R], values: Sequence[Any]) -> R:
    """A row of a kind. One with a column of another type is damaged; see above."""
    columns = _columns(kind)
    wrong = [
        column
        for column, value in zip(columns, values, strict=False)
        if type(value) not in column.allowed
    ]
    row = kind(*values)
    return _mended(row, columns, wrong) if wrong else row


def _mended(row: Any, columns: list[Column], wrong: list[Column]) -> Any:
    changes: dict[str, Any] = {}
    for column in wrong:
        value = getattr(row, column.name)
        if column.kind is str:
            is_blob = isinstance(value, bytes)
            changes[column.name] = value.decode(errors="replace") if is_blob else str(value)
        elif column.kind is not bytes:
            changes[column.name] = column.kind()
    name, expected, _ = wrong[0]
    found = type(getattr(row, name)).__name__
    reason = f"its column {name!r} is of type {found}, not {expected.__name__}"
    blob = next(column.name for column in columns if column.kind is bytes)
    return row._replace(**changes, **{blob: Unreadable(reason)})


def every(kind: type[R], rows: Sequence[Sequence[Row]]) -> list[R]:
    """The rows of an operation's first statement."""
    return [stored(kind, row) for row in rows[0]]


def as_time(rows: Sequence[Sequence[Row]]) -> int | None:
    """The time in the only column of the only row; None if it is not a time."""
    at = rows[0][0][0] if rows[0] else None
    return int(at) if isinstance(at, (int, float)) else None


def first(kind: type[R], rows: Sequence[Sequence[Row]]) -> R | None:
    """The first row of an operation's first statement, if it has one."""
    return stored(kind, rows[0][0]) if rows[0] else None
