"""What would make a journal on PostgreSQL fail later is refused when it is opened, with the cause
and the remedy, or set on every connection; what the URL says is respected."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

import perdure
from perdure.errors import BadURL
from perdure.testing.postgres import Server
from tests.contract.pooler import Pooler


def execute(url: str, *statements: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1", "EUC_JP"])
def test_a_database_with_another_encoding_is_refused(
    postgres_server: Server, encoding: str
) -> None:
    name = f"in_{encoding.lower()}"
    execute(
        postgres_server.url,
        f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0",
    )
    url = f"{postgres_server.url.rpartition('/')[0]}/{name}"
    with pytest.raises(BadURL, match=rf"encoding is {encoding}.*'UTF8' TEMPLATE template0"):
        perdure.connect(url)
    postgres_server.drop(url)


def test_the_encoding_of_a_connection_is_ours_whatever_the_server_sets(postgres_url: str) -> None:
    name = postgres_url.rpartition("/")[2]
    execute(postgres_url, f"ALTER DATABASE {name} SET client_encoding = LATIN1")
    with closing(perdure.Client(postgres_url)) as client:
        run = client.blocking.start("g", {"word": "日本"}, key="日本")
        assert client.blocking.get(run.id).key == "日本"


def test_another_encoding_in_the_url_is_refused(postgres_url: str) -> None:
    with pytest.raises(BadURL, match=r"client_encoding=latin1.*Leave it out"):
        perdure.connect(f"{postgres_url}?client_encoding=latin1")


def test_the_application_name_of_the_url_is_used(postgres_url: str) -> None:
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'desk'"
    with closing(perdure.connect(f"{postgres_url}?application_name=desk")):
        assert execute(postgres_url, count) == [(1,)]


@pytest.mark.parametrize("path", ["elsewhere", "elsewhere,public"])
def test_a_schema_that_does_not_exist_is_refused(empty_postgres_url: str, path: str) -> None:
    with pytest.raises(BadURL, match=r"first schema does not exist.*CREATE SCHEMA"):
        perdure.connect(f"{empty_postgres_url}?options=-csearch_path%3D{path}")
    execute(empty_postgres_url, "CREATE SCHEMA elsewhere")
    perdure.connect(f"{empty_postgres_url}?options=-csearch_path%3D{path}").close()
    schemas = "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'perdure%'"
    assert execute(empty_postgres_url, schemas) == [("elsewhere",)]


def test_a_pooler_that_drops_the_schema_of_the_url_is_noticed(empty_postgres_url: str) -> None:
    execute(empty_postgres_url, "CREATE SCHEMA agents")
    pooler = Pooler(f"{empty_postgres_url}?options=-csearch_path%3Dagents", drops_options=True)
    with closing(pooler), pytest.raises(BadURL, match=r"search_path=agents.*ALTER ROLE"):
        perdure.connect(pooler.url)
    tables = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'perdure%'"
    assert execute(empty_postgres_url, tables) == [(0,)]


def test_a_pooler_that_does_not_follow_prepared_statements_is_no_obstacle(
    postgres_url: str,
) -> None:
    pooler = Pooler(postgres_url, turns=True)
    with closing(pooler), closing(perdure.Client(pooler.url)) as client:
        runs = [client.blocking.start("g", {"n": n}).id for n in range(12)]
        assert {run.id for run in client.blocking.runs()} == {*runs}


@pytest.fixture
def clerk_url(postgres_url: str) -> Iterator[str]:
    """The URL of a role that may do everything with the tables, and make none."""
    execute(
        postgres_url,
        "DROP ROLE IF EXISTS clerk",
        "CREATE ROLE clerk LOGIN",
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO clerk",
    )
    yield postgres_url.replace("postgres@", "clerk@")
    execute(postgres_url, "DROP OWNED BY clerk", "DROP ROLE clerk")


@pytest.mark.parametrize("privilege", ["SELECT", "INSERT", "UPDATE", "DELETE"])
def test_a_privilege_that_is_missing_is_named_with_its_table(
    postgres_url: str, clerk_url: str, privilege: str
) -> None:
    execute(postgres_url, f"REVOKE {privilege} ON perdure_runs FROM clerk")
    with pytest.raises(BadURL, match=rf"role clerk lacks {privilege} on perdure_runs.*GRANT"):
        perdure.connect(clerk_url)
    execute(postgres_url, f"GRANT {privilege} ON perdure_runs TO clerk")
    perdure.connect(clerk_url).close()


def test_a_role_that_may_not_migrate_is_told_who_may(postgres_url: str, clerk_url: str) -> None:
    execute(postgres_url, "UPDATE perdure_schema SET version = version - 1")
    with pytest.raises(BadURL, match=r"may not: permission denied.*perdure migrate"):
        perdure.connect(clerk_url)
