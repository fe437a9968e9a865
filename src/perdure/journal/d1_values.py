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
from functools import lru_cache
from typing import Any, NamedTuple

from perdure.errors import BadArgument
from perdure.journal.operation import Row
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


# -- blobs that are too large for a row

INLINE = 256 * 1024
CHUNK = 900_000
LARGEST = 8_000_000
"""Bytes of a blob, before it is compressed."""
CHUNKS_PER_READ = 8

BLOBS = {
    "perdure_checkpoints": ("state",),
    "perdure_values": ("body",),
    "perdure_writes": ("body",),
    "perdure_runs": ("setup", "output", "error", "labels"),
    "perdure_waits": ("body", "answer", "seal"),
    "perdure_signals": ("body",),
    "perdure_reads": ("body",),
    "perdure_events": ("body",),
    "perdure_schedules": ("body",),
    "perdure_effects": ("arguments", "outcome"),
    "perdure_outbox": ("body",),
    "perdure_scores": ("body",),
    "perdure_traces": ("body",),
    "perdure_stream": ("body",),
    "perdure_assistants": ("body",),
    "perdure_threads": ("body",),
    "perdure_entries": ("body",),
}
"""Every column that can hold one."""

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
    for table, columns in BLOBS.items():
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


def load(
    results: list[list[Row]], read: Callable[[Sequence[Call]], list[list[Row]]], *, last: bool
) -> list[list[Row]]:
    """The rows with their blobs as they were given to `store`.

    Raises `ChunksGone`; the `last` time the marker stays, and what opens it finds it damaged.
    """
    markers = [cell for rows in results for row in rows for cell in row if _is(cell, _SPLIT)]
    is_plain = not markers and not any(
        _is(cell, _PACKED) for rows in results for row in rows for cell in row
    )
    if is_plain:
        return results
    blobs = _fetch(list(dict.fromkeys(markers)), read, last)

    def opened(cell: Any) -> Any:
        if _is(cell, _PACKED):
            return _unpacked(cell[1:], cell)
        return blobs.get(cell, cell) if isinstance(cell, bytes) else cell

    return [[tuple(map(opened, row)) for row in rows] for rows in results]


def _is(cell: Any, kind: int) -> bool:
    return isinstance(cell, bytes) and len(cell) > 0 and cell[0] == kind


def _fetch(
    markers: list[bytes], read: Callable[[Sequence[Call]], list[list[Row]]], last: bool
) -> dict[bytes, bytes]:
    found = {}
    for group in _groups(markers):
        calls = [Call(_READ, {"id": id}) for _, (_, id, _, _) in group]
        for (marker, (_, _, is_packed, count)), rows in zip(group, read(calls), strict=True):
            if len(rows) != count:
                if not last:
                    raise ChunksGone
                continue
            body = b"".join(unquoted(row[1]) for row in rows)
            found[marker] = _unpacked(body, marker) if is_packed else body
    return found


def _groups(markers: list[bytes]) -> Iterator[list[tuple[bytes, Any]]]:
    """Markers whose chunks are read together: a few, or those of one."""
    group: list[tuple[bytes, Any]] = []
    size = 0
    for marker in markers:
        if len(marker) != _MARKER.size:  # damaged
            continue
        parts = _MARKER.unpack(marker)
        if group and size + parts[3] > CHUNKS_PER_READ:
            yield group
            group, size = [], 0
        group.append((marker, parts))
        size += parts[3]
    if group:
        yield group


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
    for table, columns in BLOBS.items():
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
    for table, columns in BLOBS.items():
        for column in columns:
            database.execute(
                f"UPDATE {table} SET {column} = perdure_whole({column}) "  # noqa: S608 (no input)
                f"WHERE substr({column}, 1, 1) IN (X'F0', X'F1')"
            )
    for sql in refusals:
        database.execute(sql)
    database.execute("DROP TABLE perdure_chunks")
