"""`JournalStore`: LangGraph's own store, beside the journal.

For a SQLite journal `agents.db` it is the file `agents-store.db`, for a PostgreSQL journal it is
LangGraph's tables in the same database. It opens on first use, and works from any thread, event
loop or forked process, unlike LangGraph's async stores, which belong to one event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from langgraph.store.base import BaseStore, Op, Result, TTLConfig

from perdure.errors import BadArgument, Error, needs_extra
from perdure.journal.sqlite_file import Wal

CONNECTIONS = 4
"""Maximum number of connections to PostgreSQL."""
TTL: TTLConfig = {"refresh_on_read": True, "sweep_interval_minutes": 1}


class JournalStore(BaseStore):
    """A store in the database of a journal."""

    supports_ttl = True

    def __init__(
        self,
        url: str,
        *,
        index: Mapping[str, Any] | None = None,
        ttl: Mapping[str, Any] | None = None,
    ) -> None:
        """`index` and `ttl` are those of LangGraph's stores. Raises `BadArgument` for a database
        that LangGraph has no store for."""
        self.ttl_config = cast(TTLConfig, {**TTL, **(ttl or {})})
        options: dict[str, Any] = {"ttl": self.ttl_config}
        if index:
            options["index"] = dict(index)
        self._open = _opener(url, options)
        self._opening = threading.Lock()
        self._store: Any = None
        self._pid = 0
        self._resources = contextlib.ExitStack()

    def _opened(self) -> Any:
        with self._opening:
            if self._store is None or self._pid != os.getpid():
                # After a fork the connections belong to the parent: leave them open.
                self._resources = contextlib.ExitStack()
                self._store = self._resources.enter_context(self._open())
                self._pid = os.getpid()
            return self._store

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        found: list[Result] = self._opened().batch(ops)
        return found

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))

    def close(self) -> None:
        """Close its connections. The next use opens it again."""
        with self._opening:
            if self._store is not None and self._pid == os.getpid():
                self._resources.close()
            self._store = None


def _opener(url: str, options: dict[str, Any]) -> Callable[[], Any]:
    """A function that opens the store of the journal at `url`."""
    scheme = url.partition(":")[0].lower()
    if scheme == "sqlite":
        path = unquote(url.removeprefix("sqlite:///").partition("?")[0])
        if path != ":memory:":
            path = str(Path(path).with_name(f"{Path(path).stem}-store{Path(path).suffix}"))
        return lambda: _sqlite(path, options)
    if scheme in ("postgresql", "postgres"):
        return lambda: _postgres(url, options)
    raise BadArgument(
        f"LangGraph has no store for the database of this journal ({scheme}). Pass your own: "
        "Runtime(store=...)."
    )


@contextlib.contextmanager
def _sqlite(path: str, options: dict[str, Any]) -> Iterator[Any]:
    try:
        from langgraph.store.sqlite import SqliteStore
    except ImportError as error:
        raise Error(needs_extra("A store on SQLite", "server")) from error
    if "index" in options and not hasattr(sqlite3.Connection, "enable_load_extension"):
        raise Error(
            "A store with an index needs SQLite's extensions, which this Python was built without. "
            "Use a journal on PostgreSQL, another Python, or a store without an index."
        )
    with SqliteStore.from_conn_string(path, **options) as store:
        Wal.keep(store.conn)
        store.conn.execute("PRAGMA journal_mode = WAL")  # readers do not block the writer
        mover = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        with contextlib.closing(mover), _swept(store):
            yield _SqliteBatches(store, Wal(path), mover)


class _SqliteBatches:
    """A `SqliteStore` whose connection leaves the WAL to `Wal`."""

    def __init__(self, store: Any, wal: Wal, mover: sqlite3.Connection) -> None:
        self._store, self._wal, self._mover = store, wal, mover

    def batch(self, ops: list[Op]) -> list[Result]:
        found: list[Result] = self._store.batch(ops)
        with self._store.lock:
            self._wal.move_if_long(self._store.conn, self._mover)
        return found


@contextlib.contextmanager
def _postgres(url: str, options: dict[str, Any]) -> Iterator[Any]:
    try:
        from langgraph.store.postgres import PostgresStore
    except ImportError as error:
        raise Error(needs_extra("A store on PostgreSQL", "server")) from error
    pool: Any = {"min_size": 1, "max_size": CONNECTIONS}
    with PostgresStore.from_conn_string(url, pool_config=pool, **options) as store, _swept(store):
        yield store


@contextlib.contextmanager
def _swept(store: Any) -> Iterator[None]:
    """Create the tables of a store, and delete expired items while it is open."""
    store.setup()
    store.start_ttl_sweeper()
    try:
        yield
    finally:
        store.stop_ttl_sweeper(timeout=5)
