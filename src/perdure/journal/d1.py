"""The journal on Cloudflare D1: SQLite behind HTTP, batches instead of open transactions.

The schema and the statements are SQLite's. What differs is how values travel, the large ones
split (`d1_values`), and what an answer, or none, means (`d1_client`).

A batch whose answer is lost may be committed, or still be on its way: cut off from us, a Worker
runs on. The journal reads the batch's own key, and sends it again if that is missing. So that the
first one does not arrive after that, it is revoked before anything else is sent:

    each batch              begins with a guard: refused if its id is in `perdure_revoked`
    its answer is lost      its id is kept in memory; the next read or batch first stores it there
    revoked, key found      it was committed before it was revoked
    revoked, key missing    it was not committed, and never will be: it is sent again, with a new id
    our process dies        it is not sent again; if it arrives late, the lease's token decides
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Sequence

from perdure import failpoints
from perdure.errors import BadURL, Unavailable
from perdure.journal import d1_values
from perdure.journal.d1_client import D1Client, D1Error, Denied
from perdure.journal.d1_values import Call, ChunksGone, quoted, unquoted
from perdure.journal.migrate import VERSION_TABLE, migrations, script, version
from perdure.journal.operation import (
    Ambiguous,
    Capabilities,
    Refused,
    Row,
    Statement,
    UserStatement,
)
from perdure.journal.sql import fill, parameters, render
from perdure.journal.sqlite import FRAGMENTS as SQLITE

FRAGMENTS = {
    **SQLITE,
    "identity": "SELECT 'd1', ''",  # no other connection leads to it
    "bytes": "NULL",  # D1 does not take the pragmas
}
ATTEMPTS = 3
REVOKED = """CREATE TABLE IF NOT EXISTS perdure_revoked (
  batch TEXT NOT NULL PRIMARY KEY,
  at    BIGINT NOT NULL
)"""
_OURS = "SELECT 1 FROM perdure_chunks WHERE 0"
"""Finds out whether the tables are there that only D1 has."""
_GUARD = (
    "INSERT INTO perdure_entries (name) "
    "SELECT NULL WHERE EXISTS (SELECT 1 FROM perdure_revoked WHERE batch = :batch)"
)
_REVOKE = fill(
    "INSERT INTO perdure_revoked (batch, at) VALUES (:batch, {clock}) ON CONFLICT DO NOTHING",
    FRAGMENTS,
)
_FORGET = fill("DELETE FROM perdure_revoked WHERE at < {clock} - 86400000", FRAGMENTS)
"""No request is under way for a day."""


def schema_version(url: str, deadline: float = 30.0) -> int | None:
    """The version of the schema in a database; None: there is none. Creates nothing."""
    client = D1Client(url, deadline=deadline)
    try:
        return _version(client) or None
    finally:
        client.close()


def _version(client: D1Client, *more: Call) -> int:
    """The same; 0 without a journal, or without a table that `more` calls ask for."""

    def execute(sql: str) -> list[tuple[int]]:
        rows, *_ = client.batch([Call(sql), *more], idempotent=True)
        return [(int(number),) for [number] in rows]

    try:
        return version(execute)
    except D1Error as error:
        if "no such table" in str(error):
            return 0
        raise BadURL(f"{client.place} cannot be used as a journal: {error}.") from error
    except Denied as error:
        raise BadURL(str(error)) from error


class D1:
    """A `Backend` on one D1 database."""

    # A batch may have 1,000 statements and take 30 s: 100 are left for the guard, and for the
    # chunks of what is too large for a row. A Worker has 128 MB, and needs about seven bytes for
    # each that it passes on. A text may have 2,000,000 bytes, and so may all of a row.
    capabilities = Capabilities(
        interactive=False,
        statements_per_batch=900,
        bytes_per_batch=10_000_000,
        parameters_per_statement=100,
        largest_text=1_000_000,
        largest_blob=d1_values.LARGEST,
        blob_piece=d1_values.CHUNK,
        rows_per_delete=1_000,
        bills_rows=True,
        poll=1.5,
    )
    version = staticmethod(schema_version)

    def __init__(
        self,
        url: str,
        *,
        deadline: float = 30.0,
        has_listener: bool = False,
        acknowledged: object = None,
    ) -> None:
        """`acknowledged` is not used: no other connection leads to another history."""
        self._sql = {
            name: quoted(sql) for name, sql in render(FRAGMENTS, has_listener=has_listener).items()
        }
        self._client = D1Client(url, deadline=deadline)
        self._read = functools.partial(self._client.batch, idempotent=True)
        self._unanswered: set[str] = set()
        """Batches that may still be on their way."""
        try:
            self._migrate()
        except BaseException:
            self._client.close()
            raise

    def _migrate(self) -> None:
        """Bring the schema up to date in one batch. Of several processes one does, and the others
        fail at the version's row, look again, and find it done."""
        newest = max(migrations())
        problem: Exception | None = None
        for _ in range(ATTEMPTS):
            if _version(self._client, Call(_OURS)) == newest:
                return
            current = _version(self._client)  # newest: of a SQLite journal that was put here
            try:
                tables = [
                    VERSION_TABLE,
                    *script(current, FRAGMENTS),
                    REVOKED,
                    *d1_values.schema(),
                ]
                self._client.ask([Call(sql) for sql in tables], idempotent=False)
            except (D1Error, Ambiguous) as error:
                problem = error
        if _version(self._client) != newest:
            raise BadURL(f"{self._client.place} cannot be migrated: {problem}.") from problem

    def commit(self, statements: Sequence[Statement]) -> list[list[Row]]:
        calls, places = self._calls(statements)
        rows = self._commit(calls)
        try:
            return self._loaded([rows[place] for place in places], last=True)
        except Exception as error:  # it is committed, and its key will be found
            raise Ambiguous(f"{self._client.place}: {error}") from error

    def _commit(self, calls: Sequence[Call]) -> list[list[Row]]:
        self._revoke_unanswered()
        batch = secrets.token_hex(8)
        failpoints.at("commit.before")
        try:
            guard = Call(_GUARD, {"batch": batch})
            rows, _ = self._client.ask([guard, *calls], idempotent=False)
        except (D1Error, Refused, Unavailable):
            raise
        except BaseException:  # Ctrl-C among them
            self._unanswered.add(batch)
            raise
        failpoints.at("commit.after")
        return rows[1:]

    def _revoke_unanswered(self) -> None:
        if self._unanswered:
            batches = list(self._unanswered)
            revoke = [Call(_REVOKE, {"batch": batch}) for batch in batches]
            self._read([*revoke, Call(_FORGET)])
            self._unanswered.difference_update(batches)

    def read(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._revoke_unanswered()
        calls, places = self._calls(statements)
        for attempt in range(ATTEMPTS):
            rows = self._read(calls)
            results = [rows[place] for place in places]
            try:
                return self._loaded(results, last=attempt == ATTEMPTS - 1)
            except ChunksGone:  # between the two requests
                continue
        raise AssertionError("unreachable")

    def _calls(self, statements: Sequence[Statement]) -> tuple[list[Call], list[int]]:
        """What to send, and where in it each statement is."""
        calls: list[Call] = []
        places: list[int] = []
        for statement in statements:
            name, params = statement
            failpoints.at(f"{name}.before")
            if isinstance(statement, UserStatement):
                places.append(len(calls))
                calls.append(Call(statement.sql, statement.values))
            else:
                used = {parameter: params[parameter] for parameter in parameters()[name]}
                stored = d1_values.store(used)
                calls.extend(stored.before)
                places.append(len(calls))
                calls.append(Call(self._sql[name], stored.params))
                calls.extend(stored.after)
            failpoints.at(f"{name}.after")
        return calls, places

    def _loaded(self, results: list[list[Row]], *, last: bool) -> list[list[Row]]:
        values = [[tuple(map(unquoted, row)) for row in rows] for rows in results]
        return d1_values.load(values, self._read, last=last)

    def hints(self) -> None:
        """D1 gives none: watched runs are looked at every poll."""

    settle = read  # what can be read is as durable as what was acknowledged

    def reopen(self) -> None:
        self._client.reopen()

    def close(self) -> None:
        self._client.close()
