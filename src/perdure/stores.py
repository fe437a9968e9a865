"""LangGraph's stores beside a journal, for extensions that keep memories in one.

A store whose tables are in the journal's own database can be written in the transaction of an
effect: `shares_database`, `put_statements`, `perdure.transaction()`.
"""

from __future__ import annotations

import contextlib
import os
from asyncio import run_coroutine_threadsafe
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from langgraph.runtime import Runtime as GraphRuntime
from langgraph.store.base import BaseStore, PutOp

from perdure.effects.decorator import Effect, perform
from perdure.journal import Journal, Op, Statement
from perdure.langgraph_port import configs, ecosystem
from perdure.langgraph_port.ecosystem import store_loop as store_loop
from perdure.serde.redaction import is_secret

# SQL and its parameters, in the dialect of the store's database.
StoreStatement = tuple[str, Any]


def store_in(config: Mapping[str, Any]) -> BaseStore | None:
    """The store of the graph whose node has this config."""
    runtime = configs.runtime_of(config.get("configurable") or {})
    store: BaseStore | None = getattr(runtime, "store", None)
    return store


@contextlib.contextmanager
def calling_with(config: Any, store: BaseStore) -> Iterator[None]:
    """Inside, code finds this config and this store, as it does in a node of a graph."""
    configs.set_runtime(config["configurable"], GraphRuntime(store=store))
    with configs.running_with(config):
        yield


def storable_entries(values: Mapping[Any, Any]) -> dict[str, Any]:
    """The caller's own scalars in a part of a config. Secrets and LangGraph's own entries are not
    stored."""
    return {
        key: value
        for key, value in values.items()
        if isinstance(key, str) and not configs.is_own_key(key)
        if key != "run_id" and not is_secret(key)
        if type(value) in (str, float, bool, type(None))
        or (type(value) is int and abs(value) < 2**63)
    }


def repeatable(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """An effect that never records an exception as its outcome: what calls it is tried again, and
    this call with it. It must be safe to repeat."""
    found = Effect.of(function, retry=None, **options)
    found = replace(found, spec=replace(found.spec, keeps_errors=False))

    def call(*args: Any) -> Any:
        return perform(found, args, {})

    return call


def shares_database(store: Any, journal: Journal) -> bool:
    """Whether the tables of a store can be written in the transaction of an effect."""
    is_sqlite = _is_of(store, "sqlite")
    if not journal.capabilities.interactive or not ecosystem.can_write_queries(store):
        return False
    if is_sqlite:
        from perdure.journal.sqlite import FRAGMENTS
    elif _is_of(store, "postgres"):
        try:
            from perdure.journal.postgres import FRAGMENTS
        except ImportError:
            return False
    else:
        return False
    try:
        theirs = _query_row(store, FRAGMENTS["identity"])
    except Exception:
        store.get(("perdure",), "")  # raises if the store is closed or unavailable
        return False
    ours = journal.do(Op("identity", [Statement("identity", {})], lambda rows: rows[0][0][:2]))
    if is_sqlite:
        with contextlib.suppress(OSError):
            return bool(theirs[0]) and os.path.samefile(theirs[0], ours[0])
        return False
    return theirs == tuple(ours)


def put_statements(store: Any, ops: list[PutOp]) -> list[StoreStatement]:
    """Return the statements with which a LangGraph store writes these. Embeddings are computed
    here, before the transaction begins."""
    if not ops:
        return []
    statements, to_embed = ecosystem.put_queries(store, ops)
    if to_embed:
        sql, texts = to_embed
        vectors = _embed(store, [text for *_, text in texts])
        params: list[Any] = []
        for (*target, _), vector in zip(texts, vectors, strict=True):
            params += [*target, _vector_parameter(store, vector)]
        statements.append((sql, params))
    return statements


def _embed(store: Any, texts: list[str]) -> list[list[float]]:
    loop = store_loop(store)
    vectors: list[list[float]]
    if loop is None:
        vectors = store.embeddings.embed_documents(texts)
    else:
        work = store.embeddings.aembed_documents(texts)
        vectors = run_coroutine_threadsafe(work, loop).result()
    return vectors


def _vector_parameter(store: Any, vector: list[float]) -> Any:
    if not _is_of(store, "sqlite"):
        return vector
    import sqlite_vec

    return sqlite_vec.serialize_float32(vector)


def _is_of(store: Any, dialect: str) -> bool:
    modules = (one.__module__ for one in type(store).__mro__)
    return any(module.startswith(f"langgraph.store.{dialect}") for module in modules)


def _query_row(store: Any, sql: str) -> tuple[str, str]:
    """Read one row of two columns on the store's own connection."""

    async def read() -> Any:
        async with ecosystem.store_cursor(store) as cursor:
            await cursor.execute(sql)
            return await cursor.fetchone()

    loop = store_loop(store)
    if loop is not None:
        row = run_coroutine_threadsafe(read(), loop).result(30)
    else:
        with ecosystem.store_cursor(store) as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
    first, second = row.values() if isinstance(row, dict) else row
    return str(first), str(second)
