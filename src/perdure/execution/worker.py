"""Claim due runs and drive them, until none is due or the worker is asked to stop.

`tick` and `work` are the same loop with different limits. Graphs are driven in the event loop of
the caller, their plain functions in threads beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

from perdure.commands import claims
from perdure.commands.claims import SegmentEnd, WorkFound, look
from perdure.commands.runs import RunRow
from perdure.errors import Closed, Error, LeaseLost, Unavailable, WriteLost
from perdure.execution.drive import (
    Drive,
    Driver,
    Ended,
    NodeThreadPool,
    Outcome,
    Raised,
    Returned,
    StopReason,
)
from perdure.execution.duties import FIRING, Duties, Sweep, fire_schedules
from perdure.execution.graphs import Graph
from perdure.execution.lease import LeaseKeeper, Member
from perdure.execution.segment import LoopPulse, driving
from perdure.execution.segment_end import end_segment, finish_segment
from perdure.execution.segment_start import begin_segment, held_by_error
from perdure.execution.stream_capture import stream_through
from perdure.failures import WORKER
from perdure.journal import Refused, all_rows
from perdure.journal.clock import JournalClock
from perdure.shutdown import drain_on_signals
from perdure.types import Counts, DrivenBy
from perdure.views.event_wording import by_words

log = logging.getLogger("perdure")
T = TypeVar("T")

SUSPECT_PATIENCE = 10_000
"""Milliseconds a suspect waits for an idle worker before one makes room for it."""
SLOTS = SUSPECTS = 1.0
"""Seconds between two looks for slots of schedules, and for suspects while something is driven."""
DRAINS = 2.0
"""Seconds between two looks for a request to drain."""
ALONE = 5.0
"""Seconds a suspect is driven alone, unless it makes progress sooner."""
END_PATIENCE = 5.0
"""Seconds that closing waits for a worker, beyond its grace."""
DRIVING = "Driving runs"
"""The duty whose items are runs."""
NAMES = {field.name for field in dataclasses.fields(Counts)}


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
        sweeps: Iterable[Sweep] | None = None,
        driven_by: DrivenBy = DrivenBy.WORKER,
    ) -> None:
        """Create it in the event loop that drives. Without `sweeps` it drives only some of the
        graphs: it has no other duties, and does not log due runs of others."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self.ended = threading.Event()
        self._woken = asyncio.Event()
        self._driver, self._keeper, self._clock, self._graphs = driver, keeper, driver.clock, graphs
        self._journal, self._failures = driver.journal, driver.failures
        self._concurrency, self._limit, self._grace = concurrency, limit, grace
        self._until_idle, self.driven_by = until_idle, driven_by
        self._presence, self._member = (
            keeper.presence,
            Member(tuple(graphs), concurrency, until_idle),
        )
        self._has_duties = sweeps is not None
        self._duties = Duties(driver, driver.outbox, sweeps, self._done, once=until_idle)
        self._sweeps: list[Sweep] = []
        """Of which a piece is done if the last look found something to delete."""
        self._end = None if budget is None else time.monotonic() + budget
        self._counts: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[None]] = set()
        self._driven: set[Drive] = set()
        self._draining = False
        self._pulse = LoopPulse()
        self._poll = self._journal.capabilities.poll
        self._has_looked = False
        self._last: dict[str, float] = {}
        """When something was last done that is done now and then."""
        self._others: set[str] = set()
        self._suspect: asyncio.Task[None] | None = None
        """It is driven alone: while it may kill this process, nothing else runs in it."""
        self._alone_until = 0.0
        self._crowded = False

    async def run(self, *, handle_signals: bool, stop: asyncio.Event | None = None) -> Counts:
        """Drive runs; see `Runtime.work` and `Runtime.tick`. It drains when `stop` is set: unlike a
        cancellation, that does not cut a drain short which a signal has begun."""
        NodeThreadPool.serve(self._loop)
        beside = [asyncio.create_task(self._beat())]
        beside.append(asyncio.create_task(self._presence.keep(self._member)))
        if stop is not None:
            beside.append(asyncio.create_task(self._drain_at(stop)))
        try:
            if not self._keeper.is_started:
                await asyncio.to_thread(self._keeper.start)
            signals = drain_on_signals(self._loop, self.drain)
            with signals if handle_signals else contextlib.nullcontext():
                try:
                    await self._drive_all()
                finally:
                    await self._drain()
        finally:
            for task in beside:
                task.cancel()
            await asyncio.wait(beside)
            await self._presence.leave(self._member)
        return Counts(**{name: self._counts[name] for name in NAMES})

    def wake(self) -> None:
        """Look for due runs now. May be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    def drain(self) -> None:
        """Claim nothing more, and stop each segment at its next step. May be called from any
        thread."""
        self._draining = True
        self.wake()

    def end(self) -> None:
        """Drain, and wait until it has ended. In the thread of its event loop, or if the loop is
        gone, there is no waiting: its runs are given back in the middle of their steps."""
        self.drain()
        if self._loop.is_running() and self._thread != threading.get_ident():
            self.ended.wait(self._grace + END_PATIENCE)
        for drive in list(self._driven):
            self._give_back(drive)

    async def _drain_at(self, stop: asyncio.Event) -> None:
        await stop.wait()
        self.drain()

    async def _beat(self) -> None:
        while True:
            self._pulse.beat()
            due = time.monotonic() + self._keeper.beat
            await asyncio.sleep(self._keeper.beat)
            self._driver.observers.call("on_lag", time.monotonic() - due)

    # -- the loop

    async def _drive_all(self) -> None:
        while not self._draining:
            self._woken.clear()
            claimed, soon_at = 0, None
            found = await self._do("Looking for work", self._look)
            if found is not None:
                if not self._has_looked:
                    self._has_looked = True
                    self._failures.clear(WORKER)
                expired = await self._do("Expiring dead workers", self._expire_dead, found)
                fired = await self._do("Firing schedules", self._fire, found)
                if expired or fired:
                    found = await self._do("Looking for work", self._look) or found
                claimed = await self._do("Claiming runs", self._claim, found) or 0
                soon_at = found.soon_at
                self._duties.begin(found, self._sweeps)
            if self._is_over(claimed):
                return
            await self._rest(soon_at)

    async def _do(self, duty: str, work: Callable[..., Awaitable[T]], *arguments: Any) -> T | None:
        """Do a duty of the loop, unless it failed just now. None: it was not done; that ends
        neither the loop nor the other duties. A worker that stops when idle does not wait: it ends,
        and raises unless it has worked and the journal became unavailable."""
        if self._failures.is_resting(duty) and not self._until_idle:
            return None
        try:
            done = await work(*arguments)
        except Closed:
            raise
        except Exception as error:
            self._failures.note(error, duty)
            passes = isinstance(error, (Unavailable, WriteLost)) and self._has_looked
            if self._until_idle and not passes:
                raise
            return None
        self._failures.clear(duty)
        return done

    def _is_over(self, claimed: int) -> bool:
        if self._end is not None and time.monotonic() >= self._end:
            return True
        if self._limit is not None and self._counts["claimed"] >= self._limit:
            return not self._tasks
        # A segment that ended since the claim may have made something due.
        busy = self._tasks or self._duties.tasks
        idle = not claimed and not busy and not self._woken.is_set()
        return self._until_idle and idle

    async def _look(self) -> WorkFound:
        """One request, whatever is looked for: it is all that an idle worker asks."""
        await self._journal.aopen()  # the time is that of the database
        times = self._keeper.times()
        suspects = self._is_time("suspects", SUSPECTS if self._tasks else 0.0)
        slots = self._has_duties and self._is_time("slots", SLOTS)
        drains = self._presence.is_announced and self._is_time("drains", DRAINS)
        self._sweeps = sweeps = self._duties.due_sweeps
        op = look(
            times,
            self._graphs,
            until=times.now + round(self._poll * 1000),
            suspects=suspects,
            slots=slots,
            topics=self._duties.free,
            oldest=bool(sweeps),
            worker=self._keeper.worker if drains else None,
        )
        if isinstance(self._clock, JournalClock):
            op = self._clock.agree_by(op)
        found = await self._journal.ado(op)
        if found.drain is not None:
            log.info("draining, asked%s", by_words(found.drain.by))
            self.drain()
        if suspects:
            # Not for ever: what is driven here may take hours. One chance a minute.
            since = found.suspect_at
            late = None if since is None else (times.now - since) % 60_000
            self._crowded = late is not None and SUSPECT_PATIENCE < late < 3 * SUSPECT_PATIENCE
        return found

    def _is_time(self, what: str, pause: float) -> bool:
        """Whether something that is done now and then is to be done now."""
        now = time.monotonic()
        if now - self._last.get(what, float("-inf")) < pause:
            return False
        self._last[what] = now
        return True

    async def _expire_dead(self, found: WorkFound) -> bool:
        self._keeper.silent = ()
        others = [one for one in found.workers if one.worker != self._keeper.worker]
        return bool(others) and await asyncio.to_thread(self._keeper.expire_dead, others)

    async def _fire(self, found: WorkFound) -> int:
        """Start the runs of schedules whose slots are due."""
        if found.schedules is None:
            return 0
        if not found.schedules:
            self._failures.keep_only(FIRING, ())
            return 0
        started = await self._journal.arun(fire_schedules(self._driver, found.schedules))
        self._counts["scheduled"] += started
        return started

    async def _claim(self, found: WorkFound) -> int:
        if self._keeper.is_behind:  # what is due may be what this process drives
            self._keeper.nudge()
            await asyncio.sleep(self._keeper.beat)
            self._woken.set()
            return 0
        free = self._concurrency - len(self._tasks)
        if self._limit is not None:
            free = min(free, self._limit - self._counts["claimed"])
        if free <= 0 or self._is_alone():
            return 0
        if self._crowded and self._tasks:
            return 0  # a suspect has waited too long for an idle worker: make room for it
        claimed = 0
        if found.due_at is not None:
            claimed = await self._claim_up_to(free, found.due_at)
        if not claimed and not self._tasks and found.suspect_at is not None:
            claimed = await self._claim_up_to(1, found.suspect_at, suspect=True)
        if not claimed:
            await self._warn_once(found)
        return claimed

    def _is_alone(self) -> bool:
        if self._suspect is None or self._suspect.done() or time.monotonic() > self._alone_until:
            return False
        return not any(drive.progress.has_moved for drive in self._driven)

    async def _warn_once(self, found: WorkFound) -> None:
        """Log once for each graph that has due runs and is not registered in this worker."""
        times = self._keeper.times()
        is_late = found.first_at is not None and found.first_at <= times.now
        if not (is_late and self._has_duties and self._is_time("others", 10.0)):
            return
        for name in await self._journal.ado(claims.unregistered_due(times, self._graphs)):
            if name not in self._others:
                self._others.add(name)
                log.warning("graph %r has due runs, but is not registered in this worker", name)

    async def _claim_up_to(self, count: int, since: int | None, *, suspect: bool = False) -> int:
        try:
            return await self._claim_these(count, since, suspect=suspect)
        except (Unavailable, WriteLost, Closed):
            raise
        except Exception:
            times = self._keeper.times()
            due = claims.claimable(times, self._graphs, count, all_rows, suspect=suspect)
            rows = await self._journal.ado(due)
            if not rows:
                raise
        claimed = 0
        for _, thread_id, run_id in rows:  # one by one: what one of them raises, it raises alone
            if self._failures.is_resting(DRIVING, run_id):
                continue
            try:
                claimed += await self._claim_these(1, since, suspect=suspect, only=run_id)
            except (Unavailable, WriteLost, Closed):
                raise
            except Exception as error:
                await self._postpone(thread_id, run_id, error)
        return claimed

    async def _postpone(self, thread_id: str, run_id: str, error: Exception) -> None:
        """Leave a run that raises at its claim or at the end of its segment: it does not block the
        others, is tried again later, and says why."""
        pause = self._failures.note(error, DRIVING, run_id)
        said = str(error) if isinstance(error, Error) else type(error).__qualname__
        reason = self._driver.serializer.redacted_text(f"it cannot be driven: {said}")
        until = self._keeper.times().until + round(pause * 1000)
        with contextlib.suppress(Exception):  # then it is due when its lease ends, or at once
            await self._journal.ado(claims.postpone(thread_id, run_id, until, reason))

    async def _claim_these(
        self, count: int, since: int | None, *, suspect: bool, only: str | None = None
    ) -> int:
        op = claims.claim(
            self._driver.serializer,
            self._keeper.worker,
            self._keeper.times(),  # a lease begins now, however long it took to look
            self._graphs,
            count,
            driven=self.driven_by,
            suspect=suspect,
            since=since,
            only=only,
            silent=self._keeper.silent,
        )
        claiming = asyncio.create_task(self._journal.ado(op))
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
                self._suspect, self._alone_until = task, time.monotonic() + ALONE

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._woken.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("Driving a run failed", exc_info=error)

    async def _rest(self, soon_at: int | None) -> None:
        """Wait until something may be due."""
        pause = self._poll
        if soon_at is not None:
            pause = min(pause, max(0, soon_at - self._clock.now()) / 1000)
        if self._end is not None:
            pause = min(pause, max(0.0, self._end - time.monotonic()))
        # Not wait_for: up to Python 3.11 it can swallow a cancellation that comes with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await self._woken.wait()

    def _done(self, count: str, number: int) -> None:
        self._counts[count] += number
        self._woken.set()

    async def _drain(self) -> None:
        """Stop each segment at its next step; give back those that do not stop in time."""
        for drive in list(self._driven):
            drive.ask_to_stop(StopReason.SHUTDOWN)
        self._draining = True
        try:
            if under_way := {*self._tasks, *self._duties.tasks}:
                await asyncio.wait(under_way, timeout=self._grace)
        finally:  # also if it is cancelled meanwhile, as by a second interrupt
            for drive in list(self._driven):
                await asyncio.to_thread(self._give_back, drive)
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=1.0)

    def _give_back(self, drive: Drive) -> None:
        try:
            self._keeper.give_back(drive)
        except Error as error:
            log.warning(
                "Run %s could not be released and comes back when its lease ends: %s",
                drive.row.id,
                error,
            )
            drive.give_up(Ended.RELEASED)

    # -- one segment

    async def _drive(self, row: RunRow) -> None:
        ended = Ended.LOST
        try:
            ended = await self._segment(row)
        except (Refused, LeaseLost):
            pass
        except Unavailable as error:
            log.warning(
                "Run %s could not be ended and comes back when its lease ends: %s", row.id, error
            )
        except Exception as error:
            await self._postpone(row.thread_id, row.id, error)
        else:
            self._failures.clear(DRIVING, row.id)
        finally:
            self._counts[ended.value] += 1
            extra = {"run_id": row.id}
            log.info("run %s of %s: %s", row.id, row.graph, ended.value, extra=extra)

    async def _segment(self, row: RunRow) -> Ended:
        journal, graph = self._journal, self._graphs[f"{row.graph}@{row.version}"]
        try:
            with self._keeper.renewing(row, self._pulse):
                begun = await journal.arun(begin_segment(self._driver, row, graph))
        except (Unavailable, Refused):
            raise
        except Exception as error:
            begun = held_by_error(error)
        if isinstance(begun, SegmentEnd):
            return await journal.arun(end_segment(self._driver, row, begun))
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
        begun.pulse, begun.give_up = self._pulse, give_up
        self._driven.add(begun)
        try:
            self._keeper.add(begun)
            if self._draining:
                begun.ask_to_stop(StopReason.SHUTDOWN)
            return await ended
        finally:
            self._keeper.remove(begun)
            self._driven.discard(begun)

    async def _through_langgraph(self, drive: Drive) -> Ended:
        if drive.is_overdue:  # it took long to begin: another worker may have begun, too
            await self._journal.ado(drive.owner.fenced())
        try:
            outcome: Outcome = Returned()
            recorder = drive.stream
            with driving(drive), self._driver.observers.around(drive):
                if recorder is not None:
                    outcome = Returned(await stream_through(drive, recorder))
                else:
                    run = drive.graph.pregel.ainvoke
                    outcome = Returned(await run(drive.input, drive.config, **drive.arguments))
        except BaseException as error:
            outcome = Raised(error)
        try:
            return await self._journal.arun(finish_segment(self._driver, drive, outcome))
        except Closed:  # it was given back, and its loop ends
            return Ended.LOST
