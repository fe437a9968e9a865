"""The composition root: a runtime is a journal, the graphs it drives, and what one can ask of it.

Every method is one or a few operations; the decisions are in the statements they name. Nothing is
kept here that a crash may take.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import re
import threading
import uuid
from collections.abc import Callable, Coroutine, Iterable, Mapping
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar
from weakref import WeakSet

from perdure import runs, schedules
from perdure.arguments import (
    check_duration,
    check_kind,
    check_limit,
    check_name,
    check_settlement,
    check_state,
)
from perdure.bound import BoundGraph
from perdure.clock import Clock, JournalClock
from perdure.delivery import Delivery
from perdure.driver import Driver
from perdure.effects import outbox
from perdure.effects.book import Book
from perdure.errors import (
    BadArgument,
    Closed,
    NotFound,
    UnknownGraph,
    WrongState,
)
from perdure.graphs import Graph, bind
from perdure.inbox import Inbox
from perdure.journal import Journal, Plan
from perdure.keeper import Keeper
from perdure.ledger import GRACE, PAGE, Ledger, make_setup
from perdure.names import check_text
from perdure.runs import RunRow
from perdure.saver import Saver
from perdure.told import open_setup
from perdure.types import (
    ENDED,
    Counts,
    Durability,
    EffectRecord,
    Event,
    Kind,
    Message,
    Retry,
    Run,
    Schedule,
    Settlement,
    State,
    Strategy,
    Wait,
    milliseconds,
)
from perdure.worker import Worker

P = ParamSpec("P")
T = TypeVar("T")

STRATEGIES = ("enqueue", "reject", "interrupt", "rollback")
_NAMESPACE = uuid.UUID("9a4b4f0e-5d1c-5b6e-8a51-7d7065726475")


class Runtime:
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
        self._url = url
        self._lease, self._given_clock = lease.total_seconds(), clock
        self._graphs: dict[str, Graph] = {}
        self._newest: dict[str, Graph] = {}
        self._workers: set[Worker] = set()
        self._delivery = Delivery()
        self._opening = threading.RLock()
        self._driver_: Driver | None = None
        self._keeper_: Keeper | None = None
        self._blocking: Blocking | None = None

    # -- opening and closing

    @property
    def saver(self) -> Saver:
        """The checkpointer that every graph of this runtime is on."""
        return self._saver

    @property
    def journal(self) -> Journal:
        return self._saver.journal

    @property
    def url(self) -> str:
        """Where the journal is, without its password."""
        url = self._url or os.environ.get("PERDURE_URL", "")
        return re.sub(r"(?<=://)([^:/@]*):[^@]*@", r"\1:***@", url)

    def __repr__(self) -> str:
        return f"<perdure.Runtime {self.url} of {', '.join(self.graphs) or 'no graphs'}>"

    @property
    def _driver(self) -> Driver:
        with self._opening:
            if self._driver_ is None:
                clock = self._given_clock or JournalClock(self.journal)
                self._driver_ = Driver(self._saver, clock)
            return self._driver_

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self._saver, self._driver.clock)

    @property
    def _inbox(self) -> Inbox:
        return Inbox(self._saver.box, self._driver.clock)

    @property
    def _book(self) -> Book:
        return Book(self._saver.box, self._driver.clock)

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
        with self._opening:
            if self._blocking is None or self._blocking.pid != os.getpid():
                self._blocking = Blocking(self)
            return self._blocking

    def close(self) -> None:
        """Let the database go. What is queued is committed; runs are not touched."""
        if self._blocking is not None:  # first: what it drives needs its lease to stop well
            self._blocking.close()
            self._blocking = None
        if self._keeper_ is not None:
            self._keeper_.close()
            self._keeper_ = None
        self._saver.close()

    def __enter__(self) -> Self:
        self._saver.setup()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        await asyncio.to_thread(self._saver.setup)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.close)

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

    def _unregister(self, name: str) -> None:
        """Drive a graph no longer."""
        self._newest.pop(name, None)
        for key in [key for key, graph in self._graphs.items() if graph.name == name]:
            del self._graphs[key]

    @property
    def graphs(self) -> list[str]:
        """The names of the graphs that are registered."""
        return sorted(self._newest)

    def _graph(self, name: str, version: str | None) -> tuple[str, str]:
        if not self._graphs:  # a process that only starts runs, for workers elsewhere
            return check_text("graph", name), check_text("version", version or "")
        if version is not None and f"{name}@{version}" in self._graphs:
            return name, version
        if version is None and name in self._newest:
            return name, self._newest[name].version
        known = [graph.title for graph in self._graphs.values()]
        raise UnknownGraph(name if version is None else f"{name}@{version}", sorted(known))

    # -- runs

    async def start(
        self,
        graph: str,
        input: Any = None,
        *,
        thread_id: str | None = None,
        key: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        context: Any = None,
        config: Mapping[str, Any] | None = None,
        after: timedelta | datetime | None = None,
        durability: Durability | None = None,
        multitask_strategy: Strategy = "enqueue",
        version: str | None = None,
    ) -> Run:
        """Accept a run for good: when this returns, it is on disk, and workers bring it to its end.

        The same `key` on a thread gives the run it made before. Without a `thread_id` the thread is
        a new one, or, with a key, the one of that key. On a thread with a run under way, `enqueue`
        waits for its end, `reject` raises `ThreadBusy`, `interrupt` stops it and keeps its steps,
        `rollback` stops it and deletes them.
        """
        name, version = self._graph(graph, version)
        if multitask_strategy not in STRATEGIES:
            raise BadArgument(
                f"multitask_strategy={multitask_strategy!r}: use one of {', '.join(STRATEGIES)}."
            )
        if durability is not None and durability not in ("auto", "sync", "async", "exit"):
            raise BadArgument(f"durability={durability!r}: use auto, sync, async or exit.")
        if key is not None:
            check_name("key", key)
        if thread_id is None:
            thread_id = str(
                uuid.uuid4() if key is None else uuid.uuid5(_NAMESPACE, json.dumps([name, key]))
            )
        setup = make_setup(
            input=input, metadata=metadata, tags=tags, context=context, config=config
        )
        if durability is not None:
            setup["durability"] = durability
        thread_id = check_name("thread_id", str(thread_id))
        plan = self._ledger.accept(
            (name, version), thread_id, setup, multitask_strategy, key=key, after=after
        )
        row = await self.journal.arun(plan)
        if multitask_strategy in ("interrupt", "rollback") and self._keeper_ is not None:
            self._keeper_.nudge()
        self._wake()
        return await self.journal.arun(self._ledger.show(row))

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

    async def get(self, run_id: str) -> Run:
        """A run as it is now."""
        return await self.journal.arun(self._ledger.get(run_id))

    async def join(self, run_id: str, *, timeout: timedelta | None = None) -> Run:
        """Wait until a run has ended, whoever drives it. Raises `TimeoutError` after `timeout`."""
        if timeout is not None:
            check_duration("timeout", timeout)
        pause = 0.02
        async with asyncio.timeout(None if timeout is None else timeout.total_seconds()):
            while not (run := await self.get(run_id)).ended:
                await asyncio.sleep(pause)
                pause = min(0.5, pause * 1.5)
        return run

    async def runs(
        self,
        *,
        thread_id: str | None = None,
        state: State | str | None = None,
        graph: str | None = None,
        before: Run | None = None,
        limit: int = PAGE,
    ) -> list[Run]:
        """Runs, newest first, at most `limit`; the page behind a run with `before`."""
        state = None if state is None else check_state(state).value
        position = None if before is None else (milliseconds(before.created_at), before.id)
        op = runs.page(
            thread_id=thread_id, state=state, graph=graph, before=position, count=check_limit(limit)
        )
        return await self.journal.arun(self._ledger.page(op))

    async def events(self, run_id: str, *, after: int = 0, limit: int | None = None) -> list[Event]:
        """The history of a run from event `after` on; it can be read while it grows."""
        if limit is not None:
            check_limit(limit)
        return await self.journal.arun(self._ledger.events(run_id, after, limit))

    # -- waits

    async def waits(
        self,
        *,
        thread_id: str | None = None,
        run_id: str | None = None,
        kind: Kind | str | None = None,
        after: Wait | None = None,
        limit: int = PAGE,
    ) -> list[Wait]:
        """What is open, oldest first, at most `limit`; the page behind a wait with `after`."""
        plan = self._inbox.waits(
            thread_id=thread_id,
            run_id=run_id,
            kind=None if kind is None else check_kind(kind).value,
            after=after,
            count=check_limit(limit),
        )
        return await self.journal.arun(plan)

    async def answer(self, wait_id: str, value: Any, *, by: str | None = None) -> None:
        """Answer what a run asks a person. Accepted once; `by` is recorded with the time.

        Raises `AlreadyAnswered`, `WaitExpired`, `WaitClosed`, `WrongWait` or `BadAnswer`, and then
        changes nothing.
        """
        await self.journal.arun(self._inbox.answer(wait_id, value, by))
        self._wake()

    async def signal(
        self, thread_id: str, name: str, value: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a named message to a thread. It is on disk when this returns, and delivered once.

        Kept when nobody waits for it yet. False: one with this `key` was sent before.
        """
        kept = await self.journal.arun(self._inbox.signal(thread_id, name, value, key))
        self._wake()
        return kept

    # -- effects

    async def effects(
        self,
        run_id: str | None = None,
        *,
        thread_id: str | None = None,
        state: Settlement | str | None = None,
        after: EffectRecord | None = None,
        limit: int = PAGE,
    ) -> list[EffectRecord]:
        """Effects, oldest first: of a run, of a thread, in a state. `state="unknown"` is what
        waits for `settle`. `after` is the last one of the page before."""
        plan = self._book.effects(
            run_id=run_id,
            thread_id=thread_id,
            state=None if state is None else check_settlement(state).value,
            after=after,
            count=check_limit(limit),
        )
        return await self.journal.arun(plan)

    async def settle(
        self,
        key: str,
        how: Literal["done", "retry", "fail"],
        result: Any = None,
        *,
        by: str | None = None,
    ) -> None:
        """Say what became of an effect that nobody knows about.

        `done`: it happened, and `result` is what it would have returned. `retry`: it did not, and
        is to be called. `fail`: it did not, and is not to be; `result` says why. Its run goes on
        when nothing more is unknown.
        """
        await self.journal.arun(self._book.settle(key, how, result, by))
        self._wake()

    def deliver(self, topic: str, handler: Callable[[Message], Any]) -> None:
        """Have the workers of this runtime hand the outbox's messages of a topic to `handler`.

        At least once each, with the same id; one that raises is delivered again later.
        """
        check_text("topic", topic)
        if not callable(handler):
            raise BadArgument(f"The handler of topic {topic!r} is a function, not {handler!r}.")
        self._delivery.handlers[topic] = handler

    async def messages(self, *, limit: int = PAGE) -> list[Message]:
        """What is in the outbox and not delivered yet, oldest first."""
        return await self.journal.ado(outbox.pending(self._saver.box, check_limit(limit)))

    # -- control

    async def pause(self, run_id: str, *, grace: timedelta = GRACE, by: str | None = None) -> Run:
        """Let a run rest until `resume`: at once, or after the step it is in."""
        return await self._stop(run_id, "pause", State.PAUSED, grace, None, by)

    async def cancel(
        self,
        run_id: str,
        *,
        grace: timedelta = GRACE,
        reason: str | None = None,
        by: str | None = None,
    ) -> Run:
        """End a run: at once, or after the step it is in, or after `grace` in the middle of it."""
        return await self._stop(run_id, "cancel", State.CANCELLED, grace, reason, by)

    async def _stop(
        self,
        run_id: str,
        verb: str,
        state: State,
        grace: timedelta,
        reason: str | None,
        by: str | None,
    ) -> Run:
        plan = self._ledger.stop(run_id, verb, state, grace, reason=reason, by=by)
        stopped = await self.journal.arun(plan)
        if self._keeper_ is not None and stopped.state is State.RUNNING:
            self._keeper_.stop(run_id, verb)
        self._wake()
        return stopped

    async def resume(self, run_id: str) -> Run:
        """Let a paused run go on."""
        return await self._go_on(run_id, (State.PAUSED,), "resumed", "only a paused run can.")

    async def retry(self, run_id: str) -> Run:
        """Try a run again that failed or is held, from its last step."""
        why = "only a failed or held run can, if no later run of its thread has begun."
        return await self._go_on(run_id, (State.FAILED, State.HELD), "retried", why)

    async def _go_on(self, run_id: str, states: tuple[State, ...], kind: str, why: str) -> Run:
        gone_on = await self.journal.arun(self._ledger.go_on(run_id, states, kind, why))
        self._wake()
        return gone_on

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
        if await self.journal.ado(
            runs.page(thread_id=target, state=None, graph=None, before=None, count=1)
        ):
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
            as_node = "__copy__"
        await graph.pregel.aupdate_state(place, update, as_node)  # type: ignore[arg-type]
        setup = open_setup(self._saver.box, row)
        setup.pop("input", None)
        plan = self._ledger.accept((graph.name, graph.version), target, setup, "reject")
        forked = await self.journal.arun(plan)
        self._wake()
        return await self.journal.arun(self._ledger.show(forked))

    async def prune(
        self,
        *,
        older_than: timedelta,
        states: Iterable[State | str] = tuple(ENDED),
        limit: int | None = None,
    ) -> int:
        """Delete runs that ended longer ago than that, with their history, and give how many.

        A thread of which no run is left loses its checkpoints too.
        """
        wanted = [check_state(state) for state in states]
        if not set(wanted) <= ENDED:
            raise BadArgument("Only runs that ended can be pruned: done, failed, cancelled.")
        check_duration("older_than", older_than)
        return await self.journal.arun(self._ledger.prune(older_than, wanted, limit))

    # -- schedules

    async def schedule(
        self,
        name: str,
        graph: str,
        *,
        cron: str,
        timezone: str = "UTC",
        input: Any = None,
        catch_up: bool | timedelta = False,
        metadata: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
        context: Any = None,
        config: Mapping[str, Any] | None = None,
    ) -> Schedule:
        """Start a run of a graph at each time of a cron line, each on a thread of its own.

        A slot starts at most one run, however many workers there are. Slots that nobody was there
        for are passed over, unless `catch_up` is True, or how long ago they may have been. The same
        name again changes the schedule.
        """
        chosen, version = self._graph(graph, None)
        check_text("name", name)
        setup = make_setup(
            input=input, metadata=metadata, tags=tags, context=context, config=config
        )
        plan = self._ledger.schedule(
            (chosen, version), setup, name=name, cron=cron, timezone=timezone, catch_up=catch_up
        )
        await self.journal.arun(plan)
        return next(one for one in await self.schedules() if one.name == name)

    async def schedules(self) -> list[Schedule]:
        """Every schedule by name."""
        return [row.to_schedule() for row in await self.journal.ado(schedules.every())]

    async def unschedule(self, name: str) -> None:
        """Remove a schedule; runs it started stay."""
        if name not in {one.name for one in await self.schedules()}:
            raise NotFound("schedule", name)
        await self.journal.ado(schedules.delete(name))

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

    def _wake(self) -> None:
        for worker in list(self._workers):
            worker.wake()


def _blocking(
    method: Callable[Concatenate[Runtime, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking, P], T]:
    def call(self: Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._run(method(self._runtime, *args, **kwargs))

    return functools.update_wrapper(call, method)


class Blocking:
    """`Runtime.blocking`: each method is the runtime's own, run on a loop in another thread."""

    start = _blocking(Runtime.start)
    get = _blocking(Runtime.get)
    join = _blocking(Runtime.join)
    runs = _blocking(Runtime.runs)
    events = _blocking(Runtime.events)
    waits = _blocking(Runtime.waits)
    effects = _blocking(Runtime.effects)
    settle = _blocking(Runtime.settle)
    messages = _blocking(Runtime.messages)
    answer = _blocking(Runtime.answer)
    signal = _blocking(Runtime.signal)
    pause = _blocking(Runtime.pause)
    resume = _blocking(Runtime.resume)
    cancel = _blocking(Runtime.cancel)
    retry = _blocking(Runtime.retry)
    fork = _blocking(Runtime.fork)
    tick = _blocking(Runtime.tick)
    work = _blocking(Runtime.work)
    prune = _blocking(Runtime.prune)
    schedule = _blocking(Runtime.schedule)
    schedules = _blocking(Runtime.schedules)
    unschedule = _blocking(Runtime.unschedule)

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.pid = os.getpid()
        self._calls: WeakSet[Coroutine[Any, Any, Any]] = WeakSet()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="perdure-blocking", daemon=True
        )
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        self._calls.add(work)
        if self._loop.is_closed():
            work.close()
            raise Closed("This runtime is closed; make a new one, or keep it open for longer.")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what is under way, let it come to its end, and end the loop."""
        try:
            if self._thread is not threading.current_thread():
                asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            if self._thread is not threading.current_thread():
                self._thread.join()
                self._loop.close()

    async def _end(self) -> None:
        found = [task for task in asyncio.all_tasks() if task.get_coro() in self._calls]
        for task in found:
            if not task.cancelling():  # a second time would disturb who drains
                task.cancel()
        await asyncio.gather(*found, return_exceptions=True)
