"""The ordered queue whose first waiter commits for all. No SQL, no database, no LangGraph here.

A thread that waits commits everything queued, for itself and for all others; those find their work
done. A timer thread commits for coroutines, and what no caller waits for.

Crash points and what each leaves behind:

    queued, not committed       gone; no caller was told that it is stored
    inside the transaction      gone: the database rolls back
    COMMIT sent, no reply       stored or not; settled by reading the operation's own key
    committed, caller not told  stored; the caller's retry finds its own key

An exception may come at any instruction of the main thread: Ctrl-C, or a handler of SIGTERM that
raises. Python runs handlers after a call, at the beginning of a function and in loops, so after
`lock.acquire()` but not between `with lock` and its block. Hence these rules, here and in the
connections of SQLite:

    a lock made in C             `with lock:` only; a Condition is entered through its lock
    one that is tried            an RLock, taken inside of `try`, and released by the first call of
                                 `finally`: it knows if this thread has it
    a count of users             a set of tokens: the last call of `finally` discards a token
    what is taken from a queue   stays there or in `_batch` until it is settled
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.util import Finalize, register_after_fork
from typing import Any, TypeVar, cast

from perdure.errors import BadArgument, Closed, Unavailable
from perdure.journal.changes import ChangeFeed, Watch
from perdure.journal.committer import Committer, QueuedOperation
from perdure.journal.operation import NOTHING, Backend, Op, Statement, Transaction
from perdure.journal.went_back import Acknowledged

T = TypeVar("T")

CLOSED = (
    "This journal is closed: its `with` block ended, or close() was called. Keep it open for as "
    "long as it is used, or open it again with setup() or another `with` block."
)

Meter = Callable[[Sequence[QueuedOperation[Any]], float], None]
"""Called after each commit of the queue, with its operations and how many seconds it took. It is
called while no other thread commits, so it must be quick, and must not raise."""

INTERVAL = 0.02
"""Seconds after which a deferred operation is committed."""
CAPACITY = 512
"""Operations queued but not committed before `defer` should be waited for."""
HOLD = 1.0
"""Seconds until an operation is committed that was deferred with `hold`."""
RETRY = 1.0
"""Seconds until what could not be committed is tried again."""
SLOW = 5.0
"""Seconds after which a journal that cannot be closed says what it waits for."""
CLOSE = 60.0
"""Seconds after which closing gives up: longer than a commit may take."""


class GroupCommit:
    """The queue of one journal in one process. A forked process makes its own."""

    interval = INTERVAL
    capacity = CAPACITY

    def __init__(self, backend: Backend, acknowledged: Acknowledged) -> None:
        self.pid = os.getpid()
        self.closed = False
        self._acknowledged = acknowledged
        self.committer = Committer(backend, acknowledged)
        self.watch = Watch()
        """Of the commits of this process."""
        self.feed = ChangeFeed(backend.read, backend.hints, backend.capabilities.poll)
        self.committer.feed = self.feed
        self.meter: Meter | None = None
        self.newest: QueuedOperation[Any] | None = None
        self.waiting: dict[threading.Lock, QueuedOperation[Any]] = {}
        """Threads that sleep until their operation is settled, each at a lock of its own."""
        self._capabilities = backend.capabilities
        self._bounded = backend.capabilities.bounded
        self.queue: deque[QueuedOperation[Any]] = deque()
        self._append_lock = threading.Lock()
        self._commit_lock = threading.RLock()
        self._committing = ""
        """The name of the thread that commits."""
        self._batch: list[QueuedOperation[Any]] = []
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._transaction_threads: set[int] = set()
        self._timer: threading.Thread | None = None
        self._due: float | None = None
        self._immediately = False
        self._held = False
        self._emptied = float("-inf")
        _OPEN.add(self)

    def append(
        self, op: Op[T], *, waited: bool, watched: bool = False, hold: bool = False
    ) -> QueuedOperation[T]:
        """Queue an operation for the next commit: of a caller that waits (`waited`), or at the
        latest the timer's. Raises `Unsupported` for one that the database cannot take."""
        if waited and self._transaction_threads:
            self.check_outside_transaction()
        queued = QueuedOperation(op, waited, watched, self._acknowledged.epoch)
        if self._bounded:
            queued.size = self._capabilities.check(op.name, op.render())
        with self._append_lock:
            if self.closed:
                raise Closed(CLOSED)
            self.queue.append(queued)
            self.newest = queued
        if not waited and (self._due is None or (self._held and not hold)):
            self._held = hold
            self.schedule(HOLD if hold else self.interval)
        return queued

    def transact(self, work: Callable[[Transaction], T], proof: Statement) -> T:
        """Commit what `work` does, while nothing else is committed."""
        result = self._commit_alone(
            self._commit_lock.acquire,
            lambda: self.in_transaction(lambda: self.committer.transact(work, proof)),
        )
        return cast(T, result)

    def in_transaction(self, work: Callable[[], T]) -> T:
        """Do the work of a transaction in this thread."""
        thread = threading.get_ident()
        try:
            self._transaction_threads.add(thread)
            return work()
        finally:
            self._transaction_threads.discard(thread)

    def check_outside_transaction(self) -> None:
        if threading.get_ident() in self._transaction_threads:
            raise BadArgument(
                "Inside of a transactional effect the journal cannot be used in any other way: no "
                "other effects, waits or recorded reads. Do that before or after it."
            )

    def raise_lost(self) -> None:
        """Raise `WriteLost` if an operation failed that had no caller waiting for it."""
        if self.committer.lost is not None:
            lost, self.committer.lost = self.committer.lost, None
            raise lost

    def close(self) -> None:
        """Commit what is queued and close the database. Raises `Unavailable` if another thread
        commits for longer than `CLOSE`."""
        if self.pid != os.getpid():
            self.closed = True  # the queue and the connections are the parent's
            return
        with self._append_lock:
            if self.closed:
                return
            self.closed = True  # from here on nothing more is queued
        is_stuck = True
        try:
            if (newest := self.newest) is not None:
                self.commit_through(newest, give_up=time.monotonic() + CLOSE)
            is_stuck = False
            self.raise_lost()
        finally:
            self.feed.close()
            if self.committer.listener is not None:
                self.committer.listener.drain()
            _OPEN.discard(self)
            with self._lock:
                _BUSY.discard(self)
                self._changed.notify_all()
            if not (is_stuck and self._committing):
                self.committer.backend.close()

    def leave_to_parent(self) -> None:
        """Forget, in a forked process, what the parent queued: the parent commits it."""
        _OPEN.discard(self)
        _BUSY.discard(self)

    # -- waiting, and passing the commit on

    def commit_through(self, queued: QueuedOperation[Any], give_up: float | None = None) -> None:
        """Wait until an operation is settled, or commit it with all others."""
        self.check_outside_transaction()
        warned = time.monotonic() + SLOW

        def commit() -> None:
            if not queued.settled:
                self._commit_queue()
                self._raise_unavailable(queued)

        while not queued.settled:
            if give_up is not None and time.monotonic() > warned:
                waits = f"Closing a journal waits for a commit of the thread {self._committing!r}"
                if time.monotonic() > give_up:
                    raise Unavailable(f"{waits}. {len(self.queue)} operations are not stored.")
                logging.getLogger("perdure").warning("%s.", waits)
                warned = time.monotonic() + SLOW
            self._commit_alone(lambda: self._is_next(queued), commit)

    def _commit_alone(self, acquire: Callable[[], bool], work: Callable[[], T]) -> T | None:
        """Do `work` while no other thread commits, if `acquire` gets the commit lock."""
        try:
            if not acquire():
                return None
            if self._committing:
                raise BadArgument(
                    "A signal handler used the journal while its thread was committing. Let the "
                    "handler set a flag or raise, and use the journal afterwards."
                )
            self._committing = threading.current_thread().name
            try:
                return work()
            finally:
                self._committing = ""
        finally:
            try:
                self._commit_lock.release()
            except RuntimeError:  # it was not taken
                pass
            else:
                self._pass_on()

    async def acommit_through(self, queued: QueuedOperation[Any]) -> None:
        """Like `commit_through`; the timer's thread commits."""
        while not queued.settled and (future := self._future_of(queued)) is not None:
            self.schedule(0.0)
            await future
            if not queued.settled:
                self._raise_unavailable(queued)

    def _future_of(self, queued: QueuedOperation[Any]) -> asyncio.Future[None] | None:
        """A future that the next commit of an operation resolves. None: it is settled already."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        with self._lock:
            if queued.settled:
                return None
            queued.futures.append((loop, future))
        return future

    def _raise_unavailable(self, queued: QueuedOperation[Any]) -> None:
        if not queued.settled and (error := self.committer.unavailable) is not None:
            raise Unavailable(str(error)) from error

    def _is_next(self, queued: QueuedOperation[Any]) -> bool:
        """Take the commit lock if it is free. Otherwise sleep until `queued` is settled or this
        thread may commit. True: it has the lock."""
        if self._commit_lock.acquire(blocking=False):
            return True
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            if queued.settled:
                return False
            self.waiting[gate] = queued
        try:
            if self._commit_lock.acquire(blocking=False):  # it was over before we were seen
                return True
            gate.acquire(timeout=RETRY)
            return False
        finally:
            with self._lock:
                self.waiting.pop(gate, None)

    def _pass_on(self) -> None:
        """Let the first thread that still waits commit next; wake those whose work is settled.

        Each sleeps at a lock of its own: at the commit lock they would have to wait for the next
        commit to learn of theirs, and nothing would gather behind it.
        """
        self.watch.changed()
        if self.waiting:
            with self._lock:
                woken = False
                for gate, queued in list(self.waiting.items()):
                    if queued.settled or not woken:
                        woken = woken or not queued.settled
                        del self.waiting[gate]
                        gate.release()
        if self.committer.listener is not None:
            self.committer.listener.tell()

    # -- the commit: only with self._commit_lock

    def _commit_queue(self) -> None:
        self._put_back(interrupted=True)  # what an exception at a bad moment left
        batch = self._batch
        taken: list[QueuedOperation[Any]] = []
        begun = time.monotonic()
        emptied, interrupted = False, True
        try:
            emptied = self._take_batch(batch)
            taken = list(batch)
            if batch:
                self.committer.commit(taken)
            interrupted = False
        finally:
            all_settled = True
            for queued in taken:
                all_settled = all_settled and queued.settled
            if emptied and all_settled:
                self._emptied = begun  # whatever is queued now came after that
            if self.meter is not None and taken and all_settled:
                self.meter(taken, time.monotonic() - begun)
            self._put_back(interrupted=interrupted)
            self._wake_coroutines(taken)

    def _take_batch(self, batch: list[QueuedOperation[Any]]) -> bool:
        """Take what one transaction can hold, whole operations only. True: that was all."""
        size = NOTHING
        while self.queue and len(batch) < self.capacity:
            if self._bounded:
                size = size.plus(self.queue[0].size)
                if batch and not self._capabilities.holds(size):
                    return False
            batch.append(self.queue[0])
            self.queue.popleft()
        return len(batch) < self.capacity

    def _put_back(self, *, interrupted: bool) -> None:
        """Empty the batch. Not committed: callers that wait get the reason, the rest stays first in
        the queue.

        After an interrupt (Ctrl-C) in the middle everything stays. It may be committed: its trace
        is read before it is sent again.
        """
        batch = self._batch
        left = False
        while batch:
            queued = batch[-1]
            if not queued.settled:
                left = True
                if queued.waited and self.committer.unavailable is not None and not interrupted:
                    queued.fail(self.committer.unavailable)
                else:
                    queued.resent = queued.resent or (interrupted and bool(queued.sent))
                    if not self.queue or self.queue[0] is not queued:
                        self.queue.appendleft(queued)
            batch.pop()
        if self.queue and left:
            self.schedule(RETRY)

    def _wake_coroutines(self, batch: list[QueuedOperation[Any]]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._lock:
            for queued in batch:
                for loop, future in queued.futures:
                    loops.setdefault(loop, []).append(future)
                queued.futures.clear()
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # that loop is closed, and its coroutines are gone
                loop.call_soon_threadsafe(_resolve, futures)

    # -- the timer: a thread that commits for coroutines, and what no caller waits for

    def schedule(self, after: float) -> None:
        """Have what is queued committed after so many seconds; 0: now, without waiting for it."""
        due = time.monotonic() + after
        with self._lock:
            self._immediately = self._immediately or not after
            if self._due is None or due < self._due:
                self._due = due
                self._changed.notify()
            _BUSY.add(self)
            if self._timer is None:
                timer = threading.Thread(
                    target=_run_timer, args=(weakref.ref(self),), name="perdure", daemon=True
                )
                timer.start()
                self._timer = timer

    def run_timer_once(self) -> bool:
        """Wait for the next due time and commit. False when it is time to stop."""
        with self._lock:
            if self.closed or self.pid != os.getpid():
                return False
            now = time.monotonic()
            if self._due is None or self._due > now:
                self._changed.wait(5.0 if self._due is None else self._due - now)
                return not self.closed
            self._due = None
            ripe = self._emptied + (HOLD if self._held else self.interval)
            if now < ripe and not self._immediately:
                self._due = ripe  # a commit came before us, and the next may: wait for that
                return True
            self._immediately = False
        self._commit_alone(self._commit_lock.acquire, self._commit_queue)
        with self._lock:
            if not self.queue and self._due is None:
                _BUSY.discard(self)
        if self.queue:
            self.schedule(self.interval if self.committer.unavailable is None else RETRY)
        return True


def _run_timer(ref: weakref.ref[GroupCommit]) -> None:
    # Only a weak reference between two turns, so that a forgotten journal can go.
    while (group := ref()) is not None and group.run_timer_once():
        del group


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


_OPEN: weakref.WeakSet[GroupCommit] = weakref.WeakSet()
_BUSY: set[GroupCommit] = set()
"""Queues the timer has work for. They must not be collected, even if their journal is."""


def _close_in_children(_: object = None) -> None:
    # A child of multiprocessing ends without atexit, but with its own finalizers.
    Finalize(None, _close_all, exitpriority=100)


@atexit.register
def _close_all() -> None:
    for group in list(_OPEN):
        try:
            group.close()
        except Exception:
            logging.getLogger("perdure").exception("Operations queued at exit are not stored.")


_close_in_children()
register_after_fork(_close_in_children, _close_in_children)
