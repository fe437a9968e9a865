"""From LangGraph's put to operations: a checkpoint as its difference from the one before.

`put` is ordered after the `put_writes` of its step (`task_writes`). LangGraph submits both to a
thread pool and waits for neither, so a checkpoint can arrive first. It shows which tasks it is made
of: its `versions_seen` moved for them, or its parent sent them. `put` waits until their writes are
queued.

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
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)

from perdure.checkpoint.cache import (
    RESIZED,
    CachedCheckpoint,
    CheckpointCache,
    TaskWrites,
    WriteElement,
)
from perdure.checkpoint.operations import CheckpointKey, insert_value
from perdure.checkpoint.row_format import (
    RowFormat,
    checkpoint_columns,
    checkpoint_location,
    value_location,
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
from perdure.execution.segment import Segment
from perdure.journal import Journal, Op, Statement, no_result
from perdure.journal.committer import QueuedOperation
from perdure.journal.names import check_text
from perdure.langgraph_port import checkpoint_names, configs
from perdure.types import Durability

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
        self, durability: Durability, row_format: RowFormat, cache: CheckpointCache
    ) -> None:
        self._durability: Durability = durability
        self._format, self._cache = row_format, cache

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
        thread = self._cache.touch(put.key.thread_id, put.key.ns)
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
        location = checkpoint_location(thread_id, ns, checkpoint["id"])
        row = self._row(put, values, location, step, size, refs)
        row["base"], row["base_step"] = (None, None) if parent is None else (parent.id, parent.step)
        row["lease_of"] = None if segment is None else segment.owner.run_id
        statements.append(Statement("insert_checkpoint", row))

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
            f"put {location}",
            statements,
            no_result,
            write=True,
            key=Statement("find_checkpoint", row),
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
        codec, returned = self._format.serializer, _returned(elements) if elements else {}
        values: dict[str, StoredValue] = {}
        shared: list[tuple[WriteElement, ValueRef, int]] = []
        for channel, value in put.checkpoint["channel_values"].items():
            before = known.get(channel)
            if before is not None and channel not in put.new_versions:
                values[channel] = before
                continue
            check_channel(channel)
            if codec.redactor is not None:
                value = codec.redactor.of_channel(channel, value)
            stored, body, inserted = difference(
                codec, channel, value, before, returned.get(channel), step
            )
            values[channel] = stored
            if body is not None and stored.ref is not None:
                base = None if before is None or before.ref is None else before.ref.step
                location = value_location(thread_id, ns, stored.ref)
                body = self._format.envelope.seal(body, location)
                # Also if only a change is stored: sooner or later it is stored whole.
                self._format.serializer.check_blob(max(len(body), stored.size), location)
                statements.append(insert_value(thread_id, ns, stored.ref, base, body))
                if elements:
                    shared += _shared(elements, channel, stored.ref, inserted)
        return values, shared

    def _row(
        self,
        put: Put,
        values: dict[str, StoredValue],
        location: str,
        step: int,
        size: int,
        refs: list[ValueRef],
    ) -> dict[str, Any]:
        thread_id, ns, parent_id = put.key
        metadata = get_checkpoint_metadata(put.config, put.metadata)
        run_id = None if put.segment is None else put.segment.owner.run_id
        if run_id is None and metadata.get("run_id") is not None:
            run_id = check_text("run_id", str(metadata["run_id"]))
        stored_refs = refs_to_json(refs) if refs else "[]"
        columns = checkpoint_columns(parent_id, run_id, step, stored_refs)
        state = self._format.dump_state(put.checkpoint, metadata, values, location, columns)
        serializer = self._format.serializer
        if (total := size + len(state)) > min(serializer.limit, serializer.largest_batch):
            serializer.check_state(total, location, lambda: _largest(values))
        return {
            "thread_id": thread_id,
            "ns": ns,
            "id": put.checkpoint["id"],
            "step": step,
            "parent_id": parent_id,
            "run_id": run_id,
            "created_at": time.time_ns() // 1_000_000,
            "refs": stored_refs,
            "state": state,
        }


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
        found.setdefault(channel, set()).add(element.key)
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
        (element, ref, index[element.key])
        for name, element in elements
        if name == channel and element.key in index and len(element.data) > INLINE
    ]
