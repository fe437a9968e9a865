"""PostgreSQL tells every holder of a journal what the others change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.journal import postgres
from perdure.journal.operation import Statement
from perdure.journal.postgres import Postgres

STORES_CHUNKS = Statement(
    "insert_stream",
    {
        "thread_id": "t",
        "id": "run",
        "token": 1,
        "now": 0,
        "n": 1,
        "last": 1,
        "at": 0,
        "replaces": None,
        "body": b"",
    },
)


@pytest.fixture
def one(postgres_url: str) -> Iterator[Postgres]:
    backend = Postgres(postgres_url)
    yield backend
    backend.close()


def test_another_holder_in_the_same_process_is_told(one: Postgres, postgres_url: str) -> None:
    other = Postgres(postgres_url)
    hints = one.hints()
    try:
        other.commit([STORES_CHUNKS])
        assert hints.wait(30) == {"stream:run"}
    finally:
        hints.close()
        other.close()


def test_a_holder_is_not_told_what_it_did_itself(one: Postgres) -> None:
    hints = one.hints()
    try:
        one.commit([STORES_CHUNKS])
        assert hints.wait(0.5) == set()
    finally:
        hints.close()


def test_a_process_that_was_forked_is_told_what_its_parent_does(one: Postgres) -> None:
    hints = one.hints()
    one.reopen()  # as in a forked process, which has its own connections
    try:
        one.commit([STORES_CHUNKS])
        assert hints.wait(30) == {"stream:run"}
    finally:
        hints.close()
        postgres._ABANDONED.pop().close()
