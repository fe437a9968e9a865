"""Reads of coroutines: in threads, so that none blocks its event loop, and several in one visit to
the database, as commits share a transaction.

A hand-over costs about 30 microseconds, half of what an event loop's own thread pool takes. Nodes
that block threads of that pool cannot delay a read here.

While one visit is made, the next reads gather; one thread then makes them all at once, on one
snapshot. Only operations of the same name share one, so that none waits for a long one of another
kind. On PostgreSQL a visit is one round trip, whatever the number of its statements.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from perdure.errors import Closed, Unavailable
from perdure.journal.operation import Backend, Op

T = TypeVar("T")

THREADS = 8
"""Maximum number of threads that read one journal."""
TOGETHER = 16
"""Maximum number of operations that share a visit."""

Job = Callable[[], None]
Outcome = tuple[Any, BaseException | None]
"""A result, or what was raised instead."""


class Read(NamedTuple):
    """An operation, and the future of its result."""

    op: Op[Any]
    future: asyncio.Future[Any]


class Reads:
    """The reads of one journal's coroutines. There are as many daemon threads as are needed at
    once, at most `THREADS`; they end with `close`, or with this object."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._together = 1 if backend.capabilities.bounded else TOGETHER
        self._gathered: dict[str, list[Read]] = {}
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
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
            gathered.append(Read(op, future))
            if self._together == 1 or len(gathered) % self._together == 1:
                self.start(partial(self._visit, op.name))  # else a thread is on its way for it
        return future

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` in a thread. The future belongs to the running event loop."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.start(lambda: _hand_over([(future, _outcome(work))]))
        return future

    def start(self, job: Job) -> None:
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
        outcomes = self._outcomes(batch)
        _hand_over(zip([one.future for one in batch], outcomes, strict=True))

    def _outcomes(self, batch: Sequence[Read]) -> list[Outcome]:
        """The result or the error of each. If one of them is at fault, each is read alone."""
        try:
            scripts = [one.op.render() for one in batch]
            rows = iter(self._backend.read([one for script in scripts for one in script]))
        except BaseException as error:
            if len(batch) == 1 or isinstance(error, (Closed, Unavailable)):
                return [(None, error) for _ in batch]
            return [self._outcomes([one])[0] for one in batch]
        each = [[next(rows) for _ in script] for script in scripts]
        return [_outcome(partial(one.op.result, own)) for one, own in zip(batch, each, strict=True)]


def _work(jobs: SimpleQueue[Job | None], idle: list[None]) -> None:
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
