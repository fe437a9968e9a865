"""A thread that drives the reflections of an executor, and tells those who wait how they ended."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any
from weakref import WeakValueDictionary

from perdure.errors import Closed, Error, NotFound, ReflectionFailed, ReflectionLeft
from perdure.operations import runs
from perdure.runtime import Runtime
from perdure.types import ENDED, Run, State

log = logging.getLogger("perdure")

LOOK = 0.05
"""Seconds between two looks at reflections somebody may wait for."""
GRACE = timedelta(seconds=0.2)
"""For a reflection that is worked on when its executor is told to stop; then it is given back."""
AT_ONCE = 200
"""How many are looked at together."""


class Reflection(Future[Any]):
    """What `submit` gives: the result of a reflection, whichever process comes to it.

    Cancelled when a later one took its place. Nobody needs to keep it.
    """

    def __init__(self, id: str, executor: str, cancel: Callable[[str], bool]) -> None:
        super().__init__()
        self.id, self._executor, self._withdraw = id, executor, cancel
        self._ending = threading.RLock()

    def cancel(self) -> bool:
        """Cancel the reflection, unless it is being worked on or over."""
        if self.done():
            return self.cancelled()
        return self._withdraw(self.id) and self._end_cancelled()

    def _end_cancelled(self) -> bool:
        """Cancelled, and told so to who waits for several futures: once."""
        with self._ending:
            if not self.done() and super().cancel():
                self.set_running_or_notify_cancel()
        return self.cancelled()

    def settle(self, run: Run) -> bool:
        """Tell how it ended, if it did."""
        if self.done():
            return True
        with contextlib.suppress(Exception):  # its user cancelled it just now
            if run.state is State.CANCELLED:
                self._end_cancelled()
            elif run.state is State.DONE:
                self.set_result((run.output or {}).get("result"))
            elif run.state is State.HELD or run.state in ENDED:
                self.set_exception(ReflectionFailed(self.id, run.reason or str(run.error)))
        return self.done()

    def leave(self, error: Error | None = None) -> None:
        if not self.done():
            with contextlib.suppress(Exception):
                self.set_exception(error or ReflectionLeft(self.id, self._executor))


class Driving:
    """One thread of one process. It is never waited for when a process ends."""

    def __init__(self, runtime: Runtime, graph: str, concurrency: int) -> None:
        self._runtime, self._graph, self._concurrency = runtime, graph, concurrency
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._waited: WeakValueDictionary[str, Reflection] = WeakValueDictionary()
        self._due: list[tuple[float, str]] = []
        self._watching = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="perdure-reflections", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        return self.pid == os.getpid() and self._thread.is_alive()

    def watch(self, reflection: Reflection, after: float) -> None:
        """Tell whoever waits for a reflection, which is not due before `after` seconds."""
        with self._watching:
            self._waited[reflection.id] = reflection
            heapq.heappush(self._due, (time.monotonic() + after, reflection.id))
            if len(self._due) > 2 * len(self._waited) + AT_ONCE:  # most are nobody's any more
                self._due = [one for one in self._due if one[1] in self._waited]
                heapq.heapify(self._due)

    def look_at(self, id: str) -> None:
        """Something may have become of a reflection before it was due."""
        with self._watching:
            if id in self._waited:
                heapq.heappush(self._due, (time.monotonic(), id))

    @property
    def waited(self) -> list[Reflection]:
        with self._watching:
            return [one for one in self._waited.values() if not one.done()]

    def stop(self) -> None:
        """Give back what is worked on, and end the thread."""
        with contextlib.suppress(RuntimeError):  # it is over
            self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        for one in self.waited:
            one.leave()

    # -- the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._live())
        except BaseException:
            log.exception("Driving the reflections of %r ended.", self._graph)
        finally:
            self._loop.close()
            for one in self.waited:  # also if its runtime was closed before it
                one.leave()

    async def _live(self) -> None:
        watching = asyncio.create_task(self._watch())
        try:
            while not self._stopping.is_set():
                try:
                    await self._work()
                except Closed:
                    return
                except Exception:
                    log.exception("Driving reflections failed; it is tried again.")
                    await self._rest(1.0)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            with contextlib.suppress(Error):  # all of them, as nobody looks again
                ids = [one.id for one in self.waited]
                for n in range(0, len(ids), AT_ONCE):
                    await self._look(ids[n : n + AT_ONCE])
            await _let_end()

    async def _work(self) -> None:
        working = asyncio.create_task(
            self._runtime.work(
                concurrency=self._concurrency,
                graphs=[self._graph],
                handle_signals=False,
                grace=GRACE,
            )
        )
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working
        finally:
            stopping.cancel()

    async def _rest(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK)
            try:
                await self._tell()
            except Closed:
                return
            except Error as error:
                log.warning("Nobody can be told how reflections ended: %s", error)
                await asyncio.sleep(1.0)

    async def _tell(self) -> None:
        """Look at those that may be over."""
        now = time.monotonic()
        with self._watching:
            ids: list[str] = []
            while self._due and self._due[0][0] <= now and len(ids) < AT_ONCE:
                _, id = heapq.heappop(self._due)
                if (one := self._waited.get(id)) is not None and not one.done():
                    ids.append(id)
        if not ids:
            return
        try:
            await self._look(ids)
        finally:
            with self._watching:
                for id in ids:
                    heapq.heappush(self._due, (now + LOOK, id))  # gone from there if it is over

    async def _look(self, ids: list[str]) -> None:
        rows = {row.id: row for row in await self._runtime.journal.ado(runs.find_all(ids))}
        for id in ids:
            await self._settle(id, rows.get(id))

    async def _settle(self, id: str, row: runs.RunRow | None) -> None:
        one = self._waited.get(id)
        if one is None:
            return
        try:
            if row is None:
                raise NotFound("reflection", id)
            if row.state in ENDED or row.state == State.HELD:
                one.settle(await self._runtime.get(id))
        except NotFound as error:  # somebody pruned it
            one.leave(error)


async def _let_end() -> None:
    """Let the tasks of a loop that is going to be closed end: those told to, then all of them."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=0.5)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=0.5)
