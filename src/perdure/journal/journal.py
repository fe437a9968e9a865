"""What can be asked of an open journal: run operations and plans, defer, flush.

Writes go through the queue of `group_commit`. A read sees everything queued before it, unless it
asks only for what is committed.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from perdure.errors import Closed, Error, StatementFailed, Unavailable, WentBack
from perdure.journal.changes import ChangeFeed, CommitListener, Listener
from perdure.journal.collected_transaction import collect
from perdure.journal.committer import QueuedOperation
from perdure.journal.group_commit import CLOSED, GroupCommit, Meter
from perdure.journal.operation import (
    Ambiguous,
    Backend,
    Capabilities,
    Op,
    Plan,
    Poll,
    Statement,
    Transaction,
    UserStatement,
    no_result,
)
from perdure.journal.went_back import Acknowledged

T = TypeVar("T")

THREADS = 8
"""Maximum number of threads that read one journal."""
TOGETHER = 16
"""Maximum number of operations that share a visit."""

Outcome = tuple[Any, BaseException | None]
"""A result, or what was raised instead."""


class Journal:
    """An open journal. Use it from any thread, event loop or forked process."""

    def __init__(self, backend: Backend, acknowledged: Acknowledged | None = None) -> None:
        """`acknowledged` is the one with which the backend compares its database."""
        self._backend, self.acknowledged = backend, acknowledged or Acknowledged()
        self.opened_at: tuple[int, float] | None = None
        """The time of the database when it was opened, and of our monotonic clock then."""
        self._group = GroupCommit(backend, self.acknowledged)
        self._reads = Reads(backend)

    def _begin_again(self) -> GroupCommit:
        """Begin a queue that is used as the last one was."""
        last, group = self._group, GroupCommit(self._backend, self.acknowledged)
        group.interval, group.meter = last.interval, last.meter
        self._group, self._reads = group, Reads(self._backend)
        if last.committer.listener is not None:
            self.listen(last.committer.listener.listener)
        return group

    def set_interval(self, seconds: float) -> None:
        """Set after how many seconds a deferred operation is committed."""
        self._group.interval = seconds

    def listen(self, listener: Listener) -> None:
        """Have `listener` called after each commit that stored events. What it raises is logged."""
        self._group.committer.listener = CommitListener(listener, self._backend.read)

    def look_back(self, why: str, *, is_certain: bool) -> None:
        """Compare the database with what was acknowledged; the listeners hear what it lacks."""
        with suppress(WentBack):
            self.acknowledged.compare(self._backend.read, why, is_certain=is_certain)

    def measure(self, meter: Meter) -> None:
        """Have `meter` called after each commit of the queue."""
        self._group.meter = meter

    @property
    def queue_depth(self) -> int:
        """How many operations are queued in this process and not committed."""
        return len(self._group.queue)

    def drain(self) -> None:
        """Wait until everything queued so far is durable, and the listener has it."""
        self.flush()
        if (listener := self._group.committer.listener) is not None:
            listener.drain()

    def _check(self) -> GroupCommit:
        """The queue of this process. Raises `Closed` and `WriteLost`."""
        group = self._group
        if group.closed:
            raise Closed(CLOSED)
        if group.pid != os.getpid():
            # Forked: the parent keeps its queue and connections, this process gets its own.
            group.leave_to_parent()
            self.acknowledged.reopen()
            group = self._begin_again()
            self._backend.reopen()
        if group.committer.lost is not None:
            group.raise_lost()
        return group

    @property
    def is_open(self) -> bool:
        """Whether the database was opened and is not closed. Asking does not open it."""
        return self.opened_at is not None and not self._group.closed

    @property
    def opening_problem(self) -> Exception | None:
        """Why the database could not be opened so far, while that is tried again."""
        problem: Exception | None = getattr(self._backend, "problem", None)
        return problem

    def setup(self) -> None:
        """Open the database now, and again if it was closed."""
        if self._group.closed:
            self.opened_at = None
            self._backend.reopen()
            self._begin_again()
        self.open()

    def open(self) -> None:
        """Open the database now, if it was not yet. Otherwise the first use does."""
        self._check()
        if self.opened_at is None:
            [[[there]]] = self._backend.read([Statement("journal_time", {})])
            self.opened_at = (int(there), time.monotonic())

    async def aopen(self) -> None:
        """Like `open`, without blocking the event loop."""
        if self.opened_at is None:
            await self.in_thread(self.open)

    @property
    def capabilities(self) -> Capabilities:
        """What the database of this journal can do."""
        return self._backend.capabilities

    def do(self, op: Op[T]) -> T:
        """Run `op` and return its result; if it writes, once it is durable."""
        if self.opened_at is None:
            self.open()
        if op.write:
            return self.wait(self._check().append(op, waited=True))
        self.flush()
        return self.read_committed(op)

    async def ado(self, op: Op[T]) -> T:
        """Like `do`, without blocking the event loop."""
        if self.opened_at is None:
            await self.aopen()
        group = self._check()
        if op.write:
            queued = group.append(op, waited=True)
            await group.acommit_through(queued)
            return queued.value if queued.error is None else queued.get()
        if group.newest is not None and not group.newest.settled:
            await self.aflush()
        return await self._reads.read(op)

    def run(self, plan: Plan[T], *, flush: bool = True) -> T:
        """Follow a plan, blocking. Without `flush` its reads do not wait for what is queued. What a
        step raises is raised in the plan, at its `yield`."""
        try:
            self.arun(plan, flush=flush, blocking=True).send(None)
        except StopIteration as done:
            return cast(T, done.value)
        raise AssertionError("a step that blocks does not suspend")

    async def arun(self, plan: Plan[T], *, flush: bool = True, blocking: bool = False) -> T:
        """Like `run`, without blocking the event loop; `blocking`: without using one."""
        if self.opened_at is None and not blocking:
            await self.aopen()  # also because a plan may ask for the time
        answer: Any = None
        error: Exception | None = None
        try:
            while True:
                step = plan.send(answer) if error is None else plan.throw(error)
                answer = error = None
                try:
                    if isinstance(step, float):
                        time.sleep(step) if blocking else await asyncio.sleep(step)  # noqa: ASYNC251
                    elif isinstance(step, Poll):
                        self.pause(step) if blocking else await self.apause(step)
                    elif not isinstance(step, Op):
                        answer = step.run() if blocking else await step.arun()
                    elif flush or step.write:
                        answer = self.do(step) if blocking else await self.ado(step)
                    elif blocking:
                        answer = self.read_committed(step)
                    else:
                        answer = await self.aread_committed(step)
                except Exception as raised:
                    error = raised
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            error = None  # its traceback refers to this frame
            plan.close()  # now, and not when the exception is let go

    def pause(self, poll: Poll) -> None:
        """Wait between two looks at what others may have changed."""
        watch, rest = self._group.watch, poll.next_rest(self.capabilities.poll)
        time.sleep(poll.first)
        if poll.seen is not None:
            watch.wait_in_thread(poll.seen, rest)
        poll.seen = watch.count

    async def apause(self, poll: Poll) -> None:
        """Like `pause`, without blocking the event loop."""
        watch, rest = self._group.watch, poll.next_rest(self.capabilities.poll)
        await asyncio.sleep(poll.first)
        if poll.seen is not None:
            await watch.wait(poll.seen, rest)
        poll.seen = watch.count

    @property
    def feed(self) -> ChangeFeed:
        """Wakes those who wait for a run to change, in any process."""
        return self._check().feed

    def read_committed(self, op: Op[T]) -> T:
        """Read what is on disk now, without waiting for what is queued."""
        self._check().check_outside_transaction()
        return op.result(self._backend.read(op.render()))

    async def aread_committed(self, op: Op[T]) -> T:
        """Like `read_committed`, without blocking the event loop."""
        self._check()
        return await self._reads.read(op)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do `work`, which reads more than once, in a thread that reads: one change of threads is
        cheaper than one for each read."""
        self._check()
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._reads.start(lambda: _hand_over([(future, _outcome(work))]))
        return await future

    def read_soon(self, op: Op[T], then: Callable[[T], None]) -> None:
        """Read in another thread and hand the result to `then`; or not, if that fails."""

        def job() -> None:
            with suppress(Exception):
                then(self.read_committed(op))

        self._check()
        self._reads.start(job)

    def do_unqueued(self, op: Op[T]) -> T:
        """Commit a write at once, outside of the queue. What is queued may be committed later."""
        self._check()
        try:
            return op.result(self._backend.commit(op.render()))
        except Ambiguous as error:
            raise Unavailable(f"{error}. Whether it was stored is not known.") from error

    def transact(self, name: str, work: Callable[[Transaction], T], proof: Statement) -> T:
        """Do `work` in one transaction of its own, after everything queued.

        `proof` finds a row if it is committed: a lost reply is settled by reading that. If it is
        not there, the work is done again; on a database that only takes batches, the same batch is
        sent again. There a statement that the work collected and the database refuses raises
        `StatementFailed`. `name` is what messages call it.
        """
        if self.capabilities.interactive:
            self.flush()
            return self._group.transact(work, proof)
        group = self._check()
        group.check_outside_transaction()
        result, statements = group.in_transaction(lambda: collect(name, self.capabilities, work))
        op = Op(name, statements, no_result, write=True, key=proof)
        queued = group.append(op, waited=True)
        try:
            self.wait(queued)
        except Error as error:
            is_own = error is queued.error and not isinstance(error, Unavailable)
            if not is_own or not any(isinstance(one, UserStatement) for one in statements):
                raise
            cause = error.__cause__ or error
            raise StatementFailed(name, str(cause)) from cause
        return result

    def defer(self, op: Op[T], *, hold: bool = False, watched: bool = False) -> QueuedOperation[T]:
        """Queue `op` for the next commit, within 20 ms; with `hold`, within a second.

        `watched`: the caller looks for its error. Otherwise the next use of the journal raises it.
        """
        group = self._group
        if group.committer.lost is not None or group.pid != os.getpid():
            group = self._check()
        return group.append(op, waited=False, watched=watched, hold=hold)

    def commit_soon(self) -> None:
        """Have what is queued committed now, without waiting for it."""
        self._group.schedule(0.0)

    def wait(self, queued: QueuedOperation[T]) -> T:
        """Wait until a deferred operation is durable, and return its result."""
        queued.waited = True
        self._group.commit_through(queued)
        return queued.get()

    async def await_(self, queued: QueuedOperation[T]) -> T:
        """Like `wait`, without blocking the event loop."""
        queued.waited = True
        await self._group.acommit_through(queued)
        return queued.get()

    @property
    def full(self) -> bool:
        """Whether so much is queued that a caller who adds to it should wait."""
        return len(self._group.queue) >= self._group.capacity

    def flush(self) -> None:
        """Wait until everything queued so far is durable."""
        group = self._check()
        if (newest := group.newest) is not None:
            group.commit_through(newest)
        group.raise_lost()

    async def aflush(self) -> None:
        """Like `flush`, without blocking the event loop."""
        group = self._check()
        if (newest := group.newest) is not None:
            await group.acommit_through(newest)
        group.raise_lost()

    def close(self) -> None:
        """Commit what is queued and close the database."""
        self._group.close()
        if self._group.pid == os.getpid():  # the threads of a forked process are its parent's
            self._reads.close()


class Reads:
    """Reads of coroutines: in threads, so that none blocks its event loop, and several in one visit
    to the database, as commits share a transaction. There are as many daemon threads as are needed
    at once, at most `THREADS`; they end with `close`, or with this object.

    A hand-over costs about 30 microseconds, half of what an event loop's own thread pool takes.
    Nodes that block threads of that pool cannot delay a read here.

    While one visit is made, the next reads gather; one thread then makes them all at once, on one
    snapshot. Only operations of the same name share one, so that none waits for a long one of
    another kind. On PostgreSQL a visit is one round trip, whatever the number of its statements.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._together = 1 if backend.capabilities.bounded else TOGETHER
        self._gathered: dict[str, list[tuple[Op[Any], asyncio.Future[Any]]]] = {}
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle: list[None] = []
        """One entry for each thread that has nothing to do."""
        self._started = 0
        self._lock = threading.RLock()

    def read(self, op: Op[T]) -> asyncio.Future[T]:
        """The result of an operation that reads; it is made in a thread, where it may block. The
        future belongs to the running event loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        with self._lock:
            gathered = self._gathered.setdefault(op.name, [])
            gathered.append((op, future))
            if self._together == 1 or len(gathered) % self._together == 1:
                self.start(partial(self._visit, op.name))  # else a thread is on its way for it
        return future

    def start(self, job: Callable[[], None]) -> None:
        """Do something in a thread and wait for nothing. It must not raise."""
        with self._lock:
            if self._idle:
                self._idle.pop()
            elif self._started < THREADS:
                queues = (self._jobs, self._idle)
                name = "perdure-read"
                threading.Thread(target=_work, args=queues, name=name, daemon=True).start()
                self._started += 1
            self._jobs.put(job)

    def close(self) -> None:
        """End the threads after what they have to do. Later reads get new ones."""
        with self._lock:
            self._end_threads()
            self._jobs, self._idle, self._started = SimpleQueue(), [], 0

    def _end_threads(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)

    def __del__(self) -> None:
        self._end_threads()  # without the lock: in a forked process it may stay locked

    def _visit(self, name: str) -> None:
        with self._lock:
            gathered = self._gathered[name]
            batch, rest = gathered[: self._together], gathered[self._together :]
            if rest:
                self._gathered[name] = rest
            else:
                del self._gathered[name]
        ops, futures = zip(*batch, strict=True)
        _hand_over(zip(futures, self._outcomes(ops), strict=True))

    def _outcomes(self, batch: Sequence[Op[Any]]) -> list[Outcome]:
        """The result or the error of each. If one of them is at fault, each is read alone."""
        try:
            scripts = [one.render() for one in batch]
            rows = iter(self._backend.read([one for script in scripts for one in script]))
        except BaseException as error:
            if len(batch) == 1 or isinstance(error, (Closed, Unavailable)):
                return [(None, error) for _ in batch]
            return [self._outcomes([one])[0] for one in batch]
        each = [[next(rows) for _ in script] for script in scripts]
        return [_outcome(partial(one.result, own)) for one, own in zip(batch, each, strict=True)]


def _work(jobs: SimpleQueue[Callable[[], None] | None], idle: list[None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
        idle.append(None)


def _outcome(work: Callable[[], Any]) -> Outcome:
    try:
        return work(), None
    except BaseException as error:
        return None, error


def _hand_over(outcomes: Iterable[tuple[asyncio.Future[Any], Outcome]]) -> None:
    """Give each outcome to its future, in one call to each event loop."""
    loops: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Outcome]]] = {}
    for one in outcomes:
        loops.setdefault(one[0].get_loop(), []).append(one)
    for loop, some in loops.items():
        with suppress(RuntimeError):  # the loop is closed, and its coroutines are gone
            loop.call_soon_threadsafe(_resolve, some)


def _resolve(outcomes: Sequence[tuple[asyncio.Future[Any], Outcome]]) -> None:
    for future, (result, error) in outcomes:
        if future.done():  # cancelled meanwhile
            continue
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
