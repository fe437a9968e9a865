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
import logging
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize, register_after_fork
from typing import Any, TypeVar, cast

from perdure.errors import BadArgument, Closed, Unavailable
from perdure.journal.committer import ATTEMPTS, Committer, Ticket
from perdure.journal.operation import (
    Ambiguous,
    Backend,
    Committed,
    EventStatement,
    Listener,
    Op,
    Plan,
    Row,
    Statement,
    Transaction,
)

T = TypeVar("T")

_CLOSED = (
    "This journal is closed: its `with` block ended, or close() was called. Keep it open for as "
    "long as it is used, or make a new Saver and compile the graph with that."
)

INTERVAL = 0.02
"""Seconds after which an operation nobody waits for is committed."""
HOLD = 1.0
"""The same for an operation that is to lie as long as possible."""
RETRY = 1.0
"""Seconds until what could not be committed is tried again."""
TELLING = 5.0
"""Seconds that `close` waits for the listener."""
QUEUE = 512
"""Operations taken but not committed before `defer` waits."""


class Journal:
    """An open journal. Use it from any thread, event loop or forked process."""

    def __init__(self, backend: Backend, *, interval: float = INTERVAL, queue: int = QUEUE) -> None:
        self._backend = backend
        self._interval = interval
        self._bound = queue
        self._closed = False
        self._listener: Listener | None = None
        self._start_afresh()
        _OPEN.add(self)

    def _start_afresh(self) -> None:
        """State that belongs to this process alone."""
        self._pid = os.getpid()
        self._queue: deque[Ticket[Any]] = deque()
        self._newest: Ticket[Any] | None = None
        self._committer = Committer(self._backend)
        self._taking = threading.Lock()
        self._committing = threading.Lock()
        self._changed = threading.Condition()
        self._asleep: dict[threading.Lock, Ticket[Any]] = {}
        self._due: float | None = None
        self._hurried = False
        self._held = False
        self._emptied = float("-inf")
        self._clock: threading.Thread | None = None
        self._transacting: int | None = None
        self._telling = threading.Lock()
        self._teller: threading.Thread | None = None
        if self._listener is not None:
            self._committer.committed = deque()

    # -- what callers use

    def listen(self, listener: Listener) -> None:
        """Have `listener` called after each commit that stored events, in a thread of its own.

        What it raises is logged.
        """
        self._listener = listener
        self._committer.committed = deque()

    def do(self, op: Op[T]) -> T:
        """Run `op` and return its result; if it writes, once it is durable."""
        if op.write:
            return self.wait(self._take(op, waited=True))
        self.flush()
        return self.peek(op)

    async def ado(self, op: Op[T]) -> T:
        """Like `do`, without blocking the event loop."""
        if op.write:
            return await self.await_(self._take(op, waited=True))
        await self.aflush()
        if self._backend.near:
            return self.peek(op)
        return await asyncio.to_thread(self.peek, op)

    def run(self, plan: Plan[T], *, peek: bool = False) -> T:
        """Follow a plan, blocking. With `peek` its reads do not wait for what is queued."""
        answer: Any = None
        try:
            while True:
                step = plan.send(answer)
                answer = None
                if isinstance(step, float):
                    time.sleep(step)
                elif not isinstance(step, Op):
                    answer = step.run()
                else:
                    answer = self.peek(step) if peek and not step.write else self.do(step)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            plan.close()  # now, and not when whoever has the exception lets it go

    async def arun(self, plan: Plan[T], *, peek: bool = False) -> T:
        """Follow a plan without blocking the event loop."""
        answer: Any = None
        try:
            while True:
                step = plan.send(answer)
                answer = None
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif not isinstance(step, Op):
                    answer = await step.arun()
                elif peek and not step.write:
                    near = self._backend.near
                    answer = self.peek(step) if near else await asyncio.to_thread(self.peek, step)
                else:
                    answer = await self.ado(step)
        except StopIteration as done:
            return cast(T, done.value)
        finally:
            plan.close()  # now, and not when whoever has the exception lets it go

    def apart(self, op: Op[T]) -> T:
        """Commit a write by itself, past the queue: it must not matter what comes before it."""
        self._check()
        try:
            return op.result(self._backend.commit(op.render()))
        except Ambiguous as error:
            raise Unavailable(f"{error}. Whether it was stored is not known.") from error

    def transact(self, work: Callable[[Transaction], T], proof: Statement) -> T:
        """Do `work` in one transaction of its own, after everything queued.

        `proof` finds a row if it is committed: a lost reply is settled by reading that, and if it
        is not there, by doing the work again.
        """
        self.flush()
        done: list[T] = []
        seen: list[Statement] = []

        def doing(transaction: Transaction) -> None:
            seen.clear()
            observed = self._committer.committed is not None
            done[:] = [work(_Seen(transaction, seen) if observed else transaction)]

        lost: Ambiguous | None = None
        with self._alone():
            self._transacting = threading.get_ident()
            try:
                for _ in range(ATTEMPTS):
                    try:
                        self._backend.transact(doing)
                        self._note_events(seen)
                        return done[0]
                    except Ambiguous as error:
                        lost = error
                    if self._backend.read([proof])[0]:
                        self._note_events(seen)
                        return done[0]
            finally:
                self._transacting = None
        raise Unavailable(
            f"A commit was sent and its outcome is unknown: {lost}. Calling again is safe: what is "
            "already stored is not stored twice."
        ) from lost

    def _check_outside(self) -> None:
        if self._transacting == threading.get_ident():
            raise BadArgument(
                "Inside of a transactional effect the journal cannot be used in any other way: no "
                "other effects, waits or recorded reads. Do that before or after it."
            )

    def peek(self, op: Op[T]) -> T:
        """Read what is on disk now, whatever is queued."""
        self._check()
        self._check_outside()
        return op.result(self._backend.read(op.render()))

    def defer(self, op: Op[T], *, hold: bool = False) -> Ticket[T]:
        """Take `op` into the queue. With `hold`, the clock lets it lie a while longer."""
        ticket = self._take(op, waited=False)
        if self._due is None or (self._held and not hold):
            self._held = hold
            self._wake(HOLD if hold else self._interval)
        return ticket

    def hurry(self) -> None:
        """Have what is queued committed now, without waiting for it."""
        self._wake(0.0)

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
        self._check()
        if (newest := self._newest) is not None:
            self._commit_through(newest)
        self._raise_lost()

    async def aflush(self) -> None:
        self._check()
        if (newest := self._newest) is not None:
            await self._acommit_through(newest)
        self._raise_lost()

    def close(self) -> None:
        """Commit what is queued and let the database go."""
        if self._pid != os.getpid():
            self._closed = True  # the queue and the connections are the parent's
            return
        with self._taking:
            if self._closed:
                return
            self._closed = True  # from here on nothing more is taken
        try:
            if (newest := self._newest) is not None:
                self._commit_through(newest)
            self._raise_lost()
        finally:
            if self._committer.committed:
                self._tell_listener()
            with self._telling:
                teller = self._teller
            if teller is not None and teller is not threading.current_thread():
                teller.join(TELLING)  # it reads what it tells
            _OPEN.discard(self)
            with self._changed:
                _BUSY.discard(self)
                self._changed.notify_all()
            self._backend.close()

    # -- the queue

    def _check(self) -> None:
        if self._pid != os.getpid():
            # Forked: the parent keeps its queue and connections, this process gets its own.
            self._start_afresh()
            self._backend.reopen()
        if self._closed:
            raise Closed(_CLOSED)
        self._raise_lost()

    def _raise_lost(self) -> None:
        if self._committer.lost is not None:
            lost, self._committer.lost = self._committer.lost, None
            raise lost

    def _take(self, op: Op[T], waited: bool) -> Ticket[T]:
        if self._committer.lost is not None or self._pid != os.getpid():
            self._check()
        if waited and self._transacting is not None:
            self._check_outside()
        ticket = Ticket(op, waited)
        with self._taking:
            if self._closed:
                raise Closed(_CLOSED)
            self._queue.append(ticket)
            self._newest = ticket
        return ticket

    def _commit_through(self, ticket: Ticket[Any]) -> None:
        self._check_outside()
        while not ticket.settled():
            if not self._committing.acquire(blocking=False) and not self._is_next(ticket):
                continue
            try:
                if not ticket.settled():
                    self._commit_queue()
                    if not ticket.settled() and (away := self._committer.away) is not None:
                        raise Unavailable(str(away)) from away
            finally:
                self._pass_on()

    def _is_next(self, ticket: Ticket[Any]) -> bool:
        """Sleep until `ticket` is settled, or may be ours to commit. True if it is at once."""
        gate = threading.Lock()
        gate.acquire()
        with self._changed:
            if ticket.settled():
                return False
            self._asleep[gate] = ticket
        try:
            if self._committing.acquire(blocking=False):  # it was over before we were seen
                return True
            gate.acquire(timeout=RETRY)
            return False
        finally:
            with self._changed:
                self._asleep.pop(gate, None)

    def _pass_on(self) -> None:
        """Let the first who still waits commit next, and wake whose operations are settled.

        They sleep each at a gate of their own: at the lock they would have to wait for the next
        commit to learn of theirs, and nothing would gather behind it.
        """
        self._committing.release()
        if self._asleep:
            with self._changed:
                woken = False
                for gate, ticket in list(self._asleep.items()):
                    if ticket.settled() or not woken:
                        woken = woken or not ticket.settled()
                        del self._asleep[gate]
                        gate.release()
        if self._committer.committed:
            self._tell_listener()

    def _note_events(self, statements: list[Statement]) -> None:
        if self._committer.committed is not None:
            events = [one for one in statements if isinstance(one, EventStatement)]
            self._committer.committed.extend(Committed(one, ()) for one in events)

    def _tell_listener(self) -> None:
        """Have a thread of its own tell the listener what was committed, in order and once."""
        with self._telling:
            if self._teller is None:
                teller = threading.Thread(
                    target=self._tell_all, name="perdure-observer", daemon=True
                )
                teller.start()
                self._teller = teller

    def _tell_all(self) -> None:
        while True:
            with self._telling:
                queue = self._committer.committed
                if not queue:
                    self._teller = None
                    return
                found = [queue.popleft() for _ in range(len(queue))]
            try:
                if self._listener is not None:
                    self._listener(found, self._backend.read)
            except Exception:
                logging.getLogger("perdure").exception("Telling an observer of events failed.")

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody else commits."""
        self._committing.acquire()
        try:
            yield
        finally:
            self._pass_on()

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
            if not ticket.settled() and (away := self._committer.away) is not None:
                raise Unavailable(str(away)) from away

    # -- the commit: only ever inside self._committing

    def _commit_queue(self) -> None:
        batch: list[Ticket[Any]] = []
        begun = time.monotonic()
        try:
            while self._queue and len(batch) < self._bound:
                batch.append(self._queue.popleft())
            if batch:
                self._committer.commit(batch)
        finally:
            left = [ticket for ticket in batch if not ticket.settled()]
            if not left and len(batch) < self._bound:
                self._emptied = begun  # whatever is queued now came after that
            self._put_back(left)
            self._tell(batch)

    def _put_back(self, batch: list[Ticket[Any]]) -> None:
        """Not committed: who waits is told why, what nobody waits for stays first in the queue.

        After an interrupt (Ctrl-C) in the middle everything stays: running it again does no harm.
        """
        for ticket in reversed(batch):
            if ticket.waited and self._committer.away is not None:
                ticket.fail(self._committer.away)
            else:
                self._queue.appendleft(ticket)
        if self._queue and batch:
            self._wake(RETRY)

    def _tell(self, batch: list[Ticket[Any]]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        with self._changed:
            for ticket in batch:
                for loop, future in ticket.futures:
                    loops.setdefault(loop, []).append(future)
                ticket.futures.clear()
        for loop, futures in loops.items():
            with suppress(RuntimeError):  # that loop is closed: nobody waits there any more
                loop.call_soon_threadsafe(_resolve, futures)

    # -- the clock: a thread that commits for coroutines, and what nobody waits for

    def _wake(self, after: float) -> None:
        due = time.monotonic() + after
        with self._changed:
            self._hurried = self._hurried or not after
            if self._due is None or due < self._due:
                self._due = due
                self._changed.notify()
            _BUSY.add(self)
            if self._clock is None:
                clock = threading.Thread(
                    target=_keep_time, args=(weakref.ref(self),), name="perdure", daemon=True
                )
                clock.start()
                self._clock = clock

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
            ripe = self._emptied + (HOLD if self._held else self._interval)
            if now < ripe and not self._hurried:
                self._due = ripe  # a commit came before us, and the next may: let it ride
                return True
            self._hurried = False
        with self._alone():
            self._commit_queue()
        with self._changed:
            if not self._queue and self._due is None:
                _BUSY.discard(self)
        if self._queue:
            self._wake(self._interval if self._committer.away is None else RETRY)
        return True


class _Seen:
    """A transaction that notes the statements that are run in it."""

    def __init__(self, transaction: Transaction, seen: list[Statement]) -> None:
        self._transaction, self._seen = transaction, seen

    @property
    def connection(self) -> Any:
        return self._transaction.connection

    def run(self, statements: Sequence[Statement]) -> list[list[Row]]:
        self._seen += statements
        return self._transaction.run(statements)


def _keep_time(ref: weakref.ref[Journal]) -> None:
    # Only a weak reference between two turns, so that a forgotten journal can go.
    while (journal := ref()) is not None and journal._keep_time_once():
        del journal


def _resolve(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)


_OPEN: weakref.WeakSet[Journal] = weakref.WeakSet()
_BUSY: set[Journal] = set()
"""Journals the clock has work for: kept, as nobody else may remember what is queued."""


def _close_in_children(_: object = None) -> None:
    # A child of multiprocessing ends without atexit, but with its own finalizers.
    Finalize(None, _close_all, exitpriority=100)


@atexit.register
def _close_all() -> None:
    for journal in list(_OPEN):
        try:
            journal.close()
        except Exception:
            logging.getLogger("perdure").exception("Operations queued at exit are not stored.")


_close_in_children()
register_after_fork(_close_in_children, _close_in_children)
