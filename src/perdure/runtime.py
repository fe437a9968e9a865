"""The composition root: a runtime is a client of its journal that has graphs, and drives them."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from perdure import langgraph_port
from perdure.blocking import lent
from perdure.checkpoint.reader import Reader
from perdure.client import Asking, Client
from perdure.engine.bound_graph import BoundGraph
from perdure.engine.driver import Driver
from perdure.engine.graphs import Graph, bind
from perdure.engine.lease_keeper import Keeper
from perdure.engine.outbox_delivery import Delivery
from perdure.engine.worker import Worker
from perdure.errors import BadArgument, Error, NotFound, UnknownGraph, WrongState
from perdure.journal import Journal, Plan
from perdure.journal.clock import Clock
from perdure.journal.names import check_text
from perdure.operations import runs
from perdure.operations.run_payload import open_setup
from perdure.operations.runs import RunRow
from perdure.saver import Saver
from perdure.service.runs import GRACE
from perdure.service.validation import check_duration, check_limit
from perdure.types import Counts, Durability, Message, Retry, Run, State

if TYPE_CHECKING:
    from starlette.applications import Starlette


class Runtime(Client):
    """Runs that come back.

    `url` is the journal, `PERDURE_URL` by default; it opens on first use. `lease` is how long a
    worker on another host may be silent before its runs are taken over; one that died on this host
    is noticed at once. `allow`, `keys`, `max_bytes` and `durability` are those of `Saver`.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        durability: Durability = "auto",
        allow: Iterable[type | tuple[str, ...]] = (),
        keys: Mapping[str, bytes] | None = None,
        max_bytes: int = 256 * 1024 * 1024,
        lease: timedelta = timedelta(seconds=3),
        clock: Clock | None = None,
    ) -> None:
        check_duration("lease", lease, timedelta(seconds=0.2))  # a shorter one is always lost
        self._saver = Saver(url, durability, allow=allow, keys=keys, max_bytes=max_bytes)
        super().__init__(url, clock=clock)
        self._serializer, self._lease = self._saver.serializer, lease.total_seconds()
        self._graphs: dict[str, Graph] = {}
        self._newest: dict[str, Graph] = {}
        self._workers: set[Worker] = set()
        self._delivery = Delivery()
        self._driver_: Driver | None = None
        self._keeper_: Keeper | None = None

    # -- opening and closing

    @property
    def saver(self) -> Saver:
        """The checkpointer that every graph of this runtime is on."""
        return self._saver

    @property
    def journal(self) -> Journal:
        return self._saver.journal

    @property
    def is_open(self) -> bool:
        return self._saver.is_open

    def __repr__(self) -> str:
        return f"<perdure.Runtime {self.url} of {', '.join(self.graphs) or 'no graphs'}>"

    @property
    def _driver(self) -> Driver:
        with self._opening:
            if self._driver_ is None:
                self._driver_ = Driver(self._saver, self._clock)
            return self._driver_

    @property
    def _keeper(self) -> Keeper:
        with self._opening:
            if self._keeper_ is None or self._keeper_.pid != os.getpid():
                driver = self._driver
                self._keeper_ = Keeper(driver, driver.clock, lease=self._lease)
            return self._keeper_

    @property
    def blocking(self) -> Blocking:
        """The same methods for callers without an event loop."""
        return cast(Blocking, super().blocking)

    def _lend(self) -> Blocking:
        return Blocking(self)

    def _let_go(self) -> None:
        if self._keeper_ is not None:
            self._keeper_.close()
            self._keeper_ = None
        self._saver.close()

    # -- graphs

    def register(
        self,
        graph: Any,
        name: str | None = None,
        *,
        version: str = "",
        timeout: timedelta = timedelta(hours=1),
        retry: Retry | None = None,
        deaths: int = 5,
        hold: bool = False,
    ) -> BoundGraph:
        """Let this runtime drive a graph, and give it back bound to the journal.

        It takes a StateGraph, a compiled graph or an `@entrypoint`, and does not change it.
        `timeout` bounds a step: after that long without progress the segment counts as failed.
        `retry` says what becomes of a segment that raised. After `deaths` workers in a row that
        died with it, the later ones driving nothing else, a run is held. With `hold` a run that
        failed for good is held too, for a person to retry. Runs keep the `version` they were
        started with, and only a runtime that registered it drives them.
        """
        check_duration("timeout", timeout, timedelta(milliseconds=1))
        if retry is not None and not isinstance(retry, Retry):
            raise BadArgument(f"retry is a perdure.Retry(attempts=...), not {retry!r}.")
        if deaths < 3:
            raise BadArgument(
                f"deaths={deaths}: at least 3, as the first two may have been the work of another "
                "run in the same worker."
            )
        bound = bind(
            graph,
            self._saver,
            name=name,
            version=check_text("version", version),
            timeout=timeout,
            retry=retry or Retry(),
            deaths=deaths,
            hold=hold,
        )
        check_text("name", bound.name)
        if "@" in bound.name:
            raise BadArgument(f"The name of a graph must not have an '@': {bound.name!r}.")
        if bound.key in self._graphs:
            raise BadArgument(
                f"A graph {bound.name!r} is registered already; give this one another name, or a "
                "version."
            )
        self._graphs[bound.key] = self._newest[bound.name] = bound
        return BoundGraph(bound, lambda: self._driver, lambda: self._keeper, self._accept_inline)

    def compiled(self, name: str) -> Any:
        """The compiled graph registered under this name, in its newest version, or None."""
        graph = self._newest.get(name)
        return None if graph is None else graph.pregel

    def unregister(self, name: str) -> None:
        """Stop driving a graph."""
        self._newest.pop(name, None)
        for key in [key for key, graph in self._graphs.items() if graph.name == name]:
            del self._graphs[key]

    @property
    def graphs(self) -> list[str]:
        """The names of the graphs that are registered."""
        return sorted(self._newest)

    def _graph(self, name: str, version: str | None) -> tuple[str, str]:
        if not self._graphs:  # a process that only starts runs, for workers elsewhere
            return super()._graph(name, version)
        if version is not None and f"{name}@{version}" in self._graphs:
            return name, version
        if version is None and name in self._newest:
            return name, self._newest[name].version
        known = [graph.title for graph in self._graphs.values()]
        raise UnknownGraph(name if version is None else f"{name}@{version}", sorted(known))

    def _accept_inline(
        self, graph: Graph, thread_id: str, setup: dict[str, Any], strategy: str = "interrupt"
    ) -> Plan[RunRow]:
        """A run that its caller drives; a worker only if the caller does not come for it."""
        return self._ledger.accept(
            (graph.name, graph.version),
            check_text("thread_id", thread_id),
            setup,
            strategy,
            reserve=self._lease,
            only=State.WAITING.value,
        )

    def deliver(self, topic: str, handler: Callable[[Message], Any]) -> None:
        """Have the workers of this runtime hand the outbox's messages of a topic to `handler`.

        At least once each, with the same id; one that raises is delivered again later.
        """
        check_text("topic", topic)
        if not callable(handler):
            raise BadArgument(f"The handler of topic {topic!r} is a function, not {handler!r}.")
        self._delivery.handlers[topic] = handler

    async def fork(
        self,
        run_id: str,
        *,
        at: str | None = None,
        update: Any = None,
        as_node: str | None = None,
        thread_id: str | None = None,
    ) -> Run:
        """Start a run on a new thread that goes on from a checkpoint of this one.

        `at` is the id of a checkpoint, the latest by default; `update` changes its state first. The
        old run and its thread stay as they are.
        """
        row = await self.journal.arun(self._ledger.find(run_id))
        graph = self._graphs.get(f"{row.graph}@{row.version}") or self._newest.get(row.graph)
        if graph is None:
            raise UnknownGraph(row.graph, sorted(self._graphs))
        target = check_text("thread_id", thread_id or str(uuid.uuid4()))
        if await self.journal.ado(runs.page(thread_id=target, count=1)):
            raise BadArgument(f"Thread {target!r} has runs already; fork to a new thread.")
        source = {"configurable": {"thread_id": row.thread_id}}
        if at is not None:
            source["configurable"]["checkpoint_id"] = at
        if await self._saver.aget_tuple(source) is None:  # type: ignore[arg-type]
            if at is None:
                raise WrongState(run_id, row.state, "be forked", "it has no checkpoint yet.")
            raise NotFound("checkpoint", at)
        await self._saver.acopy_thread(row.thread_id, target)
        place = {"configurable": {**source["configurable"], "thread_id": target}}
        if update is None and as_node is None:
            as_node = langgraph_port.COPY
        await graph.pregel.aupdate_state(place, update, as_node)  # type: ignore[arg-type]
        setup = open_setup(self._saver.serializer, row)
        setup.pop("input", None)
        plan = self._ledger.accept((graph.name, graph.version), target, setup, "reject")
        forked = await self.journal.arun(plan)
        self._wake()
        return await self.journal.arun(self._ledger.show(forked))

    async def _fire(self) -> int:
        return await self.journal.arun(self._ledger.fire(self._newest))

    # -- driving

    async def work(
        self,
        *,
        concurrency: int = 50,
        until_idle: bool = False,
        grace: timedelta = GRACE,
        signals: bool = True,
        graphs: Iterable[str] | None = None,
    ) -> Counts:
        """Drive what is due until told to stop: by SIGTERM, SIGINT or cancellation.

        Then nothing more is claimed, and what is driven stops at its next step, or is given back
        after `grace`. With `until_idle` it stops when nothing is due. An application with signal
        handlers of its own passes `signals=False`, and cancels the task. `graphs` names those to
        drive, all by default; then neither schedules are fired nor messages delivered.
        """
        return await self._drive(
            graphs=graphs,
            concurrency=concurrency,
            until_idle=until_idle,
            grace=check_duration("grace", grace).total_seconds(),
            handle_signals=signals,
        )

    async def tick(
        self,
        limit: int = 25,
        *,
        budget: timedelta | None = None,
        concurrency: int = 10,
        grace: timedelta = GRACE,
        signals: bool = False,
    ) -> Counts:
        """Drive what is due, at most `limit` segments, then return: for a cron.

        After `budget` nothing more is claimed and what is driven stops at its next step. Two calls
        at once share the work. `concurrency=1` drives one after the other.
        """
        return await self._drive(
            concurrency=concurrency,
            driven="cron",
            limit=check_limit(limit),
            budget=None if budget is None else check_duration("budget", budget).total_seconds(),
            until_idle=True,
            grace=check_duration("grace", grace).total_seconds(),
            handle_signals=signals,
        )

    async def _drive(
        self, *, handle_signals: bool, graphs: Iterable[str] | None = None, **bounds: Any
    ) -> Counts:
        if not self._graphs and not self._delivery.handlers:
            raise BadArgument("This runtime has no graph to drive: call register() first.")
        if bounds["concurrency"] < 1:
            raise BadArgument("concurrency is at least 1.")
        driver = await asyncio.to_thread(lambda: self._driver)
        if graphs is None:
            chosen = self._graphs
            bounds |= {"schedules": self._fire, "delivery": self._delivery}
        else:
            names = {name for name, _ in (self._graph(name, None) for name in graphs)}
            chosen = {key: one for key, one in self._graphs.items() if one.name in names}
            bounds["knows_all"] = False
        worker = Worker(driver, self._keeper, driver.clock, chosen, **bounds)
        self._workers.add(worker)
        try:
            return await worker.run(handle_signals=handle_signals)
        finally:
            self._workers.discard(worker)

    # -- over HTTP

    def asgi(self, *, secret: str | None = None) -> Starlette:
        """This runtime as an ASGI application: `GET /ok`, and `POST /cron/tick` for a cron.

        Ticks are off until there is a `secret`, by default `PERDURE_CRON_SECRET`: whoever sends it
        as a bearer token has what is due driven. The application's lifespan opens and closes the
        runtime, unless it is open; mounted into another application it opens on first use.
        """
        try:
            from perdure.server.app import make_app
        except ImportError as error:
            raise Error("asgi() needs the extra: pip install 'perdure[server]'") from error
        return make_app(self, self.tick, secret=secret)

    # -- what this process drives is told at once

    @property
    def worker_id(self) -> str:
        """The id under which this process holds leases."""
        return self._keeper.worker

    def wake(self) -> None:
        """Let the workers of this runtime look for due runs now, not at their next poll."""
        self._wake()

    def stop_here(self, run_id: str, why: str) -> None:
        """Stop a run before its next step, if this process drives it."""
        self._stop_here(run_id, why)

    def _wake(self, *, stopped: bool = False) -> None:
        if stopped and self._keeper_ is not None:
            self._keeper_.nudge()
        for worker in list(self._workers):
            worker.wake()

    def _stop_here(self, run_id: str, why: str) -> None:
        if self._keeper_ is not None:
            self._keeper_.stop(run_id, why)

    def _reader(self) -> Reader:
        return self._saver.reader

    def _forget(self, thread_id: str) -> None:
        self._saver.pruner.forget(thread_id)


class Blocking(Asking):
    """`Runtime.blocking`: each method is the runtime's own, run on a loop in another thread."""

    fork = lent(Runtime.fork)
    tick = lent(Runtime.tick)
    work = lent(Runtime.work)
