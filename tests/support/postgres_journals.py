"""Databases with an empty journal, which tests use one after the other: to copy the template takes
a third of a second, to delete what a test left takes a tenth of that."""

from __future__ import annotations

import time
from typing import Any, LiteralString

import psycopg
from psycopg import sql

import perdure
from perdure.testing.postgres import Server

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
