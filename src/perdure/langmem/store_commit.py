"""Commit the staged writes of a reflection to the store, once.

Crash points of the node that does it, and what each leaves behind:

    before it                  the writes are in the checkpoint before it, which is the redo record
    store in the journal's     one transaction with the outcome of the effect: all writes or none
      database
    store elsewhere, intent    the store has all, some or none of the writes: each is checked again
    outcome recorded           done; nothing is written again

On every attempt a memory is written only where the store still has the value that the write was
based on: a later change by somebody else stays. Nothing is written if another reflection had the
turn in this namespace since; then the reflection is made again.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from asyncio import run_coroutine_threadsafe
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from perdure import transaction
from perdure.effects.decorator import Effect, perform
from perdure.journal import Journal, Op, Statement
from perdure.langgraph_port import neighbours
from perdure.langmem.staged_writes import StagedWrite, check_loop, run_batch

StoreStatement = tuple[str, Any]
"""SQL and its parameters, in the dialect of the store's database."""


class StoreCommitter:
    """Commits staged writes to one store, in the journal's transaction if it can."""

    def __init__(self, store: BaseStore, journal: Journal) -> None:
        self._store, self._journal = store, journal

    def commit(self, writes: list[StagedWrite], *, is_current: bool) -> bool:
        """Write what is missing; call it inside a node. With `is_current=False`, or when a recorded
        attempt was not current, nothing is written and the result is False."""
        if not writes:
            return True
        check_loop(self._store)
        if self.shares_database:
            statements = put_statements(self._store, missing_writes(self._store, writes))
            return bool(perform(_IN_TRANSACTION, (statements, is_current), {}))
        return bool(perform(_OUTSIDE_TRANSACTION, (writes, self._store, is_current), {}))

    @functools.cached_property
    def shares_database(self) -> bool:
        """Whether the tables of the store can be written in the journal's own transaction."""
        store, is_sqlite = self._store, _is_langgraph_store(self._store, "sqlite")
        if not self._journal.capabilities.interactive or not neighbours.can_write_queries(store):
            return False
        if is_sqlite:
            from perdure.journal.sqlite import FRAGMENTS
        elif _is_langgraph_store(store, "postgres"):
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
        identity = Op("identity", [Statement("identity", {})], lambda rows: rows[0][0][:2])
        ours = self._journal.do(identity)
        if is_sqlite:
            with contextlib.suppress(OSError):
                return bool(theirs[0]) and os.path.samefile(theirs[0], ours[0])
            return False
        return theirs == tuple(ours)


def _execute(statements: list[StoreStatement], is_current: bool) -> bool:
    if is_current:
        connection = transaction()
        for sql, params in statements:
            connection.execute(sql, params)
    return is_current


def _write(writes: list[StagedWrite], store: BaseStore, is_current: bool) -> bool:
    if is_current and (ops := missing_writes(store, writes)):
        run_batch(store, ops)
    return is_current


def _commit_effect(function: Callable[..., bool], **options: Any) -> Effect:
    """Make an effect that never records an exception as its outcome: the reflection is retried, and
    this call with it. It is safe to repeat."""
    made = Effect.of(function, name="memories", retry=None, **options)
    return replace(made, spec=replace(made.spec, keeps_errors=False))


# Journals hold the name of these effects, of this module, and of the recorded argument.
_IN_TRANSACTION = _commit_effect(_execute, transactional=True, record=())
_OUTSIDE_TRANSACTION = _commit_effect(_write, record=("writes",))


def missing_writes(store: BaseStore, writes: list[StagedWrite]) -> list[PutOp]:
    """Return the writes that are not in the store yet and still apply to what it has."""
    gets = [GetOp(tuple(write["namespace"]), write["key"]) for write in writes]
    ops = []
    for write, found in zip(writes, run_batch(store, gets), strict=True):
        value = found.value if isinstance(found, Item) else None
        if not _is_same_json(value, write["value"]) and _is_same_json(value, write["before"]):
            arguments = {name: write[name] for name in PutOp._fields}
            ops.append(PutOp(**{**arguments, "namespace": tuple(write["namespace"])}))
    return ops


def _is_same_json(one: Any, other: Any) -> bool:
    """Whether a store, which keeps JSON, would return the same for both."""
    return one == other or json.dumps(one, sort_keys=True, default=str) == json.dumps(
        other, sort_keys=True, default=str
    )


def put_statements(store: Any, ops: list[PutOp]) -> list[StoreStatement]:
    """Return the statements with which a LangGraph store writes these. Embeddings are computed
    here, before the transaction begins."""
    if not ops:
        return []
    statements, to_embed = neighbours.put_queries(store, ops)
    if to_embed:
        sql, texts = to_embed
        vectors = _embed(store, [text for *_, text in texts])
        params: list[Any] = []
        for (*target, _), vector in zip(texts, vectors, strict=True):
            params += [*target, _vector_parameter(store, vector)]
        statements.append((sql, params))
    return statements


def _embed(store: Any, texts: list[str]) -> list[list[float]]:
    loop = neighbours.store_loop(store)
    vectors: list[list[float]]
    if loop is None:
        vectors = store.embeddings.embed_documents(texts)
    else:
        work = store.embeddings.aembed_documents(texts)
        vectors = run_coroutine_threadsafe(work, loop).result()
    return vectors


def _vector_parameter(store: Any, vector: list[float]) -> Any:
    if not _is_langgraph_store(store, "sqlite"):
        return vector
    import sqlite_vec

    return sqlite_vec.serialize_float32(vector)


def _is_langgraph_store(store: Any, dialect: str) -> bool:
    modules = (one.__module__ for one in type(store).__mro__)
    return any(module.startswith(f"langgraph.store.{dialect}") for module in modules)


def _query_row(store: Any, sql: str) -> tuple[str, str]:
    """Read one row of two columns on the store's own connection."""

    async def read() -> Any:
        async with neighbours.store_cursor(store) as cursor:
            await cursor.execute(sql)
            return await cursor.fetchone()

    loop = neighbours.store_loop(store)
    if loop is not None:
        row = run_coroutine_threadsafe(read(), loop).result(30)
    else:
        with neighbours.store_cursor(store) as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
    first, second = row.values() if isinstance(row, dict) else row
    return str(first), str(second)
