"""Passes what LangGraph streams while a segment is driven to the segment's recorder.

    begin_stream    finds where numbering continues, and which earlier chunks are void
    stream_through  runs LangGraph and records its stream in order; `recorded` for bound graphs

A process that dies leaves chunks on disk after the last checkpoint. Their nodes run again, so the
next segment declares those chunks void. But some nodes do not run again: parallel ones that had
finished, and steps of a subgraph that has its own checkpoint. Their chunks are queued once more
after that declaration, so a reader that drops void chunks misses nothing and sees nothing twice.

When LangGraph resumes, it first emits the state it resumes from. Readers already have it, because
it was queued before its checkpoint. It is recorded only after a wait, where LangGraph's callers
expect it; then it stays valid whatever happens to the nodes that follow, since it is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP

from perdure.commands import streams
from perdure.commands.runs import RunRow
from perdure.execution.drive import FROM_CHECKPOINT, Drive, latest_checkpoint
from perdure.execution.stream_recorder import StreamRecorder
from perdure.journal import Plan
from perdure.langgraph_port.output_stream import TAPPED, Tap, is_whole_message, tapped, with_tap
from perdure.saver import Saver
from perdure.types import Chunk, State

EVENTS = "events"
RESUMED = "resumed"
"""Stored in place of the tasks of a chunk: it is a state that LangGraph resumed from."""
PAGE = 200
"""Rows of the previous segment to read at once."""


def begin_stream(drive: Drive, wanted: Mapping[str, Any]) -> Plan[None]:
    """Let a segment record its output: `wanted` says which of it its run keeps."""
    row = drive.row
    marks: dict[str, int] = json.loads(row.streamed or "{}")
    last = 0 if row.token == 1 else (yield streams.last(row))
    recorder = StreamRecorder(
        drive.owner,
        drive.journal,
        drive.serializer,
        drive.clock,
        frozenset(wanted["modes"]),
        last,
        subgraphs=wanted["subgraphs"],
        marks=marks,
    )
    after_wait = row.was == State.WAITING
    if drive.input is None and not drive.inline:
        recorder.resumed, recorder.after_wait = {*marks}, after_wait
    if last > marks.get("", 0):
        final = yield from _final_chunks(drive.saver, row, marks)
        if after_wait:  # LangGraph is about to emit that state
            final = [one for one in final if one[1] != RESUMED]
        recorder.begin(marks.get("", 0) + 1, final)
    drive.stream = drive.progress.stream = recorder


def _final_chunks(
    saver: Saver, row: RunRow, marks: Mapping[str, int]
) -> Plan[list[tuple[Chunk, str]]]:
    """Chunks after the last checkpoint whose nodes do not run again."""
    tail: list[tuple[Chunk, str]] = []
    final: list[tuple[Chunk, str]] = []
    after = marks.get("", 0)
    while rows := (yield streams.between(row.thread_id, row.id, after, PAGE)):
        for one in rows:
            found = streams.load_with_tasks(saver.serializer, row.thread_id, row.id, one)
            found = [pair for pair in found if pair[0].n > after]
            if one.replaces is None:
                tail += found
            else:  # earlier chunks are void; those it repeats were final then, and still are
                final, tail = found[1:], []
        after = rows[-1].last
    done: set[str] = set()
    for ns in marks or {"": 0}:
        at = yield from latest_checkpoint(saver, row.thread_id, ns)
        writes = (at.pending_writes if at is not None else None) or ()
        done |= {task for task, channel, _ in writes if channel not in WRITES_IDX_MAP}
    return final + [one for one in tail if _is_final(*one, marks, done)]


def _is_final(chunk: Chunk, tasks: str, marks: Mapping[str, int], done: set[str]) -> bool:
    """Whether the task of a chunk, or an enclosing one, has finished, or its subgraph has stored a
    checkpoint since."""
    if tasks == RESUMED:
        return True
    if not tasks or chunk.mode == "updates":  # LangGraph repeats those of finished tasks
        return False
    chain = tasks.split("|")
    if any(part.rpartition(":")[2] in done for part in chain):
        return True
    around = ("|".join(chain[: depth + 1]) for depth in range(len(chain)))
    return any(chunk.n <= marks.get(space, 0) for space in around)


async def stream_through(drive: Drive, recorder: StreamRecorder) -> Any:
    """Run LangGraph to the end of the segment, and record what it streams. Returns the output."""
    if recorder.subgraphs and recorder.modes <= TAPPED:
        config = with_tap(drive.config, _tap(recorder), recorder.modes)
        return await drive.graph.pregel.ainvoke(drive.input, config, **drive.arguments)
    run = _Recorded(drive, recorder)
    if EVENTS not in recorder.modes:
        async for _ in run.astream(drive.input, drive.config):
            pass
        return FROM_CHECKPOINT
    found = run.astream_events(drive.input, drive.config, version="v2")
    async with contextlib.aclosing(cast(AsyncGenerator[Any], found)) as events:
        async for event in events:
            if not (recorder.hides_pieces and event["event"].endswith("_stream")):
                recorder.add((), EVENTS, event)
    return FROM_CHECKPOINT


async def recorded(
    chunks: AsyncIterator[Any], recorder: StreamRecorder, stream_mode: Any, subgraphs: bool
) -> AsyncIterator[Any]:
    """Record a stream of LangGraph's that was called with these arguments, and pass it on."""
    async with contextlib.aclosing(cast(AsyncGenerator[Any], chunks)) as found:
        async for chunk in tapped(found, _tap(recorder), stream_mode, subgraphs):
            yield chunk


def _tap(recorder: StreamRecorder) -> Tap:
    """Records chunks, except those that readers already have."""
    recorder.loop = asyncio.get_running_loop()

    def tap(namespace: tuple[str, ...], mode: str, data: Any, tasks: str) -> None:
        if mode == "messages":
            if not is_whole_message(data):
                if recorder.hides_pieces:
                    return
            elif data[0].id in recorder.messages:
                return  # a finished subgraph that is entered again repeats its messages
        elif mode == "values" and (ns := "|".join(namespace)) in recorder.resumed:
            recorder.resumed.remove(ns)
            if not recorder.after_wait:
                return
            tasks = RESUMED
        recorder.add(namespace, mode, data, tasks)

    return tap


class _Recorded(Runnable[Any, Any]):
    """The graph of a segment, with a recorded stream."""

    def __init__(self, drive: Drive, recorder: StreamRecorder) -> None:
        self._drive, self._recorder = drive, recorder
        self.name = drive.graph.name

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError  # `Runnable` demands it; only its stream is used

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        drive, recorder = self._drive, self._recorder
        modes: Any = sorted(recorder.modes - {EVENTS}) or ["values"]
        how: Any = {"stream_mode": modes, "subgraphs": recorder.subgraphs}
        chunks = drive.graph.pregel.astream(input, config, **how, **drive.arguments)
        async for chunk in recorded(chunks, recorder, **how):
            yield chunk
