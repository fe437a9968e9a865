"""`ReflectionExecutor`: LangMem's, with the queue in a journal.

A reflection is a run of the graph in `reflection.py`, on a thread made of executor, namespace and
conversation. Crash points and what each leaves behind:

    submit, before its commit       nothing; nobody was told that it was accepted
    submit, after it                a run that is due when it was to be, and the one that it
                                    replaces cancelled, in the same batch
    waiting, working, keeping       what the runtime leaves: a lease that runs out, a checkpoint,
                                    an effect that settles
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import threading
import weakref
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self

from langgraph.store.base import BaseStore, SearchItem

from perdure.effects.context import key as effect_key
from perdure.effects.decorator import effect
from perdure.engine.worker import POLL
from perdure.errors import BadArgument, Closed, Error, NotFound, Unavailable, WrongState
from perdure.journal import Plan
from perdure.langmem.draft import Door, Write, is_drafting
from perdure.langmem.driving import Driving, Reflection
from perdure.langmem.means import Means
from perdure.langmem.reflection import LONGEST as LONGEST_PAUSE
from perdure.langmem.reflection import (
    RUNTIME,
    UNSAID,
    Namespace,
    Request,
    build,
    check_delay,
    current_config,
    resolved,
)
from perdure.operations import claims
from perdure.runtime import Runtime
from perdure.service.reflections import Pending, Reflections
from perdure.service.runs import make_setup
from perdure.service.validation import check_limit
from perdure.types import Control, Retry, State

RETRY = Retry(attempts=5, first=timedelta(seconds=2), longest=timedelta(minutes=10))
PAGE = 100
log = logging.getLogger("perdure")
_OPEN: weakref.WeakValueDictionary[tuple[str, str], ReflectionExecutor] = (
    weakref.WeakValueDictionary()
)
"""The executors of this process, by journal and name."""


class ReflectionExecutor:
    """Background reflections that survive the process.

    reflector   what `create_memory_store_manager()` gives, any Runnable, a graph, a function; or
                the name of one: a graph of the `Runtime`, or "module:name"
    namespace   where it writes, with variables such as "{user_id}"; by default the reflector's own
    store       where its memories are; by default the reflector's own, else the one of the first
                graph that submits
    journal     a URL or a `Runtime`; `PERDURE_URL` by default
    name        the same in every process that shares the work; by default made of reflector and
                namespace
    retry       how often a reflection that raised is tried, and when; then it is held
    timeout     for one attempt
    concurrency how many at once in this process
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
        self._own = not isinstance(journal, Runtime)
        self._runtime = journal if isinstance(journal, Runtime) else Runtime(journal)
        self._means = Means(reflector, namespace, self._runtime, name)
        self._runtime.register(
            build(self._means), self._graph, retry=retry or RETRY, timeout=timeout, hold=True
        )
        self._runtime.saver.setup()
        self._opening = threading.RLock()
        self._closed = False
        self._driving: Driving | None = None
        self._latest: weakref.WeakValueDictionary[str, Reflection] = weakref.WeakValueDictionary()
        store = store if store is not None else self._means.store_of_reflector()
        if store is not None:
            self.use(store)
        elif waiting := self.pending(limit=1):
            log.warning(
                "Reflections of %r are pending, since %s at least, and wait until it is known "
                "where their memories are: pass store=..., or call resume_pending_reflections().",
                self.name,
                waiting[0].submitted_at,
            )
        self._title = (self._runtime.url, self.name)
        if self._own and self._title in _OPEN:
            log.warning(
                "Two executors %r in this process share their reflections. If they are to do "
                "different things, give each a name=... of its own.",
                self.name,
            )
        _OPEN[self._title] = self
        atexit.register(_leave, weakref.ref(self))

    @property
    def name(self) -> str:
        return self._means.name

    @property
    def _graph(self) -> str:
        return self._means.graph

    def __repr__(self) -> str:
        return f"<perdure.langmem.ReflectionExecutor {self.name!r} at {self._runtime.url}>"

    # -- what LangMem's has

    def submit(
        self,
        payload: dict[str, Any],
        /,
        config: Any = None,
        *,
        after_seconds: float = 0,
        thread_id: Any = UNSAID,
    ) -> Reflection:
        """Accept a reflection for good: when this returns, it is on disk.

        It is begun in `after_seconds`, by this process or another. A later one of the same
        conversation (`thread_id`, by default the one of `config`) and namespace takes its place
        unless it was begun; without a conversation each stands for itself. In a node that runs
        again after a crash, it is submitted once.
        """
        config = config if config is not None else current_config() or {}
        self._check_open()
        check_delay(after_seconds)
        self._means.check_payload(payload)
        self._use_store_of(config)
        request = Request.of(payload, config, self._means.template, thread_id)
        place = "" if request.thread_id is None else request.place(self.name, "")
        id = self._accept(place, request, float(after_seconds))
        return self._promise(id, place, after_seconds)

    def search(
        self,
        query: str | None = None,
        *,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        namespace: str | Namespace | None = None,
    ) -> list[dict[str, Any]]:
        """Memories in the store."""
        found = self._means.needed_store().search(
            self._where(namespace), query=query, filter=filter, limit=limit, offset=offset
        )
        return _as_dicts(found)

    async def asearch(
        self,
        query: str | None = None,
        *,
        filter: dict[str, Any] | None = None,
        limit: int = 10,
        offset: int = 0,
        namespace: str | Namespace | None = None,
    ) -> list[dict[str, Any]]:
        """Memories in the store."""
        found = await Door(self._means.needed_store()).asearch(
            self._where(namespace), query=query, filter=filter, limit=limit, offset=offset
        )
        return _as_dicts(found)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop working. What is not due yet is left for the next start, and so is, without `wait`,
        what is due. `cancel_futures` cancels what this executor accepted and somebody still has
        the future of. In an event loop: `await executor.ashutdown()`, or `async with`."""
        with self._opening:
            if self._closed:
                return
            self._closed = True
        _OPEN.pop(self._title, None)
        driving = self._mine()
        if is_drafting():  # it cannot wait for itself
            wait = False
        if wait and driving is not None and self._is_in_loop_of_store():
            wait = False
            log.warning(
                "%r was shut down in the event loop that its store needs, so what is due is left "
                "for the next start: use `await executor.ashutdown()`, or `async with`.",
                self.name,
            )
        if driving is not None:
            if cancel_futures:
                for one in driving.waited:
                    one.cancel()
            if wait:
                with contextlib.suppress(Unavailable, Closed):
                    self._runtime.journal.run(self._all_due(driving))
            driving.stop()
        self._runtime.engine.graphs.remove(self._graph)
        if self._own:
            self._runtime.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    # -- what it has not

    async def ashutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """`shutdown`, without blocking the event loop."""
        await asyncio.to_thread(self.shutdown, wait, cancel_futures=cancel_futures)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.ashutdown()

    def pending(self, *, after: Pending | None = None, limit: int = PAGE) -> list[Pending]:
        """Reflections of this name that are not over, oldest first, at most `limit`; the page
        behind one with `after`."""
        self._check_open()
        plan = self._reflections.pending(self.name, after, check_limit(limit))
        return self._runtime.journal.run(plan)

    def cancel(self, id: str) -> None:
        """Cancel a reflection. One that is being worked on stops before it writes, if it can."""
        self._check_open()
        self._cancel(id)

    def _cancel(self, id: str) -> None:
        self._runtime.journal.run(self._reflections.cancel(id, self.name))
        self._runtime.engine.stop(id, Control.CANCEL)
        if (driving := self._mine()) is not None:
            driving.look_at(id)

    def retry(self, id: str) -> None:
        """Let a reflection that is held be tried again."""
        self._check_open()
        self._runtime.journal.run(self._reflections.retry(id, self.name))
        self._runtime.engine.wake()

    def use(self, store: BaseStore) -> None:
        """Say where the memories are, if nobody said before; from now on reflections are made."""
        with self._opening:
            self._check_open()
            if self._means.store is None:
                self._means.store = store
            self._start()

    def adopt(
        self,
        request: Request,
        *,
        key: str,
        due_at: datetime,
        writes: list[Write] | None = None,
    ) -> str:
        """Accept what was submitted elsewhere, once: the same key gives the same reflection. One
        of the same conversation that is here already is a later one, and is not replaced."""
        setup = self._setup(request, key)
        if writes is not None:
            setup["input"]["writes"] = writes
        place = request.place(self.name, key)
        plan = self._runtime.services.runs.accept(
            (self._graph, ""), place, setup, "enqueue", key=key, after=due_at
        )
        id = self._runtime.journal.run(plan).id
        self._runtime.engine.wake()
        return id

    # -- accepting

    @effect(name="reflect", record=("place", "after"))
    def _accept(self, place: str, request: Request, after: float) -> str:
        key = effect_key()
        plan = self._runtime.services.runs.accept(
            (self._graph, ""),
            place or request.place(self.name, key),
            self._setup(request, key),
            "replace",
            key=key,
            after=timedelta(seconds=after),
        )
        return self._runtime.journal.run(plan).id

    def _setup(self, request: Request, key: str) -> dict[str, Any]:
        told = {"namespace": list(request.namespace), "thread_id": request.thread_id}
        input = {"request": dict(vars(request)), "id": key, "writes": None, "result": None}
        return make_setup(input=input, metadata=told, tags=(), context=None, config=None)

    def _promise(self, id: str, place: str, after: float) -> Reflection:
        reflection = Reflection(id, self.name, self._withdraw)
        with self._opening:
            if self._closed:
                reflection.leave()
                return reflection
            driving = self._start()
            if place:
                before = self._latest.get(place)
                self._latest[place] = reflection
                if before is not None and before.id != id:
                    driving.look_at(before.id)
            driving.watch(reflection, after)
        if after < POLL:  # else it is looked for before it is due
            self._runtime.engine.wake()
        return reflection

    # -- the store

    def _use_store_of(self, config: Any) -> None:
        if self._means.store is None:
            context = (config.get("configurable") or {}).get(RUNTIME)
            store = getattr(context, "store", None)
            self.use(self._means.needed_store() if store is None else store)

    def _where(self, namespace: str | Namespace | None) -> Namespace:
        if namespace is None:
            config = current_config()
            if config is None and self._means.template.vars:
                example = tuple(self._means.template.template)
                raise BadArgument(
                    f"Outside of a node nobody knows what {example!r} is about: pass namespace=..."
                )
            return resolved(self._means.template, config)
        return (namespace,) if isinstance(namespace, str) else namespace

    # -- driving

    def _start(self) -> Driving:
        found = self._mine()
        if found is None:
            found = self._driving = Driving(self._runtime, self._graph, self._concurrency)
        return found

    def _mine(self) -> Driving | None:
        """The thread of this process, if it lives; a fork has none."""
        found = self._driving
        return found if found is not None and found.is_alive() else None

    def _is_in_loop_of_store(self) -> bool:
        try:
            return getattr(self._means.store, "_loop", None) is asyncio.get_running_loop()
        except RuntimeError:
            return False

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"The executor {self.name!r} was shut down; make a new one.")

    @property
    def _reflections(self) -> Reflections:
        return Reflections(self._means.serializer, self._runtime.engine.driver.clock)

    def _withdraw(self, id: str) -> bool:
        """Cancel a reflection for who has its future: only if nobody works on it."""
        try:
            row = self._runtime.journal.run(self._reflections.find(id, self.name))
            if row.state == State.RUNNING:
                return False
            self._cancel(id)
        except (WrongState, NotFound):
            return False
        return True

    def _all_due(self, driving: Driving) -> Plan[None]:
        """Wait until nothing is left that was due when this began."""
        clock, worker = self._runtime.engine.driver.clock, self._runtime.engine.keeper.worker
        begun, longest = clock.now(), round(LONGEST_PAUSE.total_seconds() * 2000)
        while driving.is_alive() and (
            yield claims.is_due(self._graph, worker, begun, now := clock.now(), now + longest)
        ):
            yield 0.02


def _as_dicts(found: list[SearchItem]) -> list[dict[str, Any]]:
    return [item.dict() for item in found]


def _leave(executor: weakref.ref[ReflectionExecutor]) -> None:
    """When the process ends: give back what is worked on, and wait for nothing."""
    one = executor()
    if one is not None:
        with contextlib.suppress(Error):
            one.shutdown(wait=False)
