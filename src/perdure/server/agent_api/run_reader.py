"""Reads the chunks of runs for clients, and the outcome of a run at rest.

LangGraph reports an interrupt for every wait, including those that no person ends: `sleep`,
`wait_for` and `join`. For clients such a run is still running, so these interrupts are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from perdure.commands import runs, streams, waits
from perdure.commands.runs import RunRow, load_setup
from perdure.commands.streams import StreamReader
from perdure.errors import NotFound
from perdure.server.agent_api.run_events import interrupts_in, without_interrupts
from perdure.server.agent_api.run_results import look, result_of
from perdure.server.routes import Api
from perdure.times import moment
from perdure.types import ENDED, Chunk, Kind, Run, RunError, State
from perdure.views.wire_run import is_gone, is_update

TRIES, PAUSE = 50, 0.02
"""How many times to look for a wait that is not stored yet, and the seconds between two tries."""
PAGE = 20
"""Runs of a thread that are read at once."""


class Outcome(StrEnum):
    """Outcome of a run whose stream stops."""

    COMPLETED = "completed"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    """It asks a person, is paused, or was cancelled."""


@dataclass(frozen=True)
class RunAtRest:
    """A run at rest: ended, held, paused, or waiting for a person."""

    outcome: Outcome
    is_over: bool
    """Whether it has ended. A run that asks a person has not."""
    at: datetime
    error: RunError | None = None

    @classmethod
    def of(cls, run: Run) -> RunAtRest:
        at = run.updated_at
        if run.state is State.DONE:
            return cls(Outcome.COMPLETED, True, at)
        if run.state is State.FAILED:
            error = run.error or RunError("Error", "The run failed.", "")
            return cls(Outcome.FAILED, True, at, error)
        if run.state is State.HELD:
            message = f"The run is held until a person decides: {run.reason}"
            return cls(Outcome.FAILED, False, at, RunError("Held", message, ""))
        return cls(Outcome.INTERRUPTED, run.ended, at)


class RunReader:
    """Reads one run."""

    def __init__(self, api: Api, row: RunRow) -> None:
        self._api, self._runtime, self.row = api, api.runtime, row
        self._kinds: dict[str, str] = {}

    async def last(self) -> int:
        """Number of the last stored chunk."""
        return await self._runtime.journal.aread_committed(streams.last(self.row))

    async def chunks(self, after: int, *, until_waiting: bool = True) -> AsyncGenerator[Chunk]:
        """The chunks of the run after a number, until it rests."""
        runtime = self._runtime
        serializer, clock = runtime.engine.serializer, runtime.engine.clock
        reader = StreamReader(runtime.journal, serializer, clock, self.row)
        async with aclosing(reader.read(after, (), until_waiting)) as chunks:
            async for chunk in chunks:
                if not interrupts_in(chunk):
                    yield chunk
                elif (visible := await self._without_waits(chunk)) is not None:
                    yield visible

    async def history(self, last: int) -> AsyncGenerator[Chunk]:
        """The chunks of the run up to a number, including replaced ones: what a reader saw that was
        connected from the start."""
        journal, serializer = self._runtime.journal, self._runtime.engine.serializer
        after = 0
        while after < last:
            op = streams.between(self.row.thread_id, self.row.id, after, streams.PAGE)
            rows = await journal.aread_committed(op)
            for row in rows:
                for chunk in streams.load(serializer, self.row.thread_id, self.row.id, row):
                    visible = chunk
                    if interrupts_in(chunk):
                        visible = await self._without_waits(chunk) or chunk
                    if chunk.n <= last:
                        yield visible
            after = rows[-1].last if rows else last

    async def final_values(self) -> Any:
        """The final state of a run whose output was not kept, for clients that read it. None if its
        output was kept, or if it has failed."""
        if self.row.streams:
            return None
        run = await look(self._api, self.row.id, flush=False)
        values = await result_of(self._api, self.row.id, run)
        return values if isinstance(values, dict) and "__error__" not in values else None

    async def rest(self) -> RunAtRest:
        """The run at rest. A deleted run counts as ended."""
        try:
            return RunAtRest.of(await self._runtime.get(self.row.id, output=False))
        except NotFound:
            return RunAtRest(Outcome.INTERRUPTED, True, moment(self._runtime.engine.clock.now()))

    async def _without_waits(self, chunk: Chunk) -> Chunk | None:
        ids = {one.id for one in interrupts_in(chunk)}
        for _ in range(TRIES):
            if ids <= self._kinds.keys():
                break
            rows = await self._runtime.journal.aread_committed(waits.of_run(self.row.id))
            self._kinds = {row.interrupt_id: row.kind for row in rows}
            if not ids <= self._kinds.keys():  # stored right after the chunk
                await asyncio.sleep(PAUSE)
        hidden = {id for id in ids if self._kinds.get(id, Kind.HUMAN) != Kind.HUMAN}
        return without_interrupts(chunk, hidden) if hidden else chunk


@dataclass(frozen=True)
class Begun:
    """Marks where the chunks of a run begin, in the stream of its thread."""


Item = Begun | Chunk | RunAtRest


async def follow_thread(
    api: Api, thread_id: str, first: int, seen_of_first: int = 0
) -> AsyncGenerator[tuple[RunReader, Item]]:
    """The chunks of a thread's runs, one run after the other, each with its outcome when it rests.
    Without end: it waits for the next run.

    `first` is the number, on the thread, of the run to begin with. Up to chunk `seen_of_first` that
    run is read including replaced chunks, which the caller has seen. A run whose chunks were
    deleted is left out, unless it is the last one.
    """
    number, runtime = first - 1, api.runtime
    with runtime.journal.feed.watch(thread_id) as watch:
        while True:
            seen = watch.count
            await runtime.journal.aopen()
            rows = await runtime.journal.aread_committed(runs.after(thread_id, number, PAGE))
            for row in rows:
                number = row.n
                if is_shown(api, row) and (not _is_empty(row) or row is rows[-1]):
                    reader = RunReader(api, row)
                    seen_of_run = seen_of_first if row.n == first else 0
                    async with aclosing(_read_run(reader, seen_of_run)) as items:
                        async for item in items:
                            yield reader, item
            if not rows:
                await watch.wait(seen)


def is_shown(api: Api, row: RunRow) -> bool:
    """Whether clients can see a run."""
    return not is_gone(row) and not is_update(load_setup(api.serializer, row))


def _is_empty(row: RunRow) -> bool:
    return row.state in ENDED and not row.streams


async def _read_run(reader: RunReader, after: int) -> AsyncGenerator[Item]:
    yield Begun()
    async with aclosing(reader.history(after)) as chunks:
        async for chunk in chunks:
            yield chunk
    while True:
        async with aclosing(reader.chunks(after)) as chunks:
            async for chunk in chunks:
                after = chunk.n
                yield chunk
        rest = await reader.rest()
        yield rest
        if rest.is_over:
            return
        # Wait until it goes on (answered, resumed or retried) or ends.
        async with aclosing(reader.chunks(after, until_waiting=False)) as chunks:
            first = [chunk async for chunk in _one(chunks)]
        for chunk in first:
            after = chunk.n
            yield chunk
        if not first and (rest := await reader.rest()).is_over:
            if rest.outcome is not Outcome.INTERRUPTED:
                yield rest
            return


async def _one(chunks: AsyncIterator[Chunk]) -> AsyncIterator[Chunk]:
    """Only the first chunk, if there is one."""
    async for chunk in chunks:
        yield chunk
        return
