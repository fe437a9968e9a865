"""From LangGraph's put and put_writes to operations.

`put` is ordered after the `put_writes` of its step. LangGraph submits both to a thread pool and
waits for neither, so a checkpoint can arrive first. It tells which tasks it is made of: its
`versions_seen` moved for them, or its parent sent them. `put` waits until their writes are queued.

The bytes of a value that a task returned and a checkpoint then holds are stored once: when both
go into the same transaction, the write refers to the checkpoint's row.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME, TASKS

from perdure.checkpoint import value_diff
from perdure.checkpoint.cache import Lanes, Part, Tip, Writes
from perdure.checkpoint.operations import Place
from perdure.checkpoint.row_format import (
    Rows,
    beside_state,
    where_checkpoint,
    where_value,
    where_writes,
)
from perdure.checkpoint.value_diff import Cell, Ref
from perdure.errors import TooLarge
from perdure.journal import Journal, Op, Statement
from perdure.journal.committer import Ticket
from perdure.journal.ids import draw
from perdure.journal.names import check_text
from perdure.segments.segment import Segment

ARRIVAL = 2.0
"""Seconds `put` waits at most for the writes of its step to arrive from LangGraph's threads."""


@lru_cache(maxsize=4096)
def _quoted(channel: str) -> str:
    check_text("channel", channel)
    return json.dumps(channel)


def _to_json(refs: Iterable[Ref]) -> str:
    """A list of refs as JSON, several times faster than `json.dumps`."""
    return f"[{','.join([f'[{_quoted(r[0])},{r[1]},{r[2]},{r[3]}]' for r in refs])}]"


class Writer:
    """Queues checkpoints and writes, in order, with the least that must be stored."""

    def __init__(self, rows: Rows, lanes: Lanes, max_bytes: int) -> None:
        self._rows, self._lanes, self._max_bytes = rows, lanes, max_bytes

    def put(
        self,
        journal: Journal,
        place: Place,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        arriving: bool,
        hold: bool,
        segment: Segment | None = None,
    ) -> tuple[Ticket[None], bool]:
        """Queue a checkpoint behind the writes of its step.

        `arriving` says that they may still be on their way, and that this thread may wait. Tells
        also whether a question or an error at this checkpoint was here before it.
        """
        check_text("checkpoint_id", checkpoint["id"])
        lane = self._lanes.touch(place.thread_id, place.ns)
        with lane.putting:
            with lane.changed:
                tip = lane.tip if lane.tip is not None and lane.tip.id == place.id else None
                written: Sequence[Writes] = ()
                if tip is not None:
                    if arriving and metadata.get("source") == "loop":
                        tasks = lane.tasks.setdefault(tip.id, set())
                        expected = _tasks_between(tip, checkpoint)
                        if len(tasks) < expected:
                            lane.changed.wait_for(lambda: len(tasks) >= expected, ARRIVAL)
                    written = lane.writes.get(tip.id, ())
                lane.tip = None  # until this one is queued: its cells move into the next tip
            new_tip, op = self._put_op(
                place, config, checkpoint, metadata, new_versions, tip, written, segment
            )
            with lane.changed:
                lane.move(new_tip)
                ticket = journal.defer(op, hold=hold)
                left = new_tip.id in lane.left
        self._lanes.weigh(lane, new_tip.size)
        return ticket, left

    def _put_op(
        self,
        place: Place,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        tip: Tip | None,
        written: Sequence[Writes],
        segment: Segment | None,
    ) -> tuple[Tip, Op[None]]:
        thread_id, ns, parent_id = place
        id = checkpoint["id"]
        step = draw(48)
        where = where_checkpoint(thread_id, ns, id)
        known = tip.cells if tip is not None else {}
        values = checkpoint["channel_values"]
        parts = [entry for one in written for entry in one.parts]
        returned = _returned(parts)
        found: dict[str, Cell] = {}
        statements: list[Statement] = []
        if segment is not None:
            nodes = [] if tip is None else sorted(_nodes_between(tip, checkpoint))
            statements += segment.progress.step(ns, id, cast(dict[str, Any], metadata), nodes)
        shared: list[tuple[Part, Ref, int]] = []
        for channel, value in values.items():
            before = known.get(channel)
            if before is not None and channel not in new_versions:
                found[channel] = before
                continue
            _quoted(channel)  # refuses a name that a database cannot hold
            cell, body, inserted = value_diff.store(
                self._rows.codec, channel, value, before, returned.get(channel), step
            )
            found[channel] = cell
            if body is not None and cell.ref is not None:
                base = None if before is None or before.ref is None else before.ref.step
                statements.append(self._value(thread_id, ns, cell.ref, base, body))
                if parts:
                    shared += _homes(parts, channel, cell.ref, inserted)
        merged = get_checkpoint_metadata(config, metadata)
        run_id = None
        if merged.get("run_id") is not None:
            run_id = check_text("run_id", str(merged["run_id"]))
        refs = _to_json([cell.ref for cell in found.values() if cell.ref is not None])
        beside = beside_state(parent_id, run_id, step, refs)
        state = self._rows.close_state(checkpoint, merged, found, where, beside)
        size = sum([cell.size for cell in found.values()])
        if size + len(state) > self._max_bytes:
            raise TooLarge(where, size + len(state), self._max_bytes)
        row = {
            "thread_id": thread_id,
            "ns": ns,
            "id": id,
            "step": step,
            "parent_id": parent_id,
            "run_id": run_id,
            "base": None if tip is None else tip.id,
            "base_step": None if tip is None else tip.step,
            "lease_of": None if segment is None else segment.lease.run_id,
            "created_at": time.time_ns() // 1_000_000,
            "refs": refs,
            "state": state,
        }
        statements.append(Statement("insert_checkpoint", row))

        def share() -> None:
            for part, ref, n in shared:
                part.home = (ref, n)

        def whole() -> Op[None]:
            # What this one builds on was deleted meanwhile: it stands on its own feet.
            lane = self._lanes.get(thread_id, ns)
            with lane.changed:
                lane.tip = None
            return self._put_op(
                place, config, checkpoint, metadata, new_versions, None, (), segment
            )[1]

        refused: Callable[[], Op[None]] | None = whole
        if tip is None:
            refused = None if segment is None else segment.refuse

        seen, sends = checkpoint["versions_seen"], len(values.get(TASKS) or ())
        return Tip(id, step, found, seen, sends, size), Op(
            f"put {where}",
            statements,
            _nothing,
            write=True,
            key=Statement("find_checkpoint", row),
            otherwise=refused,
            prepare=share if shared else None,
        )

    def _value(self, thread_id: str, ns: str, ref: Ref, base: int | None, body: bytes) -> Statement:
        channel, chain, seq, step = ref
        params = {
            "thread_id": thread_id,
            "ns": ns,
            "channel": channel,
            "chain": chain,
            "seq": seq,
            "step": step,
            "base": base if seq else None,
            "body": self._rows.envelope.wrap(body, where_value(thread_id, ns, ref)),
        }
        return Statement("insert_value", params)

    def put_writes(
        self,
        journal: Journal,
        place: Place,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str,
        *,
        leaves: bool,
        hold: bool,
        segment: Segment | None = None,
    ) -> Ticket[None]:
        """Queue the writes of a task. `leaves` says that they are a question or an error."""
        thread_id, ns, checkpoint_id = place
        lane = self._lanes.get(thread_id, ns)
        try:
            entries = [
                (WRITES_IDX_MAP.get(channel, n), channel, self._parts(channel, value))
                for n, (channel, value) in enumerate(writes)
            ]
            held = Writes(task_id, entries)
            size = sum([len(part.data) for _, part in held.parts])
            if size > self._max_bytes:
                where = where_checkpoint(thread_id, ns, str(checkpoint_id))
                raise TooLarge(f"The writes of task {task_id} at {where}", size, self._max_bytes)
        except Exception:
            with lane.changed:  # nobody is to wait for what is refused
                lane.arrive(str(checkpoint_id), Writes(task_id, [], refused=True))
            raise
        stamp = self._lanes.stamp()
        beside = _beside(segment, place, writes, task_id, task_path, stamp)
        op = self._writes_op(
            thread_id, ns, str(checkpoint_id), held, task_path, stamp, beside, segment
        )
        with lane.changed:
            ticket = journal.defer(op, hold=hold)
            lane.arrive(str(checkpoint_id), held, leaves=leaves)
        return ticket

    def _parts(self, channel: str, value: Any) -> Part | list[Part]:
        _quoted(channel)  # refuses a name that a database cannot hold
        if channel == ERROR and isinstance(value, BaseException):
            value = repr(value)  # as LangGraph's own savers do: an error is told, not kept
        encode = self._rows.codec.encode
        if type(value) is list and value:
            return [
                Part(item, encode(item, f"write to {channel}[{n}]")) for n, item in enumerate(value)
            ]
        return Part(value, encode(value, f"write to {channel}"))

    def _writes_op(
        self,
        thread_id: str,
        ns: str,
        checkpoint_id: str,
        held: Writes,
        path: str,
        stamp: int,
        beside: Sequence[Statement],
        segment: Segment | None,
    ) -> Op[None]:
        row: dict[str, Any] = {
            "thread_id": thread_id,
            "ns": ns,
            "checkpoint_id": checkpoint_id,
            "task_id": held.task_id,
            "stamp": stamp,
            "run_id": None if segment is None else segment.lease.run_id,
            "token": None if segment is None else segment.lease.token,
        }
        where = where_writes(thread_id, ns, checkpoint_id, held.task_id, stamp)

        def forget() -> None:
            # Only a checkpoint in the same transaction may keep the bytes in our place.
            for _, part in held.parts:
                part.home = None

        def statements() -> Sequence[Statement]:
            homes = {part.home[0] for _, part in held.parts if part.home is not None}
            row["refs"] = _to_json(sorted(homes)) if homes else None
            row["body"] = self._rows.close_writes(path, held, where)
            return [*beside, Statement("insert_writes", row)]

        return Op(
            f"put_writes {where}",
            statements,
            _nothing,
            write=True,
            key=Statement("find_writes", row),
            otherwise=None if segment is None else segment.refuse,
            prepare=forget,
        )


def _beside(
    segment: Segment | None,
    place: Place,
    writes: Sequence[tuple[str, Any]],
    task_id: str,
    path: str,
    stamp: int,
) -> list[Statement]:
    """What goes with the writes of a task that the runtime drives: its waits."""
    if segment is None:
        return []
    segment.progress.note_write()
    given = dict(writes)
    if given.get(INTERRUPT):
        before = given.get(RESUME, [])
        where = {
            "ns": place.ns,
            "checkpoint_id": place.id,
            "task_id": task_id,
            "path": path,
            "stamp": stamp,
        }
        before = before if isinstance(before, list) else [before]
        return segment.ask(given[INTERRUPT], before, where)
    return []


def _returned(parts: Sequence[tuple[str, Part]]) -> dict[str, set[int]]:
    """By channel, the ids of the objects that tasks returned for it in this step.

    Only channels for which that is all they returned: what is inside of something else, such as
    an `Overwrite`, cannot be told, and then nothing is trusted to be unchanged.
    """
    found: dict[str, set[int]] = {}
    opaque = set()
    for channel, part in parts:
        found.setdefault(channel, set()).add(part.key)
        if not value_diff.is_trusted(part.obj):
            opaque.add(channel)
    for channel in opaque:
        del found[channel]
    return found


def _nothing(rows: object) -> None:
    return None


def _tasks_between(tip: Tip, checkpoint: Checkpoint) -> int:
    """How many tasks ran between a checkpoint and its child."""
    started = "__start__" in _moved(tip, checkpoint)
    return tip.sends + len(_nodes_between(tip, checkpoint)) + started


def _nodes_between(tip: Tip, checkpoint: Checkpoint) -> list[str]:
    """The nodes that ran in between because a channel triggered them."""
    return [node for node in _moved(tip, checkpoint) if node[:2] != "__"]


def _moved(tip: Tip, checkpoint: Checkpoint) -> list[str]:
    """All that saw something new, LangGraph's own marks such as __interrupt__ included."""
    seen = checkpoint["versions_seen"].items()
    return [node for node, what in seen if what and what != tip.seen.get(node)]


def _homes(
    parts: Sequence[tuple[str, Part]], channel: str, ref: Ref, inserted: Sequence[Any]
) -> list[tuple[Part, Ref, int]]:
    """The parts of task writes whose very objects are in the row at `ref`."""
    place = {id(obj): n for n, obj in enumerate(inserted)}
    return [
        (part, ref, place[part.key])
        for name, part in parts
        if name == channel and part.key in place and len(part.data) > value_diff.INLINE
    ]
