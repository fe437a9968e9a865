"""The databases of one workerd, which tests use one after the other: there are few of them."""

from __future__ import annotations

import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, LiteralString
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

import perdure
from perdure.d1 import Client as D1Client
from perdure.testing.d1 import Workerd
from perdure.testing.postgres import Server

EMPTY = 2
"""How many of a server's databases are for tests that want nothing in them."""
_D1_SCHEMA = """SELECT type, name, sql FROM sqlite_schema
             WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' AND name NOT LIKE '\\_cf\\_%' ESCAPE '\\'
             ORDER BY type, name"""


def store_file(url: str) -> Path:
    """The file of the store that belongs to a journal: LangGraph has none that is on D1."""
    parts = urlsplit(url)
    name = f"perdure-store-{parts.port}-{parts.path.strip('/')}.db"
    return Path(tempfile.gettempdir()) / name


class Databases:
    """A database is cleaned before it is used again, and least recently used ones come first."""

    def __init__(self, server: Workerd) -> None:
        self._server = server
        self._with_journal = deque(range(EMPTY, server.databases))
        self._empty = deque(range(EMPTY))
        self._schema: list[tuple[str, str, str]] | None = None
        """Of an empty journal."""

    def with_journal(self) -> str:
        """The URL of a database with an empty journal."""
        self._with_journal.rotate(-1)
        return self._cleaned(self._with_journal[-1], journal=True)

    @contextmanager
    def kept(self) -> Iterator[str]:
        """The same, for several tests together."""
        url = self.with_journal()
        n = self._with_journal.pop()
        yield url
        self._with_journal.append(n)

    def empty(self) -> str:
        """The URL of a database with nothing in it."""
        self._empty.rotate(-1)
        return self._cleaned(self._empty[-1], journal=False)

    def close(self) -> None:
        for n in range(self._server.databases):
            _remove_store(self._server.url(n))

    def _cleaned(self, n: int, *, journal: bool) -> str:
        self._server.start()  # in case the test before this one left it stopped
        url = self._server.url(n)
        _remove_store(url)
        client = D1Client(url)
        try:
            found = _schema(client)
            if journal and found == self._schema:
                _delete_rows(client, found)
                return url
            _drop(client, found)
            if journal:
                perdure.connect(url).close()
                self._schema = _schema(client)
            return url
        finally:
            client.close()


def _remove_store(url: str) -> None:
    file = store_file(url)
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()


def _schema(client: D1Client) -> list[tuple[str, str, str]]:
    [rows] = client.batch([(_D1_SCHEMA, ())])
    return [(kind, name, sql) for kind, name, sql in rows]


def _delete_rows(client: D1Client, schema: list[tuple[str, str, str]]) -> None:
    tables = [name for kind, name, _ in schema if kind == "table" and name != "perdure_schema"]
    client.batch([(f'DELETE FROM "{name}"', ()) for name in tables], idempotent=True)


def _drop(client: D1Client, schema: list[tuple[str, str, str]]) -> None:
    """Drop what is there; indexes go with their tables."""
    kinds = ("trigger", "view", "table")
    drop = [f'DROP {kind} "{name}"' for kind in kinds for k, name, _ in schema if k == kind]
    client.batch([(sql, ()) for sql in drop])


# -- The databases that a test which takes `url` runs on.

DATABASES = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("d1", marks=pytest.mark.d1),
]


# -- Databases with an empty journal, which tests use one after the other: to copy the template
# takes a third of a second, to delete what a test left takes a tenth of that.

MOST_GROWTH = 4 << 20
"""Bytes by which a database may have grown to be used again."""
# Whatever changes the schema writes rows of the catalog anew.
_SCHEMA = """
SELECT md5(string_agg(row, ' ' ORDER BY row)) FROM (
  SELECT concat('class ', oid, ' ', xmin) AS row FROM pg_class WHERE oid >= 16384
  UNION ALL SELECT concat('attribute ', attrelid, ' ', attnum, ' ', xmin) FROM pg_attribute
    WHERE attrelid >= 16384
  UNION ALL SELECT concat('function ', oid, ' ', xmin) FROM pg_proc WHERE oid >= 16384
  UNION ALL SELECT concat('trigger ', oid, ' ', xmin) FROM pg_trigger
  UNION ALL SELECT concat('constraint ', oid, ' ', xmin) FROM pg_constraint WHERE oid >= 16384
  UNION ALL SELECT concat('namespace ', oid, ' ', xmin) FROM pg_namespace
  UNION ALL SELECT concat('extension ', oid, ' ', xmin) FROM pg_extension
  UNION ALL SELECT concat('setting ', setrole, ' ', xmin) FROM pg_db_role_setting
    WHERE setdatabase = (SELECT oid FROM pg_database WHERE datname = current_database())
  UNION ALL SELECT concat('migration ', version, ' ', xmin) FROM perdure_schema
) AS rows (row)"""
_SIZE = "SELECT pg_database_size(current_database())"
_TABLES = """
SELECT tablename FROM pg_tables WHERE schemaname = 'public' AND tablename <> 'perdure_schema'"""
_END_SESSIONS = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"


class Journals:
    """Each use of a database has a name of its own: a process that outlives its test finds none."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._template = server.database()
        perdure.connect(self._template).close()
        with psycopg.connect(self._template, autocommit=True) as connection:
            self._schema, self._size = _first(connection, _SCHEMA), _first(connection, _SIZE)
            tables = [sql.Identifier(name) for (name,) in connection.execute(_TABLES)]
        self._delete = sql.SQL(";").join(sql.SQL("DELETE FROM {}").format(one) for one in tables)
        self._clean: list[str] = []
        self._uses = 0

    def take(self) -> str:
        """The URL of a database with an empty journal."""
        self._server.start()  # in case the test before this one left it stopped
        return self._clean.pop() if self._clean else self._server.database(template=self._template)

    def give_back(self, url: str) -> None:
        """Clean it for the next test, or drop it if that is not enough."""
        self._server.start()
        try:
            renamed = self._renamed(url)
        except psycopg.Error:  # the test dropped it, or somebody connects again and again
            return self._server.drop(url)
        if self._is_cleaned(renamed):
            self._clean.append(renamed)
        else:
            self._server.drop(renamed)

    def _renamed(self, url: str) -> str:
        self._uses += 1
        place, _, name = url.rpartition("/")
        new = f"journal_{self._uses}"
        rename = sql.SQL("ALTER DATABASE {} RENAME TO {}")
        with psycopg.connect(self._server.url, autocommit=True) as connection:
            for _ in range(400):  # PostgreSQL itself would look only every 0.1 s
                if not connection.execute(_END_SESSIONS, [name]).rowcount:
                    break
                time.sleep(0.005)
            connection.execute(rename.format(sql.Identifier(name), sql.Identifier(new)))
        return f"{place}/{new}"

    def _is_cleaned(self, url: str) -> bool:
        try:
            with psycopg.connect(url, autocommit=True) as connection:
                if _first(connection, _SIZE) > self._size + MOST_GROWTH:
                    return False
                if _first(connection, _SCHEMA) != self._schema:
                    return False
                connection.execute(self._delete)
                return True
        except psycopg.errors.UndefinedTable:
            return False


def _first(connection: psycopg.Connection, query: LiteralString) -> Any:
    [[found]] = connection.execute(query).fetchall()
    return found
