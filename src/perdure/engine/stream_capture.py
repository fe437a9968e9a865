"""What LangGraph streams while a segment is driven, given to the recorder of the segment.

    begin_stream    where the numbers go on, and which chunks of the segment before are void
    stream_through  LangGraph's own stream, recorded in its order; `recorded` for bound graphs

A process that dies leaves chunks on disk behind the last checkpoint. Their nodes run again, so the
next segment says that it replaces them from there. Some do not run again: parallel nodes that had
finished, steps of a subgraph that has its own checkpoint. Their chunks are queued once more, behind
that statement: a reader that drops what is void misses nothing, and has nothing twice.

LangGraph, when it resumes, first gives the state it resumes from. Readers have it already, since it
was queued before its checkpoint. It is recorded only after a wait, where LangGraph's callers expect
it, and then it stays valid: it is on disk, whatever happens to the nodes that follow.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP

from perdure.engine.segment_drive import FROM_CHECKPOINT, Drive, latest_checkpoint
from perdure.journal import Plan
from perdure.langgraph_port.output_stream import TAPPED, Tap, is_whole_message, tapped, with_tap
from perdure.operations import streams
from perdure.operations.runs import RunRow
from perdure.saver import Saver
from perdure.segments.stream_recorder import StreamRecorder
from perdure.types import Chunk, State

EVENTS = "events"
RESUMED = "resumed"
"""In place of its tasks: a state that LangGraph resumed from."""
PAGE = 200
"""Rows of the segment before that are read at once."""


def begin_stream(saver: Saver, drive: Drive, setup: Mapping[str, Any]) -> Plan[None]:
    """Let a segment record what it produces, if its run keeps that."""
    segment, wanted, row = drive.segment, setup.get("stream"), drive.row
    if not wanted:
        return
    marks: dict[str, int] = json.loads(row.streamed or "{}")
    last = 0 if row.token == 1 else (yield streams.last(row))
    recorder = StreamRecorder(
        segment.lease,
        segment.journal,
        segment.serializer,
        segment.clock,
        frozenset(wanted["modes"]),
        last,
        subgraphs=wanted["subgraphs"],
        marks=marks,
    )
    after_wait = row.was == State.WAITING
    if drive.input is None and not segment.inline:
        recorder.resumed, recorder.after_wait = {*marks}, after_wait
    if last > marks.get("", 0):
        final = yield from _final_chunks(saver, row, marks)
        if after_wait:  # LangGraph gives that state now
            final = [one for one in final if one[1] != RESUMED]
        recorder.begin(marks.get("", 0) + 1, final)
    segment.stream = segment.progress.stream = recorder


def _final_chunks(
    saver: Saver, row: RunRow, marks: Mapping[str, int]
) -> Plan[list[tuple[Chunk, str]]]:
    """Chunks behind the last checkpoint whose nodes do not run again."""
    tail: list[tuple[Chunk, str]] = []
    final: list[tuple[Chunk, str]] = []
    after = marks.get("", 0)
    while rows := (yield streams.between(row.thread_id, row.id, after, PAGE)):
        for one in rows:
            found = streams.load_with_tasks(saver.serializer, row.thread_id, row.id, one)
            found = [pair for pair in found if pair[0].n > after]
            if one.replaces is None:
                tail += found
            else:  # what was before it is void; what it gives again was final then, and still is
                final, tail = found[1:], []
        after = rows[-1].last
    done: set[str] = set()
    for ns in marks or {"": 0}:
        at = yield from latest_checkpoint(saver, row.thread_id, ns)
        writes = (at.pending_writes if at is not None else None) or ()
        done |= {task for task, channel, _ in writes if channel not in WRITES_IDX_MAP}
    return final + [one for one in tail if _is_final(*one, marks, done)]


def _is_final(chunk: Chunk, tasks: str, marks: Mapping[str, int], done: set[str]) -> bool:
    """Whether the task of a chunk, or one around it, has finished, or its subgraph has stored a
    checkpoint since."""
    if tasks == RESUMED:
        return True
    if not tasks or chunk.mode == "updates":  # LangGraph gives those of finished tasks again
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
    """A stream of LangGraph's, called with these arguments, that is recorded."""
    async with contextlib.aclosing(cast(AsyncGenerator[Any], chunks)) as found:
        async for chunk in tapped(found, _tap(recorder), stream_mode, subgraphs):
            yield chunk


def _tap(recorder: StreamRecorder) -> Tap:
    """Has chunks recorded, except those that readers have already."""

    def tap(namespace: tuple[str, ...], mode: str, data: Any, tasks: str) -> None:
        if mode == "messages":
            if not is_whole_message(data):
                if recorder.hides_pieces:
                    return
            elif data[0].id in recorder.messages:
                return  # a finished subgraph that is entered again gives its messages once more
        elif mode == "values" and (ns := "|".join(namespace)) in recorder.resumed:
            recorder.resumed.remove(ns)
            if not recorder.after_wait:
                return
            tasks = RESUMED
        recorder.add(namespace, mode, data, tasks)

    return tap


class _Recorded(Runnable[Any, Any]):
    """The graph of a segment, whose stream is recorded."""

    def __init__(self, drive: Drive, recorder: StreamRecorder) -> None:
        self._drive, self._recorder = drive, recorder
        self.name = drive.graph.name

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        drive, recorder = self._drive, self._recorder
        modes: Any = sorted(recorder.modes - {EVENTS}) or ["values"]
        how: Any = {"stream_mode": modes, "subgraphs": recorder.subgraphs}
        chunks = drive.graph.pregel.astream(input, config, **how, **drive.arguments)
        async for chunk in recorded(chunks, recorder, **how):
            yield chunk
