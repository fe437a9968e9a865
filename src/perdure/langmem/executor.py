"""`ReflectionExecutor`: LangMem's executor with its queue in a journal.

A reflection is a run of the graph in `reflection_graph.py`. Which earlier reflection a new one
replaces is decided in `reflector.py`. A crash in `submit` leaves nothing, or, after
its commit, a run with its due time; the run it replaces is cancelled in the same batch. A crash
later leaves what any run leaves: a lease that expires, a checkpoint, an effect that settles.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import hashlib
import logging
import threading
import weakref
from datetime import timedelta
from typing import Any, cast

from langgraph.store.base import BaseStore

from perdure import effect
from perdure import key as effect_key
from perdure.commands import reflections
from perdure.commands.reflections import Pending, accept
from perdure.context_managed import ContextManaged
from perdure.errors import BadArgument, Closed, Error, NotFound, Unavailable, WrongState
from perdure.langmem.background_worker import BackgroundWorker, Reflection
from perdure.langmem.langmem_port import labels_of, variables_of
from perdure.langmem.reflection_graph import LONGEST_PAUSE, ReflectionGraph
from perdure.langmem.reflector import (
    FROM_CONFIG,
    Namespace,
    ReflectionRequest,
    check_delay,
    current_config,
    resolve_namespace,
)
from perdure.langmem.staged_writes import StagingStore, in_reflector
from perdure.runtime import Runtime
from perdure.stores import store_in, store_loop
from perdure.types import Retry, State
from perdure.verbs import check_limit

RETRY = Retry(attempts=5, first=timedelta(seconds=2), longest=timedelta(minutes=10))
PAGE = 100
log = logging.getLogger("perdure")


class ReflectionExecutor(ContextManaged):
    """Runs LangMem's background reflections so that they survive the process.

    It replaces LangMem's executor. Each reflection is a run in the journal: on disk when `submit`
    returns, and resumed by the next process. An executor created with a store resumes pending
    reflections automatically. While a reflector runs, its writes to the store are staged; they are
    applied when it has ended. If store and journal share a database, the memories and the record
    of the write are one transaction.

        executor = ReflectionExecutor(manager, store=store)
        executor.submit({"messages": messages}, config, after_seconds=1800)

    Executors with the same name share their reflections, in any number of processes; each
    reflection is run by one of them. Within a namespace, one reflection runs at a time. Create
    the executor after a fork, not before.

    Args:
        reflector: The result of `create_memory_store_manager()`, a Runnable, a graph, an object
            with an `invoke` method, or a function; any of them may be async. Or the name of one: a
            graph of the `Runtime`, or `"module:name"`, looked up when a reflection begins.
        namespace: Where it writes, as text or a tuple of texts, with variables such as
            `"{user_id}"` that `submit` fills from `config["configurable"]`. By default the
            reflector's.
        store: The LangGraph store of the memories. By default the reflector's, or that of the first
            graph that submits. Until it has one, nothing starts.
        journal: A URL, or a `Runtime`, which `shutdown` does not close. By default the value of
            `PERDURE_URL`.
        name: The name of the executor, the same in every process that shares its work. By default
            it is derived from the reflector and the namespace. Use different names for different
            work.
        retry: How often a reflection that raised is tried; then it is held. By default 5 attempts,
            after pauses of 2, 4, 8 and 16 seconds.
        timeout: Limit for one attempt.
        concurrency: How many reflections run at once in this process.

    Raises:
        BadArgument: An argument is not valid.
    """

    def __init__(
        self,
        reflector: Any,
        namespace: str | Namespace | None = None,
        /,
        *,
        store: BaseStore | None = None,
        journal: str | Runtime | None = None,
        name: str | None = None,
        retry: Retry | None = None,
        timeout: timedelta = timedelta(minutes=10),
        concurrency: int = 1,
    ) -> None:
        if concurrency < 1:
            raise BadArgument(f"concurrency={concurrency} must be at least 1.")
        self._concurrency = concurrency
        self._owns_runtime = not isinstance(journal, Runtime)
        self._runtime = journal if isinstance(journal, Runtime) else Runtime(journal)
        self._graph = ReflectionGraph(reflector, namespace, self._runtime, name)
        self.name = self._graph.executor
        options: Any = {"retry": retry or RETRY, "timeout": timeout, "hold": True}
        self._runtime.register(self._graph.build(), self._graph.name, **options)
        self._runtime.saver.setup()
        self._lock = threading.RLock()
        self._closed = False
        self._worker: BackgroundWorker | None = None
        store = store if store is not None else self._graph.store_of_reflector()
        if store is not None:  # else it comes later, from `use` or the first submit
            self.use(store)
        atexit.register(_leave_at_exit, weakref.ref(self))

    def __repr__(self) -> str:
        return f"<perdure.langmem.ReflectionExecutor {self.name!r} at {self._runtime.url}>"

    # -- the methods of LangMem's executor

    def submit(
        self,
        payload: dict[str, Any],
        /,
        config: Any = None,
        *,
        after_seconds: float = 0,
        thread_id: Any = FROM_CONFIG,
    ) -> Reflection:
        """Accept a reflection. When this returns, it is on disk.

        A later reflection of the same conversation and namespace replaces it, in one transaction,
        unless it has begun. So submit the whole conversation, not only its last message. A node
        that runs again after a crash submits once.

            executor.submit({"messages": messages}, after_seconds=1800)

        Strings, numbers and booleans in the config's `configurable` and `metadata` are stored,
        and so are its tags. Keys that begin with `__`, and keys named like a secret, are left out.

        Args:
            payload: What the reflector is called with: messages, or other data that can be stored.
            config: The config with the variables of the namespace. In a node, by default that of
                the node.
            after_seconds: Delay in seconds, by the wall clock: a reflection that becomes due while
                no process is running starts at the next start-up.
            thread_id: The conversation. By default the `thread_id` of the config. `None`: it
                belongs to no conversation, and nothing replaces it.

        Returns:
            A future for the result, whichever process runs it. You do not have to keep it.

        Raises:
            BadArgument: A variable of the namespace is missing in the config, or an argument is not
                valid.
            Unserializable: The payload cannot be stored.
            Closed: The executor was shut down.
        """
        config = config or current_config() or {}
        self._check_open()
        check_delay(after_seconds)
        self._graph.check_payload(payload)
        if self._graph.store is None:
            store = store_in(config)
            self.use(self._graph.required_store() if store is None else store)
        request = ReflectionRequest.of(payload, config, self._graph.template, thread_id)
        shared_thread = "" if request.thread_id is None else request.thread(self.name)
        id = self._accept(shared_thread, request, float(after_seconds))
        return self._future(id, shared_thread, after_seconds)

    def search(
        self,
        query: str | None = None,
        *,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        namespace: str | Namespace | None = None,
    ) -> list[dict[str, Any]]:
        """Search the memories in the store.

        Args:
            query: What to search for, if the store has an index.
            filter: Keys and values that a memory must have.
            limit: Maximum number of memories.
            offset: How many to skip.
            namespace: Where to search. In a node, by default the executor's namespace, filled from
                the config of the node.

        Returns:
            The memories as dicts, as LangMem's executor returns them.

        Raises:
            BadArgument: The namespace has variables, and no config fills them.
        """
        store, where = self._graph.required_store(), self._search_namespace(namespace)
        found = store.search(where, query=query, filter=filter, limit=limit, offset=offset)
        return [item.dict() for item in found]

    async def asearch(
        self,
        query: str | None = None,
        *,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        namespace: str | Namespace | None = None,
    ) -> list[dict[str, Any]]:
        """`search`, without blocking the event loop."""
        store = StagingStore(self._graph.required_store())
        where = self._search_namespace(namespace)
        found = await store.asearch(where, query=query, filter=filter, limit=limit, offset=offset)
        return [item.dict() for item in found]

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop, and leave reflections that are not due for the next start-up.

        When this returns, no reflector uses the store, so the store can be closed. Futures of
        reflections that are left raise `ReflectionLeft`. In an event loop use `await
        executor.ashutdown()`, or `async with`. A process that exits without calling it leaves
        everything for the next start-up.

        Args:
            wait: Finish the reflections that are due. With `False` they are left too, and a running
                one is given back.
            cancel_futures: Cancel reflections that this executor accepted, that have not begun, and
                whose future is still held.
        """
        with self._lock:
            if self._closed:
                return
            self._closed = True
        if (worker := self._live_worker()) is not None:
            if cancel_futures:
                for future in worker.open_futures():
                    future.cancel()
            if wait and self._can_wait():
                args = (self.name, self._runtime.worker_id, 2 * LONGEST_PAUSE, worker.is_alive)
                with contextlib.suppress(Unavailable, Closed):
                    self._runtime.journal.run(reflections.drain(self._runtime.engine, *args))
            worker.stop()
        self._runtime.unregister(self._graph.name)
        self._graph.store_calls.close()
        if self._owns_runtime:
            self._runtime.close()

    def close(self) -> None:
        """`shutdown()`. Leaving a `with` or `async with` block does the same."""
        self.shutdown()

    # -- what LangMem's executor lacks

    async def ashutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """`shutdown`, without blocking the event loop."""
        await asyncio.to_thread(self.shutdown, wait, cancel_futures=cancel_futures)

    def pending(self, *, after: Pending | None = None, limit: int = PAGE) -> list[Pending]:
        """List the unfinished reflections of this executor name from every process, oldest first.

        Args:
            after: The last reflection of the previous page.
            limit: Maximum number to return, 100 by default.

        Raises:
            Closed: The executor was shut down.
        """
        self._check_open()
        plan = reflections.pending(self._runtime.engine, self.name, after, check_limit(limit))
        return self._runtime.journal.run(plan)

    def cancel(self, id: str) -> None:
        """Cancel a reflection. If it is running, it stops before it writes, if possible.

        Args:
            id: The id of the reflection, which is the id of its run.

        Raises:
            WrongState: The reflection has ended.
            NotFound: This executor has no such reflection.
        """
        self._check_open()
        self._cancel_once(id)

    def retry(self, id: str) -> None:
        """Try a held reflection again.

        Args:
            id: The id of the reflection.

        Raises:
            WrongState: The reflection is not held.
            NotFound: This executor has no such reflection.
        """
        self._check_open()
        self._retry_once(id)
        self._runtime.look_now()

    def use(self, store: BaseStore) -> None:
        """Set the store if the executor has none, and start running reflections.

        Args:
            store: The LangGraph store of the memories.

        Raises:
            Closed: The executor was shut down.
        """
        with self._lock:
            self._check_open()
            if self._graph.store is None:
                self._graph.store = store
            self._start_worker()

    # -- accepting

    # Journals hold the names of the effect and of its recorded arguments: they must stay.
    @effect(name="reflect", record=("place", "after"))
    def _accept(self, place: str, request: ReflectionRequest, after: float) -> str:
        key = effect_key()
        input = {"request": dict(vars(request)), "id": key, "writes": None, "result": None}
        plan = accept(
            self._runtime.engine,
            self.name,
            place or request.thread(self.name, key),
            input,
            metadata={"namespace": list(request.namespace), "thread_id": request.thread_id},
            key=key,
            after=timedelta(seconds=after),
        )
        return self._runtime.journal.run(plan)

    @effect(name="perdure.cancel reflection", retry=None, record=("id",))
    def _cancel_once(self, id: str) -> None:
        self._cancel(id, _call_number())

    @effect(name="perdure.retry reflection", retry=None, record=("id",))
    def _retry_once(self, id: str) -> None:
        plan = reflections.retry(self._runtime.engine, id, self.name, number=_call_number())
        self._runtime.journal.run(plan)

    def _future(self, id: str, shared_thread: str, after: float) -> Reflection:
        reflection = Reflection(id, self.name, self._cancel_unless_running)
        with self._lock:
            if self._closed:
                reflection.abandon()
                return reflection
            self._start_worker().watch(reflection, after, shared_thread)
        if after < self._runtime.journal.capabilities.poll:
            self._runtime.look_now()  # a later one is found by polling before it is due
        return reflection

    def _cancel(self, id: str, number: int | None = None) -> None:
        plan = reflections.cancel(self._runtime.engine, id, self.name, number=number)
        self._runtime.journal.run(plan)
        self._runtime.stop_here(id, "cancel")
        if (worker := self._live_worker()) is not None:
            worker.check_now(id)

    def _cancel_unless_running(self, id: str) -> bool:
        """Cancel a reflection for its future. Returns whether it is cancelled."""
        try:
            row = self._runtime.journal.run(reflections.find(self._runtime.engine, id, self.name))
            if row.state == State.RUNNING:
                return False
            self._cancel(id)
        except (WrongState, NotFound):
            return False
        return True

    def _search_namespace(self, namespace: str | Namespace | None) -> Namespace:
        if namespace is None:
            config, template = current_config(), self._graph.template
            if config is None and variables_of(template):
                raise BadArgument(
                    f"The namespace {labels_of(template)!r} has variables, and outside a node no "
                    "config fills them: pass namespace=..."
                )
            return resolve_namespace(template, config)
        return (namespace,) if isinstance(namespace, str) else namespace

    # -- the worker

    def _start_worker(self) -> BackgroundWorker:
        if self._live_worker() is None:
            self._worker = BackgroundWorker(self._runtime, self._graph.name, self._concurrency)
        return cast(BackgroundWorker, self._worker)

    def _live_worker(self) -> BackgroundWorker | None:
        """The worker, if its thread runs in this process; a fork has none."""
        worker = self._worker
        return worker if worker is not None and worker.is_alive() else None

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"The executor {self.name!r} was shut down; make a new one.")

    def _can_wait(self) -> bool:
        """Whether `shutdown` can wait here without blocking what it waits for."""
        if in_reflector():
            return False
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return True
        in_loop_of_store = store_loop(self._graph.store) is loop
        if in_loop_of_store:
            log.warning(
                "%r was shut down in the event loop that its store needs, so what is due is left "
                "for the next start: use `await executor.ashutdown()`, or `async with`.",
                self.name,
            )
        return not in_loop_of_store


class LocalReflectionExecutor(ReflectionExecutor):
    """`ReflectionExecutor` with the name and the arguments of LangMem's class.

    Args:
        reflector: As for `ReflectionExecutor`.
        store: The LangGraph store of the memories.
        **options: The keyword arguments of `ReflectionExecutor`.
    """

    def __init__(self, reflector: Any, store: BaseStore | None = None, **options: Any) -> None:
        super().__init__(reflector, store=store, **options)


def _call_number() -> int:
    """A number for the change that an effect makes, the same for every attempt."""
    return int.from_bytes(hashlib.blake2b(effect_key().encode(), digest_size=8).digest()) >> 2


def _leave_at_exit(executor: weakref.ref[ReflectionExecutor]) -> None:
    """At the exit of the process: give running reflections back, and wait for nothing."""
    if (one := executor()) is not None:
        with contextlib.suppress(Error):
            one.shutdown(wait=False)


def resume_pending_reflections(executor: ReflectionExecutor, store: BaseStore) -> list[Pending]:
    """Resume the reflections that were pending when a process ended, and return them.

    Overdue reflections start at once, the others when they are due. The journal hands each
    reflection to one worker, so calling this twice, or in two processes, runs nothing twice. An
    executor created with a store resumes automatically: this call is for an application that sets
    the store later, or needs the list.

        resume_pending_reflections(executor, store)  # once, at start-up

    Args:
        executor: An executor of this package. LangMem's own keeps its queue in memory, so it has
            nothing to resume.
        store: The store, used if the executor has none.

    Returns:
        The pending reflections, oldest first.

    Raises:
        BadArgument: The executor is LangMem's own, or `store` is not a LangGraph store.
    """
    if not isinstance(executor, ReflectionExecutor):
        raise BadArgument(
            f"{executor!r} keeps its reflections in memory, so none are left to resume. Create the "
            "executor with perdure.langmem.ReflectionExecutor(reflector, journal=...)."
        )
    if not isinstance(store, BaseStore):
        raise BadArgument(f"store={store!r} is not a LangGraph BaseStore: pass one, or a subclass.")
    executor.use(store)
    found: list[Pending] = []
    while page := executor.pending(after=found[-1] if found else None):
        found += page
    return found
