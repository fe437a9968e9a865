"""Loops, statements and cursors of LangGraph's stores."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.store.base import PutOp
from langgraph.store.memory import InMemoryStore

from perdure.langgraph_port import stores

PUT = PutOp(("orders",), "7", {"paid": True})


def test_the_statements_of_a_store_on_sqlite_can_be_run_on_its_own_cursor() -> None:
    from langgraph.store.sqlite import SqliteStore

    with SqliteStore.from_conn_string(":memory:") as store:
        store.setup()
        assert stores.can_write_queries(store)
        assert stores.loop_of(store) is None
        made, embed = stores.put_queries(store, [PUT])
        assert embed is None
        with stores.cursor_of(store) as cursor:
            for sql, params in made:
                cursor.execute(sql, params)
        found = store.get(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value


def test_a_store_that_embeds_gives_the_statement_and_the_texts_for_its_vectors() -> None:
    from langgraph.store.sqlite import SqliteStore

    index: Any = {"dims": 2, "embed": lambda texts: [[1.0, 0.0] for _ in texts]}
    with SqliteStore.from_conn_string(":memory:", index=index) as store:
        _, embed = stores.put_queries(store, [PUT])
        sql, texts = embed
        assert sql.lstrip().startswith("INSERT")
        assert [text for *_, text in texts] == ['{"paid": true}']


async def test_a_store_that_is_only_awaited_knows_its_loop_and_has_an_async_cursor() -> None:
    from langgraph.store.sqlite import AsyncSqliteStore

    async with AsyncSqliteStore.from_conn_string(":memory:") as store:
        await store.setup()
        assert stores.loop_of(store) is asyncio.get_running_loop()
        made, _ = stores.put_queries(store, [PUT])
        async with stores.cursor_of(store) as cursor:
            for sql, params in made:
                await cursor.execute(sql, params)
        found = await store.aget(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value


def test_the_store_in_memory_has_no_statements_and_no_loop() -> None:
    store = InMemoryStore()
    assert not stores.can_write_queries(store)
    assert stores.loop_of(store) is None


def test_the_statements_of_a_store_on_postgresql_can_be_run_on_its_own_cursor(
    postgres_url: str,
) -> None:
    from langgraph.store.postgres import PostgresStore

    with PostgresStore.from_conn_string(postgres_url) as store:
        store.setup()
        assert stores.can_write_queries(store)
        made, _ = stores.put_queries(store, [PUT])
        with stores.cursor_of(store) as cursor:
            for sql, params in made:
                cursor.execute(sql, params)
        found = store.get(PUT.namespace, PUT.key)
        assert found is not None
        assert found.value == PUT.value
