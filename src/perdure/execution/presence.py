"""The heartbeat of this process as a worker: one small row, rewritten at every beat.

It serves lists of workers and requests to drain; leases alone decide who drives what. A worker that
stops when idle announces itself only after a whole beat, any other after a second, so a tick writes
nothing. Heartbeats go through the journal's queue, in the commits of other operations. A heartbeat
that fails is repeated at the next beat. One that is older in the database than it was written shows
that the database went back in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from perdure.errors import Error
from perdure.journal import Journal
from perdure.journal.clock import Clock
from perdure.operations import workers
from perdure.operations.workers import WorkerRow
from perdure.service.failures import Failures
from perdure.service.workers import beat_of

SOON = 1.0
"""Seconds after which a worker that does not stop when idle announces itself."""
PATIENCE = 2.0
"""Seconds that a stopping worker waits for its row to be deleted."""


@dataclass(frozen=True, eq=False)
class Member:
    """One call of `work` or `tick`: two with the same settings are two."""

    graphs: tuple[str, ...]
    concurrency: int
    until_idle: bool


class Presence:
    """What this process announces: the workers in it share one row, as they share their leases."""

    def __init__(self, journal: Journal, clock: Clock, worker: str, failures: Failures) -> None:
        self._journal, self._clock, self.worker = journal, clock, worker
        self._failures = failures
        self._members: list[Member] = []
        self._started_at: int | None = None
        """When it was first announced; its row may exist since then."""
        self._announced_at: int | None = None
        """Its last heartbeat. None: it has no row."""

    @property
    def is_announced(self) -> bool:
        """Whether its row exists, so that it may be asked to drain."""
        return self._announced_at is not None

    async def keep(self, member: Member) -> None:
        """Announce a worker, and again at every beat, until it is cancelled."""
        beat = beat_of(self._journal.capabilities)
        await asyncio.sleep(beat if member.until_idle else min(SOON, beat))
        self._members.append(member)
        while True:
            await self._announce()
            await asyncio.sleep(beat)

    async def _announce(self) -> None:
        now = self._clock.now()
        if self._started_at is None:
            self._started_at = now
        graphs: Iterable[str] = (name for one in self._members for name in one.graphs)
        row = WorkerRow(
            self.worker,
            socket.gethostname()[:200],
            os.getpid(),
            workers.dump_graphs(graphs),
            sum(one.concurrency for one in self._members),
            self._started_at,
            now,
        )
        with self._failures.guard("Announcing this worker"):
            stored = await self._journal.ado(workers.announce(row, is_new=not self.is_announced))
            last, self._announced_at = self._announced_at, now
            # No other process writes its row. A stale one may have been deleted.
            if last is not None and (
                now - last < workers.KEPT if stored is None else stored < last
            ):
                why = "it has an earlier heartbeat of this process than the last one"
                look_back = functools.partial(self._journal.look_back, why, is_certain=True)
                await asyncio.to_thread(look_back)

    async def leave(self, member: Member) -> None:
        """Delete the row, if this was the last worker in the process."""
        with contextlib.suppress(ValueError):  # it was not announced
            self._members.remove(member)
        if self._members or self._started_at is None:
            return
        self._started_at = self._announced_at = None
        with contextlib.suppress(Error, TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await self._journal.ado(workers.leave(self.worker))
