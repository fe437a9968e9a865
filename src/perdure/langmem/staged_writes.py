"""Hold back what a reflector writes until its reflection has ended.

A reflector gets a `StagingStore` in place of the store. While it runs, its writes go into
`StagedWrites`, and its reads see the store with the staged writes on top. Outside a reflection a
`StagingStore` passes everything to the store: LangMem's managers keep the one they first see.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Item, Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.base.embed import EmbeddingsLambda
from langgraph.store.memory import InMemoryStore

from perdure.errors import Unavailable
from perdure.langmem.langmem_port import is_generated_key
from perdure.stores import store_loop

ItemKey = tuple[tuple[str, ...], str]  # namespace and key of an item in a store
# One write as plain data: namespace, key, value (None deletes), index, ttl, and `before`, the value
# it was based on (None if there was no item).
StagedWrite = dict[str, Any]

_UUID_NAMESPACE = uuid.UUID("5f0f7c1e-64e5-5d6c-9f0e-6d656d6f7279")


class StoreCalls:
    """The calls of reflectors to the store: a context manager around each.

    A reflector's thread may outlive its executor. After `close` no call is in progress and none
    begins, so the application can close the store: Python crashes if a SQLite connection is closed
    during a call. `Unavailable` makes the runtime release the run without counting the attempt.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._threads: list[int] = []
        self._closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._closed:
                raise Unavailable(
                    "The executor of this reflection was shut down, so its store must not be used. "
                    "The next executor of the same name runs the reflection."
                )
            self._threads.append(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._threads.remove(threading.get_ident())
            self._changed.notify_all()

    def close(self, timeout: float = 5.0) -> None:
        """Refuse further calls, and wait for those that other threads have in progress."""
        own = {threading.get_ident()}
        with self._changed:
            self._closed = True
            if not self._changed.wait_for(lambda: own.issuperset(self._threads), timeout):
                logging.getLogger("perdure").warning(
                    "A reflector still uses the store after %g s; do not close it.", timeout
                )


def check_loop(store: BaseStore) -> None:
    """Raise if the event loop of an async store has stopped: a call would never return."""
    loop = store_loop(store)
    if isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running():
        raise RuntimeError(
            f"{type(store).__name__} belongs to an event loop that has stopped. Create the store "
            "in a loop that runs as long as the executor does, or use the blocking store."
        )


def run_batch(store: BaseStore, ops: Iterable[Op]) -> list[Result]:
    """Run a batch on a store, from a thread that is not its event loop's."""
    check_loop(store)
    embeddings = getattr(store, "embeddings", None)
    only_async = isinstance(embeddings, EmbeddingsLambda) and not hasattr(embeddings, "func")
    if only_async and store_loop(store) is None:
        return asyncio.run(store.abatch(ops))
    return store.batch(ops)


class StagedWrites:
    """The writes of one reflection.

    LangMem gives a new memory a random key. With `stable_keys` the key is derived from the
    reflection's id and the memory's content, so a reflection that runs twice writes it once.
    """

    def __init__(
        self, store: BaseStore, calls: StoreCalls, reflection_id: str, *, stable_keys: bool = False
    ) -> None:
        self._store, self._calls = store, calls
        self._id, self._stable_keys = reflection_id, stable_keys
        self.ended = False
        # The first error of a write: LangMem's managers write in threads and ignore errors.
        self.error: BaseException | None = None
        self._writes: dict[ItemKey, PutOp] = {}
        self._before: dict[ItemKey, Any] = {}
        self._overlay = InMemoryStore()
        self._new_keys: dict[ItemKey, str] = {}
        self._lock = threading.Lock()

    def to_list(self) -> list[StagedWrite]:
        """The writes as plain data, in the order of their keys."""
        ordered = sorted(self._writes.items(), key=lambda item: item[0])
        return [
            op._asdict() | {"namespace": list(op.namespace), "before": self._before[item_key]}
            for item_key, op in ordered
        ]

    def final_key(self, namespace: Iterable[str], key: str) -> str:
        """The key under which an item is stored that the reflector wrote under `key`."""
        return self._new_keys.get((tuple(namespace), key), key)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        with self._lock:
            return [self._run(op) for op in ops]

    def _run(self, op: Op) -> Result:
        try:
            with self._calls:
                if isinstance(op, PutOp):
                    self._put(op)
                    return None
                if isinstance(op, GetOp):
                    return self._get(op)
                if isinstance(op, SearchOp):
                    return self._search(op)
                return run_batch(self._store, [op])[0]
        except BaseException as error:
            if isinstance(op, PutOp):
                self.error = self.error or error
            raise

    def _get(self, op: GetOp) -> Item | None:
        op = op._replace(key=self.final_key(op.namespace, op.key))
        staged = (op.namespace, op.key) in self._writes
        found = run_batch(self._overlay if staged else self._store, [op])[0]
        return found if isinstance(found, Item) else None

    def _search(self, op: SearchOp) -> list[SearchItem]:
        end = op.offset + op.limit
        wider = op._replace(offset=0, limit=end + len(self._writes))
        stored: Any = run_batch(self._store, [wider])[0]
        found = [item for item in stored if (item.namespace, item.key) not in self._writes]
        if self._writes:
            # Only the store's index can rank by meaning: of the staged items, all that match the
            # filter are returned.
            staged: Any = self._overlay.batch([wider._replace(query=None)])[0]
            # A store returns the newest first, and with a query the nearest first.
            found = staged + found if op.query is None else found + staged
        return found[op.offset : end]

    def _put(self, op: PutOp) -> None:
        item_key = (op.namespace, self.final_key(op.namespace, op.key))
        if item_key not in self._writes:
            [found] = run_batch(self._store, [GetOp(op.namespace, op.key)])
            before = found.value if isinstance(found, Item) else None
            is_new = op.value is not None and before is None
            if is_new and self._stable_keys and is_generated_key(op.key):
                item_key = (op.namespace, self._stable_key(op))
            self._before[item_key] = before
        op = op._replace(key=item_key[1])
        self._writes[item_key] = op
        self._overlay.batch([op._replace(ttl=None, index=False)])

    def _stable_key(self, op: PutOp) -> str:
        content = [self._id, *op.namespace, json.dumps(op.value, sort_keys=True, default=str)]
        while (
            op.namespace,
            key := str(uuid.uuid5(_UUID_NAMESPACE, json.dumps(content))),
        ) in self._writes:
            content.append("again")
        self._new_keys[op.namespace, op.key] = key
        return key


_CURRENT: ContextVar[StagedWrites | None] = ContextVar("perdure_staged_writes", default=None)


@contextlib.contextmanager
def staging(writes: StagedWrites) -> Iterator[None]:
    """Stage the writes of every `StagingStore` used in this context."""
    token = _CURRENT.set(writes)
    try:
        yield
    finally:
        writes.ended = True
        _CURRENT.reset(token)


def in_reflector() -> bool:
    """Whether the caller is a reflector at work."""
    return _CURRENT.get() is not None


class StagingStore(BaseStore):
    """The store as a reflector sees it.

    It stages the writes of its own reflection, from any thread. A reflector that keeps it for
    longer stages the writes of the reflection in whose context it is used.
    """

    def __init__(self, store: BaseStore, writes: StagedWrites | None = None) -> None:
        self._store, self._writes = store, writes
        self.supports_ttl, self.ttl_config = store.supports_ttl, store.ttl_config

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        writes = self._writes
        if writes is None or writes.ended:
            writes = _CURRENT.get()
        if writes is None:
            return run_batch(self._store, ops)
        if writes.ended:
            raise RuntimeError(
                "The reflection has ended, so this write is refused: the reflector must await the "
                "tasks it starts."
            )
        return writes.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        # The blocking methods of an async store hand the work to the loop it was created in.
        return await asyncio.to_thread(self.batch, list(ops))
