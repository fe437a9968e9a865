"""Threads that read from the database, so that coroutines do not block their event loop.

A read costs about 30 microseconds, half of what an event loop's own thread pool takes. Nodes that
block threads of that pool cannot delay a read here.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")

MOST = 8
"""Maximum number of threads that read one journal."""

Job = Callable[[], None]


class ReaderThreads:
    """As many daemon threads as are needed at once, at most `MOST`; they end with `close`, or with
    this object."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[Job | None] = SimpleQueue()
        self._idle: list[None] = []
        """One entry for each thread that has nothing to do."""
        self._started = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Do `work` in a thread. The future belongs to the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def job() -> None:
            try:
                result, error = work(), None
            except BaseException as raised:
                result, error = None, raised
            with suppress(RuntimeError):  # the loop is closed, and its coroutines are gone
                loop.call_soon_threadsafe(_resolve, future, result, error)

        self.start(job)
        return future

    def start(self, job: Job) -> None:
        """Do something in a thread and wait for nothing. It must not raise."""
        with self._lock:
            if self._idle:
                self._idle.pop()
            elif self._started < MOST:
                threading.Thread(
                    target=_work,
                    args=(self._jobs, self._idle),
                    name="perdure-read",
                    daemon=True,
                ).start()
                self._started += 1
            self._jobs.put(job)

    def close(self) -> None:
        """End the threads, behind what they have to do. Who comes later gets new ones."""
        with self._lock:
            self._end_threads()
            self._jobs, self._idle, self._started = SimpleQueue(), [], 0

    def _end_threads(self) -> None:
        for _ in range(self._started):
            self._jobs.put(None)

    def __del__(self) -> None:
        self._end_threads()  # without the lock: in a forked process it may stay locked


def _work(jobs: SimpleQueue[Job | None], idle: list[None]) -> None:
    while (job := jobs.get()) is not None:
        job()
        del job
        idle.append(None)


def _resolve(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # cancelled meanwhile
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
