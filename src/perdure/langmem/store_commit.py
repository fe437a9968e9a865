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

import functools
import json
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, PutOp

from perdure import stores, transaction
from perdure.langmem.staged_writes import StagedWrite, check_loop, run_batch
from perdure.runtime import Runtime


class StoreCommitter:
    """Commits staged writes to one store, in the journal's transaction if it can."""

    def __init__(self, store: BaseStore, runtime: Runtime) -> None:
        self._store, self._runtime = store, runtime

    def commit(self, writes: list[StagedWrite], *, is_current: bool) -> bool:
        """Write what is missing; call it inside a node. With `is_current=False`, or when a recorded
        attempt was not current, nothing is written and the result is False."""
        if not writes:
            return True
        check_loop(self._store)
        if self.shares_database:
            missing = missing_writes(self._store, writes)
            statements = stores.put_statements(self._store, missing)
            return bool(_in_transaction(statements, is_current))
        return bool(_outside_transaction(writes, self._store, is_current))

    @functools.cached_property
    def shares_database(self) -> bool:
        """Whether the tables of the store can be written in the journal's own transaction."""
        return stores.shares_database(self._store, self._runtime.journal)


def _execute(statements: list[stores.StoreStatement], is_current: bool) -> bool:
    if is_current:
        connection = transaction()
        for sql, params in statements:
            connection.execute(sql, params)
    return is_current


def _write(writes: list[StagedWrite], store: BaseStore, is_current: bool) -> bool:
    if is_current and (ops := missing_writes(store, writes)):
        run_batch(store, ops)
    return is_current


# Journals hold the name of these effects, of this module, and of the recorded argument.
_in_transaction = stores.repeatable(_execute, name="memories", transactional=True, record=())
_outside_transaction = stores.repeatable(_write, name="memories", record=("writes",))


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
