"""What a reflection writes is kept back until it is over.

A reflector is given a `Door` in place of the store. While it runs, what it writes goes into a
`Draft`; what it reads is the store with the draft on top. Outside of a reflection the door leads to
the store itself: a reflector may keep it for as long as it likes, as LangMem's managers do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import uuid
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
)
from langgraph.store.base.embed import EmbeddingsLambda
from langgraph.store.memory import InMemoryStore

from perdure import langgraph_port

Place = tuple[tuple[str, ...], str]
Write = dict[str, Any]
"""One change of a store as plain data: namespace, key, value (None deletes), index, ttl; and what
was there before, None if nothing."""

_NAMESPACE = uuid.UUID("5f0f7c1e-64e5-5d6c-9f0e-6d656d6f7279")


class Draft:
    """The writes of one reflection.

    A new memory has a random key from LangMem. With `renames` it gets one made of the reflection's
    id and of what it says, so that a reflection that is run twice by whatever accident writes it
    once.
    """

    def __init__(self, store: BaseStore, reflection_id: str, *, renames: bool = False) -> None:
        self._store, self._id, self._renames = store, reflection_id, renames
        self.is_over = False
        self.failed: BaseException | None = None
        """What a write raised: LangMem's managers write in threads, and do not ask."""
        self._writes: dict[Place, PutOp] = {}
        self._before: dict[Place, Any] = {}
        self._fresh = InMemoryStore()
        self._keys: dict[Place, str] = {}
        self._writing = threading.Lock()

    @property
    def writes(self) -> list[Write]:
        ordered = sorted(self._writes.items(), key=lambda item: item[0])
        return [
            op._asdict() | {"namespace": list(op.namespace), "before": self._before[place]}
            for place, op in ordered
        ]

    def key(self, namespace: Iterable[str], key: str) -> str:
        """What became of the key a reflector wrote to."""
        return self._keys.get((tuple(namespace), key), key)

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        with self._writing:
            return [self._do(op) for op in ops]

    def _do(self, op: Op) -> Result:
        if isinstance(op, GetOp):
            return self._get(op)
        if isinstance(op, SearchOp):
            return self._search(op)
        if isinstance(op, PutOp):
            try:
                self._put(op)
            except BaseException as error:
                self.failed = self.failed or error
                raise
            return None
        return do(self._store, [op])[0]

    def _get(self, op: GetOp) -> Item | None:
        op = op._replace(key=self.key(op.namespace, op.key))
        inner: BaseStore = self._fresh if (op.namespace, op.key) in self._writes else self._store
        found = do(inner, [op])[0]
        return found if isinstance(found, Item) else None

    def _search(self, op: SearchOp) -> list[SearchItem]:
        end = op.offset + op.limit
        wider = op._replace(offset=0, limit=end + len(self._writes))
        stored: Any = do(self._store, [wider])[0]
        found = [item for item in stored if (item.namespace, item.key) not in self._writes]
        if self._writes:
            # Not by meaning, which only the store's index knows: all that match its filter.
            fresh: Any = self._fresh.batch([wider._replace(query=None)])[0]
            # A store gives the newest first, and the nearest.
            found = fresh + found if op.query is None else found + fresh
        return found[op.offset : end]

    def _put(self, op: PutOp) -> None:
        place = (op.namespace, self.key(op.namespace, op.key))
        if place not in self._writes:
            [found] = do(self._store, [GetOp(op.namespace, op.key)])
            before = found.value if isinstance(found, Item) else None
            if op.value is not None and before is None and self._renames and _is_random(op.key):
                place = (op.namespace, self._stable(op))
            self._before[place] = before
        op = op._replace(key=place[1])
        self._writes[place] = op
        self._fresh.batch([op._replace(ttl=None, index=False)])

    def _stable(self, op: PutOp) -> str:
        said = [self._id, *op.namespace, json.dumps(op.value, sort_keys=True, default=str)]
        while (
            op.namespace,
            found := str(uuid.uuid5(_NAMESPACE, json.dumps(said))),
        ) in self._writes:
            said.append("again")
        self._keys[op.namespace, op.key] = found
        return found


def _is_random(key: str) -> bool:
    try:
        return uuid.UUID(key).version == 4
    except ValueError:
        return False


_DRAFT: ContextVar[Draft | None] = ContextVar("perdure_draft", default=None)


@contextlib.contextmanager
def drafting(draft: Draft) -> Iterator[None]:
    token = _DRAFT.set(draft)
    try:
        yield
    finally:
        draft.is_over = True
        _DRAFT.reset(token)


def is_drafting() -> bool:
    """Whether this is called by a reflector."""
    return _DRAFT.get() is not None


class Door(BaseStore):
    """The store of an executor, as its reflector sees it: with its draft, from whatever thread; and
    if it is kept for longer, with the draft of whoever uses it then."""

    def __init__(self, store: BaseStore, draft: Draft | None = None) -> None:
        self.store, self._draft = store, draft

    @property
    def supports_ttl(self) -> bool:  # type: ignore[override]
        return self.store.supports_ttl

    @property
    def ttl_config(self) -> TTLConfig | None:  # type: ignore[override]
        return self.store.ttl_config

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        draft = self._draft
        if draft is None or draft.is_over:
            draft = _DRAFT.get()
        if draft is None:
            return do(self.store, ops)
        if draft.is_over:
            raise RuntimeError("The reflection that writes this is over: await what it starts.")
        return draft.batch(ops)

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        # A store with coroutines belongs to the loop it was made in; its plain methods go there.
        return await asyncio.to_thread(self.batch, list(ops))


def do(store: BaseStore, ops: Iterable[Op]) -> list[Result]:
    """A batch on a store, from a thread."""
    check_loop(store)
    embeddings = getattr(store, "embeddings", None)
    awaited = isinstance(embeddings, EmbeddingsLambda) and not hasattr(embeddings, "func")
    if awaited and langgraph_port.loop_of(store) is None:  # else its own loop sees to that
        return asyncio.run(store.abatch(ops))
    return store.batch(ops)


def check_loop(store: BaseStore) -> BaseStore:
    """Whether what a store runs on is still there: else a call would never return."""
    loop = langgraph_port.loop_of(store)
    if isinstance(loop, asyncio.AbstractEventLoop) and not loop.is_running():
        raise RuntimeError(
            f"{type(store).__name__} belongs to an event loop that is over: make the store in one "
            "that runs as long as the executor does, or use the store without coroutines."
        )
    return store
