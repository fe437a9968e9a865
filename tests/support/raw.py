"""A saver's database, as somebody with access to it sees it, and the least use of a saver."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any, cast

import psycopg
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, empty_checkpoint

from perdure import Saver
from perdure.checkpoint.row_format import (
    checkpoint_columns,
    checkpoint_location,
    value_location,
    writes_location,
)
from perdure.checkpoint.value_chain import RowKind, ValueRef
from perdure.journal.d1_binding import quoted, unquoted
from perdure.journal.d1_client import D1Client
from perdure.journal.sql import has_rows
from perdure.serde.encryption import ChecksumEnvelope

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
            exact = has_rows(sql) and "*" not in sql.partition("FROM")[0]
            [rows] = self._db.batch([(quoted(sql) if exact else sql, params)])
            return [tuple(map(unquoted, row)) if exact else tuple(row) for row in rows]
        text = sql.replace("?", "%s") if params else sql
        cursor = self._db.execute(text.encode(), params or None)
        return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        self._db.close()


def execute(url: str, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """Run one statement past perdure; `?` is a parameter."""
    with closing(Database(url)) as database:
        return database.execute(sql, *params)


@contextmanager
def held_open(url: str, *statements: str) -> Iterator[None]:
    """Run statements in a transaction that is committed when the block ends."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db, db:
            for sql in statements:
                db.execute(sql)
            yield
    else:
        with psycopg.connect(url) as connection:
            for sql in statements:
                connection.execute(sql.encode())
            yield


def rewrite(url: str, table: str, column: str, change: Callable[[bytes], bytes]) -> None:
    """Change the blobs of a table."""
    rows = execute(url, f"SELECT {column} FROM {table}")
    assert rows
    for (blob,) in rows:
        sql = f"UPDATE {table} SET {column} = ? WHERE {column} = ?"
        execute(url, sql, change(bytes(blob)), bytes(blob))


def forge_value(url: str, data: bytes, kind: int = RowKind.WHOLE) -> None:
    """Make `data` every value that has a row, with a checksum that is right."""
    columns = "thread_id, ns, channel, chain, seq, step"
    rows = execute(url, f"SELECT {columns} FROM perdure_values")
    assert rows
    for thread_id, ns, *ref in rows:
        sealed = ChecksumEnvelope().wrap(
            bytes([kind]) + data, value_location(thread_id, ns, ValueRef(*ref))
        )
        execute(
            url,
            "UPDATE perdure_values SET body = ? WHERE thread_id = ? AND channel = ? AND seq = ?",
            *(sealed, thread_id, ref[0], ref[2]),
        )


def forge_state(url: str, change: Callable[[bytes], bytes]) -> None:
    """Change what is inside the checkpoints' own rows, with a checksum that is right."""
    columns = "thread_id, ns, id, state, parent_id, run_id, step, refs"
    for thread_id, ns, id, state, *others in execute(
        url, f"SELECT {columns} FROM perdure_checkpoints"
    ):
        where, beside = checkpoint_location(thread_id, ns, id), checkpoint_columns(*others)
        opened = ChecksumEnvelope().unwrap(bytes(state), where, beside)
        sealed = ChecksumEnvelope().wrap(change(opened), where, beside)
        execute(url, "UPDATE perdure_checkpoints SET state = ? WHERE id = ?", sealed, id)


def forge_writes(url: str, change: Callable[[bytes], bytes]) -> None:
    """The same for what tasks wrote."""
    for *key, body in execute(
        url, "SELECT thread_id, ns, checkpoint_id, task_id, stamp, body FROM perdure_writes"
    ):
        where = writes_location(*key)
        sealed = ChecksumEnvelope().wrap(
            change(ChecksumEnvelope().unwrap(bytes(body), where)), where
        )
        execute(url, "UPDATE perdure_writes SET body = ? WHERE stamp = ?", sealed, key[-1])
