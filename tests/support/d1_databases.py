"""The databases of one workerd, which tests use one after the other: there are few of them."""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import perdure
from perdure.d1 import Client as D1Client
from perdure.testing.d1 import Workerd

EMPTY = 2
"""How many of a server's databases are for tests that want nothing in them."""
_SCHEMA = """SELECT type, name, sql FROM sqlite_schema
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
    [rows] = client.batch([(_SCHEMA, ())])
    return [(kind, name, sql) for kind, name, sql in rows]


def _delete_rows(client: D1Client, schema: list[tuple[str, str, str]]) -> None:
    tables = [name for kind, name, _ in schema if kind == "table" and name != "perdure_schema"]
    client.batch([(f'DELETE FROM "{name}"', ()) for name in tables], idempotent=True)


def _drop(client: D1Client, schema: list[tuple[str, str, str]]) -> None:
    """Drop what is there; indexes go with their tables."""
    kinds = ("trigger", "view", "table")
    drop = [f'DROP {kind} "{name}"' for kind in kinds for k, name, _ in schema if k == kind]
    client.batch([(sql, ()) for sql in drop])
