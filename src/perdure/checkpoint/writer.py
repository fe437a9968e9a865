"""From LangGraph's put and put_writes to operations: a checkpoint as its difference from the one
before, and what the tasks of a step returned.

`put` is ordered after the `put_writes` of its step. LangGraph submits both to a thread pool and
waits for neither, so a checkpoint can arrive first. It shows which tasks it is made of: its
`versions_seen` moved for them, or its parent sent them. `put` waits until their writes are queued.

The bytes of a value that a task returned and a checkpoint then holds are stored once: when both
go into the same transaction, the write refers to the checkpoint's row.

`durability` decides what the caller waits for until it is on disk:

    sync    every checkpoint
    auto    the checkpoint after which the run hands control back (nothing more is triggered),
            an interrupt and an error; the others are committed with them, at most 20 ms later.
            Anything that leaves the process waits for all before it.
    async   nothing; committed within 20 ms
    exit    like auto, and between two such points it is committed about once a second

A caller that passes LangGraph's own `durability="sync"` gets `sync` for that call. A run that the
runtime drives is waited for as a whole, before its worker releases it.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME

from perdure.checkpoint.cache import (
    RESIZED,
    CachedCheckpoint,
    CheckpointCache,
    TaskWrites,
    WriteElement,
)
from perdure.checkpoint.raised_interrupts import RaisedInterrupts, Writes
from perdure.checkpoint.rows import (
    CheckpointKey,
    CheckpointRow,
    checkpoint_location,
    dump_state,
    dump_writes,
    insert_value,
    key_of,
    value_location,
    writes_location,
)
from perdure.checkpoint.values import (
    INLINE,
    StoredValue,
    ValueRef,
    check_channel,
    difference,
    is_trusted,
    refs_to_json,
)
from perdure.errors import Error
from perdure.execution.segment import KEY, Segment, segment_of
from perdure.journal import Journal, Op, Statement, no_result
from perdure.journal.committer import QueuedOperation
from perdure.journal.names import check_text
from perdure.langgraph_port import checkpoint_names, configs
from perdure.serde.redaction import redact
from perdure.serde.serializer import Serializer
from perdure.types import Durability

TaskKey = tuple[str, str, str, str]
"""Thread, namespace, checkpoint and task of a task's writes."""
ARRIVAL = 2.0
"""Seconds `put` waits at most for the writes of its step to arrive from LangGraph's threads."""


class Put(NamedTuple):
    """One call of LangGraph's `put`. `key.id` is that of the parent."""

    key: CheckpointKey
    segment: Segment | None
    config: RunnableConfig
    checkpoint: Checkpoint
    metadata: CheckpointMetadata
    new_versions: ChannelVersions


class Writer:
    """Queues checkpoints behind the writes of their step, with the least that must be stored."""

    def __init__(
        self,
        durability: Durability,
        serializer: Serializer,
        cache: CheckpointCache,
        raised: RaisedInterrupts,
    ) -> None:
        self._durability: Durability = durability
        self._serializer, self._cache, self._raised = serializer, cache, raised

    def put(self, journal: Journal, put: Put, *, blocking: bool) -> QueuedOperation[None] | None:
        """Queue a checkpoint. Return it if the caller must wait until it is durable."""
        segment = put.segment
        requested = configs.durability_of(put.config["configurable"])
        mode: Durability = "sync" if requested == "sync" else self._durability
        if segment is not None:
            segment.check()
            mode = "sync" if segment.is_overdue else segment.durability
        # Coroutines come in order, and a run that is put at its exit writes nothing before.
        arriving = blocking and requested != "exit"
        queued, stopped = self._queue(journal, put, arriving, hold=mode == "exit")
        if mode == "sync" or journal.full:
            return queued
        if segment is not None or mode == "async":
            return None
        triggers = map(checkpoint_names.is_trigger, put.checkpoint.get("updated_channels") or ())
        return queued if stopped or (put.key.ns == "" and not any(triggers)) else None

    def _queue(
        self, journal: Journal, put: Put, arriving: bool, hold: bool
    ) -> tuple[QueuedOperation[None], bool]:
        """Queue a checkpoint behind the writes of its step.

        `arriving`: they may still be on their way, and this thread may wait. Also returns whether
        a question or an error at this checkpoint arrived before it.
        """
        check_text("checkpoint_id", put.checkpoint["id"])
        thread = self._cache.get(put.key.thread_id, put.key.ns)
        with thread.put_lock:
            with thread.changed:
                parent = thread.latest
                if parent is not None and parent.id != put.key.id:
                    parent = None
                written: Sequence[TaskWrites] = ()
                if parent is not None:
                    if arriving and put.metadata.get("source") == "loop":
                        moved = _moved(parent, put.checkpoint)
                        nodes = [*filter(checkpoint_names.is_node, moved)]
                        starts = checkpoint_names.START in moved
                        expected = len(parent.sends) + len(nodes) + starts
                        step = thread.step(parent.id)
                        if len(step.tasks) < expected:
                            thread.changed.wait_for(
                                lambda: len(step.tasks) >= expected or bool(step.caught), ARRIVAL
                            )
                    if parent.id in thread.steps:
                        written = thread.steps[parent.id].writes
                if put.metadata.get("source") == "loop" and put.key.id in thread.steps:
                    thread.steps[put.key.id].check()
                thread.latest = None  # until this one is queued: its values move into the next
            latest, op = self._put_op(put, parent, written)
            with thread.changed:
                defer = journal.defer if put.segment is None else put.segment.defer
                queued = defer(op, hold=hold)  # first: the database may refuse it
                thread.advance(latest)
                step_here = thread.steps.get(latest.id)
                stopped = step_here is not None and step_here.stopped
        if abs(latest.size - thread.size) >= RESIZED:
            self._cache.resize(thread, latest.size)
        return queued, stopped

    def _put_op(
        self, put: Put, parent: CachedCheckpoint | None, written: Sequence[TaskWrites]
    ) -> tuple[CachedCheckpoint, Op[None]]:
        (thread_id, ns, _), segment, checkpoint = put.key, put.segment, put.checkpoint
        step = secrets.randbits(48)
        statements: list[Statement] = []
        if segment is not None:
            metadata = cast(dict[str, Any], put.metadata)
            ran = set() if parent is None else set(_moved(parent, checkpoint))
            if parent is not None and metadata.get("source") == "loop":
                ran.update(parent.sends)
            nodes = sorted(filter(checkpoint_names.is_node, ran))
            statements += segment.progress.step(ns, checkpoint["id"], put.key.id, metadata, nodes)
        elements: list[tuple[str, WriteElement]] = []
        for one in written:
            elements += one.elements
        values, shared = self._values(put, parent, elements, step, statements)
        size, refs = 0, []
        for value in values.values():
            size += value.size
            if value.ref is not None:
                refs.append(value.ref)
        row = self._row(put, values, step, size, refs)
        params = row._asdict()
        params["base"], params["base_step"] = (parent.id, parent.step) if parent else (None, None)
        params["lease_of"] = None if segment is None else segment.owner.run_id
        statements.append(Statement("insert_checkpoint", params))

        def share() -> None:
            for element, ref, n in shared:
                element.stored_in = (*ref, n)

        def whole() -> Op[None]:
            # The checkpoint this one builds on was deleted meanwhile: store all of it.
            thread = self._cache.get(thread_id, ns)
            with thread.changed:
                thread.latest = None
            return self._put_op(put, None, ())[1]

        refused: Callable[[], Op[None]] | None = whole
        if parent is None:
            refused = None if segment is None else segment.refuse

        seen = checkpoint["versions_seen"]
        sends = checkpoint_names.sent_nodes(checkpoint["channel_values"])
        return CachedCheckpoint(checkpoint["id"], step, values, seen, sends, size), Op(
            f"put {row.location}",
            statements,
            no_result,
            write=True,
            key=Statement("find_checkpoint", params),
            otherwise=refused,
            prepare=share if shared else None,
        )

    def _values(
        self,
        put: Put,
        parent: CachedCheckpoint | None,
        elements: Sequence[tuple[str, WriteElement]],
        step: int,
        statements: list[Statement],
    ) -> tuple[dict[str, StoredValue], list[tuple[WriteElement, ValueRef, int]]]:
        """How each value is stored, and the elements of writes that are in the same rows.

        Adds the new rows to `statements`.
        """
        thread_id, ns, _ = put.key
        known = parent.values if parent is not None else {}
        serializer, returned = self._serializer, _returned(elements) if elements else {}
        values: dict[str, StoredValue] = {}
        shared: list[tuple[WriteElement, ValueRef, int]] = []
        for channel, value in put.checkpoint["channel_values"].items():
            before = known.get(channel)
            if before is not None and channel not in put.new_versions:
                values[channel] = before
                continue
            check_channel(channel)
            if serializer.redactor is not None:
                value = serializer.redactor.of_channel(channel, value)
            stored, body, inserted = difference(
                serializer, channel, value, before, returned.get(channel), step
            )
            values[channel] = stored
            if body is not None and stored.ref is not None:
                base = None if before is None or before.ref is None else before.ref.step
                location = value_location(thread_id, ns, stored.ref)
                body = serializer.envelope.seal(body, location)
                # Also if only a change is stored: sooner or later it is stored whole.
                serializer.check_blob(max(len(body), stored.size), location)
                statements.append(insert_value(thread_id, ns, stored.ref, base, body))
                if elements:
                    shared += _shared(elements, channel, stored.ref, inserted)
        return values, shared

    def _row(
        self,
        put: Put,
        values: dict[str, StoredValue],
        step: int,
        size: int,
        refs: list[ValueRef],
    ) -> CheckpointRow:
        thread_id, ns, parent_id = put.key
        metadata = get_checkpoint_metadata(put.config, put.metadata)
        run_id = None if put.segment is None else put.segment.owner.run_id
        if run_id is None and metadata.get("run_id") is not None:
            run_id = check_text("run_id", str(metadata["run_id"]))
        key, now = (thread_id, ns, put.checkpoint["id"]), time.time_ns() // 1_000_000
        stored_refs = refs_to_json(refs) if refs else "[]"
        row = CheckpointRow(*key, parent_id, run_id, step, stored_refs, b"", now)
        state = dump_state(self._serializer, row, put.checkpoint, metadata, values)
        if (size := size + len(state)) > self._serializer.largest_state:
            self._serializer.check_state(size, row.location, lambda: _largest(values))
        return row._replace(state=state)

    # -- what tasks returned

    def put_writes(
        self, journal: Journal, config: RunnableConfig, writes: Writes, task_id: str, path: str
    ) -> QueuedOperation[None] | None:
        """Queue the writes of a task. Return them if the caller must wait for them."""
        thread_id, ns, checkpoint_id = key_of(config)
        if checkpoint_id is None:
            raise Error(f"put_writes for thread {thread_id!r} names no checkpoint_id.")
        check_text("task_id", task_id)
        check_text("task_path", path)
        mode, segment = self._durability, segment_of(config["configurable"])
        if segment is not None:
            if segment.signal is not None and any(one is segment.signal for _, one in writes):
                return None  # LangGraph's note of the signal itself, which ends the segment
            segment.check()
            mode = segment.durability
        writes, caught = self._raised.settle(task_id, config["configurable"].get(KEY), writes)
        channels = dict(writes)
        stops = INTERRUPT in channels or ERROR in channels
        thread = self._cache.get(thread_id, ns)
        writes = _storable(writes, segment)
        try:
            key = (thread_id, ns, checkpoint_id, task_id)
            written = self._encoded(key, writes)
            op = self._writes_op(key, path, writes, written, segment)
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

    def _encoded(self, key: TaskKey, writes: Writes) -> TaskWrites:
        entries = []
        for n, (channel, value) in enumerate(writes):
            is_list, elements = self._elements(channel, value)
            entries.append((WRITES_IDX_MAP.get(channel, n), channel, is_list, elements))
        *at, task_id = key
        written = TaskWrites(task_id, entries)
        if written.size > self._serializer.largest_state:
            what = f"The writes of task {task_id} at {checkpoint_location(*at)}"
            self._serializer.check_state(written.size, what, written.largest)
        return written

    def _elements(self, channel: str, value: Any) -> tuple[bool, list[WriteElement]]:
        """Whether a value is stored by its elements, and these."""
        check_channel(channel)
        if channel == ERROR and isinstance(value, BaseException):
            value = repr(value)  # as LangGraph's own savers do
        encode, redactor = self._serializer.encode, self._serializer.redactor
        if redactor is not None:
            value = redactor.of_channel(channel, value)
        if type(value) is list and value:
            return True, [
                WriteElement(item, encode(item, f"write to {channel}[{n}]"))
                for n, item in enumerate(value)
            ]
        return False, [WriteElement(value, encode(value, f"write to {channel}"))]

    def _writes_op(
        self,
        key: TaskKey,
        path: str,
        writes: Writes,
        written: TaskWrites,
        segment: Segment | None,
    ) -> Op[None]:
        names = ("thread_id", "ns", "checkpoint_id", "task_id", "stamp")
        stamped = (*key, self._cache.next_stamp())
        row: dict[str, Any] = dict(zip(names, stamped, strict=True))
        waits = [] if segment is None else _waits(segment, {**row, "path": path}, writes)
        owner = None if segment is None else segment.owner
        row["run_id"], row["token"] = (None, None) if owner is None else (owner.run_id, owner.token)
        location = writes_location(*stamped)

        def forget() -> None:
            # Only a checkpoint in the same transaction may hold the bytes in our place.
            for _, element in written.elements:
                element.stored_in = None

        def statements() -> Sequence[Statement]:
            refs = {e.stored_in[:4] for _, e in written.elements if e.stored_in is not None}
            row["refs"] = refs_to_json(sorted(refs)) if refs else None
            entries = [
                [n, channel, many, [element.stored_in or element.data for element in elements]]
                for n, channel, many, elements in written.entries
            ]
            row["body"] = dump_writes(self._serializer, path, entries, location, written.largest)
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


def _largest(values: Mapping[str, StoredValue]) -> tuple[str, int] | None:
    """The largest channel, and its bytes."""
    if not values:
        return None
    channel = max(values, key=lambda channel: values[channel].size)
    return f"channel {channel!r}", values[channel].size


def _returned(elements: Sequence[tuple[str, WriteElement]]) -> dict[str, set[int]]:
    """By channel, the ids of the objects that tasks returned for it in this step.

    A channel that also received a wrapper such as `Overwrite` is left out: its value is compared by
    its bytes.
    """
    found: dict[str, set[int]] = {}
    opaque = set()
    for channel, element in elements:
        found.setdefault(channel, set()).add(id(element.obj))
        if not is_trusted(element.obj):
            opaque.add(channel)
    for channel in opaque:
        del found[channel]
    return found


def _moved(parent: CachedCheckpoint, checkpoint: Checkpoint) -> list[str]:
    """The nodes that a channel triggered in between, and LangGraph's own marks that moved."""
    seen = checkpoint["versions_seen"].items()
    return [node for node, what in seen if what and what != parent.seen.get(node)]


def _shared(
    elements: Sequence[tuple[str, WriteElement]],
    channel: str,
    ref: ValueRef,
    inserted: Sequence[Any],
) -> list[tuple[WriteElement, ValueRef, int]]:
    """The elements of task writes whose very objects are in the row at `ref`."""
    index = {id(obj): n for n, obj in enumerate(inserted)}
    return [
        (element, ref, index[id(element.obj)])
        for name, element in elements
        if name == channel and id(element.obj) in index and len(element.data) > INLINE
    ]


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


def _waits(segment: Segment, task: dict[str, Any], writes: Writes) -> list[Statement]:
    """The waits that are stored with the interrupt of a task that the runtime drives."""
    segment.progress.has_written = True
    by_channel = dict(writes)
    if not by_channel.get(INTERRUPT):
        return []
    before = by_channel.get(RESUME, [])
    before = before if isinstance(before, list) else [before]
    del task["thread_id"]
    return segment.questions.ask(by_channel[INTERRUPT], before, task)
