"""Claim due runs and drive them, until none is due or the worker is asked to stop.

`tick` and `work` are the same loop with different limits. Graphs are driven in the event loop of
the caller, their plain functions in threads beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from perdure.engine.driver import Driver
from perdure.engine.graphs import Graph
from perdure.engine.lease_keeper import LeaseKeeper
from perdure.engine.outbox_delivery import OutboxDelivery
from perdure.engine.segment_drive import Drive, Ended, Outcome, Raised, Returned, StopReason
from perdure.engine.segment_start import held_by_error
from perdure.engine.shutdown import drain_on_signals
from perdure.engine.thread_pool import NodeThreadPool
from perdure.errors import Error, LeaseLost, Unavailable, WriteLost
from perdure.journal import Refused
from perdure.operations import claims
from perdure.operations.claims import LeaseTimes, SegmentEnd
from perdure.operations.runs import RunRow
from perdure.segments.segment import LoopPulse
from perdure.types import Counts, DrivenBy

log = logging.getLogger("perdure")

POLL = 0.2
"""Seconds between two looks for runs that other processes made due."""
SUSPECT_PATIENCE = 10_000
"""Milliseconds a suspect waits for an idle worker before one makes room for it."""
ALONE = 5.0
"""Seconds a suspect is driven alone, unless it makes progress sooner."""
NAMES = {field.name for field in dataclasses.fields(Counts)}


class _Alone:
    """A suspect that is driven alone: while it may kill this process, nothing else runs in it."""

    def __init__(self, task: asyncio.Task[None], driven: set[Drive]) -> None:
        self._task, self._driven = task, driven
        self._until = time.monotonic() + ALONE

    def is_over(self) -> bool:
        moved = any(one.segment.progress.has_moved for one in self._driven)
        return self._task.done() or moved or time.monotonic() > self._until


class Worker:
    """One call of `work` or `tick`."""

    def __init__(
        self,
        driver: Driver,
        keeper: LeaseKeeper,
        graphs: Mapping[str, Graph],
        *,
        concurrency: int,
        limit: int | None = None,
        budget: float | None = None,
        until_idle: bool = False,
        grace: float = 10.0,
        schedules: Callable[[], Any] | None = None,
        delivery: OutboxDelivery | None = None,
        driven_by: DrivenBy = DrivenBy.WORKER,
    ) -> None:
        """Create it in the event loop that drives. Without `schedules` it drives only some of the
        graphs, and does not log due runs of others."""
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._driver, self._keeper, self._clock, self._graphs = driver, keeper, driver.clock, graphs
        self._concurrency, self._limit, self._grace = concurrency, limit, grace
        self._until_idle, self._driven_by = until_idle, driven_by
        self._schedules = schedules
        self._delivery = delivery or OutboxDelivery()
        self._delivering: asyncio.Task[int] | None = None
        self._end = None if budget is None else time.monotonic() + budget
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._driven: set[Drive] = set()
        self._draining = False
        self._pulse = LoopPulse()
        self._fired = self._looked = self._asked_around = float("-inf")
        self._others: set[str] = set()
        self._next = POLL
        self._alone: _Alone | None = None
        self._crowded = False

    async def run(self, *, handle_signals: bool) -> Counts:
        """Drive runs; see `Runtime.work` and `Runtime.tick`."""
        NodeThreadPool.serve(self._loop)
        wake = self.wake
        self._keeper.on_dead.add(wake)
        beating = asyncio.create_task(self._beat())
        try:
            if not self._keeper.is_started:
                await asyncio.to_thread(self._keeper.start)
            await asyncio.to_thread(self._keeper.find_dead)  # a tick may be over before the thread
            signals = drain_on_signals(self._loop, self.drain)
            with signals if handle_signals else contextlib.nullcontext():
                try:
                    await self._drive_all()
                finally:
                    await self._drain()
        finally:
            self._keeper.on_dead.discard(wake)
            beating.cancel()
        return Counts(**{name: self._counts[name] for name in NAMES})

    def wake(self) -> None:
        """Look for due runs now. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    def drain(self) -> None:
        """Claim nothing more, and stop each segment at its next step."""
        self._draining = True
        self._woken.set()

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            await asyncio.sleep(self._keeper.beat)

    # -- the loop

    async def _drive_all(self) -> None:
        while not self._draining:
            self._woken.clear()
            try:
                await self._fire_schedules()
                claimed = await self._claim()
                await self._deliver()
            except (Unavailable, WriteLost) as error:
                log.warning("The journal cannot be used now: %s", error)
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
        # A segment that ended since the claim may have made something due.
        busy = self._tasks or self._delivering is not None
        idle = not claimed and not busy and not self._woken.is_set()
        return self._until_idle and idle

    async def _claim(self) -> int:
        free = self._concurrency - len(self._tasks)
        if self._limit is not None:
            free = min(free, self._limit - self._counts["claimed"])
        if free <= 0:
            return 0
        journal, times = self._driver.journal, self._keeper.times()
        now = times.now
        due = await journal.ado(claims.next_due())
        self._next = POLL if due is None else min(POLL, max(0, due - now) / 1000)
        if due is None or due > now:
            return 0
        if self._alone is not None and not self._alone.is_over():
            return 0
        if await self._make_room(times):
            return 0
        claimed = await self._claim_up_to(free)
        if not claimed and not self._tasks:
            claimed = await self._claim_up_to(1, suspect=True)
        if not claimed:
            await self._warn_once(times)
        return claimed

    async def _warn_once(self, times: LeaseTimes) -> None:
        """Log once for each graph that has due runs and is not registered in this worker."""
        if self._schedules is None or time.monotonic() - self._asked_around < 10.0:
            return
        self._asked_around = time.monotonic()
        for name in await self._driver.journal.ado(claims.unregistered_due(times, self._graphs)):
            if name not in self._others:
                self._others.add(name)
                log.warning("runs of %r are due, which is not registered in this worker", name)

    async def _claim_up_to(self, count: int, *, suspect: bool = False) -> int:
        op = claims.claim(
            self._driver.serializer,
            self._keeper.worker,
            self._keeper.times(),  # a lease begins now, however long it took to look
            self._graphs,
            count,
            driven=self._driven_by,
            suspect=suspect,
        )
        claiming = asyncio.create_task(self._driver.journal.ado(op))
        try:
            await asyncio.shield(claiming)
        finally:  # also if cancelled meanwhile: what was claimed has to be given back
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
                self._alone = _Alone(task, self._driven)

    async def _make_room(self, times: LeaseTimes) -> bool:
        """Whether to claim nothing, because a suspect has waited too long for an idle worker."""
        if time.monotonic() - self._looked >= 1.0:
            self._looked = time.monotonic()
            since = await self._driver.journal.ado(claims.suspect_due(times, self._graphs))
            # Not for ever: what is driven here may take hours. One chance a minute.
            late = None if since is None else (times.now - since) % 60_000
            self._crowded = late is not None and SUSPECT_PATIENCE < late < 3 * SUSPECT_PATIENCE
        return self._crowded and bool(self._tasks)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Driving a run failed", exc_info=error)

    async def _rest(self) -> None:
        """Wait until something may be due."""
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
        """Deliver messages of the outbox, beside the runs."""
        if self._delivering is None and await self._delivery.is_due(self._driver):
            self._delivering = asyncio.create_task(self._delivery.deliver(self._driver))
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
        """Stop each segment at its next step; give back those that do not stop in time."""
        for drive in list(self._driven):
            drive.ask_to_stop(StopReason.SHUTDOWN)
        self._draining = True
        if under_way := self._tasks | ({self._delivering} if self._delivering else set()):
            await asyncio.wait(under_way, timeout=self._grace)
        for drive in list(self._driven):
            try:
                await asyncio.to_thread(self._keeper.give_back, drive)
            except Error as error:
                log.warning("Run %s is given back when its lease ends: %s", drive.row.id, error)
                drive.give_up(Ended.RELEASED)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=1.0)

    # -- one segment

    async def _drive(self, row: RunRow) -> None:
        ended = Ended.LOST
        try:
            ended = await self._segment(row)
        except (Refused, LeaseLost):
            pass
        except Unavailable as error:
            log.warning("Run %s is left until its lease ends: %s", row.id, error)
        finally:
            self._counts[ended.value] += 1
            extra = {"run_id": row.id}
            log.info("run %s of %s: %s", row.id, row.graph, ended.value, extra=extra)

    async def _segment(self, row: RunRow) -> Ended:
        journal = self._driver.journal
        graph = self._graphs[f"{row.graph}@{row.version}"]
        try:
            with self._keeper.renewing(row, self._pulse):
                begun = await journal.arun(self._driver.begin(row, graph))
        except (Unavailable, Refused):
            raise
        except Exception as error:
            begun = held_by_error(error)
        if isinstance(begun, SegmentEnd):
            return await journal.arun(self._driver.end(row, begun))
        ended: asyncio.Future[Ended] = self._loop.create_future()
        task = asyncio.create_task(self._through_langgraph(begun))

        def settle(how: Ended, error: BaseException | None = None) -> None:
            if not ended.done():
                ended.set_result(how) if error is None else ended.set_exception(error)

        def done(task: asyncio.Task[Ended]) -> None:
            error = None if task.cancelled() else task.exception()
            settle(Ended.LOST if task.cancelled() or error else task.result(), error)

        def give_up(how: Ended) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(settle, how)
                self._loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(done)
        begun.segment.pulse, begun.give_up = self._pulse, give_up
        with self._keeping(begun):
            return await ended

    @contextlib.contextmanager
    def _keeping(self, drive: Drive) -> Iterator[None]:
        self._driven.add(drive)
        self._keeper.add(drive)
        if self._draining:
            drive.ask_to_stop(StopReason.SHUTDOWN)
        try:
            yield
        finally:
            self._keeper.remove(drive)
            self._driven.discard(drive)

    async def _through_langgraph(self, drive: Drive) -> Ended:
        try:
            pregel = drive.graph.pregel
            output = await pregel.ainvoke(drive.input, drive.config, **drive.arguments)
            outcome: Outcome = Returned(output)
        except BaseException as error:
            outcome = Raised(error)
        return await self._driver.journal.arun(self._driver.finish(drive, outcome))
