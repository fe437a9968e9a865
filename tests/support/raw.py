"""A saver's database, as somebody with access to it sees it, and the least use of a saver."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint

from perdure import Saver
from perdure.d1 import Client as D1Client

LONG = "long enough to be in a row of its own, which is more than 64 bytes, " * 2


def config(thread_id: Any = "t", ns: str = "", id: str | None = None) -> RunnableConfig:
    place = {"thread_id": thread_id, "checkpoint_ns": ns}
    return {"configurable": place if id is None else {**place, "checkpoint_id": id}}


def put(
    saver: Saver,
    values: dict[str, Any],
    thread_id: Any = "t",
    parent: RunnableConfig | None = None,
    metadata: dict[str, Any] | None = None,
) -> RunnableConfig:
    """Store a checkpoint with these values, all of them new."""
    checkpoint = empty_checkpoint()
    checkpoint["channel_values"] = values
    versions: dict[str, Any] = dict.fromkeys(values, checkpoint["id"])
    checkpoint["channel_versions"] = versions
    found = cast(CheckpointMetadata, metadata or {"source": "update", "step": 1, "parents": {}})
    return saver.put(parent or config(thread_id), checkpoint, found, versions)


def values_of(saver: Saver, where: RunnableConfig | None = None) -> dict[str, Any]:
    found = saver.get_tuple(where or config())
    assert found is not None, "absent"
    return found.checkpoint["channel_values"]


class Database:
    """A connection past perdure. Each statement is committed."""

    def __init__(self, url: str) -> None:
        self._db: sqlite3.Connection | D1Client | psycopg.Connection
        if url.startswith("sqlite"):
            path = url.removeprefix("sqlite:///")
            self._db = sqlite3.connect(path, timeout=30, isolation_level=None)
        elif url.startswith("d1"):
            self._db = D1Client(url)
        else:
            self._db = psycopg.connect(url, autocommit=True)

    def execute(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run a statement; `?` is a parameter."""
        if isinstance(self._db, sqlite3.Connection):
            return self._db.execute(sql, params).fetchall()
        if isinstance(self._db, D1Client):
            found = re.fullmatch(r"(SELECT (?:DISTINCT )?)([^*]+?)( FROM .*)?", sql, re.DOTALL)
            if found is None:
                [rows] = self._db.batch([(sql, params)])
                return [tuple(row) for row in rows]
            start, columns, rest = found.groups("")
            names = [f"quote({one}) AS c{n}" for n, one in enumerate(_split(columns))]
            [rows] = self._db.batch([(f"{start}{', '.join(names)}{rest}", params)])
            return [tuple(map(_unquoted, row)) for row in rows]
        text = sql.replace("?", "%s") if params else sql
        cursor = self._db.execute(text.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._db.close()


def _split(columns: str) -> list[str]:
    """The columns of a SELECT; a comma in parentheses separates none."""
    return re.split(r",\s*(?![^()]*\))", columns.strip())


def _unquoted(cell: Any) -> Any:
    """The value whose `quote()` this is: D1's own numbers and blobs are not exact."""
    if not isinstance(cell, str):
        return cell
    if cell.startswith("'"):
        return cell[1:-1].replace("''", "'")
    if cell.startswith("X"):
        return bytes.fromhex(cell[2:-1])
    return None if cell == "NULL" else float(cell) if "." in cell else int(cell)


def execute(url: str, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """Run one statement past perdure; `?` is a parameter."""
    with closing(Database(url)) as database:
        return database.execute(sql, *params)


def rewrite(url: str, table: str, column: str, change: Callable[[bytes], bytes]) -> None:
    """Change the blobs of a table."""
    rows = execute(url, f"SELECT {column} FROM {table}")
    assert rows
    for (blob,) in rows:
        sql = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
        execute(url, sql, change(bytes(blob)), bytes(blob))
