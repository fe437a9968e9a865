"""A fresh database for each trial: a copy of one that has the tables."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from perdure.errors import BadArgument, needs_extra


class SQLiteFiles:
    """Makes SQLite files in a folder."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        # The database to copy; its tables are made before the first copy.
        self.template = f"sqlite:///{folder}/template.db"

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a new database, removed at the end."""
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        try:
            for part in self._folder.glob("template.db*"):
                shutil.copy(part, folder / part.name.replace("template", "journal"))
            yield f"sqlite:///{folder}/journal.db"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


class PostgreSQLServer:
    """Makes databases beside the one that a URL names."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self._url = url
        self.template = self._create("template1")

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        """The URL of a new database, dropped at the end."""
        url = self._create(urlsplit(self.template).path[1:])
        try:
            yield url
        finally:
            self.drop(url)

    def _create(self, template: str) -> str:
        name = f"perdure_crashtest_{secrets.token_hex(6)}"
        self._execute("CREATE DATABASE {} TEMPLATE {}", name, template)
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{name}"))

    def drop(self, url: str) -> None:
        self._execute("DROP DATABASE IF EXISTS {} WITH (FORCE)", urlsplit(url).path[1:])

    def _execute(self, statement: Any, *names: str) -> None:
        try:
            import psycopg
            from psycopg import sql
        except ImportError as error:
            raise BadArgument(needs_extra("PostgreSQL", "postgres")) from error
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))
        except psycopg.Error as error:
            raise BadArgument(
                "crashtest makes a database for each trial, and the server refused: "
                f"{str(error).strip()}. Name a role that may create databases."
            ) from error


@contextlib.contextmanager
def databases(url: str | None) -> Iterator[SQLiteFiles | PostgreSQLServer]:
    """SQLite files in a temporary folder, or databases beside the one the URL names."""
    if url is None:
        with tempfile.TemporaryDirectory(prefix="perdure-crashtest-") as folder:
            yield SQLiteFiles(Path(folder))
    elif url.startswith(("postgresql://", "postgres://")):
        server = PostgreSQLServer(url)
        try:
            yield server
        finally:
            server.drop(server.template)
    else:
        raise BadArgument(
            "crashtest makes SQLite files of its own, one for each trial. Leave the URL out, or "
            "name a PostgreSQL database in whose server it may make others. On D1 it cannot make "
            "any."
        )
