"""What is inside a row, and the seal around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import ormsgpack
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from perdure.checkpoint.cache import Part, Writes
from perdure.checkpoint.value_diff import Cell, Ref
from perdure.errors import Damaged, TypeNotAllowed, Unserializable
from perdure.serde.codec import Codec
from perdure.serde.encryption import Envelope


class State(NamedTuple):
    """What is inside a checkpoint's own row: everything but the larger values."""

    version: int
    ts: str
    versions: dict[str, Any]
    seen: dict[str, dict[str, Any]]
    updated: list[str] | None
    extra: dict[str, Any]
    metadata: CheckpointMetadata
    inline: dict[str, bytes]
    unfinished: list[str]
    """Channels of LangGraph's DeltaChannel that have no value of their own here."""

    def checkpoint(self, id: str, values: dict[str, Any]) -> Checkpoint:
        return cast(
            Checkpoint,
            {
                "v": self.version,
                "ts": self.ts,
                "id": id,
                "channel_values": values,
                "channel_versions": self.versions,
                "versions_seen": self.seen,
                "updated_channels": self.updated,
                **self.extra,
            },
        )


_PLAIN = frozenset(
    ("v", "ts", "id", "channel_values", "channel_versions", "versions_seen", "updated_channels")
)


class Rows:
    """Closes what goes into the journal and opens what comes out of it."""

    def __init__(self, codec: Codec, envelope: Envelope) -> None:
        self.codec, self.envelope = codec, envelope

    def close_state(
        self,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        cells: Mapping[str, Cell],
        where: str,
        beside: str,
    ) -> bytes:
        held = cast(dict[str, Any], checkpoint)
        delta = cast(dict[str, Any], metadata).get("counters_since_delta_snapshot")
        state = [
            held["v"],
            held["ts"],
            held["channel_versions"],
            held["versions_seen"],
            held.get("updated_channels"),
            {k: v for k, v in held.items() if k not in _PLAIN},
            metadata,
            {c: cell.inline for c, cell in cells.items() if cell.inline is not None},
            [channel for channel in delta if channel not in cells] if delta else [],
        ]
        try:
            data = self.codec.encode(state, where)
        except (Unserializable, TypeNotAllowed):
            self.codec.encode(metadata, "metadata")  # most likely, and then it is named so
            raise
        return self.envelope.wrap(data, where, beside)

    def open_state(self, sealed: bytes, where: str, beside: str) -> State:
        data = self.envelope.unwrap(bytes(sealed), where, beside)
        try:
            return State(*self.codec.decode(data, where))
        except TypeError as error:
            raise Damaged(where, str(error)) from error

    def open_value(self, thread_id: str, ns: str, ref: Ref, sealed: bytes) -> bytes:
        return self.envelope.unwrap(bytes(sealed), where_value(thread_id, ns, ref))

    def close_writes(self, path: str, writes: Writes, where: str) -> bytes:
        body = [path, [[n, channel, *_form(parts)] for n, channel, parts in writes.entries]]
        return self.envelope.wrap(ormsgpack.packb(body), where)

    def open_writes(self, sealed: bytes, where: str) -> tuple[str, list[list[Any]]]:
        """The task's path, and for each write [index, channel, whether a list, parts]."""
        try:
            path, entries = ormsgpack.unpackb(self.envelope.unwrap(bytes(sealed), where))
        except ValueError as error:
            raise Damaged(where, str(error)) from error
        return path, entries


def _form(parts: Part | list[Part]) -> tuple[bool, list[Any]]:
    """A write on disk: whether it is a list, and its parts, each as bytes or where they are."""
    held: Sequence[Part] = parts if isinstance(parts, list) else [parts]
    many = isinstance(parts, list)
    return many, [p.data if p.home is None else [*p.home[0], p.home[1]] for p in held]


def where_checkpoint(thread_id: str, ns: str, id: str) -> str:
    """How a checkpoint is named in messages, and what its seal is bound to."""
    return f"checkpoint {id!r} of thread {thread_id!r}" + (f" namespace {ns!r}" if ns else "")


def beside_state(parent_id: str | None, run_id: str | None, step: int, refs: str) -> str:
    """The other columns of a checkpoint's row, which its seal is bound to as well."""
    return f" {parent_id!r} {run_id!r} {step} {refs}"


def where_value(thread_id: str, ns: str, ref: Ref) -> str:
    channel, chain, seq, step = ref
    place = f" namespace {ns!r}" if ns else ""
    return f"channel {channel!r} (row {chain}.{seq}.{step}) of thread {thread_id!r}{place}"


def where_writes(thread_id: str, ns: str, checkpoint_id: str, task_id: str, stamp: int) -> str:
    return f"write {stamp} of task {task_id!r} at " + where_checkpoint(thread_id, ns, checkpoint_id)
