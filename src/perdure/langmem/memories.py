"""Bring what a reflection wrote into the store, once.

Crash points of the node that does it, and what each leaves behind:

    before it                  the writes are in the checkpoint before it, which is the redo record
    store in the journal's     one transaction with the outcome of the effect: all or nothing
      database
    store elsewhere, intent    the store has all, some or none of them: each is looked at again,
                               and written if it is missing and nobody changed it since
    outcome recorded           done; nothing is written again
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from langgraph.store.base import BaseStore, PutOp

from perdure.effects.call import effect
from perdure.effects.inside import transaction
from perdure.journal import Journal, Op, Statement
from perdure.langmem.draft import Write, check_loop
from perdure.types import Done, Record

Query = tuple[str, Any]

IDENTITY: Op[tuple[str, str]] = Op(
    "identity", [Statement("identity", {})], lambda rows: (rows[0][0][0], rows[0][0][1])
)


class Memories:
    """A store, seen from the journal."""

    def __init__(self, store: BaseStore, journal: Journal) -> None:
        self.store, self._journal = store, journal
        self._together: bool | None = None

    def keep(self, writes: list[Write], made_at: float) -> None:
        """Inside of a node: write what is not written yet."""
        if not writes:
            return
        check_loop(self.store)
        if self.together:
            self._in_transaction(queries(self.store, writes))
        else:
            self._apart(writes, made_at)

    @property
    def together(self) -> bool:
        """Whether the store is in the journal's own database."""
        if self._together is None:
            self._together = is_same_database(self.store, self._journal)
        return self._together

    @effect(name="memories", transactional=True, record=Record(arguments=()))
    def _in_transaction(self, made: list[Query]) -> None:
        connection = transaction()
        for sql, params in made:
            connection.execute(sql, params)

    def _finish(self, writes: list[Write], made_at: float) -> Done:
        """Somebody was cut off while he wrote."""
        redo(self.store, writes, made_at)
        return Done()

    @effect(name="memories", verify=_finish)
    def _apart(self, writes: list[Write], made_at: float) -> None:
        self.store.batch([to_op(write) for write in writes])


def to_op(write: Write) -> PutOp:
    return PutOp(**{**write, "namespace": tuple(write["namespace"])})


def redo(store: BaseStore, writes: list[Write], made_at: float) -> None:
    """Write what is missing, but nothing that was changed after the writes were made."""
    missing = []
    for op in map(to_op, writes):
        found = store.get(op.namespace, op.key)
        if (None if found is None else found.value) == op.value:
            continue
        if found is not None and _aware(found.updated_at).timestamp() > made_at:
            continue
        missing.append(op)
    if missing:
        store.batch(missing)


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)


# -- the stores that come with LangGraph


def queries(store: Any, writes: list[Write]) -> list[Query]:
    """The statements with which a store of LangGraph would write this; vectors are made here,
    where no transaction waits for them."""
    made, embed = store._prepare_batch_PUT_queries(list(enumerate(map(to_op, writes))))
    found: list[Query] = list(made)
    if embed:
        sql, texts = embed
        vectors = store.embeddings.embed_documents([text for *_, text in texts])
        params: list[Any] = []
        for (*place, _), vector in zip(texts, vectors, strict=True):
            params += [*place, _vector(store)(vector)]
        found.append((sql, params))
    return found


def _vector(store: Any) -> Callable[[list[float]], Any]:
    if _is_of("sqlite", store):
        import sqlite_vec

        serialized: Callable[[list[float]], Any] = sqlite_vec.serialize_float32
        return serialized
    return lambda vector: vector


def is_same_database(store: Any, journal: Journal) -> bool:
    """Whether the tables of a store can be written in the journal's own transaction."""
    if not hasattr(store, "_prepare_batch_PUT_queries"):
        return False
    if _is_of("sqlite", store):
        from perdure.journal.sqlite import FRAGMENTS
    elif _is_of("postgres", store):
        try:
            from perdure.journal.postgres import FRAGMENTS
        except ImportError:
            return False
    else:
        return False
    try:
        theirs = _ask(store, FRAGMENTS["identity"])
    except Exception:  # it is closed, or in trouble: then its own methods shall say so
        return False
    ours = journal.do(IDENTITY)
    if _is_of("sqlite", store):
        with contextlib.suppress(OSError):
            return bool(theirs[0]) and os.path.samefile(theirs[0], ours[0])
        return False
    return theirs == ours


def _is_of(dialect: str, store: Any) -> bool:
    return any(
        one.__module__.startswith(f"langgraph.store.{dialect}") for one in type(store).__mro__
    )


def _ask(store: Any, sql: str) -> tuple[str, str]:
    """One row from a store's own connection."""
    loop = getattr(store, "_loop", None)
    if loop is None:
        with store._cursor() as cursor:
            cursor.execute(sql)
            return _row(cursor.fetchone())

    async def ask() -> tuple[str, str]:
        async with store._cursor() as cursor:
            await cursor.execute(sql)
            return _row(await cursor.fetchone())

    return asyncio.run_coroutine_threadsafe(ask(), loop).result(30)


def _row(found: Any) -> tuple[str, str]:
    first, second = found.values() if isinstance(found, dict) else found
    return str(first), str(second)
