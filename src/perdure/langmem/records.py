"""Pending reflections as a LangGraph store holds them, and who works on which.

Each record has a key of its own, so nobody ever writes over somebody else's; beside them the store
says which is the latest of a conversation. A store has no compare-and-set, so who works on a record
is agreed upon by writing one's name, and looking again after `AGREE` seconds.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import quote

from langgraph.store.base import BaseStore, GetOp, Op, PutOp

from perdure.engine.liveness import ProcessLock
from perdure.errors import BadArgument
from perdure.langmem.draft import Write, check_loop
from perdure.langmem.executor import PAGE, RETRY
from perdure.langmem.reflection import Request
from perdure.operations.run_payload import UNREADABLE
from perdure.serde.codec import Codec
from perdure.service.reflections import Pending
from perdure.types import RunError, State, moment

log = logging.getLogger("perdure")

ROOT = ("perdure", "reflections")
LEASE = 600.0
"""Seconds after its time that a record is its owner's, if nobody can see that he is dead."""
AGREE = 0.3
"""Seconds after which all who claim a record at once see who was the last."""
ALL = 10_000
"""Records read in one search. Stores order them by when they changed, so that pages would shift."""


@dataclass(frozen=True)
class Kept:
    """A pending reflection as a store holds it."""

    id: str
    request: Request
    due_at: float
    submitted_at: float
    owner: str = ""
    """Who said last that he works on it."""
    until: float = 0.0
    begun: bool = False
    attempts: int = 0
    writes: list[Write] | None = None
    error: dict[str, str] | None = None
    """What it raised the last time."""

    @property
    def conversation(self) -> str | None:
        """Where a later one takes its place, until it is begun."""
        if self.request.thread_id is None:
            return None
        told = json.dumps([*self.request.namespace, "", self.request.thread_id])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    @property
    def is_held(self) -> bool:
        return self.attempts >= RETRY.attempts

    def to_pending(self, name: str, *, running: bool = False) -> Pending:
        resting = State.HELD if self.is_held else State.PENDING
        error = None if self.error is None else RunError(**self.error)
        return Pending(
            id=self.id,
            executor=name,
            namespace=self.request.namespace,
            thread_id=self.request.thread_id,
            state=State.RUNNING if running else resting,
            due_at=moment(round(self.due_at * 1000)),
            submitted_at=moment(round(self.submitted_at * 1000)),
            attempts=self.attempts,
            error=error,
            reason=str(error) if error is not None and resting is State.HELD else None,
        )


class Records:
    """The pending reflections of one executor in a store."""

    def __init__(self, store: BaseStore, name: str) -> None:
        self._store, self._codec = store, Codec()
        place = (*ROOT, quote(name, safe="").replace(".", "%2E"))
        self._pending, self._latest = (*place, "pending"), (*place, "latest")

    def add(self, one: Kept) -> Kept | None:
        """Keep a new one. Gives the one whose place it takes."""
        before: Kept | None = None
        ops = [self._to_op(one)]
        if one.conversation is not None:
            known = self._latest_of(one)
            before = self.get(known["id"]) if known else None
            latest = {"id": one.id, "submitted_at": one.submitted_at}
            ops.append(PutOp(self._latest, one.conversation, latest, index=False))
            if before is not None and before.begun:
                before = None
            if before is not None:
                ops.append(PutOp(self._pending, before.id, None))
        self._do(ops)
        return before

    def is_superseded(self, one: Kept) -> bool:
        """Whether a later one of its conversation is there: two processes accepted one at once."""
        latest = {} if one.begun else self._latest_of(one)
        other = latest.get("id", one.id) != one.id
        return other and bool(latest["submitted_at"] >= one.submitted_at)

    def put(self, *changed: Kept) -> None:
        for at in range(0, len(changed), PAGE):
            self._do(map(self._to_op, changed[at : at + PAGE]))

    def delete(self, one: Kept) -> None:
        ops = [PutOp(self._pending, one.id, None)]
        if one.conversation is not None and self._latest_of(one).get("id") == one.id:
            ops.append(PutOp(self._latest, one.conversation, None))
        self._do(ops)

    def get(self, id: str) -> Kept | None:
        return next(iter(self.get_all([id])), None)

    def get_all(self, ids: Sequence[str]) -> list[Kept]:
        found: list[Any] = []
        for at in range(0, len(ids), PAGE):
            found += self._do(GetOp(self._pending, id) for id in ids[at : at + PAGE])
        return [self._open(item.value) for item in found if item is not None]

    def all(self) -> list[Kept]:
        """Every record, the first that is due first."""
        found: dict[str, Kept] = {}
        offset = 0
        while page := self._read(offset):
            for item in page:
                if tuple(item.namespace) == self._pending and (one := self._try_to_open(item)):
                    found[one.id] = one
            offset += len(page)
        return sorted(found.values(), key=lambda one: (one.due_at, one.submitted_at, one.id))

    def _read(self, offset: int) -> list[Any]:
        self._check()
        found: list[Any] = self._store.search(self._pending, limit=ALL, offset=offset)
        return found

    def _latest_of(self, one: Kept) -> dict[str, Any]:
        if one.conversation is None:
            return {}
        [found] = self._do([GetOp(self._latest, one.conversation)])
        return {} if found is None else found.value

    def _do(self, ops: Iterable[Op]) -> list[Any]:
        self._check()
        made = list(ops)
        return self._store.batch(made) if made else []

    def _check(self) -> None:
        loop = getattr(check_loop(self._store), "_loop", None)
        with contextlib.suppress(RuntimeError):
            if loop is not None and asyncio.get_running_loop() is loop:
                raise BadArgument(
                    f"{type(self._store).__name__} would wait for the event loop this is called "
                    "in. Call it in a thread: await asyncio.to_thread(executor.submit, ...)."
                )

    def _to_op(self, one: Kept) -> PutOp:
        # Packed, because each store has its own idea of what JSON can say.
        data = asdict(replace(one, writes=None)) | {
            "request": self._pack(dict(vars(one.request)), "the request"),
            "writes": None if one.writes is None else self._pack(one.writes, "the writes"),
        }
        return PutOp(self._pending, one.id, data, index=False)

    def _open(self, data: dict[str, Any]) -> Kept:
        request = Request(**self._unpack(data["request"]))
        writes = None if data["writes"] is None else self._unpack(data["writes"])
        return Kept(**{**data, "request": request, "writes": writes})

    def _try_to_open(self, item: Any) -> Kept | None:
        try:
            return self._open(item.value)
        except (*UNREADABLE, LookupError, TypeError, ValueError) as error:
            # The others can still be done, and who can read it may come.
            log.warning("The record %s of a reflection cannot be read: %s", item.key, error)
            return None

    def _pack(self, value: Any, path: str) -> str:
        return base64.b64encode(self._codec.encode(value, path)).decode()

    def _unpack(self, text: str) -> Any:
        return self._codec.decode(base64.b64decode(text), "a record of a reflection")


class Claims:
    """Who works on which record, as far as a store can say."""

    def __init__(self, records: Records, presence: ProcessLock) -> None:
        self._records, self._presence = records, presence

    def is_mine(self, one: Kept) -> bool:
        return one.owner == self._presence.id

    def is_free(self, one: Kept) -> bool:
        """Whether nobody who is alive works on a record; our own we know ourselves."""
        if not one.owner or self.is_mine(one):
            return True
        return self._presence.is_dead(one.owner) or one.until < time.time()

    def take(self, wanted: list[Kept]) -> list[Kept]:
        """Those of them that are ours now."""
        mine: list[str] = []
        for at in range(0, len(wanted), PAGE):
            ids = [one.id for one in wanted[at : at + PAGE]]
            claimed = [self.of(one) for one in self._records.get_all(ids) if self.is_free(one)]
            self._records.put(*claimed)
            mine += [one.id for one in claimed]
        if not mine:
            return []
        time.sleep(AGREE)
        return [one for one in self._records.get_all(mine) if self.is_mine(one)]

    def of(self, one: Kept) -> Kept:
        until = max(time.time(), one.due_at) + LEASE
        return replace(one, owner=self._presence.id, until=until)
