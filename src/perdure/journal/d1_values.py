"""Values on their way to D1 and back, exactly: one by one, and those too large for a row.

D1 speaks JavaScript: an integer is a double, exact up to 2^53, and a blob is a list of numbers. So
the statement casts an integer, since 5 would be '5.0' in a column of texts; one beyond that goes as
text; and a blob goes as hexadecimal text that the statement decodes (`bind`). On the way back every
column is SQLite's `quote()` of its value (`quoted`), which says its type and keeps each digit
(`unquoted`).

A row of D1 takes 2,000,000 bytes, and a parameter as many characters, which is half as many bytes
of a blob. So a blob over `INLINE` is compressed. If that is not enough, the column holds a marker,
and the blob is in chunks, in the same batch:

    F0  then zlib data                     compressed, in its column
    F1  then id, flag, number of chunks    split; with the flag 1 the chunks are zlib data

Every blob of the journal begins with a byte below F0 (`serde/encryption.py`). The id is a hash of
what the chunks hold, so that a batch that is sent twice makes the same chunks. It is not one of the
blob: another host's zlib may make other data of it, and chunks of both would be mixed.

Triggers count the columns that have a marker (`uses`): chunks are deleted with the last of them, by
whatever statement. A batch inserts chunks before the statement that needs them, and drops those
that it left unused, because its row was there already, or another's.

A D1 database that was exported is a SQLite file. `put_back` makes it a plain SQLite journal.
"""

from __future__ import annotations

import hashlib
import math
import re
import sqlite3
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from importlib.resources import files
from itertools import pairwise
from typing import Any, NamedTuple

from perdure.errors import BadArgument
from perdure.journal.operation import Row
from perdure.journal.sql import has_rows, tokens

EXACT = 2**53
Params = Sequence[Any] | Mapping[str, Any]


class Call(NamedTuple):
    """One statement. Its parameters are `?` or `?1` and a sequence, or `:name` and a mapping."""

    sql: str
    params: Params = ()


Reader = Callable[[Sequence[Call]], list[list[Row]]]


def bind(sql: str, params: Params) -> tuple[str, list[Any]]:
    """A statement for D1, and its parameters: None, numbers, texts, and bytes for blobs."""
    pieces, marks = _parsed(sql)
    encoded = [_encoded(_value(sql, mark, params)) for mark in marks]
    wanted = 1 + max((mark for mark in marks if isinstance(mark, int)), default=-1)
    if not isinstance(params, Mapping) and len(params) > wanted:
        raise BadArgument(f"{len(params)} parameters for the {wanted} of {sql[:80]!r}.")
    wrapped = [wrapping.format(n) for n, (wrapping, _) in enumerate(encoded, 1)]
    text = "".join(one if isinstance(one, str) else wrapped[one] for one in pieces)
    return text, [value for _, value in encoded]


@lru_cache(maxsize=1024)
def _parsed(sql: str) -> tuple[tuple[str | int, ...], tuple[str | int, ...]]:
    """The pieces of a statement, texts and numbers of parameters, and the parameters by number."""
    pieces: list[str | int] = []
    marks: list[str | int] = []
    end, highest = 0, 0
    for token in tokens(sql):
        if token.kind != "parameter":
            continue
        mark: str | int = token.text[1:]
        if token.text[0] == "?":  # without a number it is one more than the highest so far
            number = int(mark or highest + 1)
            mark, highest = number - 1, max(highest, number)
        if mark not in marks:
            marks.append(mark)
        pieces += [sql[end : token.start], marks.index(mark)]
        end = token.end
    return (*pieces, sql[end:]), tuple(marks)


def _value(sql: str, mark: str | int, params: Params) -> Any:
    try:
        return params[mark]  # type: ignore[index]
    except (KeyError, IndexError, TypeError):
        name = f"number {mark + 1}" if isinstance(mark, int) else f":{mark}"
        raise BadArgument(f"No value is given for parameter {name} of {sql[:80]!r}.") from None


def _encoded(value: Any) -> tuple[str, Any]:
    """What the statement does with a parameter, and how its value is sent."""
    if isinstance(value, float) and not math.isfinite(value):
        raise BadArgument(f"D1 cannot store the number {value}.")
    if value is None or isinstance(value, (str, float)):
        return "?{}", value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "unhex(?{})", bytes(value)
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            raise OverflowError(f"{value} is over the 64 bits of an integer in D1")
        # The plus is for no affinity: the cast alone would have one, as a column has.
        wrapping = "(+CAST(?{} AS INTEGER))"
        return wrapping, str(int(value)) if abs(value) >= EXACT else int(value)
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
    outer = [one for one in tokens(sql) if not one.depth and one.kind in ("word", "mark")]
    words = [one.text for one in outer]
    first = words.index("RETURNING" if "RETURNING" in words else "SELECT")
    first += words[first + 1] == "DISTINCT"
    start = outer[first].end
    end = next((one.start for one in outer[first:] if one.text == "FROM"), len(sql))
    commas = [one.start for one in outer[first:] if one.text == "," and one.start < end]
    edges = pairwise([start - 1, *commas, end])
    columns = [f"quote({sql[a + 1 : b].strip()}) AS c{n}" for n, (a, b) in enumerate(edges)]
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


# -- blobs that are too large for a row

INLINE = 256 * 1024
CHUNK = 900_000
LARGEST = 8_000_000
"""Bytes of a blob, before it is compressed."""


@cache
def blobs() -> dict[str, list[str]]:
    """Every column that can hold one, by its table."""
    schema = (files("perdure.journal") / "schema.sql").read_text()
    tables = re.findall(r"CREATE TABLE (\w+) \((.*?)\n\)", schema, re.DOTALL)
    found = {table: re.findall(r"(\w+) +\{blob\}", columns) for table, columns in tables}
    return {table: columns for table, columns in found.items() if columns}


_PACKED, _SPLIT = 0xF0, 0xF1
_MARKER = struct.Struct(">B16s?I")
_INSERT = (
    "INSERT INTO perdure_chunks (id, n, uses, body) VALUES (:id, :n, 0, :body) "
    "ON CONFLICT DO NOTHING"
)
_DROP = "DELETE FROM perdure_chunks WHERE id = :id AND uses = 0"
_READ = "SELECT quote(n) AS c0, quote(body) AS c1 FROM perdure_chunks WHERE id = :id ORDER BY n"


def schema() -> Iterator[str]:
    """The table of the chunks, and the triggers that count who uses them."""
    yield (
        "CREATE TABLE IF NOT EXISTS perdure_chunks (id BLOB NOT NULL, n INTEGER NOT NULL, "
        "uses INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (id, n))"
    )
    for table, columns in blobs().items():
        for column in columns:
            yield from _triggers(table, column)


def _triggers(table: str, column: str) -> Iterator[str]:
    def marked(row: str) -> str:
        return f"substr({row}.{column}, 1, 1) = X'F1'"

    def count(row: str, change: str) -> str:
        where = f"WHERE id = substr({row}.{column}, 2, 16) AND {marked(row)}"
        return f"UPDATE perdure_chunks SET uses = uses {change} {where};"  # noqa: S608 (no input)

    release = (
        f"{count('OLD', '- 1')} DELETE FROM perdure_chunks "  # noqa: S608 (no input)
        f"WHERE id = substr(OLD.{column}, 2, 16) AND {marked('OLD')} AND uses <= 0;"
    )
    name = f"CREATE TRIGGER IF NOT EXISTS {table}_{column}"
    yield (
        f"{name}_inserted AFTER INSERT ON {table} WHEN {marked('NEW')} "
        f"BEGIN {count('NEW', '+ 1')} END"
    )
    yield f"{name}_deleted AFTER DELETE ON {table} WHEN {marked('OLD')} BEGIN {release} END"
    yield (
        f"{name}_updated AFTER UPDATE OF {column} ON {table} "
        f"WHEN OLD.{column} IS NOT NEW.{column} AND ({marked('OLD')} OR {marked('NEW')}) "
        f"BEGIN {count('NEW', '+ 1')} {release} END"
    )


class Stored(NamedTuple):
    """The parameters of a statement as they are stored, and the calls around it."""

    params: Mapping[str, Any]
    before: Sequence[Call] = ()
    after: Sequence[Call] = ()


def store(params: Mapping[str, Any]) -> Stored:
    """What to send for a statement with these parameters."""
    large = {
        name: bytes(value)
        for name, value in params.items()
        if isinstance(value, (bytes, bytearray, memoryview)) and len(value) > INLINE
    }
    if not large:
        return Stored(params)
    changed, before, after = dict(params), [], []
    for name, blob in large.items():
        packed = bytes([_PACKED]) + zlib.compress(blob, 1)
        if len(packed) <= INLINE:
            changed[name] = packed
            continue
        is_packed = len(packed) < len(blob)
        body = packed[1:] if is_packed else blob
        id = hashlib.blake2b(body, digest_size=16, person=b"zlib" if is_packed else b"").digest()
        chunks = [body[start : start + CHUNK] for start in range(0, len(body), CHUNK)]
        changed[name] = _MARKER.pack(_SPLIT, id, is_packed, len(chunks))
        before += [Call(_INSERT, {"id": id, "n": n, "body": one}) for n, one in enumerate(chunks)]
        after.append(Call(_DROP, {"id": id}))
    return Stored(changed, before, after)


class ChunksGone(Exception):
    """A marker's chunks are not there, or no longer: its row was changed since it was read."""


def load(results: list[list[Row]], read: Reader, *, last: bool) -> list[list[Row]]:
    """The rows with their blobs as they were given to `store`.

    Raises `ChunksGone`; the `last` time the marker stays, and what opens it finds it damaged.
    """
    blobs: dict[bytes, bytes] = {}

    def opened(cell: Any) -> Any:
        if isinstance(cell, bytes) and cell[:1] == bytes([_PACKED]):
            return _unpacked(cell[1:], cell)
        if isinstance(cell, bytes) and cell[:1] == bytes([_SPLIT]):
            if cell not in blobs:
                blobs[cell] = _joined(cell, read, last)
            return blobs[cell]
        return cell

    return [[tuple(map(opened, row)) for row in rows] for rows in results]


def _joined(marker: bytes, read: Reader, last: bool) -> bytes:
    """The blob that a marker stands for."""
    if len(marker) != _MARKER.size:  # damaged
        return marker
    _, id, is_packed, count = _MARKER.unpack(marker)
    [rows] = read([Call(_READ, {"id": id})])
    if len(rows) != count:
        if last:
            return marker
        raise ChunksGone
    body = b"".join(unquoted(row[1]) for row in rows)
    return _unpacked(body, marker) if is_packed else body


def _unpacked(data: bytes, otherwise: bytes) -> bytes:
    """The blob; or `otherwise`, if that is not what it was."""
    unpacking = zlib.decompressobj()
    try:
        blob = unpacking.decompress(data, LARGEST + 1024)
    except zlib.error:
        return otherwise
    return blob if unpacking.eof else otherwise


def put_back(database: sqlite3.Connection) -> None:
    """Put every blob whole into its column, and drop the chunks and their triggers. That changes
    rows of events, which is refused otherwise."""
    events_stay = "SELECT sql FROM sqlite_schema WHERE name = 'perdure_events_stay'"
    refusals = [sql for [sql] in database.execute(events_stay).fetchall()]
    database.execute("DROP TRIGGER IF EXISTS perdure_events_stay")
    for table, columns in blobs().items():
        for column in columns:
            for when in ("inserted", "deleted", "updated"):
                database.execute(f"DROP TRIGGER IF EXISTS {table}_{column}_{when}")
    chunks = database.cursor()

    def read(calls: Sequence[Call]) -> list[list[Row]]:
        return [chunks.execute(sql, params).fetchall() for sql, params in calls]

    def whole(blob: bytes) -> bytes:
        [[[found]]] = load([[(blob,)]], read, last=True)
        return bytes(found)

    database.create_function("perdure_whole", 1, whole)
    for table, columns in blobs().items():
        for column in columns:
            database.execute(
                f"UPDATE {table} SET {column} = perdure_whole({column}) "  # noqa: S608 (no input)
                f"WHERE substr({column}, 1, 1) IN (X'F0', X'F1')"
            )
    for sql in refusals:
        database.execute(sql)
    database.execute("DROP TABLE perdure_chunks")
