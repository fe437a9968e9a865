"""A batch of statements in one round trip: psycopg's pipeline without its cursors.

A cursor for each statement costs several times what libpq does. Here the statements are handed to
libpq one after the other, flushed once, and their results fetched in order. psycopg converts the
values, waits and makes the errors, as it does for cursors. A statement that is used again on a
connection is prepared.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import count
from typing import Any, NamedTuple

from psycopg import abc, errors, pq
from psycopg.adapt import PyFormat, Transformer
from psycopg.generators import fetch_many, send

from perdure import failpoints
from perdure.journal.operation import Row
from perdure.journal.postgres_pool import Connection


class Query(NamedTuple):
    """A statement with `$1`, `$2` ... for its parameters, their values, and the failpoints before
    and after it is sent."""

    sql: bytes
    values: Sequence[Any] = ()
    before: str = ""
    after: str = ""


_BINARY = pq.Format.BINARY
_PREPARED = 500
"""Statements that are prepared on a connection at most."""
_numbers = count()


def run(connection: Connection, queries: Sequence[Query]) -> list[list[Row]]:
    """The rows of each statement. Raises the error of the first that failed."""
    transformer: abc.Transformer = Transformer(connection)
    dumped = [_dump(transformer, query.values) for query in queries]
    pgconn = connection.pgconn
    pgconn.enter_pipeline_mode()
    is_prepare: list[bool] = []
    for query, values in zip(queries, dumped, strict=True):
        if query.before:
            failpoints.at(query.before)
        is_prepare += _send(connection, query.sql, *values)
        if query.after:
            if failpoints.hook is not None:  # so that the server does what was sent so far
                pgconn.flush()
            failpoints.at(query.after)
    pgconn.pipeline_sync()
    results = connection.wait(_exchange(pgconn, len(is_prepare)))
    pgconn.exit_pipeline_mode()
    for result in results:
        if result.status == pq.ExecStatus.FATAL_ERROR:
            connection.prepared.clear()  # statements after it were not prepared
            raise errors.error_from_result(result)
    found = zip(results, is_prepare, strict=True)
    return [_rows(transformer, result) for result, prepares in found if not prepares]


def _dump(
    transformer: abc.Transformer, values: Sequence[Any]
) -> tuple[Sequence[Any], tuple[int, ...], Sequence[pq.Format]]:
    """Values as libpq takes them, their types and formats."""
    if not values:
        return (), (), ()
    dumped = transformer.dump_sequence(values, [PyFormat.AUTO] * len(values))
    return dumped, transformer.types or (), transformer.formats or ()


def _send(
    connection: Connection,
    sql: bytes,
    values: Sequence[Any],
    types: tuple[int, ...],
    formats: Sequence[pq.Format],
) -> Sequence[bool]:
    """Send a statement. For each result that it will have: whether it only prepares."""
    pgconn, prepared, key = connection.pgconn, connection.prepared, (sql, types)
    name = prepared.get(key) if connection.prepares else b""
    if name:
        pgconn.send_query_prepared(name, values, formats, _BINARY)
        return (False,)
    if name is None or len(prepared) > _PREPARED or not connection.prepares:
        prepared[key] = b""  # the second use prepares it
        pgconn.send_query_params(sql, values, types, formats, _BINARY)
        return (False,)
    name = prepared[key] = b"perdure_%d" % next(_numbers)
    pgconn.send_prepare(name, sql, types)
    pgconn.send_query_prepared(name, values, formats, _BINARY)
    return (True, False)


def _exchange(pgconn: pq.abc.PGconn, count: int) -> Generator[Any, Any, list[pq.abc.PGresult]]:
    yield from send(pgconn)
    results: list[pq.abc.PGresult] = []
    for _ in range(count):
        [result, *_] = yield from fetch_many(pgconn)
        results.append(result)
    yield from fetch_many(pgconn)  # the end of the pipeline
    return results


def _rows(transformer: abc.Transformer, result: pq.abc.PGresult) -> list[Row]:
    if result.status != pq.ExecStatus.TUPLES_OK or not result.ntuples:
        return []
    transformer.set_pgresult(result)
    return transformer.load_rows(0, result.ntuples, tuple)
