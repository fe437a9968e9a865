"""The futures that `submit` returns, and the thread of an executor, which runs reflections and
settles these futures."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures.thread  # noqa: F401  (registers its exit hook before ours)
import contextlib
import contextvars
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from perdure.commands import runs
from perdure.commands.reflections import Poll
from perdure.errors import Closed, Error, NotFound, ReflectionFailed, ReflectionLeft
from perdure.failures import WORKER
from perdure.runtime import Runtime
from perdure.types import ENDED, Run, State

log = logging.getLogger("perdure")

SETTLING = "Settling reflections"
# Seconds between two looks at reflections whose futures are held, if this process commits.
POLL_FUTURES = 0.05
# Time a running reflection gets when its executor stops; then it is given back to the journal.
GRACE = timedelta(seconds=0.2)
BATCH = 200  # maximum number of reflections read at once
_WORKERS: set[BackgroundWorker] = set()  # the workers whose threads run


class Reflection(Future[Any]):
    """The future of a reflection. It follows the reflection in any process.

    A `concurrent.futures.Future`. Its result is what the reflector returned, if that can be stored,
    otherwise `None`. It is cancelled when a later reflection of its conversation replaces it. It
    raises `ReflectionFailed` if the reflection is held, and `ReflectionLeft` if the executor was
    shut down first.
    """

    def __init__(self, id: str, executor: str, cancel_run: Callable[[str], bool]) -> None:
        super().__init__()
        self.id, self._executor, self._cancel_run = id, executor, cancel_run
        # When to read whether the reflection has ended, by the monotonic clock.
        self.check_at = 0.0
        self._lock = threading.RLock()

    def cancel(self) -> bool:
        """Cancel the reflection, unless it is running or has ended.

        Returns:
            Whether it is cancelled.
        """
        if self.done():
            return self.cancelled()
        return self._cancel_run(self.id) and self._set_cancelled()

    def _set_cancelled(self) -> bool:
        """Cancel the future and notify `concurrent.futures.wait`, once."""
        with self._lock:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()
        return self.cancelled()

    def settle(self, run: Run) -> None:
        """Set the outcome of the run, if it has one. Internal."""
        if self.done():
            return
        with contextlib.suppress(Exception):  # the caller cancelled it at the same moment
            if run.state is State.CANCELLED:
                self._set_cancelled()
            elif run.state is State.DONE:
                self.set_result((run.output or {}).get("result"))
            elif run.state is State.HELD or run.state in ENDED:
                self.set_exception(ReflectionFailed(self.id, run.reason or str(run.error)))

    def abandon(self, error: Error | None = None) -> None:
        """Fail the future, by default with `ReflectionLeft`. Internal."""
        if not self.done():
            with contextlib.suppress(Exception):
                self.set_exception(error or ReflectionLeft(self.id, self._executor))


class BackgroundWorker:
    """One daemon thread of one process. The interpreter does not wait for it at exit."""

    def __init__(self, runtime: Runtime, graph: str, concurrency: int) -> None:
        self._runtime, self._graph, self._concurrency = runtime, graph, concurrency
        self._failures = runtime.engine.failures
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        # Without the context of a node that submits: its callbacks and tags are not a reflection's.
        self._main_task = self._loop.create_task(self._main(), context=contextvars.Context())
        self._stopping = False
        self._futures: WeakValueDictionary[str, Reflection] = WeakValueDictionary()
        self._latest: WeakValueDictionary[str, Reflection] = WeakValueDictionary()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="perdure-reflections", daemon=True)
        _WORKERS.add(self)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs in this process; a fork does not have it."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def watch(self, reflection: Reflection, after: float, thread_id: str = "") -> None:
        """Settle a future when its reflection, due in `after` seconds, has ended. The earlier one
        of the same thread may have been replaced, so it is checked now."""
        reflection.check_at = time.monotonic() + after
        with self._lock:
            self._futures[reflection.id] = reflection
            if (earlier := self._latest.get(thread_id)) is not None:
                earlier.check_at = 0.0
            if thread_id:
                self._latest[thread_id] = reflection

    def check_now(self, id: str) -> None:
        """Read a reflection at the next look: it may have ended before it was due."""
        if (future := self._futures.get(id)) is not None:
            future.check_at = 0.0

    def open_futures(self) -> list[Reflection]:
        """The futures that are held and not settled."""
        with self._lock:
            return [one for one in self._futures.values() if not one.done()]

    def _due_futures(self, now: float) -> list[Reflection]:
        with self._lock:
            due = [one for one in self._futures.values() if one.check_at <= now and not one.done()]
        return sorted(due, key=lambda one: one.check_at)[:BATCH]

    def stop(self) -> None:
        """Give running reflections back to the journal and end the thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._cancel_main)
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self._abandon_futures()

    def _abandon_futures(self) -> None:
        for future in self.open_futures():
            future.abandon()

    def _cancel_main(self) -> None:
        if not self._stopping:  # else it ends already
            self._stopping = True
            self._main_task.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main_task)
        except asyncio.CancelledError:
            pass  # by `stop`
        except BaseException:
            log.exception("The worker of %r ended.", self._graph)
        finally:
            _WORKERS.discard(self)
            self._loop.close()
            self._abandon_futures()  # also if the runtime was closed first

    async def _main(self) -> None:
        settling = asyncio.create_task(self._settle_futures())
        try:
            while not self._stopping:
                try:
                    await self._runtime.work(
                        concurrency=self._concurrency,
                        graphs=[self._graph],
                        handle_signals=False,
                        grace=GRACE,
                    )
                except Closed:
                    return
                except Exception as error:
                    if _is_exit(error):
                        return
                    self._failures.note(error, WORKER)
                    await asyncio.sleep(1.0)
        finally:
            self._stopping = True
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)
            with contextlib.suppress(Error):  # a last look at all of them
                futures = self.open_futures()
                for start in range(0, len(futures), BATCH):
                    await self._settle_ended(futures[start : start + BATCH])
            await _end_tasks()

    async def _settle_futures(self) -> None:
        poll = Poll(POLL_FUTURES)
        while True:
            await self._runtime.journal.apause(poll)
            try:
                with self._failures.guard(SETTLING):
                    await self._settle_due()
            except Closed:
                return
            if self._failures.is_resting(SETTLING):
                await asyncio.sleep(1.0)

    async def _settle_due(self) -> None:
        """Read the reflections whose check is due, and settle those that ended."""
        now = time.monotonic()
        futures = self._due_futures(now)
        for future in futures:
            future.check_at = now  # behind those that were not read yet
        if futures:
            await self._settle_ended(futures)

    async def _settle_ended(self, futures: list[Reflection]) -> None:
        ids = [future.id for future in futures]
        rows = {row.id: row for row in await self._runtime.journal.ado(runs.find_all(ids))}
        for future in futures:
            with self._failures.guard(SETTLING, future.id):
                try:
                    if future.id not in rows:
                        raise NotFound("reflection", future.id)
                    if rows[future.id].state in (*ENDED, State.HELD):
                        future.settle(await self._runtime.get(future.id))
                except NotFound as error:  # pruned
                    future.abandon(error)


def _is_exit(error: Exception) -> bool:
    """Whether Python refused to start a thread because the process is exiting."""
    return isinstance(error, RuntimeError) and "interpreter shutdown" in str(error)


def _stop_workers() -> None:
    """At the end of the main thread: give running reflections back while threads can still be
    started. When Python calls its `atexit` handlers, thread pools refuse work, and a reflection in
    progress would fail."""
    for worker in list(_WORKERS):
        if worker.is_alive():
            worker.stop()


# The hook that concurrent.futures uses for its pools; the last one registered is called first.
getattr(threading, "_register_atexit", atexit.register)(_stop_workers)


async def _end_tasks() -> None:
    """Let the tasks of a loop that is about to be closed end, then cancel what is left."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=0.5)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=0.5)
