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
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ParamSpec

from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from perdure import langgraph_port
from perdure.effects.context import transaction
from perdure.effects.decorator import Effect
from perdure.journal import Journal, Op, Statement
from perdure.langmem.staged_writes import StagedWrite
from perdure.langmem.store_access import check_loop, run_batch, run_on_loop
from perdure.types import Record

P = ParamSpec("P")
StoreStatement = tuple[str, Any]
"""SQL and its parameters, in the dialect of the store's database."""

IDENTITY: Op[tuple[str, str]] = Op(
    "identity", [Statement("identity", {})], lambda rows: (rows[0][0][0], rows[0][0][1])
)


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
        attempt = CommitAttempt(self._store, is_current)
        if self.shares_database:
            missing = missing_writes(self._store, writes)
            return attempt.in_transaction(put_statements(self._store, missing))
        return attempt.outside_transaction(writes)

    @functools.cached_property
    def shares_database(self) -> bool:
        """Whether the store is in the journal's own database."""
        return is_same_database(self._store, self._journal)


def _commit_effect(**options: Any) -> Callable[[Callable[P, bool]], Callable[P, bool]]:
    """Make an effect that never records an exception as its outcome: the reflection is retried, and
    this call with it. It is safe to repeat."""

    def decorate(function: Callable[P, bool]) -> Callable[P, bool]:
        made = Effect.of(function, name="memories", retry=None, **options)
        made = replace(made, spec=replace(made.spec, keeps_errors=False))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> bool:
            return bool(made.call(args, kwargs))

        return call

    return decorate


class CommitAttempt:
    """One attempt to commit. Each method returns whether the writes are in the store."""

    def __init__(self, store: BaseStore, is_current: bool) -> None:
        self._store, self._is_current = store, is_current

    @_commit_effect(transactional=True, record=Record(arguments=()))
    def in_transaction(self, statements: list[StoreStatement]) -> bool:
        if self._is_current:
            connection = transaction()
            for sql, params in statements:
                connection.execute(sql, params)
        return self._is_current

    @_commit_effect()
    def outside_transaction(self, writes: list[StagedWrite]) -> bool:
        if self._is_current and (ops := missing_writes(self._store, writes)):
            run_batch(self._store, ops)
        return self._is_current


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


# -- LangGraph's SQL stores


def put_statements(store: Any, ops: list[PutOp]) -> list[StoreStatement]:
    """Return the statements with which a LangGraph store writes these. Embeddings are computed
    here, before the transaction begins."""
    if not ops:
        return []
    statements, to_embed = langgraph_port.put_queries(store, ops)
    if to_embed:
        sql, texts = to_embed
        vectors = _embed(store, [text for *_, text in texts])
        params: list[Any] = []
        for (*target, _), vector in zip(texts, vectors, strict=True):
            params += [*target, _vector_parameter(store, vector)]
        statements.append((sql, params))
    return statements


def _embed(store: Any, texts: list[str]) -> list[list[float]]:
    loop = langgraph_port.loop_of(store)
    if loop is not None:
        return run_on_loop(loop, store.embeddings.aembed_documents(texts))
    vectors: list[list[float]] = store.embeddings.embed_documents(texts)
    return vectors


def _vector_parameter(store: Any, vector: list[float]) -> Any:
    if not _is_langgraph_store(store, "sqlite"):
        return vector
    import sqlite_vec

    return sqlite_vec.serialize_float32(vector)


def is_same_database(store: Any, journal: Journal) -> bool:
    """Whether the tables of a store can be written in the journal's own transaction."""
    if not langgraph_port.can_write_queries(store):
        return False
    if is_sqlite := _is_langgraph_store(store, "sqlite"):
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
    ours = journal.do(IDENTITY)
    if is_sqlite:
        with contextlib.suppress(OSError):
            return bool(theirs[0]) and os.path.samefile(theirs[0], ours[0])
        return False
    return theirs == ours


def _is_langgraph_store(store: Any, dialect: str) -> bool:
    modules = (one.__module__ for one in type(store).__mro__)
    return any(module.startswith(f"langgraph.store.{dialect}") for module in modules)


def _query_row(store: Any, sql: str) -> tuple[str, str]:
    """Read one row of two columns on the store's own connection."""

    async def read() -> Any:
        async with langgraph_port.cursor_of(store) as cursor:
            await cursor.execute(sql)
            return await cursor.fetchone()

    loop = langgraph_port.loop_of(store)
    if loop is not None:
        row = run_on_loop(loop, read(), 30)
    else:
        with langgraph_port.cursor_of(store) as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
    first, second = row.values() if isinstance(row, dict) else row
    return str(first), str(second)
