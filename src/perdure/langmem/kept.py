"""Pending reflections in a LangGraph store: for applications that have nothing else.

`persist` wraps LangMem's own executor: a record is in the store before `submit` returns, and gone
when its memories are written.

What a store alone cannot promise: it has no compare-and-set. A process that stands still for longer
than two need to agree on a record (`records.py`), just between reading it and writing its name, may
ask the model a second time for what another one is working on. Who is about to keep what a model
said looks again, and drops it if the record is not his any more. For more than that, a
`ReflectionExecutor` takes the records over into its journal, where accepting one is one statement.

Crash points and what each leaves behind:

    before the record is written    nothing; nobody was told that it was accepted
    waiting, or reflecting          the record; nothing is written to the memories
    draft in the record             the redo record: what is missing of it is written, no more
    memories written                the same, and nothing is missing
    record deleted                  done
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import heapq
import itertools
import logging
import math
import queue
import threading
import time
import uuid
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.store.base import BaseStore
from langmem.knowledge.extraction import MemoryStoreManager
from langmem.reflection import LocalReflectionExecutor

from perdure.engine.liveness import ProcessLock
from perdure.errors import BadArgument, Closed, NotFound, ReflectionLeft
from perdure.journal.names import check_text
from perdure.langmem.executor import ReflectionExecutor
from perdure.langmem.memories import redo
from perdure.langmem.records import Claims, Kept, Records
from perdure.langmem.reflection import (
    UNSAID,
    Request,
    check_delay,
    current_config,
    name_of,
    reflect_on,
    template_of,
)
from perdure.operations.error_text import describe_error
from perdure.service.reflections import Pending
from perdure.types import moment

log = logging.getLogger("perdure")


@dataclass(frozen=True)
class Ticket:
    """What LangMem's queue holds of a record."""

    id: str


class Due(queue.PriorityQueue[Any]):
    """LangMem's queue, which gives nothing before its time, and nothing that was cancelled. When
    the process comes to its end, it is the one who notices."""

    def __init__(self, at_exit: Callable[[], None]) -> None:
        super().__init__()
        self._at_exit, self._closed, self._number = at_exit, False, itertools.count()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not threading.main_thread().is_alive():
            self._at_exit()
        end = time.monotonic() + (timeout or 0.0)
        with self.not_empty:
            while not self._closed:
                until_due = self._until_due()
                if until_due <= 0.0:
                    return self._get()
                left = end - time.monotonic()
                if left <= 0.0:
                    break
                self.not_empty.wait(min(left, until_due))
        raise queue.Empty

    def empty(self) -> bool:
        """Whether nothing is due."""
        with self.mutex:
            return self._closed or self._until_due() > 0.0

    def take_out(self, after: float) -> list[Any]:
        """Remove the tasks whose time is after that."""
        with self.mutex:
            found = [task for at, _, task in self.queue if at > after]
            self.queue[:] = [entry for entry in self.queue if entry[0] <= after]
            heapq.heapify(self.queue)
        return found

    def close(self) -> None:
        with self.mutex:
            self._closed = True
            self.not_empty.notify_all()

    def _until_due(self) -> float:
        while self.queue and self.queue[0][2].future.cancelled():
            self._get()
        return self.queue[0][0] - time.time() if self.queue else math.inf

    def _put(self, item: Any) -> None:
        at, task = item
        heapq.heappush(self.queue, (at, next(self._number), task))

    def _get(self) -> Any:
        at, _, task = heapq.heappop(self.queue)
        return at, task


class Instead(Runnable[Any, Any]):
    """What LangMem's thread calls in the place of the reflector."""

    def __init__(self, reflector: Runnable[Any, Any], begin: Callable[[str], Any]) -> None:
        self._reflector, self._begin = reflector, begin

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        if isinstance(input, Ticket):
            return self._begin(input.id)
        return self._reflector.invoke(input)  # submitted to LangMem's executor itself


class Persisted:
    """LangMem's own executor, with its pending reflections in a store: what `persist` gives."""

    def __init__(
        self, executor: LocalReflectionExecutor, store: BaseStore, name: str | None
    ) -> None:
        self._executor, self._store = executor, store
        self._reflector = executor._reflector
        self._template = template_of(self._reflector, None)
        self.name = check_text("name", name or name_of(self._reflector, self._template))
        self._records = Records(store, self.name)
        self._presence = ProcessLock()
        self._claims = Claims(self._records, self._presence)
        self._changing, self._resuming = threading.RLock(), threading.Lock()
        self._here: dict[str, Future[Any]] = {}
        """By the id of a reflection: what this process has to do."""
        self._closed = False
        memories = executor._store
        if memories is None and isinstance(self._reflector, MemoryStoreManager):
            memories = self._reflector._store
        self._memories: BaseStore = store if memories is None else memories
        self._presence.acquire()
        self._take_executor_over()

    def __repr__(self) -> str:
        return f"<perdure.langmem.Persisted {self.name!r} in {type(self._store).__name__}>"

    def submit(
        self,
        payload: dict[str, Any],
        /,
        config: Any = None,
        *,
        after_seconds: float = 0,
        thread_id: Any = UNSAID,
    ) -> Future[Any]:
        """As LangMem's, but a record is in the store before this returns. To cancel the future
        deletes it."""
        config = config if config is not None else current_config() or {}
        check_delay(after_seconds)
        request = Request.of(payload, config, self._template, thread_id)
        now = time.time()
        one = self._claims.of(Kept(uuid.uuid4().hex, request, now + after_seconds, now))
        with self._changing:
            self._check_open()
            before = self._records.add(one)
            future = self._enqueue(one)
            earlier = None if before is None else self._here.pop(before.id, None)
        if earlier is not None:
            earlier.cancel()
        return future

    def search(self, query: str | None = None, **options: Any) -> list[Any]:
        found: list[Any] = self._executor.search(query, **options)
        return found

    async def asearch(self, query: str | None = None, **options: Any) -> list[Any]:
        found: list[Any] = await self._executor.asearch(query, **options)
        return found

    def pending(self) -> list[Pending]:
        """Every record of this name, the first that is due first."""
        return [
            one.to_pending(self.name, running=one.begun and self._is_taken(one))
            for one in self._records.all()
        ]

    def resume(self) -> list[Pending]:
        """Take up what nobody works on; see `resume_pending_reflections`."""
        with self._resuming:
            self._check_open()
            found = self._records.all()
            with self._changing:
                free = [one for one in found if not (one.is_held or self._is_taken(one))]
            taken = self._claims.take(free)
            with self._changing:
                if self._closed:
                    self._records.put(*(replace(one, owner="") for one in taken))
                    self._check_open()
                for one in taken:
                    self._enqueue(one)
        return [one.to_pending(self.name) for one in taken]

    def retry(self, id: str) -> None:
        """Let one that is held be tried again, by the next `resume`."""
        one = self._existing(id)
        if one.is_held:
            self._records.put(replace(one, attempts=0))

    def cancel(self, id: str) -> None:
        """Delete a record. If it is being worked on, nothing of that is written."""
        one = self._existing(id)
        future = self._here.get(id)
        if future is None or not future.cancel():
            self._records.delete(one)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop working. What is not due yet is left in the store, and so is, without `wait`, what
        is due; with `cancel_futures` all that is not begun is cancelled."""
        with self._changing:
            self._closed = True
        due = time.time() if wait and not cancel_futures else 0.0
        waiting = self._queue.take_out(due)
        if cancel_futures:
            for task in waiting:
                task.future.cancel()
        else:
            self._leave(waiting)
        worker = self._executor._worker
        wait = wait and worker is not threading.current_thread()
        while wait and worker.is_alive() and (waited := list(self._here.values())):
            concurrent.futures.wait(waited, timeout=1.0)
        self._queue.close()
        self._executor.shutdown(wait=False)
        if wait:
            worker.join()
        if not self._here:
            self._presence.release()

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

    def _begin(self, id: str) -> Any:
        """Work on one record, in the place of the reflector."""
        with self._changing:
            one = self._mine(id)
            if one is None:
                return None  # a later one took its place, it was cancelled, or another has it
            if self._records.is_superseded(one):
                self._records.delete(one)
                return None
            begun = self._claims.of(replace(one, begun=True, attempts=one.attempts + 1))
            self._records.put(begun)
        try:
            return self._work_on(begun)
        except Exception as error:
            self._give_back(id, error)
            raise

    def _work_on(self, one: Kept) -> Any:
        result: Any = None
        if one.writes is None:
            result, writes = reflect_on(self._reflector, self._memories, one.request, one.id)
            with self._changing:
                if self._mine(one.id) is None:
                    log.warning("Reflection %s is not ours any more: nothing is written.", one.id)
                    return None
                one = self._claims.of(replace(one, writes=writes))
                self._records.put(one)
        redo(self._memories, one.writes or [])
        self._records.delete(one)
        return result

    def _give_back(self, id: str, error: Exception) -> None:
        """Let somebody else try, or us later."""
        with self._changing:
            one = self._mine(id)
            if one is not None:
                self._records.put(replace(one, owner="", error=describe_error(error)))
        log.warning("Reflection %s of %r failed: %r", id, self.name, error)

    # -- the queue

    def _take_executor_over(self) -> None:
        executor, waiting = self._executor, self._executor._task_queue
        self._queue = Due(self._exit)
        executor._task_queue = self._queue
        executor._reflector = Instead(self._reflector, self._begin)
        executor._store = self._memories
        nothing: Future[Any] = Future()
        nothing.cancel()
        # Its thread waits at the queue it had: it skips what is cancelled, and comes to ours.
        waiting.put((0.0, SimpleNamespace(future=nothing, thread_id=None)))

    def _enqueue(self, one: Kept) -> Future[Any]:
        after: Any = max(0.0, one.due_at - time.time())
        # Without the thread: who takes whose place is decided by the records.
        future: Future[Any] = self._executor.submit(
            Ticket(one.id), {"tags": ["perdure"]}, after_seconds=after, thread_id=None
        )
        self._here[one.id] = future
        future.add_done_callback(functools.partial(self._over, one))
        return future

    def _over(self, one: Kept, future: Future[Any]) -> None:
        with self._changing:
            known = self._here.pop(one.id, None)
            if known is not None and future.cancelled():
                self._records.delete(one)

    def _leave(self, tasks: list[Any]) -> None:
        """Leave records for whoever comes next."""
        left = {t.payload.id: t.future for t in tasks if isinstance(t.payload, Ticket)}
        with self._changing:
            kept = self._records.get_all(list(left))
            self._records.put(
                *(replace(one, owner="") for one in kept if self._claims.is_mine(one))
            )
        for id, future in left.items():
            with contextlib.suppress(concurrent.futures.InvalidStateError):  # it was cancelled
                future.set_exception(ReflectionLeft(id, self.name))

    def _exit(self) -> None:
        """The process ends, and nobody called `shutdown`: its thread must not keep it from that."""
        with contextlib.suppress(Exception):  # the store may be closed; then others see us dead
            self.shutdown(wait=False)
        self._queue.close()
        self._executor.shutdown(wait=False)

    # -- records

    def _mine(self, id: str) -> Kept | None:
        one = self._records.get(id)
        return one if one is not None and self._claims.is_mine(one) else None

    def _existing(self, id: str) -> Kept:
        one = self._records.get(id)
        if one is None:
            raise NotFound("reflection", id)
        return one

    def _is_taken(self, one: Kept) -> bool:
        return one.id in self._here or not self._claims.is_free(one)

    def _check_open(self) -> None:
        # Its thread is over too if LangMem's own executor was shut down, or the process forked.
        if self._closed or not self._executor._worker.is_alive():
            raise Closed(f"The executor {self.name!r} was shut down; make a new one.")


def persist(
    executor: LocalReflectionExecutor, store: BaseStore, *, name: str | None = None
) -> Persisted:
    """Let LangMem's own executor keep its pending reflections in a store you have.

    It takes the executor over: submit through what is returned. After a restart wrap a new one the
    same way, and call `resume_pending_reflections`.
    """
    if not isinstance(executor, LocalReflectionExecutor):
        raise BadArgument(
            f"persist() wraps LangMem's LocalReflectionExecutor, not {executor!r}: make one with "
            "langmem.ReflectionExecutor(manager, store=store)."
        )
    if not isinstance(store, BaseStore):
        raise BadArgument(f"persist() keeps records in a LangGraph BaseStore, not in {store!r}.")
    if isinstance(executor._reflector, Instead):
        raise BadArgument("This executor is wrapped already: use what persist() gave then.")
    if not executor._worker_running:
        raise BadArgument("This executor was shut down: wrap a new one.")
    if executor._pending_tasks or not executor._task_queue.empty():
        raise BadArgument(
            "This executor has reflections pending that are in no store: wrap it before the first "
            "submit."
        )
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
    """Also those that are held: the journal holds them again if need be, and can retry them."""
    records, presence = Records(store, executor.name), ProcessLock()
    claims = Claims(records, presence)
    free = [one for one in records.all() if claims.is_free(one)]
    if not free:
        return
    presence.acquire()
    taken = sorted(claims.take(free), key=lambda one: (one.submitted_at, one.id))
    try:
        while taken:
            one = taken[0]
            if not records.is_superseded(one):
                executor.adopt(
                    one.request,
                    key=one.id,
                    due_at=moment(round(one.due_at * 1000)),
                    writes=one.writes,
                )
            records.delete(one)
            taken.pop(0)
    finally:
        records.put(*(replace(one, owner="") for one in taken))
        presence.release()
