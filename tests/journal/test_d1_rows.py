"""Rows of a D1 database, their values and the names of their columns."""

from __future__ import annotations

from typing import Any

from perdure.d1 import Client
from perdure.testing.d1 import Workerd

SELECT = "SELECT value AS id, 'x' || value AS name, NULL AS absent FROM json_each(:values)"


def test_rows_have_the_names_of_their_columns(d1_server: Workerd) -> None:
    d1_server.start()
    with Client(d1_server.url(0)) as client:
        assert client.rows(
            [
                (SELECT, {"values": "[1, 2]"}),
                (SELECT, {"values": "[]"}),
                ("SELECT ? AS own", [b"a"]),
            ]
        ) == [
            [
                {"id": 1, "name": "x1", "absent": None},
                {"id": 2, "name": "x2", "absent": None},
            ],
            [],
            [{"own": b"a"}],
        ]
        assert client.batch([("SELECT 1, 2 AS two", [])]) == [[(1, 2)]]
        assert client.rows([]) == []


def test_a_whole_number_stays_one_where_no_column_makes_it_one(d1_server: Workerd) -> None:
    d1_server.start()
    with Client(d1_server.url(0)) as client:
        create = "CREATE TABLE whole_numbers (name TEXT, anything)"
        insert = "INSERT INTO whole_numbers VALUES (:n, :n)"
        select = "SELECT name, typeof(anything) FROM whole_numbers WHERE name = ?"
        drop = "DROP TABLE whole_numbers"
        calls: list[tuple[str, Any]] = [(create, ()), (insert, {"n": 5}), (select, [5]), (drop, ())]
        assert client.batch(calls)[2] == [("5", "integer")]
        [[row]] = client.batch([("SELECT json_object('n', ?1), ?1 || 'x', ?1 / 2", [-5])])
        assert row == ('{"n":-5}', "-5x", -2)
