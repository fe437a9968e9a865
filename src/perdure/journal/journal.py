"""What can be asked of an open journal: run operations and plans, defer, flush.

Writes go through the queue of `group_commit`. A read sees everything queued before it, unless it
asks only for what is committed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

from perdure.errors import Closed, Error, StatementFailed, Unavailable, WentBack
from perdure.journal.changes import ChangeFeed, CommitListener, Listener
from perdure.journal.collected_transaction import collect
from perdure.journal.committer import Acknowledged, QueuedOperation
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

T = TypeVar("T")

INTERVAL = 0.02
"""Seconds after which a deferred operation is committed."""
CAPACITY = 512
"""Operations queued but not committed before `defer` should be waited for."""


class Journal:
    """An open journal. Use it from any thread, event loop or forked process."""

    def __init__(
        self,
        backend: Backend,
        acknowledged: Acknowledged | None = None,
        *,
        interval: float = INTERVAL,
        capacity: int = CAPACITY,
    ) -> None:
        """`acknowledged` is the one with which the backend compares its database."""
        self._backend, self._interval, self._capacity = backend, interval, capacity
        self._acknowledged = acknowledged or Acknowledged()
        self._listener: Listener | None = None
        self._meter: Meter | None = None
        self.opened_at: tuple[int, float] | None = None
        """The time of the database when it was opened, and of our monotonic clock then."""
        self._group = self._new_group()

    def set_interval(self, seconds: float) -> None:
        """Set after how many seconds a deferred operation is committed."""
        self._interval = self._group.interval = seconds

    def _new_group(self) -> GroupCommit:
        group = GroupCommit(
            self._backend, self._acknowledged, interval=self._interval, capacity=self._capacity
        )
        if self._listener is not None:
            group.committer.listener = CommitListener(self._listener, self._backend.read)
        group.meter = self._meter
        return group

    def listen(self, listener: Listener) -> None:
        """Have `listener` called after each commit that stored events. What it raises is logged."""
        self._listener = listener
        self._group.committer.listener = CommitListener(listener, self._backend.read)

    def on_going_back(self, listener: Callable[[WentBack], None]) -> None:
        """Have `listener` called when the database was found to have gone back in time, before
        anyone uses it. It may only defer operations."""
        self._acknowledged.listeners.append(listener)

    def last_event(self, run_id: str) -> int:
        """The number of the last event of a run that was acknowledged to this process, or -1."""
        return self._acknowledged.last_event(run_id)

    def look_back(self, why: str, *, is_certain: bool) -> None:
        """Compare the database with what was acknowledged; the listeners hear what it lacks."""
        with contextlib.suppress(WentBack):
            self._acknowledged.compare(self._backend.read, why, is_certain=is_certain)

    def measure(self, meter: Meter) -> None:
        """Have `meter` called after each commit of the queue."""
        self._meter = self._group.meter = meter

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
            self._acknowledged.reopen()
            group = self._group = self._new_group()
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
            self._group = self._new_group()
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
            await self._check().reads.run(self.open)

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
        return await group.reads.read(op)

    def run(self, plan: Plan[T], *, flush: bool = True) -> T:
        """Follow a plan, blocking. Without `flush` its reads do not wait for what is queued. What a
        step raises is raised in the plan, at its `yield`."""
        answer: Any = None
        error: Exception | None = None
        try:
            while True:
                step = plan.send(answer) if error is None else plan.throw(error)
                answer = error = None
                try:
                    if isinstance(step, float):
                        time.sleep(step)
                    elif isinstance(step, Poll):
                        self.pause(step)
                    elif not isinstance(step, Op):
                        answer = step.run()
                    else:
                        answer = self.do(step) if flush or step.write else self.read_committed(step)
                except Exception as raised:
                    error = raised
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            error = None  # its traceback refers to this frame
            plan.close()  # now, and not when the exception is let go

    async def arun(self, plan: Plan[T], *, flush: bool = True) -> T:
        """Like `run`, without blocking the event loop."""
        if self.opened_at is None:
            await self.aopen()  # also because a plan may ask for the time
        answer: Any = None
        error: Exception | None = None
        try:
            while True:
                step = plan.send(answer) if error is None else plan.throw(error)
                answer = error = None
                try:
                    if isinstance(step, float):
                        await asyncio.sleep(step)
                    elif isinstance(step, Poll):
                        await self.apause(step)
                    elif not isinstance(step, Op):
                        answer = await step.arun()
                    elif flush or step.write:
                        answer = await self.ado(step)
                    else:
                        answer = await self._check().reads.read(step)
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
        return await self._check().reads.read(op)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do `work`, which reads more than once, in a thread that reads: one change of threads is
        cheaper than one for each read."""
        return await self._check().reads.run(work)

    def read_soon(self, op: Op[T], then: Callable[[T], None]) -> None:
        """Read in another thread and hand the result to `then`; or not, if that fails."""

        def job() -> None:
            with contextlib.suppress(Exception):
                then(self.read_committed(op))

        self._check().reads.start(job)

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
            self._group.reads.close()
