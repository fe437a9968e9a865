"""Pending reflections in a LangGraph store: for applications that have nothing else.

`persist` wraps LangMem's own executor: a record is in the store before `submit` returns, and gone
when its memories are written. A `BaseStore` has no compare-and-set and no transaction, so who works
on a record is agreed upon by writing one's name and looking again a moment later. That is enough
for processes that are not stopped in between; for more, a `ReflectionExecutor` takes the records
over into its journal, where the claim is one statement.

Crash points and what each leaves behind:

    before the record is written    nothing; nobody was told that it was accepted
    waiting, or reflecting          the record; nothing is written to the memories
    draft in the record             the redo record: what is missing of it is written, no more
    memories written                the same, and nothing is missing
    record deleted                  done
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import queue
import random
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.store.base import BaseStore, PutOp
from langmem.reflection import LocalReflectionExecutor

from perdure.codec import Codec
from perdure.errors import BadArgument
from perdure.langmem.draft import Door, Write
from perdure.langmem.executor import PAGE, RETRY, ReflectionExecutor
from perdure.langmem.memories import redo
from perdure.langmem.reflection import (
    UNSAID,
    Request,
    current_config,
    name_of,
    reflect_on,
    template_of,
)
from perdure.names import check_text
from perdure.presence import Presence
from perdure.reflections import Pending
from perdure.types import RunError, State, moment

ROOT = ("perdure", "reflections")
LEASE = 600.0
"""Seconds after its time that a record is its owner's, if nobody can see that he is dead."""
AGREE = (0.1, 0.3)
"""Seconds after which two who claim a record at once both see who was the last."""


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
    made_at: float = 0.0
    error: str | None = None
    """What it raised the last time."""

    @property
    def key(self) -> str:
        """Its place in the store. Until it is begun, that is the one of its conversation, where a
        later one takes it."""
        if self.begun or self.request.thread_id is None:
            return self.id
        told = json.dumps([*self.request.namespace, "", self.request.thread_id])
        return hashlib.blake2b(told.encode(), digest_size=16).hexdigest()

    @property
    def is_held(self) -> bool:
        return self.attempts >= RETRY.attempts

    def to_pending(self, name: str) -> Pending:
        return Pending(
            id=self.id,
            executor=name,
            namespace=self.request.namespace,
            thread_id=self.request.thread_id,
            state=State.HELD if self.is_held else State.PENDING,
            due_at=moment(round(self.due_at * 1000)),
            submitted_at=moment(round(self.submitted_at * 1000)),
            attempts=self.attempts,
            error=None if self.error is None else RunError("Error", self.error, ""),
            reason=self.error,
        )


class Records:
    """The pending reflections of one executor in a store."""

    def __init__(self, store: BaseStore, name: str) -> None:
        self.store, self._codec = store, Codec()
        self._place = (*ROOT, quote(name, safe="").replace(".", "%2E"))

    def put(self, one: Kept, *, instead_of: Kept | None = None) -> None:
        data = asdict(replace(one, request=replace(one.request, payload=None), writes=None))
        data |= {
            "payload": self._pack(one.request.payload, "the payload"),
            "writes": None if one.writes is None else self._pack(one.writes, "the writes"),
        }
        ops = [PutOp(self._place, one.key, data, index=False)]
        if instead_of is not None and instead_of.key != one.key:
            ops.append(PutOp(self._place, instead_of.key, None))
        self.store.batch(ops)

    def delete(self, one: Kept) -> None:
        self.store.batch([PutOp(self._place, one.key, None)])

    def get(self, key: str) -> Kept | None:
        found = self.store.get(self._place, key)
        return None if found is None else self._open(found.value)

    def all(self) -> list[Kept]:
        """Every record. Somebody else may work on them meanwhile, so that pages shift."""
        found: dict[str, Kept] = {}
        offset = 0
        while page := self.store.search(self._place, limit=PAGE, offset=offset):
            found |= {item.key: self._open(item.value) for item in page}
            offset += max(1, len(page) - 10)
            if len(page) < PAGE:
                break
        return sorted(found.values(), key=lambda one: (one.due_at, one.id))

    def _open(self, data: dict[str, Any]) -> Kept:
        data = dict(data)
        payload, writes = data.pop("payload"), data.pop("writes")
        request = data.pop("request") | {"payload": self._unpack(payload)}
        request |= {"namespace": tuple(request["namespace"]), "tags": tuple(request["tags"])}
        made = None if writes is None else self._unpack(writes)
        return Kept(request=Request(**request), writes=made, **data)

    def _pack(self, value: Any, path: str) -> str:
        return base64.b64encode(self._codec.encode(value, path)).decode()

    def _unpack(self, text: str) -> Any:
        return self._codec.decode(base64.b64decode(text), "a record of a reflection")


class Claims:
    """Who works on which record, as far as a store can say."""

    def __init__(self, records: Records, presence: Presence) -> None:
        self._records, self._presence = records, presence

    def is_free(self, one: Kept) -> bool:
        """Whether nobody who is alive works on a record."""
        return not one.owner or self._presence.is_dead(one.owner) or one.until < time.time()

    def take(self, wanted: list[Kept]) -> list[Kept]:
        """Those of them that are ours now."""
        mine = [self.of(one) for one in wanted]
        for one in mine:
            self._records.put(one)
        if mine:
            time.sleep(random.uniform(*AGREE))  # noqa: S311 (nothing secret)
        return [one for one in mine if self._records.get(one.key) == one]

    def of(self, one: Kept) -> Kept:
        until = max(time.time(), one.due_at) + LEASE
        return replace(one, owner=self._presence.id, until=until)


class Ticket(dict[str, Any]):
    """What LangMem's queue holds of a record. Its queue compares what is due at the same time."""

    def __lt__(self, other: Any) -> bool:
        return bool(self["reflection"] < other["reflection"])


class Instead(Runnable[Any, Any]):
    """What LangMem's thread calls in the place of the reflector."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._work = work

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        return self._work(input)


class Persisted:
    """LangMem's own executor, with its pending reflections in a store: what `persist` gives."""

    def __init__(
        self, executor: LocalReflectionExecutor, store: BaseStore, name: str | None
    ) -> None:
        self._executor, self._store = executor, store
        self._reflector, self._door = executor._reflector, Door(executor._store or store)
        self._template = template_of(self._reflector, None)
        self.name = check_text("name", name or name_of(self._reflector, self._template))
        self._records = Records(store, self.name)
        self._presence = Presence()
        self._presence.show()
        self._claims = Claims(self._records, self._presence)
        self._changing = threading.Lock()
        self._here: set[str] = set()
        """The ids of those that are in the queue of this process."""
        executor._reflector, executor._store = Instead(self._begin), self._door.store

    def submit(
        self,
        payload: dict[str, Any],
        /,
        config: Any = None,
        *,
        after_seconds: float = 0,
        thread_id: Any = UNSAID,
    ) -> Future[Any]:
        """As LangMem's, but a record is in the store before this returns."""
        config = config if config is not None else current_config() or {}
        request = Request.of(payload, config, self._template, thread_id)
        now = time.time()
        one = self._claims.of(Kept(uuid.uuid4().hex, request, now + after_seconds, now))
        with self._changing:
            self._records.put(one)
            return self._enqueue(one)

    def search(self, query: str | None = None, **options: Any) -> list[Any]:
        found: list[Any] = self._executor.search(query, **options)
        return found

    async def asearch(self, query: str | None = None, **options: Any) -> list[Any]:
        found: list[Any] = await self._executor.asearch(query, **options)
        return found

    def pending(self) -> list[Pending]:
        """Every record of this name."""
        return [one.to_pending(self.name) for one in self._records.all()]

    def resume(self) -> list[Pending]:
        """Take up what nobody works on; see `resume_pending_reflections`."""
        with self._changing:
            free = [
                one
                for one in self._records.all()
                if one.id not in self._here and not one.is_held and self._claims.is_free(one)
            ]
            taken = self._claims.take(free)
            for one in taken:
                self._enqueue(one)
        return [one.to_pending(self.name) for one in taken]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop working. What is not due yet is left in the store; with `cancel_futures` it is
        cancelled."""
        left = self._take_out(None if cancel_futures or not wait else time.time())
        for task in left:
            id = task.payload["reflection"]
            self._executor._pending_tasks.pop(task.thread_id, None)
            one = self._find(task.payload)
            if one is not None and cancel_futures:
                self._records.delete(one)
            elif one is not None:
                self._records.put(replace(one, owner=""))  # for whoever comes next
            task.future.cancel()
            self._here.discard(id)
        self._executor.shutdown(wait=wait)
        if not self._here:
            self._presence.hide()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # -- what LangMem's thread calls

    def _begin(self, ticket: dict[str, Any]) -> Any:
        """Work on one record, in the place of the reflector."""
        with self._changing:
            self._here.discard(ticket["reflection"])
            one = self._find(ticket)
            if one is None:
                return None  # a later one took its place, or it was cancelled
            begun = self._claims.of(replace(one, begun=True, attempts=one.attempts + 1))
            self._records.put(begun, instead_of=one)
        try:
            return self._work_on(begun)
        except Exception as error:
            self._records.put(replace(begun, owner="", error=f"{type(error).__name__}: {error}"))
            raise

    def _work_on(self, one: Kept) -> Any:
        result: Any = None
        if one.writes is None:
            reflecting = reflect_on(self._reflector, self._door, one.request, one.id)
            result, writes = asyncio.run(reflecting)
            one = replace(one, writes=writes, made_at=time.time())
            self._records.put(one)
        redo(self._door.store, one.writes or [], one.made_at)
        self._records.delete(one)
        return result

    # -- the queue

    def _enqueue(self, one: Kept) -> Future[Any]:
        self._here.add(one.id)
        after: Any = max(0.0, one.due_at - time.time())
        place = None if one.request.thread_id is None or one.begun else one.key
        future: Future[Any] = self._executor.submit(
            Ticket(reflection=one.id, key=one.key),
            {"configurable": {"reflection": one.id}},
            after_seconds=after,
            thread_id=place,
        )
        return future

    def _find(self, ticket: dict[str, Any]) -> Kept | None:
        one = self._records.get(ticket["key"])
        return one if one is not None and one.id == ticket["reflection"] else None

    def _take_out(self, due: float | None) -> list[Any]:
        """Take tasks out of LangMem's queue: all, or those that are not due."""
        tasks: list[tuple[float, Any]] = []
        with contextlib.suppress(queue.Empty):
            while True:
                tasks.append(self._executor._task_queue.get_nowait())
        for at, task in tasks:
            if due is not None and at <= due:
                self._executor._task_queue.put((at, task))
        return [task for at, task in tasks if due is None or at > due]


def persist(
    executor: LocalReflectionExecutor, store: BaseStore, *, name: str | None = None
) -> Persisted:
    """Let LangMem's own executor keep its pending reflections in a store you have.

    It takes the executor over: submit through what is returned. After a restart wrap a new one the
    same way, and call `resume_pending_reflections`.
    """
    if not isinstance(executor, LocalReflectionExecutor):
        raise BadArgument(f"persist() wraps LangMem's LocalReflectionExecutor, not {executor!r}.")
    if isinstance(executor._reflector, Instead):
        raise BadArgument("This executor is wrapped already: use what persist() gave then.")
    return Persisted(executor, store, name)


def resume_pending_reflections(
    executor: ReflectionExecutor | Persisted, store: BaseStore
) -> list[Pending]:
    """Take up reflections that were pending when a process ended, and give them.

    Overdue ones run at once, the others when they are due. Calling it twice, or from two
    processes, runs nothing twice.

    A `ReflectionExecutor` needs it only to be told its store, and to take over the records that
    `persist` left in a store: they become its own, in the journal.
    """
    if isinstance(executor, Persisted):
        if executor._store is not store:
            raise BadArgument("This executor was wrapped with another store: pass that one.")
        return executor.resume()
    if not isinstance(executor, ReflectionExecutor):
        raise BadArgument(
            f"{executor!r} keeps its reflections in memory: wrap it with persist(executor, store), "
            "or use perdure.langmem.ReflectionExecutor."
        )
    executor.use(store)
    _take_over(executor, store)
    found: list[Pending] = []
    while page := executor.pending(after=found[-1] if found else None):
        found += page
    return found


def _take_over(executor: ReflectionExecutor, store: BaseStore) -> None:
    records = Records(store, executor.name)
    claims = Claims(records, Presence())
    for one in records.all():
        if claims.is_free(one):
            executor.adopt(
                one.request,
                key=one.id,
                due_at=moment(round(one.due_at * 1000)),
                writes=one.writes,
                made_at=one.made_at,
            )
            records.delete(one)
