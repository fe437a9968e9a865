"""Claim runs that are due and drive them, until there are none, or until told to stop.

`tick` and `work` are the same loop with other bounds. Graphs are driven in the event loop that
called, their plain functions in threads beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.engine.driver import Drive, Driver, Raised, Returned
from perdure.engine.graphs import Graph
from perdure.engine.lease_keeper import Hold, Keeper, Pulse
from perdure.engine.outbox_delivery import Delivery
from perdure.engine.thread_pool import Threads
from perdure.errors import Error, LeaseLost, Unavailable, WriteLost
from perdure.journal import Refused
from perdure.journal.clock import Clock
from perdure.operations import runs
from perdure.operations.runs import End, RunRow
from perdure.types import Counts

log = logging.getLogger("perdure")

POLL = 0.2
"""Seconds between two looks for what other processes made due."""
PATIENCE = 10_000
"""Milliseconds a suspect waits for a worker with nothing else to do before one makes room."""
ALONE = 5.0
"""Seconds a suspect is driven alone, unless it shows sooner that it kills nobody."""
NAMES = {field.name for field in dataclasses.fields(Counts)}


class _Alone:
    """A suspect on its own: as long as it may kill this process, nothing else is in it."""

    def __init__(self, task: asyncio.Task[None], holds: set[Hold]) -> None:
        self._task, self._holds = task, holds
        self._until = time.monotonic() + ALONE

    def is_over(self) -> bool:
        progressed = any(hold.drive.segment.progressed for hold in self._holds)
        return self._task.done() or progressed or time.monotonic() > self._until


class Worker:
    """One call of `work` or `tick`."""

    def __init__(
        self,
        driver: Driver,
        keeper: Keeper,
        clock: Clock,
        graphs: Mapping[str, Graph],
        *,
        concurrency: int,
        limit: int | None = None,
        budget: float | None = None,
        until_idle: bool = False,
        grace: float = 10.0,
        schedules: Callable[[], Any] | None = None,
        delivery: Delivery | None = None,
        driven: str = "worker",
        knows_all: bool = True,
    ) -> None:
        """In the loop that drives. `knows_all` says that what is due of other graphs is worth a
        warning."""
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._driver, self._keeper, self._clock, self._graphs = driver, keeper, clock, graphs
        self._concurrency, self._limit, self._grace = concurrency, limit, grace
        self._until_idle, self._driven = until_idle, driven
        self._schedules = schedules
        self._delivery = delivery or Delivery()
        self._delivering: asyncio.Task[int] | None = None
        self._end = None if budget is None else time.monotonic() + budget
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._holds: set[Hold] = set()
        self._draining = False
        self._pulse = Pulse()
        self._fired = self._looked = self._asked_around = float("-inf")
        self._names_strangers = knows_all
        self._strangers: set[str] = set()
        self._next = POLL
        self._alone: _Alone | None = None
        self._crowded = False

    async def run(self, *, handle_signals: bool) -> Counts:
        """Drive runs; see `Runtime.work` and `Runtime.tick`."""
        Threads.serve(self._loop)
        wake = self.wake
        self._keeper.on_dead.add(wake)
        self._keeper.start()
        beating = asyncio.create_task(self._beat())
        try:
            await asyncio.to_thread(self._keeper.find_dead)  # a tick may be over before the thread
            with self._signals() if handle_signals else contextlib.nullcontext():
                try:
                    await self._drive_all()
                finally:
                    await self._drain()
        finally:
            self._keeper.on_dead.discard(wake)
            beating.cancel()
        return Counts(**{name: self._counts[name] for name in NAMES})

    def wake(self) -> None:
        """Something may be due. From any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    def drain(self) -> None:
        """Take nothing more, and let what is driven stop at its next step."""
        self._draining = True
        self._woken.set()

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            await asyncio.sleep(self._keeper.beat)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain; the same one again is as rude as ever."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before: dict[signal.Signals, Any] = {}

        def stop(number: signal.Signals) -> None:
            log.info("%s: draining", number.name)
            self._loop.remove_signal_handler(number)
            signal.signal(number, before[number])
            self.drain()
            if _is_of_the_application(before[number]):
                before[number](number, None)  # which has its own way to stop

        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.getsignal(number)
            self._loop.add_signal_handler(number, stop, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                self._loop.remove_signal_handler(number)
                signal.signal(number, handler)

    # -- the loop

    async def _drive_all(self) -> None:
        while not self._draining:
            self._woken.clear()
            try:
                await self._fire_schedules()
                claimed = await self._claim()
                await self._deliver()
            except (Unavailable, WriteLost) as error:
                log.warning("The journal is in trouble: %s", error)
                claimed = 0
                await asyncio.sleep(1.0)
            if self._is_over(claimed):
                return
            if not claimed:
                await self._rest()

    def _is_over(self, claimed: int) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            return True
        if self._limit is not None and self._counts["claimed"] >= self._limit:
            return not self._tasks
        # One that ended while we looked may have made something due behind our back.
        busy = self._tasks or self._delivering is not None
        idle = not claimed and not busy and not self._woken.is_set()
        return self._until_idle and idle

    async def _claim(self) -> int:
        free = self._concurrency - len(self._tasks)
        if self._limit is not None:
            free = min(free, self._limit - self._counts["claimed"])
        if free <= 0:
            return 0
        journal, now = self._driver.journal, self._clock.now()
        due = await journal.ado(runs.next_due())
        self._next = POLL if due is None else min(POLL, max(0, due - now) / 1000)
        if due is None or due > now:
            return 0
        if self._alone is not None and not self._alone.is_over():
            return 0
        if await self._make_room(now):
            return 0
        claimed = await self._take(now, free)
        if not claimed and not self._tasks:
            claimed = await self._take(now, 1, suspect=True)
        if not claimed:
            await self._name_strangers(now)
        return claimed

    async def _name_strangers(self, now: int) -> None:
        """Say once of which graphs runs are due that this worker does not know."""
        if not self._names_strangers or time.monotonic() - self._asked_around < 10.0:
            return
        self._asked_around = time.monotonic()
        for name in await self._driver.journal.ado(runs.strangers_due(now, self._graphs)):
            if name not in self._strangers:
                self._strangers.add(name)
                log.warning("runs of %r are due, which is not registered in this worker", name)

    async def _take(self, now: int, count: int, *, suspect: bool = False) -> int:
        op = runs.claim(
            self._driver.serializer,
            self._keeper.worker,
            now,
            self._keeper.until(),
            self._graphs,
            count,
            driven=self._driven,
            suspect=suspect,
        )
        claiming = asyncio.create_task(self._driver.journal.ado(op))
        try:
            await asyncio.shield(claiming)
        finally:  # whoever is told to stop meanwhile still has what he claimed, and gives it back
            claimed = await claiming
            self._drive_these(claimed, suspect)
        return len(claimed)

    def _drive_these(self, claimed: list[RunRow], suspect: bool) -> None:
        self._counts["claimed"] += len(claimed)
        for row in claimed:
            task = asyncio.create_task(self._drive(row))
            self._tasks.add(task)
            task.add_done_callback(self._finished)
            if suspect:
                self._alone = _Alone(task, self._holds)

    async def _make_room(self, now: int) -> bool:
        """Whether to take nothing, because a suspect found no free worker for too long."""
        if time.monotonic() - self._looked >= 1.0:
            self._looked = time.monotonic()
            since = await self._driver.journal.ado(runs.suspect_due(now, self._graphs))
            # Not for ever: what is driven here may take hours. Each minute there is a chance.
            late = None if since is None else (now - since) % 60_000
            self._crowded = late is not None and PATIENCE < late < 3 * PATIENCE
        return self._crowded and bool(self._tasks)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Driving a run failed", exc_info=error)

    async def _rest(self) -> None:
        """Until something may be due."""
        pause = self._next or POLL
        if self._end is not None:
            pause = min(pause, max(0.0, self._end - time.monotonic()))
        # Not wait_for: up to Python 3.11 it can swallow a cancellation that comes with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._woken.wait()

    async def _fire_schedules(self) -> None:
        if self._schedules is not None and time.monotonic() - self._fired >= 1.0:
            self._fired = time.monotonic()
            self._counts["scheduled"] += await self._schedules()

    async def _deliver(self) -> None:
        """Deliver what is in the outbox, beside the runs."""
        driver = self._driver
        if self._delivering is None and await self._delivery.is_due(driver.journal, self._clock):
            deliver = self._delivery.deliver(driver.journal, driver.serializer, self._clock)
            self._delivering = asyncio.create_task(deliver)
            self._delivering.add_done_callback(self._delivered)

    def _delivered(self, task: asyncio.Task[int]) -> None:
        self._delivering = None
        self._woken.set()
        if not task.cancelled():
            if (error := task.exception()) is not None:
                log.error("Delivering messages failed", exc_info=error)
            else:
                self._counts["delivered"] += task.result()

    async def _drain(self) -> None:
        """Let everything stop at its next step; give back what does not in time."""
        for hold in list(self._holds):
            hold.drive.ask_to_stop("shutdown")
        self._draining = True
        if under_way := self._tasks | ({self._delivering} if self._delivering else set()):
            await asyncio.wait(under_way, timeout=self._grace)
        for hold in list(self._holds):
            try:
                await asyncio.to_thread(self._keeper.release, hold)
            except Error as error:
                log.warning("Run %s is given back by its lease: %s", hold.run_id, error)
                hold.give_up("released")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    # -- one segment

    async def _drive(self, row: RunRow) -> None:
        kind = "lost"
        try:
            kind = await self._segment(row)
        except (Refused, LeaseLost):
            pass
        except Unavailable as error:
            log.warning("Run %s is left to its lease: %s", row.id, error)
        finally:
            self._count(kind)
            told = {"run_id": row.id}
            log.info("run %s of %s: %s", row.id, row.graph, kind, extra=told)

    async def _begin(self, row: RunRow, graph: Graph) -> Drive | End:
        begin = self._driver.journal.arun(self._driver.begin(row, graph))
        if row.control is None:
            return await begin
        task = asyncio.create_task(begin)  # to undo what it did may take longer than a lease
        try:
            while not (await asyncio.wait({task}, timeout=self._keeper.beat))[0]:
                await asyncio.to_thread(self._keeper.keep, row.id)
            return await task
        finally:
            task.cancel()

    async def _segment(self, row: RunRow) -> str:
        journal = self._driver.journal
        graph = self._graphs[f"{row.graph}@{row.version}"]
        try:
            begun = await self._begin(row, graph)
        except (Unavailable, Refused):
            raise
        except Exception as error:
            begun = self._driver.unfit(error)
        if isinstance(begun, End):
            return await journal.arun(self._driver.let_go(row, begun))
        ended: asyncio.Future[str] = self._loop.create_future()
        task = asyncio.create_task(self._through_langgraph(begun))

        def settle(kind: str, error: BaseException | None = None) -> None:
            if not ended.done():
                ended.set_result(kind) if error is None else ended.set_exception(error)

        def done(task: asyncio.Task[str]) -> None:
            error = None if task.cancelled() else task.exception()
            settle("lost" if task.cancelled() or error else task.result(), error)

        def give_up(kind: str) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, kind)
                self._loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(done)
        with self._holding(Hold(begun, self._pulse, give_up)):
            return await ended

    @contextlib.contextmanager
    def _holding(self, hold: Hold) -> Iterator[None]:
        self._holds.add(hold)
        self._keeper.hold(hold)
        if self._draining:
            hold.drive.ask_to_stop("shutdown")
        try:
            yield
        finally:
            self._keeper.drop(hold)
            self._holds.discard(hold)

    async def _through_langgraph(self, drive: Drive) -> str:
        try:
            pregel = drive.graph.pregel
            output = await pregel.ainvoke(drive.input, drive.config, **drive.arguments)
            outcome: Returned | Raised = Returned(output)
        except BaseException as error:
            outcome = Raised(error)
        return await self._driver.journal.arun(self._driver.finish(drive, outcome))

    def _count(self, kind: str) -> None:
        self._counts[kind if kind in NAMES else "released"] += 1


def _is_of_the_application(handler: Any) -> bool:
    """Whether a signal handler is neither Python's nor the one of `asyncio.run`, which cancels."""
    if not callable(handler) or handler is signal.default_int_handler:
        return False
    return getattr(getattr(handler, "func", handler), "__module__", "") != "asyncio.runners"
