"""Bring what a reflection wrote into the store, once.

Crash points of the node that does it, and what each leaves behind:

    before it                  the writes are in the checkpoint before it, which is the redo record
    store in the journal's     one transaction with the outcome of the effect: all or nothing
      database
    store elsewhere, intent    the store has all, some or none of them: each is looked at again
    outcome recorded           done; nothing is written again

Whenever it is tried, a memory is written only where the store has what the draft was made of: what
somebody changed meanwhile stays as they made it. And not at all if another reflection had its turn
in this namespace since: then it is made anew.
"""

from __future__ import annotations

import asyncio
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
from perdure.effects.decorator import Made
from perdure.journal import Journal, Op, Statement
from perdure.langmem.draft import Write, check_loop, do
from perdure.types import Record

P = ParamSpec("P")
Query = tuple[str, Any]

IDENTITY: Op[tuple[str, str]] = Op(
    "identity", [Statement("identity", {})], lambda rows: (rows[0][0][0], rows[0][0][1])
)


class Memories:
    """A store, seen from the journal."""

    def __init__(self, store: BaseStore, journal: Journal) -> None:
        self.store, self._journal = store, journal
        self._together: bool | None = None

    def keep(self, writes: list[Write], is_current: bool) -> bool:
        """Inside of a node: write what is not written yet. False if nothing is written, as others
        wrote since this was made."""
        if not writes:
            return True
        check_loop(self.store)
        keeping = Keeping(self.store, is_current)
        if self.together:
            return keeping.in_transaction(queries(self.store, missing(self.store, writes)))
        return keeping.apart(writes)

    @property
    def together(self) -> bool:
        """Whether the store is in the journal's own database."""
        if self._together is None:
            self._together = is_same_database(self.store, self._journal)
        return self._together


def _kept(**options: Any) -> Callable[[Callable[P, bool]], Callable[P, bool]]:
    """An effect that has no exception as its outcome: the reflection is tried again, and this too,
    which may be done twice."""

    def decorate(function: Callable[P, bool]) -> Callable[P, bool]:
        made = Made.of(function, name="memories", retry=None, **options)
        made = replace(made, spec=replace(made.spec, keeps_errors=False))

        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> bool:
            return bool(made.call(args, kwargs))

        return call

    return decorate


class Keeping:
    """One try to write. The result says whether all is written."""

    def __init__(self, store: BaseStore, is_current: bool) -> None:
        self._store, self._is_current = store, is_current

    @_kept(transactional=True, record=Record(arguments=()))
    def in_transaction(self, made: list[Query]) -> bool:
        if self._is_current:
            connection = transaction()
            for sql, params in made:
                connection.execute(sql, params)
        return self._is_current

    @_kept()
    def apart(self, writes: list[Write]) -> bool:
        if self._is_current:
            redo(self._store, writes)
        return self._is_current


def redo(store: BaseStore, writes: list[Write]) -> None:
    """Write what is missing."""
    if ops := missing(store, writes):
        do(store, ops)


def missing(store: BaseStore, writes: list[Write]) -> list[PutOp]:
    """What is to be written: not what is there already, and nothing that was changed by others."""
    places = [GetOp(tuple(write["namespace"]), write["key"]) for write in writes]
    ops = []
    for write, found in zip(writes, do(store, places), strict=True):
        value = found.value if isinstance(found, Item) else None
        if not _is_same(value, write["value"]) and _is_same(value, write["before"]):
            told = {name: write[name] for name in PutOp._fields}
            ops.append(PutOp(**{**told, "namespace": tuple(write["namespace"])}))
    return ops


def _is_same(one: Any, other: Any) -> bool:
    """As a store would say, which keeps JSON."""
    return one == other or json.dumps(one, sort_keys=True, default=str) == json.dumps(
        other, sort_keys=True, default=str
    )


# -- the stores that come with LangGraph


def queries(store: Any, ops: list[PutOp]) -> list[Query]:
    """The statements with which a store of LangGraph would write this; vectors are made here,
    where no transaction waits for them."""
    if not ops:
        return []
    found: list[Query]
    found, embed = langgraph_port.put_queries(store, ops)
    if embed:
        sql, texts = embed
        vectors = _embedded(store, [text for *_, text in texts])
        params: list[Any] = []
        for (*place, _), vector in zip(texts, vectors, strict=True):
            params += [*place, _vector(store)(vector)]
        found.append((sql, params))
    return found


def _embedded(store: Any, texts: list[str]) -> list[list[float]]:
    loop: Any = langgraph_port.loop_of(store)
    if loop is None:
        found: list[list[float]] = store.embeddings.embed_documents(texts)
    else:
        embedding = store.embeddings.aembed_documents(texts)
        found = asyncio.run_coroutine_threadsafe(embedding, loop).result()
    return found


def _vector(store: Any) -> Callable[[list[float]], Any]:
    if _is_of("sqlite", store):
        import sqlite_vec

        serialized: Callable[[list[float]], Any] = sqlite_vec.serialize_float32
        return serialized
    return lambda vector: vector


def is_same_database(store: Any, journal: Journal) -> bool:
    """Whether the tables of a store can be written in the journal's own transaction."""
    if not langgraph_port.can_write_queries(store):
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
    except Exception:
        store.get(("perdure",), "")  # if it is closed, or in trouble, that says so
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
    loop = langgraph_port.loop_of(store)
    if loop is None:
        with langgraph_port.cursor_of(store) as cursor:
            cursor.execute(sql)
            return _row(cursor.fetchone())

    async def ask() -> tuple[str, str]:
        async with langgraph_port.cursor_of(store) as cursor:
            await cursor.execute(sql)
            return _row(await cursor.fetchone())

    return asyncio.run_coroutine_threadsafe(ask(), loop).result(30)


def _row(found: Any) -> tuple[str, str]:
    first, second = found.values() if isinstance(found, dict) else found
    return str(first), str(second)
