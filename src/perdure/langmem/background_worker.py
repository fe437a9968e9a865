"""The thread of an executor: it runs reflections and settles the futures that callers hold."""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
import os
import threading
import time
from datetime import timedelta
from weakref import WeakValueDictionary

from perdure.errors import Closed, Error, NotFound
from perdure.langmem.reflection_future import Reflection
from perdure.operations import runs
from perdure.runtime import Runtime
from perdure.types import ENDED, State

log = logging.getLogger("perdure")

POLL_FUTURES = 0.05
"""Seconds between two looks at reflections whose futures are held."""
GRACE = timedelta(seconds=0.2)
"""Time a running reflection gets when its executor stops; then it is given back to the journal."""
BATCH = 200
"""Maximum number of reflections read at once."""


class BackgroundWorker:
    """One daemon thread of one process. The interpreter does not wait for it at exit."""

    def __init__(self, runtime: Runtime, graph: str, concurrency: int) -> None:
        self._runtime, self._graph, self._concurrency = runtime, graph, concurrency
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._stopping = asyncio.Event()
        self._futures: WeakValueDictionary[str, Reflection] = WeakValueDictionary()
        self._latest: WeakValueDictionary[str, Reflection] = WeakValueDictionary()
        self._checks: list[tuple[float, str]] = []
        """A heap: when to read which reflection, by the monotonic clock."""
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="perdure-reflections", daemon=True)
        self._thread.start()

    def is_alive(self) -> bool:
        """Whether the thread runs in this process; a fork does not have it."""
        return self._pid == os.getpid() and self._thread.is_alive()

    def watch(self, reflection: Reflection, after: float, thread_id: str = "") -> None:
        """Settle a future when its reflection, due in `after` seconds, has ended. The earlier one
        of the same thread may have been replaced, so it is checked now."""
        with self._lock:
            self._futures[reflection.id] = reflection
            heapq.heappush(self._checks, (time.monotonic() + after, reflection.id))
            earlier = self._latest.get(thread_id)
            if earlier is not None and earlier.id != reflection.id:
                heapq.heappush(self._checks, (time.monotonic(), earlier.id))
            if thread_id:
                self._latest[thread_id] = reflection
            if len(self._checks) > 2 * len(self._futures) + BATCH:  # most futures were dropped
                self._checks = [one for one in self._checks if one[1] in self._futures]
                heapq.heapify(self._checks)

    def check_now(self, id: str) -> None:
        """Read a reflection at the next look: it may have ended before it was due."""
        with self._lock:
            if id in self._futures:
                heapq.heappush(self._checks, (time.monotonic(), id))

    def open_futures(self) -> list[Reflection]:
        """The futures that are held and not settled."""
        with self._lock:
            return [one for one in self._futures.values() if not one.done()]

    def stop(self) -> None:
        """Give running reflections back to the journal and end the thread."""
        with contextlib.suppress(RuntimeError):  # its loop is closed
            self._loop.call_soon_threadsafe(self._stopping.set)
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)
        self._abandon_futures()

    def _abandon_futures(self) -> None:
        for future in self.open_futures():
            future.abandon()

    # -- in the thread

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        except BaseException:
            log.exception("The worker of %r ended.", self._graph)
        finally:
            self._loop.close()
            self._abandon_futures()  # also if the runtime was closed first

    async def _main(self) -> None:
        settling = asyncio.create_task(self._settle_futures())
        try:
            while not self._stopping.is_set():
                try:
                    await self._work()
                except Closed:
                    return
                except Exception:
                    log.exception("The worker of %r failed; it starts again in 1 s.", self._graph)
                    await self._pause(1.0)
        finally:
            settling.cancel()
            await asyncio.gather(settling, return_exceptions=True)
            with contextlib.suppress(Error):  # a last look at all of them
                ids = [future.id for future in self.open_futures()]
                for start in range(0, len(ids), BATCH):
                    await self._settle_ended(ids[start : start + BATCH])
            await _end_tasks()

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

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    # -- futures

    async def _settle_futures(self) -> None:
        while True:
            await asyncio.sleep(POLL_FUTURES)
            try:
                await self._settle_due()
            except Closed:
                return
            except Error as error:
                log.warning("Cannot read how reflections ended; tried again in 1 s: %s", error)
                await asyncio.sleep(1.0)

    async def _settle_due(self) -> None:
        """Read the reflections whose check is due, and settle those that ended."""
        now = time.monotonic()
        with self._lock:
            ids: list[str] = []
            while self._checks and self._checks[0][0] <= now and len(ids) < BATCH:
                _, id = heapq.heappop(self._checks)
                if (future := self._futures.get(id)) is not None and not future.done():
                    ids.append(id)
        if not ids:
            return
        try:
            await self._settle_ended(ids)
        finally:
            with self._lock:
                for id in ids:
                    heapq.heappush(self._checks, (now + POLL_FUTURES, id))  # dropped once settled

    async def _settle_ended(self, ids: list[str]) -> None:
        rows = {row.id: row for row in await self._runtime.journal.ado(runs.find_all(ids))}
        for id in ids:
            await self._settle(id, rows.get(id))

    async def _settle(self, id: str, row: runs.RunRow | None) -> None:
        future = self._futures.get(id)
        if future is None:
            return
        try:
            if row is None:
                raise NotFound("reflection", id)
            if row.state in ENDED or row.state == State.HELD:
                future.settle(await self._runtime.get(id))
        except NotFound as error:  # pruned
            future.abandon(error)


async def _end_tasks() -> None:
    """Let the tasks of a loop that is about to be closed end, then cancel what is left."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=0.5)
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=0.5)
