"""Values on their way to D1 and back, exactly.

D1 speaks JavaScript: an integer is a double, exact up to 2^53, and a blob is a list of numbers. So
the statement casts an integer, since 5 would be '5.0' in a column of texts; one beyond that goes as
text; and a blob goes as hexadecimal text that the statement decodes (`bind`). On the way back every
column is SQLite's `quote()` of its value (`quoted`), which says its type and keeps each digit
(`unquoted`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from perdure.errors import BadArgument
from perdure.journal.sql import has_rows

EXACT = 2**53
Params = Sequence[Any] | Mapping[str, Any]


class Call(NamedTuple):
    """One statement. Its parameters are `?` or `?1` and a sequence, or `:name` and a mapping."""

    sql: str
    params: Params = ()


_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`[^`]*`|\[[^\]]*\]|--[^\n]*|/\*.*?(?:\*/|\Z)"""
    r"""|[A-Za-z_\x80-\U0010ffff][\w$]*"""  # no parameter in any of these
    r"""|(?P<mark>\?\d*|[:@$][A-Za-z_]\w*)""",
    re.DOTALL,
)
_WRAPPED = {  # The plus is for no affinity: the cast alone would have one, as a column has.
    "plain": "?{}",
    "blob": "unhex(?{})",
    "integer": "(+CAST(?{} AS INTEGER))",
}


def bind(sql: str, params: Params) -> tuple[str, list[Any]]:
    """A statement for D1, and its parameters: None, numbers, texts, and bytes for blobs."""
    _, marks = _parsed(sql)
    values, kinds = [], []
    for mark in marks:
        kind, value = _encoded(_value(sql, mark, params))
        kinds.append(kind)
        values.append(value)
    wanted = 1 + max((mark for mark in marks if isinstance(mark, int)), default=-1)
    if not isinstance(params, Mapping) and len(params) > wanted:
        raise BadArgument(f"{len(params)} parameters for the {wanted} of {sql[:80]!r}.")
    return _rendered(sql, tuple(kinds)), values


@lru_cache(maxsize=1024)
def _parsed(sql: str) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
    """The pieces of a statement, texts and numbers of parameters, and the parameters by number."""
    pieces: list[str | int] = []
    marks: list[str | int] = []
    end, highest = 0, -1
    for found in _TOKEN.finditer(sql):
        if found["mark"] is None:
            continue
        mark: str | int = found["mark"]
        if mark == "?":  # one more than the highest so far
            mark = highest + 1
        elif found["mark"][0] == "?":
            mark = int(found["mark"][1:]) - 1
        else:
            mark = found["mark"][1:]
        if isinstance(mark, int):
            highest = max(highest, mark)
        if mark not in marks:
            marks.append(mark)
        pieces += [sql[end : found.start()], marks.index(mark)]
        end = found.end()
    return (*pieces, sql[end:]), tuple(marks)


@lru_cache(maxsize=2048)
def _rendered(sql: str, kinds: tuple[str, ...]) -> str:
    pieces, _ = _parsed(sql)
    return "".join(
        piece if isinstance(piece, str) else _WRAPPED[kinds[piece]].format(piece + 1)
        for piece in pieces
    )


def _value(sql: str, mark: str | int, params: Params) -> Any:
    try:
        return params[mark]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        name = f"number {mark + 1}" if isinstance(mark, int) else f":{mark}"
        raise BadArgument(f"No value is given for parameter {name} of {sql[:80]!r}.") from None


def _encoded(value: Any) -> tuple[str, Any]:
    if value is None or isinstance(value, str):
        return "plain", value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "blob", bytes(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise OverflowError(f"{value} is over the 64 bits of an integer in D1")
        return "integer", str(int(value)) if abs(value) >= EXACT else int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise BadArgument(f"D1 cannot store the number {value}.")
        return "plain", value
    raise BadArgument(
        f"D1 takes None, int, float, str and bytes as parameters, not {type(value).__name__}."
    )


# -- and back


def quoted(sql: str) -> str:
    """A statement whose columns are c0, c1, ..., each the `quote()` of what it was.

    Columns have names of their own because D1 gives rows as objects, in which two of one name
    would be one.
    """
    if not has_rows(sql):
        return sql
    start, end = _columns(sql)
    columns = [
        f"quote({column}) AS c{n}" for n, column in enumerate(_split(sql[start:end].strip()))
    ]
    return f"{sql[:start]} {', '.join(columns)} {sql[end:]}".strip()


def unquoted(cell: Any) -> Any:
    """The value that a cell of such a column stands for. Blobs may be bytes already."""
    if not isinstance(cell, str):
        return cell
    if cell[0] == "'":
        return cell[1:-1].replace("''", "'")
    if cell[0] == "X":
        return bytes.fromhex(cell[2:-1])
    if cell == "NULL":
        return None
    return float(cell) if "." in cell or "e" in cell else int(cell)


def _columns(sql: str) -> tuple[int, int]:
    """Where the list of a statement's columns begins and ends."""
    words = dict(reversed([(word, (start, end)) for word, start, end in _outer_words(sql)]))
    if "RETURNING" in words:
        return words["RETURNING"][1], len(sql)
    start = words["SELECT"][1]
    if "DISTINCT" in words and words["DISTINCT"][0] == start + 1:
        start = words["DISTINCT"][1]
    return start, words["FROM"][0] if "FROM" in words else len(sql)


def _outer_words(sql: str) -> Iterator[tuple[str, int, int]]:
    """The words of a statement that are not in parentheses or a text, with their places."""
    depth = 0
    for found in re.finditer(r"'(?:[^']|'')*'|[()]|\w+", sql):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if depth == 0 and found[0][0] not in "')":
            yield found[0], found.start(), found.end()


def _split(columns: str) -> list[str]:
    """The columns of a list, which commas outside of parentheses separate."""
    found, depth = [""], 0
    for part in re.findall(r"'(?:[^']|'')*'|[(),]|[^'(),]+", columns):
        depth += {"(": 1, ")": -1}.get(part, 0)
        if part == "," and depth == 0:
            found.append("")
        else:
            found[-1] += part
    return [column.strip() for column in found]
