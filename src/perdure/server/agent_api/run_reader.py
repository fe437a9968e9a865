"""Reads runs for clients: find them, wait until they are over, their results, their chunks.

LangGraph reports an interrupt for every wait, including those that no person ends: `sleep`,
`wait_for` and `join`. For clients such a run is still running, so these interrupts are left out.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from perdure.commands import runs, streams, waits
from perdure.commands.runs import RunRow, load_output, load_setup
from perdure.commands.streams import read_stream
from perdure.commands.waits import WaitRow
from perdure.errors import NotFound
from perdure.server.agent_api.resources import check_filters, known_thread
from perdure.server.agent_api.thread_state import place, read_state
from perdure.server.routes import Api
from perdure.types import ENDED, Chunk, Kind, State, WaitState
from perdure.views.wire_run import (
    RunStatus,
    asks_person,
    is_gone,
    is_update,
    run_failure,
    run_status,
    wire_error,
)

LOOK = 5.0
"""Maximum number of seconds between two reads of a run that is waited for."""
TRIES, PAUSE = 50, 0.02
"""How many times to look for a wait that is not stored yet, and the seconds between two tries."""
PAGE = 20
"""Runs of a thread that are read at once."""
INTERRUPT = "__interrupt__"


class SeenRun(NamedTuple):
    """A run and its waits, read in one snapshot."""

    row: RunRow
    waits: Sequence[WaitRow]
    asks: bool
    """Whether it rests until a person answers."""

    @property
    def status(self) -> RunStatus:
        return run_status(self.row, asks=self.asks)

    @property
    def is_over(self) -> bool:
        """Whether clients consider it finished."""
        return self.asks or self.has_ended or self.row.state in (State.PAUSED, State.HELD)

    @property
    def has_ended(self) -> bool:
        return self.row.state in ENDED

    @property
    def outcome(self) -> str:
        """How its stream stops. `interrupted`: it asks a person, is paused, or was cancelled."""
        if self.row.state == State.DONE:
            return "completed"
        return "failed" if self.row.state in (State.FAILED, State.HELD) else "interrupted"

    @property
    def questions(self) -> list[WaitRow]:
        """The open questions to people, without breakpoints."""
        return [
            one
            for one in self.waits
            if one.state == WaitState.OPEN and one.kind == Kind.HUMAN and not one.is_breakpoint
        ]


async def look(api: Api, run_id: str, *, flush: bool = True) -> SeenRun | None:
    """A run as it is now; without `flush`, as far as it is on disk."""
    journal, op = api.journal, waits.with_run(run_id)
    await journal.aopen()
    row, every = await (journal.ado(op) if flush else journal.aread_committed(op))
    return None if row is None else SeenRun(row, every, asks_person(row, every, api.now()))


async def find_run(
    api: Api, thread_id: str | None, run_id: str, *, action: str = "read"
) -> SeenRun:
    """A run on which the caller may do `action`. Raises 404. Without a `thread_id` it must be a
    stateless run."""
    if thread_id is not None:
        thread_id = await known_thread(api, thread_id)
    run = await look(api, run_id)
    gone = run is None or is_gone(run.row)
    if run is None or gone or thread_id not in (None, run.row.thread_id):
        raise NotFound("run", run_id)
    on = run.row.thread_id
    filters = await api.authorize("threads", action, {"thread_id": on, "run_id": run_id})
    await check_filters(api, on, filters, missing=NotFound("run", run_id))
    return run


async def until(api: Api, run_id: str, is_done: Callable[[SeenRun], bool]) -> SeenRun | None:
    """Wait until `is_done` holds, whichever process drives the run. None: it was deleted."""
    with api.journal.feed.watch(run_id) as watch:
        while True:
            seen = watch.count
            run = await look(api, run_id, flush=False)
            if run is None or is_done(run):
                return run
            await watch.wait(seen, LOOK)


async def result_of(api: Api, run_id: str, run: SeenRun | None) -> Any:
    """What `wait` and `join` return for a run that is over."""
    if run is None or is_gone(run.row):
        return {"__error__": wire_error("NotFound", f"Run {run_id} was deleted.")}
    row = run.row
    if (failure := run_failure(api.serializer, row)) is not None:
        return {"__error__": failure}
    graph = api.runtime.compiled(row.graph)
    if row.state == State.DONE and (graph is None or _returns_state(graph)):
        return await api.journal.arun(
            load_output(api.serializer, row, api.engine.state_at), flush=False
        )
    values: Any = {}
    if graph is not None:
        runtime, config = api.runtime, place(row.thread_id)
        state = await runtime.journal.in_thread(lambda: read_state(runtime, graph, config))
        values = state.values
    if not run.asks or not isinstance(values, dict):
        return values
    questions = []
    for one in run.questions:
        wait = waits.to_wait(api.serializer, one)
        schema = wait.response_schema
        questions.append({"value": wait.value, "id": one.interrupt_id, "response_schema": schema})
    return {**values, INTERRUPT: questions} if questions else values


def _returns_state(graph: Any) -> bool:
    """Whether the output of a graph's run is its whole state."""
    output, state = graph.output_channels, graph.stream_channels_asis
    if isinstance(output, str) or isinstance(state, str):
        return bool(output == state)
    return {*output} == {*state}


def interrupts_in(chunk: Chunk) -> tuple[Any, ...]:
    """The interrupts that a chunk of `values` or `updates` reports."""
    if chunk.mode not in ("values", "updates") or not isinstance(chunk.data, dict):
        return ()
    interrupts = chunk.data.get(INTERRUPT)
    return tuple(interrupts) if isinstance(interrupts, (list, tuple)) else ()


def without_interrupts(chunk: Chunk, ids: Collection[str]) -> Chunk | None:
    """A chunk without these interrupts. None if nothing else is left."""
    left = tuple(one for one in interrupts_in(chunk) if one.id not in ids)
    if left:
        data = {**chunk.data, INTERRUPT: left}
        return replace(chunk, data=data)
    return None


class RunReader:
    """Reads one run."""

    def __init__(self, api: Api, row: RunRow) -> None:
        self._api, self._runtime, self.row = api, api.runtime, row
        self._kinds: dict[str, str] = {}

    async def chunks(self, after: int, *, until_waiting: bool = True) -> AsyncGenerator[Chunk]:
        """The chunks of the run after a number, until it rests."""
        engine = self._runtime.engine
        async with aclosing(read_stream(engine, self.row, after, (), until_waiting)) as chunks:
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

    async def rest(self) -> SeenRun:
        """The run at rest. A deleted run counts as cancelled."""
        deleted = SeenRun(self.row._replace(state=State.CANCELLED), (), asks=False)
        return await look(self._api, self.row.id) or deleted

    async def final_values(self, run: SeenRun) -> Any:
        """The final state of a run whose output was not kept, for clients that read it. None if its
        output was kept, or if it has failed."""
        if self.row.streams:
            return None
        values = await result_of(self._api, self.row.id, run)
        return values if isinstance(values, dict) and "__error__" not in values else None

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


Item = Begun | Chunk | SeenRun


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
        if rest.has_ended:
            return
        # Wait until it goes on (answered, resumed or retried) or ends.
        async with aclosing(reader.chunks(after, until_waiting=False)) as chunks:
            first = await anext(chunks, None)
        if first is not None:
            after = first.n
            yield first
        elif (rest := await reader.rest()).has_ended:
            if rest.outcome != "interrupted":
                yield rest
            return
