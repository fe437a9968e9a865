"""The stored journals of `tests/fixtures`: where they are, how to open them, and what they hold.

`journal-0.1.db` is SQLite, `journal-0.1-encrypted.db` the same with encryption, `journal-0.1.sql`
the rows of a PostgreSQL journal as INSERT statements. `journal-0.1.json` says when each was left,
and what the code that wrote it read back. `make_journal` makes them all.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import is_dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

import perdure
from perdure.testing import Clock, TemporaryRuntime
from tests.support.journal_graphs import register

FIXTURES = Path(__file__).parent.parent / "fixtures"
FILES = {
    "sqlite": FIXTURES / "journal-0.1.db",
    "encrypted": FIXTURES / "journal-0.1-encrypted.db",
    "postgres": FIXTURES / "journal-0.1.sql",
}
SEEN = FIXTURES / "journal-0.1.json"
SECRET = {"2026-11": bytes(range(32))}
"""What the encrypted journal is encrypted with."""


def opened(url: str, at: datetime, *, encrypted: bool = False) -> tuple[TemporaryRuntime, Any]:
    """A runtime with every graph, on a clock that stands at a time; and the graphs, bound."""
    options: dict[str, Any] = {"encryption_keys": SECRET} if encrypted else {}
    rt = TemporaryRuntime(url, clock=Clock(at), **options)
    return rt, register(rt)


def left(kind: str) -> tuple[datetime, dict[str, Any]]:
    """When a journal was left, and what was read from it then. Since then, `saved` counts other
    things."""
    told = json.loads(SEEN.read_text())[kind]
    for run in told["seen"]["runs"]:
        del run["saved"]
    return datetime.fromisoformat(told["at"]), told["seen"]


# -- what is in a journal


def seen(rt: perdure.Runtime) -> dict[str, Any]:
    """Everything a journal says of its runs, threads, waits, effects, messages and schedules."""
    ask = rt.blocking
    runs = sorted(ask.runs(limit=1000), key=lambda run: (run.created_at, run.id))
    return {
        "runs": [_fields(run) for run in runs],
        "events": {run.id: _short(list(map(_event, ask.events(run.id)))) for run in runs},
        "waits": [_fields(one) for one in ask.waits(limit=1000)],
        "effects": [_fields(one) for one in ask.effects(limit=1000)],
        "scores": [_fields(one) for run in runs for one in ask.scores(run.id)],
        "messages": [_fields(one) for one in ask.messages(limit=1000)],
        "schedules": [_fields(one) for one in ask.schedules()],
        "checkpoints": dict(sorted(_checkpoints(rt))),
    }


def _checkpoints(rt: perdure.Runtime) -> Iterator[tuple[str, Any]]:
    """Of each thread the checkpoints, newest first, with their state and their writes."""
    found: dict[str, list[list[str]]] = {}
    for one in rt.saver.list(None):
        place: Any = one.config["configurable"]
        told = [
            *sorted(one.checkpoint["channel_values"].items()),
            *sorted(one.metadata.items()),
            one.parent_config,
            *(one.pending_writes or ()),
        ]
        row = [place["checkpoint_ns"], place["checkpoint_id"], _short(told)]
        found.setdefault(place["thread_id"], []).append(row)
    yield from found.items()


def _event(event: Any) -> tuple[Any, ...]:
    return event.n, event.at, event.kind, dict(event.data)


def _fields(value: Any) -> dict[str, Any]:
    """A value of the runtime as plain data."""
    return {name: _plain(one) for name, one in vars(value).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, (int, float, type(None))):
        return value
    if is_dataclass(value) and type(value).__module__.startswith("perdure."):
        return _fields(value)  # an error; the name of its class is no part of what is stored
    return _short(value)


def _short(value: Any) -> str:
    """A value as text; a long one by its beginning and its digest."""
    told = value if isinstance(value, str) else repr(value)
    if len(told) <= 120:
        return str(told)
    return f"{told[:60]}... {hashlib.sha256(told.encode()).hexdigest()[:16]}"


# -- a PostgreSQL journal as text


def dump_rows(url: str) -> str:
    """The rows of a PostgreSQL journal, and of the table its runs wrote to, as statements. In the
    file, the tables stand before them, as the migrations of that version made them."""
    tables = """SELECT table_name FROM information_schema.tables
                WHERE table_name LIKE 'perdure\\_%' AND table_name <> 'perdure_schema' ORDER BY 1"""
    lines = ["CREATE TABLE IF NOT EXISTS seats (seat TEXT PRIMARY KEY);"]
    with psycopg.connect(url) as connection:
        for (table,) in [*connection.execute(tables), ("seats",)]:
            rows = connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table)))
            names = sql.SQL(", ").join(sql.Identifier(one.name) for one in rows.description or ())
            for row in sorted(rows, key=repr):
                values = sql.SQL(", ").join(map(sql.Literal, row))
                insert = sql.SQL("INSERT INTO {} ({}) VALUES ({});").format(
                    sql.Identifier(table), names, values
                )
                lines.append(insert.as_string(connection).replace("\n", "\\n"))
    return "\n".join(lines) + "\n"


def load_rows(url: str) -> None:
    """Fill an empty PostgreSQL database with the tables and rows of the old journal. Opening it
    brings it up to date."""
    with psycopg.connect(url) as connection:
        connection.execute(FILES["postgres"].read_bytes())
