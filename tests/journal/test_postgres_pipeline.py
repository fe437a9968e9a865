"""A batch on PostgreSQL is one round trip: its statements are prepared, its errors psycopg's."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.pq import TransactionStatus

from perdure.journal.postgres_pool import Connection, Pool, Query


@pytest.fixture
def connection(postgres_url: str) -> Iterator[Connection]:
    with Pool(postgres_url, size=1, deadline=30.0).connect() as connection:
        yield connection


def prepared(connection: Connection) -> int:
    [[[count]]] = connection.batch(
        [Query(b"SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'perdure%'")],
    )
    return int(count)


def test_each_statement_gives_its_rows_with_values_of_every_kind(connection: Connection) -> None:
    values = ["tëxt", 2**62, -1, None, b"\0\xff", 1.5, True]
    sql = b"SELECT $1::text, $2::bigint, $3::bigint, $4::text, $5::bytea, $6::float8, $7::bool"
    found = connection.batch(
        [
            Query(b"BEGIN"),
            Query(sql, values),
            Query(sql + b" WHERE false", values),
            Query(b"COMMIT"),
        ],
    )
    assert found == [[], [tuple(values)], [], []]
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE


def test_a_statement_is_prepared_when_it_is_used_again(connection: Connection) -> None:
    sql = b"SELECT $1::bigint + 1"
    for n in range(5):
        assert connection.batch([Query(sql, [n])] * 3) == [[(n + 1,)]] * 3
    names = {name for (text, _), name in connection.prepared.items() if text == sql}
    assert len(names) == 1
    assert prepared(connection) >= 1


def test_the_first_error_is_raised_and_the_connection_is_not_idle(connection: Connection) -> None:
    batch = [
        Query(b"BEGIN"),
        Query(b"SELECT 1"),
        Query(b"SELECT 1 / $1::bigint", [0]),
        Query(b"SELECT nothing"),
        Query(b"COMMIT"),
    ]
    with pytest.raises(psycopg.errors.DivisionByZero):
        connection.batch(batch)
    assert connection.pgconn.transaction_status != TransactionStatus.IDLE


def test_a_value_that_psycopg_does_not_know_sends_nothing(connection: Connection) -> None:
    with pytest.raises(psycopg.ProgrammingError):
        connection.batch([Query(b"SELECT 1"), Query(b"SELECT $1", [object()])])
    assert connection.pgconn.transaction_status == TransactionStatus.IDLE
    assert connection.batch([Query(b"SELECT 2::bigint")]) == [[(2,)]]


def test_a_batch_larger_than_every_buffer_arrives_both_ways(connection: Connection) -> None:
    large = b"x" * 1_000_000
    found = connection.batch([Query(b"SELECT $1::bytea", [large])] * 30)
    assert found == [[(large,)]] * 30
