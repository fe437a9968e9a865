"""The campaign's own tables."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from examples.campaign.database import Conflict, Database, sql
from perdure.testing.postgres import Server

ROOT = Path(__file__).parents[2]
ADD = "INSERT INTO members (campaign_id, contact_id, status) VALUES (1, :id, 'active')"
COUNT = "SELECT count(*) AS n FROM members"


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    """One that keeps its connections."""
    made = Database(url, keep=True)
    made.create()
    yield made
    made.close()


def add(database: Database, *ids: int) -> None:
    database.write(*(sql(ADD, id=id) for id in ids))


def count(database: Database) -> int:
    return int(database.rows(COUNT)[0]["n"])


def test_a_batch_whose_key_is_taken_writes_nothing(database: Database) -> None:
    with pytest.raises(Conflict):
        add(database, 1, 2, 1)
    assert count(database) == 0
    add(database, 1, 2)
    assert count(database) == 2


def test_a_batch_with_a_wrong_statement_writes_nothing(database: Database) -> None:
    with pytest.raises(Exception, match="nowhere") as wrong:
        database.write(sql(ADD, id=1), sql("DELETE FROM nowhere"))
    assert not isinstance(wrong.value, Conflict)
    assert count(database) == 0


def test_a_batch_gives_the_rows_of_each_of_its_statements(database: Database) -> None:
    name = "UPDATE members SET status = 'finished' WHERE contact_id = :id RETURNING contact_id"
    add(database, 1, 2)
    found = database.write(sql(name, id=1), sql(COUNT), sql("DELETE FROM members"), sql(name, id=2))
    assert found == [[{"contact_id": 1}], [{"n": 2}], [], []]


def test_after_a_restart_of_the_server_one_transaction_fails_and_the_next_does_not(
    postgres_url: str, postgres_server: Server
) -> None:
    database = Database(postgres_url, keep=True)
    database.create()
    with ThreadPoolExecutor(3) as pool:  # some are kept
        list(pool.map(lambda _: database.rows("SELECT pg_sleep(0.05)"), range(3)))
    postgres_server.restart()
    with pytest.raises(psycopg.OperationalError):
        count(database)
    assert count(database) == 0
    database.close()


FORKS = """
import os, sys
from examples.campaign.database import Database
from tests.examples.test_campaign_database import add, count
database = Database(sys.argv[1], keep=True)
database.create()
if os.fork() == 0:
    add(database, 1)
    database.close()
    os._exit(0)
assert os.wait()[1] == 0
assert count(database) == 1
database.close()
"""


def test_a_child_process_has_connections_of_its_own(url: str) -> None:
    subprocess.run([sys.executable, "-c", FORKS, url], cwd=ROOT, check=True)
