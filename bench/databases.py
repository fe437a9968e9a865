"""Fresh databases to measure on: SQLite files in one folder, and one PostgreSQL server.

Both run with durable defaults (fsync on, `synchronous_commit` on), or the comparison of `sync`
modes would compare nothing.
"""

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psycopg

from perdure.testing.postgres import Server, local_postgres

Kind: TypeAlias = Literal["sqlite", "postgres"]


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///")


class Databases:
    """Hands out empty databases, says how large they are, throws them away."""

    def __init__(self, folder: Path, server: Server | None) -> None:
        self.folder = folder
        self._server = server
        self._numbers = count()

    @property
    def has_postgres(self) -> bool:
        return self._server is not None

    @contextmanager
    def fresh(self, kind: Kind | None) -> Iterator[str]:
        """The URL of an empty database, which is gone afterwards; "" where none is needed."""
        if kind is None:
            yield ""
        elif kind == "sqlite":
            home = self.folder / str(next(self._numbers))
            home.mkdir()
            yield f"sqlite:///{home / 'bench.db'}"
            shutil.rmtree(home)
        else:
            assert self._server is not None, "no PostgreSQL server: run --without postgres"
            url = self._server.database()
            yield url
            self._server.drop(url)


@contextmanager
def databases(*, postgres: bool) -> Iterator[Databases]:
    """A folder on the disk of the temporary directory and, if asked for, a running server."""
    with tempfile.TemporaryDirectory(prefix="perdure-bench-") as folder:
        if not postgres:
            yield Databases(Path(folder), None)
            return
        with local_postgres() as server:
            yield Databases(Path(folder), server)


def size(url: str) -> int:
    """Bytes on disk. SQLite: the file after its WAL is folded in. PostgreSQL: every table of the
    database with indexes and TOAST, as they are, without VACUUM."""
    if url.startswith("sqlite:"):
        path = Path(sqlite_path(url))
        db = sqlite3.connect(path)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        db.close()
        return sum(f.stat().st_size for f in path.parent.iterdir())
    return int(ask(url, _ALL_TABLES))


_ALL_TABLES = """
SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'm') AND n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
"""


def ask(url: str, query: str) -> Any:
    """The one value a query answers with."""
    with psycopg.connect(url, autocommit=True) as db:
        row = db.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]
