"""From LangGraph's put_writes to operations: what the tasks of a step returned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from perdure.checkpoint.cache import CheckpointCache, TaskWrites, WriteElement
from perdure.checkpoint.row_format import RowFormat, checkpoint_location, writes_location
from perdure.checkpoint.value_chain import check_channel, refs_to_json
from perdure.checkpoint.writer import no_result
from perdure.errors import TooLarge
from perdure.journal import Journal, Op, Statement
from perdure.journal.committer import QueuedOperation
from perdure.segments.segment import Segment


class PutWrites(NamedTuple):
    """One call of LangGraph's `put_writes`."""

    thread_id: str
    ns: str
    checkpoint_id: str
    writes: Sequence[tuple[str, Any]]
    task_id: str
    path: str
    segment: Segment | None = None


class TaskWriter:
    """Queues what tasks returned, in the order in which it comes."""

    def __init__(self, row_format: RowFormat, cache: CheckpointCache, max_bytes: int) -> None:
        self._format, self._cache, self._max_bytes = row_format, cache, max_bytes

    def put(
        self, journal: Journal, put: PutWrites, *, stops: bool, hold: bool
    ) -> QueuedOperation[None]:
        """Queue the writes of a task. `stops`: they are a question or an error."""
        thread = self._cache.get(put.thread_id, put.ns)
        try:
            written = self._encoded(put)
        except Exception:
            with thread.changed:  # the checkpoint must not wait for writes that are refused
                refused = TaskWrites(put.task_id, [], refused=True)
                thread.add_writes(put.checkpoint_id, refused)
            raise
        op = self._op(put, written, self._cache.next_stamp())
        with thread.changed:
            queued = journal.defer(op, hold=hold)
            thread.add_writes(put.checkpoint_id, written, stops=stops)
        return queued

    def _encoded(self, put: PutWrites) -> TaskWrites:
        entries = [
            (WRITES_IDX_MAP.get(channel, n), channel, self._elements(channel, value))
            for n, (channel, value) in enumerate(put.writes)
        ]
        written = TaskWrites(put.task_id, entries)
        size = sum([len(element.data) for _, element in written.elements])
        if size > self._max_bytes:
            location = checkpoint_location(put.thread_id, put.ns, put.checkpoint_id)
            what = f"The writes of task {put.task_id} at {location}"
            raise TooLarge(what, size, self._max_bytes)
        return written

    def _elements(self, channel: str, value: Any) -> WriteElement | list[WriteElement]:
        check_channel(channel)
        if channel == ERROR and isinstance(value, BaseException):
            value = repr(value)  # as LangGraph's own savers do
        encode = self._format.codec.encode
        if type(value) is list and value:
            return [
                WriteElement(item, encode(item, f"write to {channel}[{n}]"))
                for n, item in enumerate(value)
            ]
        return WriteElement(value, encode(value, f"write to {channel}"))

    def _op(self, put: PutWrites, written: TaskWrites, stamp: int) -> Op[None]:
        segment = put.segment
        waits = [] if segment is None else _waits(segment, put, stamp)
        row: dict[str, Any] = {
            "thread_id": put.thread_id,
            "ns": put.ns,
            "checkpoint_id": put.checkpoint_id,
            "task_id": put.task_id,
            "stamp": stamp,
            "run_id": None if segment is None else segment.lease.run_id,
            "token": None if segment is None else segment.lease.token,
        }
        location = writes_location(put.thread_id, put.ns, put.checkpoint_id, put.task_id, stamp)

        def forget() -> None:
            # Only a checkpoint in the same transaction may hold the bytes in our place.
            for _, element in written.elements:
                element.stored_in = None

        def statements() -> Sequence[Statement]:
            refs = {e.stored_in[0] for _, e in written.elements if e.stored_in is not None}
            row["refs"] = refs_to_json(sorted(refs)) if refs else None
            row["body"] = self._format.dump_writes(put.path, written, location)
            return [*waits, Statement("insert_writes", row)]

        return Op(
            f"put_writes {location}",
            statements,
            no_result,
            write=True,
            key=Statement("find_writes", row),
            otherwise=None if segment is None else segment.refuse,
            prepare=forget,
        )


def _waits(segment: Segment, put: PutWrites, stamp: int) -> list[Statement]:
    """The waits that are stored with the interrupt of a task that the runtime drives."""
    segment.progress.has_written = True
    given = dict(put.writes)
    if not given.get(INTERRUPT):
        return []
    before = given.get(RESUME, [])
    place = {
        "ns": put.ns,
        "checkpoint_id": put.checkpoint_id,
        "task_id": put.task_id,
        "path": put.path,
        "stamp": stamp,
    }
    before = before if isinstance(before, list) else [before]
    return segment.questions.ask(given[INTERRUPT], before, place)
