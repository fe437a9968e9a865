"""The ordered queue and its group commit. No SQL, no database, no LangGraph here.

Crash points and what each leaves behind:

    taken, not committed    gone, and nobody was told otherwise
    inside the transaction  gone: the database rolls back
    COMMIT sent, no reply   there or not; settled by reading the operation's own key
    committed, not told     there; the caller's retry finds its own key
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from perdure.errors import Closed, Error, Unavailable, WriteLost
from perdure.journal.op import Ambiguous, Backend, Op, Refused, Row, Statement

T = TypeVar("T")

INTERVAL = 0.02
"""Seconds after which an operation nobody waits for is committed."""
QUEUE = 512
"""Operations taken but not committed before `defer` waits."""


class Ticket(Generic[T]):
    """An operation in the queue, and who waits for it."""

    __slots__ = ("_settled", "error", "futures", "op", "value", "waited")

    def __init__(self, op: Op[T], waited: bool) -> None:
        self.op = op
        self.waited = waited
        self._settled = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.futures: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []

    def settled(self) -> bool:
        return self._settled

    def settle(self) -> None:
        self._settled = True

    def get(self) -> T:
        if self.error is not None:
            raise self.error
        value: T = self.value
        return value


class Journal:
    """An open journal. Use it from any thread, event loop or forked process."""

    def __init__(self, backend: Backend, *, interval: float = INTERVAL, queue: int = QUEUE) -> None:
        self._backend = backend
        self._interval = interval
        self._bound = queue
        self._closed = False
        self._start_afresh()
        _OPEN.add(self)

    def _start_afresh(self) -> None:
        """State that belongs to this process alone."""
        self._pid = os.getpid()
        self._queue: deque[Ticket[Any]] = deque()
        self._newest: Ticket[Any] | None = None
        self._away: Unavailable | None = None
        self._lost: WriteLost | None = None
        self._committing = threading.Lock()
        self._changed = threading.Condition()
        self._due: float | None = None
        self._clock: threading.Thread | None = None

    # -- what callers use

    def do(self, op: Op[T]) -> T:
        """Run `op` and return its result; if it writes, once it is durable."""
        if op.write:
            return self.wait(self._take(op, waited=True))
        self._check()
        if self._queue:
            self.flush()
        return op.result(self._backend.read(op.render()))

    async def ado(self, op: Op[T]) -> T:
        """Like `do`, without blocking the event loop."""
        if op.write:
            return await self.await_(self._take(op, waited=True))
        self._check()
        if self._queue:
            await self.aflush()
        return await asyncio.to_thread(self.do, op)

    def defer(self, op: Op[T], *, hold: bool = False) -> Ticket[T]:
        """Take `op` into the queue. With `hold`, the clock alone does not commit it."""
        ticket = self._take(op, waited=False)
        if not hold and self._due is None:
            self._wake(self._interval)
        return ticket

    def wait(self, ticket: Ticket[T]) -> T:
        """Wait until a deferred operation is durable, and give its result."""
        ticket.waited = True
        self._commit_through(ticket)
        return ticket.get()

    async def await_(self, ticket: Ticket[T]) -> T:
        ticket.waited = True
        await self._acommit_through(ticket)
        return ticket.get()

    @property
    def full(self) -> bool:
        """Whether so much is queued that whoever adds to it should wait."""
        return len(self._queue) >= self._bound

    def flush(self) -> None:
        """Wait until everything taken so far is durable."""
        if (newest := self._newest) is not None:
            self._commit_through(newest)
        self._raise_lost()

    async def aflush(self) -> None:
        if (newest := self._newest) is not None:
            await self._acommit_through(newest)
        self._raise_lost()

    def close(self) -> None:
        """Commit what is queued and let the database go."""
        if self._closed:
            return
        try:
            if self._pid == os.getpid():
                self.flush()
        finally:
            self._closed = True
            _OPEN.discard(self)
            with self._changed:
                self._changed.notify_all()
            self._backend.close()

    # -- the queue

    def _check(self) -> None:
        if self._pid != os.getpid():
            # Forked: the parent keeps its queue and connections, this process gets its own.
            self._start_afresh()
            self._backend.reopen()
        if self._closed:
            raise Closed("This journal is closed; open it again with perdure.connect(url).")
        self._raise_lost()

    def _raise_lost(self) -> None:
        if self._lost is not None:
            lost, self._lost = self._lost, None
            raise lost

    def _take(self, op: Op[T], waited: bool) -> Ticket[T]:
        if self._closed or self._lost is not None or self._pid != os.getpid():
            self._check()
        ticket = Ticket(op, waited)
        self._queue.append(ticket)
        self._newest = ticket
        return ticket

    def _commit_through(self, ticket: Ticket[Any]) -> None:
        while not ticket.settled():
            with self._committing:
                if not ticket.settled():
                    self._commit_queue()
                    if not ticket.settled() and self._away is not None:
                        raise self._away

    async def _acommit_through(self, ticket: Ticket[Any]) -> None:
        while not ticket.settled():
            loop = asyncio.get_running_loop()
            future: asyncio.Future[None] = loop.create_future()
            with self._changed:
                if ticket.settled():
                    return
                ticket.futures.append((loop, future))
            self._wake(0.0)
            await future
            if not ticket.settled() and self._away is not None:
                raise self._away

    # -- the commit: only ever inside self._committing

    def _commit_queue(self) -> None:
        batch: list[Ticket[Any]] = []
        while self._queue and len(batch) < self._bound:
            batch.append(self._queue.popleft())
        if batch:
            self._commit_batch(batch)
            self._tell(batch)

    def _commit_batch(self, batch: list[Ticket[Any]]) -> None:
        try:
            rows = self._commit_ops([ticket.op for ticket in batch])
        except Unavailable as error:
            self._put_back(batch, error)
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, Exception):
                # One of them is at fault. Each alone, in order: the others are not harmed.
                for ticket in batch:
                    self._commit_batch([ticket])
            elif isinstance(error, Refused) and batch[0].op.otherwise is not None:
                batch[0].op = batch[0].op.otherwise()
                self._commit_batch(batch)
            else:
                self._fail(batch[0], error)
        else:
            for ticket, own in zip(batch, rows, strict=True):
                try:
                    ticket.value = ticket.op.result(own)
                except Exception as error:
                    ticket.error = error
                ticket.settle()
            self._away = None

    def _commit_ops(self, ops: list[Op[Any]]) -> list[Sequence[Sequence[Row]]]:
        for op in ops:
            if op.prepare is not None:
                op.prepare()
        scripts = [op.render() for op in ops]
        try:
            rows = self._backend.commit([one for script in scripts for one in script])
        except Ambiguous as error:
            return self._settle(ops, error)
        result: list[Sequence[Sequence[Row]]] = []
        start = 0
        for script in scripts:
            result.append(rows[start : start + len(script)])
            start += len(script)
        return result

    def _settle(self, ops: list[Op[Any]], error: Ambiguous) -> list[Sequence[Sequence[Row]]]:
        """Find out by our own key whether a batch was committed; if not, run it again.

        A batch is committed whole or not at all, so one key decides for all of them.
        """
        keys: list[Statement] = [op.key for op in ops if op.key is not None]
        if keys and self._backend.read(keys[:1])[0]:
            return [self._backend.read([op.key]) if op.key is not None else [] for op in ops]
        try:
            return self._commit_ops(ops)
        except Ambiguous:
            raise Unavailable(f"The outcome of a commit is unknown: {error}") from error

    def _put_back(self, batch: list[Ticket[Any]], error: Unavailable) -> None:
        """The database is away: who waits is told, what nobody waits for stays queued."""
        self._away = error
        for ticket in reversed(batch):
            if ticket.waited:
                self._fail(ticket, error)
            else:
                self._queue.appendleft(ticket)
        if self._queue:
            self._wake(1.0)

    def _fail(self, ticket: Ticket[Any], error: BaseException) -> None:
        ticket.error = error if isinstance(error, (Error, Refused)) else _wrapped(ticket, error)
        ticket.settle()
        if not ticket.waited:
            self._lost = WriteLost(f"{ticket.op.name} could not be stored: {error}")
            self._lost.__cause__ = error

    def _tell(self, batch: list[Ticket[Any]]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._changed:
            for ticket in batch:
                for loop, future in ticket.futures:
                    loops.setdefault(loop, []).append(future)
                ticket.futures.clear()
        for loop, futures in loops.items():
            if not loop.is_closed():
                loop.call_soon_threadsafe(_resolve, futures)

    # -- the clock: a thread that commits for coroutines, and what nobody waits for

    def _wake(self, after: float) -> None:
        due = time.monotonic() + after
        with self._changed:
            if self._due is None or due < self._due:
                self._due = due
                self._changed.notify()
            if self._clock is None:
                self._clock = threading.Thread(
                    target=_keep_time, args=(weakref.ref(self),), name="perdure", daemon=True
                )
                self._clock.start()

    def _keep_time_once(self) -> bool:
        """Wait for the next due time and commit. False when it is time to stop."""
        with self._changed:
            if self._closed or self._pid != os.getpid():
                return False
            now = time.monotonic()
            if self._due is None or self._due > now:
                self._changed.wait(5.0 if self._due is None else self._due - now)
                return not self._closed
            self._due = None
        with self._committing:
            self._commit_queue()
        if self._queue:
            self._wake(self._interval)
        return True


def _keep_time(ref: weakref.ref[Journal]) -> None:
    # Only a weak reference between two turns, so that a forgotten journal can go.
    while (journal := ref()) is not None and journal._keep_time_once():
        del journal


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


def _wrapped(ticket: Ticket[Any], error: BaseException) -> BaseException:
    if not isinstance(error, Exception):
        return error
    wrapped = Error(f"{ticket.op.name} failed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return wrapped


_OPEN: weakref.WeakSet[Journal] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for journal in list(_OPEN):
        journal.close()
