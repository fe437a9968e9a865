"""From LangGraph's put_writes to operations: what the tasks of a step returned.

`perdure.checkpoint.writer` says what is waited for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from perdure.checkpoint.cache import CheckpointCache, TaskWrites, WriteElement
from perdure.checkpoint.config import key_of
from perdure.checkpoint.raised_interrupts import RaisedInterrupts
from perdure.checkpoint.row_format import RowFormat, checkpoint_location, writes_location
from perdure.checkpoint.values import check_channel, refs_to_json
from perdure.errors import Error
from perdure.execution.segment import KEY, Segment, find
from perdure.journal import Journal, Op, Statement, no_result
from perdure.journal.committer import QueuedOperation
from perdure.journal.names import check_text
from perdure.langgraph_port import checkpoint_names
from perdure.serde.redaction import redact
from perdure.types import Durability

Writes = Sequence[tuple[str, Any]]


class TaskKey(NamedTuple):
    """The task whose writes these are."""

    thread_id: str
    ns: str
    checkpoint_id: str
    task_id: str
    path: str


class TaskWriter:
    """Queues what tasks returned, in the order in which it comes."""

    def __init__(
        self,
        durability: Durability,
        row_format: RowFormat,
        cache: CheckpointCache,
        raised: RaisedInterrupts,
    ) -> None:
        self._durability: Durability = durability
        self._format, self._cache, self._raised = row_format, cache, raised

    def put(
        self, journal: Journal, config: RunnableConfig, writes: Writes, task_id: str, path: str
    ) -> QueuedOperation[None] | None:
        """Queue the writes of a task. Return them if the caller must wait for them."""
        thread_id, ns, checkpoint_id = key_of(config)
        if checkpoint_id is None:
            raise Error(f"put_writes for thread {thread_id!r} names no checkpoint_id.")
        check_text("task_id", task_id)
        check_text("task_path", path)
        mode, segment = self._durability, find(config["configurable"])
        if segment is not None:
            if segment.signal is not None and any(one is segment.signal for _, one in writes):
                return None  # LangGraph's note of the signal itself, which ends the segment
            segment.check()
            mode = segment.durability
        lease = config["configurable"].get(KEY)
        writes, caught = self._raised.settle(task_id, lease, writes)
        channels = dict(writes)
        stops = INTERRUPT in channels or ERROR in channels
        task = TaskKey(thread_id, ns, checkpoint_id, task_id, path)
        thread = self._cache.get(thread_id, ns)
        writes = _storable(writes, segment)
        try:
            written = self._encoded(task, writes)
            op = self._op(task, writes, written, segment)
            with thread.changed:
                defer = journal.defer if segment is None else segment.defer
                queued = defer(op, hold=mode == "exit")
                step = thread.step(checkpoint_id)
                step.refused.pop(task_id, None)
                step.caught.pop(task_id, None)
                if caught is not None:
                    step.caught[task_id] = caught
                step.stopped = step.stopped or stops
                step.add(written)
                thread.changed.notify_all()
        except Exception as error:
            with thread.changed:
                thread.step(checkpoint_id).refuse(task_id, error)
                thread.changed.notify_all()
            raise
        wait = (stops and mode != "async" and segment is None) or journal.full
        return queued if wait else None

    def _encoded(self, task: TaskKey, writes: Writes) -> TaskWrites:
        entries = []
        for n, (channel, value) in enumerate(writes):
            is_list, elements = self._elements(channel, value)
            entries.append((WRITES_IDX_MAP.get(channel, n), channel, is_list, elements))
        written = TaskWrites(task.task_id, entries)
        serializer = self._format.serializer
        if written.size > min(serializer.limit, serializer.largest_batch):
            what = f"The writes of task {task.task_id} at {checkpoint_location(*task[:3])}"
            serializer.check_state(written.size, what, written.largest)
        return written

    def _elements(self, channel: str, value: Any) -> tuple[bool, list[WriteElement]]:
        """Whether a value is stored by its elements, and these."""
        check_channel(channel)
        if channel == ERROR and isinstance(value, BaseException):
            value = repr(value)  # as LangGraph's own savers do
        encode, redactor = self._format.serializer.encode, self._format.serializer.redactor
        if redactor is not None:
            value = redactor.of_channel(channel, value)
        if type(value) is list and value:
            return True, [
                WriteElement(item, encode(item, f"write to {channel}[{n}]"))
                for n, item in enumerate(value)
            ]
        return False, [WriteElement(value, encode(value, f"write to {channel}"))]

    def _op(
        self, task: TaskKey, writes: Writes, written: TaskWrites, segment: Segment | None
    ) -> Op[None]:
        stamp = self._cache.next_stamp()
        row: dict[str, Any] = {
            "thread_id": task.thread_id,
            "ns": task.ns,
            "checkpoint_id": task.checkpoint_id,
            "task_id": task.task_id,
            "stamp": stamp,
            "run_id": None if segment is None else segment.owner.run_id,
            "token": None if segment is None else segment.owner.token,
        }
        waits = [] if segment is None else _waits(segment, task, writes, stamp)
        location = writes_location(*task[:4], stamp)

        def forget() -> None:
            # Only a checkpoint in the same transaction may hold the bytes in our place.
            for _, element in written.elements:
                element.stored_in = None

        def statements() -> Sequence[Statement]:
            refs = {e.stored_in[:4] for _, e in written.elements if e.stored_in is not None}
            row["refs"] = refs_to_json(sorted(refs)) if refs else None
            row["body"] = self._format.dump_writes(task.path, written, location)
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


def _storable(writes: Writes, segment: Segment | None) -> Writes:
    """The writes that are stored of a task, exceptions without secrets."""
    if isinstance(dict(writes).get(ERROR), BaseException):
        # LangGraph adds what a task wrote before it failed or was cancelled, and would take
        # that for all it had to write: where to go next could be missing.
        marks = (*WRITES_IDX_MAP, checkpoint_names.ERROR_SOURCE)
        writes = [one for one in writes if one[0] in marks]
    if segment is None:
        return writes
    return [
        (name, redact(repr(value), segment.secrets) if isinstance(value, BaseException) else value)
        for name, value in writes
    ]


def _waits(segment: Segment, task: TaskKey, writes: Writes, stamp: int) -> list[Statement]:
    """The waits that are stored with the interrupt of a task that the runtime drives."""
    segment.progress.has_written = True
    by_channel = dict(writes)
    if not by_channel.get(INTERRUPT):
        return []
    before = by_channel.get(RESUME, [])
    before = before if isinstance(before, list) else [before]
    place = {**task._asdict(), "stamp": stamp}
    del place["thread_id"]
    return segment.questions.ask(by_channel[INTERRUPT], before, place)
