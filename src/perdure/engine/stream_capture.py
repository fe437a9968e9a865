"""What LangGraph streams while a segment is driven, given to the recorder of the segment.

    begin_stream    where the numbers go on, and which chunks of the segment before are void
    stream_through  LangGraph's own stream, recorded in its order

A process that dies leaves chunks on disk behind the last checkpoint. Their nodes run again, so the
next segment says that it replaces them from there. Some do not run again: parallel nodes that had
finished, steps of a subgraph that has its own checkpoint. Their chunks are queued once more, behind
that statement: a reader that drops what is void misses nothing, and has nothing twice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Any, cast

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP

from perdure.engine.segment_drive import Drive, latest_checkpoint
from perdure.journal import Plan
from perdure.langgraph_port.output_stream import take_waiting, task_chain
from perdure.operations import streams
from perdure.operations.runs import RunRow
from perdure.operations.streams import SEGMENT
from perdure.saver import Saver
from perdure.segments.segment import Segment
from perdure.segments.stream_recorder import StreamRecorder
from perdure.types import Chunk

EVENTS = "events"
PAGE = 200
"""Rows of the segment before that are read at once."""


def begin_stream(saver: Saver, segment: Segment, setup: Mapping[str, Any]) -> Plan[None]:
    """Let a segment record what it produces, if its run keeps that."""
    wanted, row = setup.get("stream"), segment.lease.row
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
    if last > marks.get("", 0):
        final = yield from _final_chunks(saver, row, marks)
        recorder.begin(marks.get("", 0) + 1)
        for chunk in final:
            recorder.add(chunk.namespace, chunk.mode, chunk.data)
    segment.stream = segment.progress.stream = recorder


def _final_chunks(saver: Saver, row: RunRow, marks: Mapping[str, int]) -> Plan[list[Chunk]]:
    """Chunks behind the last checkpoint whose nodes do not run again."""
    tail: list[Chunk] = []
    after = marks.get("", 0)
    while rows := (yield streams.between(row.thread_id, row.id, after, PAGE)):
        for one in rows:
            tail += streams.load(saver.serializer, row.thread_id, row.id, one)
        after = rows[-1].last
    begun = [at for at, chunk in enumerate(tail) if chunk.mode == SEGMENT]
    tail = tail[begun[-1] + 1 :] if begun else tail  # what was before that is void, or came again
    done: set[str] = set()
    for ns in marks or {"": 0}:
        at = yield from latest_checkpoint(saver, row.thread_id, ns)
        writes = (at.pending_writes if at is not None else None) or ()
        done |= {task for task, channel, _ in writes if channel not in WRITES_IDX_MAP}
    return [chunk for chunk in tail if _is_final(chunk, marks, done)]


def _is_final(chunk: Chunk, marks: Mapping[str, int], done: set[str]) -> bool:
    chain = task_chain(chunk.namespace, chunk.mode, chunk.data)
    if any(part.rpartition(":")[2] in done for part in chain):
        return True
    spaces = ("|".join(chain[: depth + 1]) for depth in range(len(chain)))
    return any(chunk.n <= marks.get(space, 0) for space in spaces)


async def stream_through(drive: Drive, recorder: StreamRecorder) -> None:
    """Run LangGraph to the end of the segment, and record what it streams."""
    modes = sorted(recorder.modes - {EVENTS})
    run = _Recorded(drive, recorder, modes)
    try:
        if EVENTS in recorder.modes:
            events = cast(
                AsyncGenerator[Any],
                run.astream_events(drive.input, drive.config, version="v2"),
            )
            async with contextlib.aclosing(events):
                async for event in events:
                    recorder.add((), EVENTS, event)
        else:
            chunks = cast(AsyncGenerator[Any], run.astream(drive.input, drive.config))
            async with contextlib.aclosing(chunks):
                async for _ in chunks:
                    pass
    finally:
        recorder.close()


class _Recorded(Runnable[Any, Any]):
    """A graph whose stream is recorded where it comes out."""

    def __init__(self, drive: Drive, recorder: StreamRecorder, modes: Iterable[str]) -> None:
        self._drive, self._recorder, self._modes = drive, recorder, list(modes)
        self.name = drive.graph.name

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def astream(
        self, input: Any, config: RunnableConfig | None = None, **kwargs: Any
    ) -> AsyncIterator[Any]:
        recorder, subgraphs = self._recorder, self._recorder.subgraphs
        chunks = cast(
            AsyncGenerator[Any],
            self._drive.graph.pregel.astream(
                input,
                config,
                stream_mode=cast(Any, self._modes or ["values"]),
                subgraphs=subgraphs,
                **self._drive.arguments,
            ),
        )
        recorder.follow(partial(take_waiting, chunks, lambda item: recorder.add(*item)))
        async with contextlib.aclosing(chunks):
            async for chunk in chunks:
                namespace, mode, data = chunk if subgraphs else ((), *chunk)
                recorder.add(namespace, mode, data)
                yield chunk
