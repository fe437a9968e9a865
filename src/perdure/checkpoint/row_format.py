"""What each row holds, as bytes, and the location that its envelope is bound to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import ormsgpack
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from perdure.checkpoint.cache import TaskWrites
from perdure.checkpoint.operations import CheckpointRow, WritesRow
from perdure.checkpoint.values import StoredValue, ValueRef
from perdure.errors import Damaged, TypeNotAllowed, Unserializable
from perdure.serde.serializer import Serializer


class CheckpointState(NamedTuple):
    """What a checkpoint's own row holds: everything but the larger values."""

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


_FIELDS = frozenset(
    ("v", "ts", "id", "channel_values", "channel_versions", "versions_seen", "updated_channels")
)


class RowFormat:
    """Makes the blobs of rows and reads them back."""

    def __init__(self, serializer: Serializer) -> None:
        self.serializer = serializer
        self.envelope = serializer.envelope

    def dump_state(
        self,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        values: Mapping[str, StoredValue],
        location: str,
        columns: str,
    ) -> bytes:
        fields = cast(dict[str, Any], checkpoint)
        delta = cast(dict[str, Any], metadata).get("counters_since_delta_snapshot")
        others = fields.keys() - _FIELDS
        extra = {name: fields[name] for name in others} if others else {}
        if self.serializer.redacts:
            redacted = self.serializer.redacted_entries(cast(dict[str, Any], metadata))
            metadata, extra = cast(CheckpointMetadata, redacted), self.serializer.redacted(extra)
        state = [
            fields["v"],
            fields["ts"],
            fields["channel_versions"],
            fields["versions_seen"],
            fields.get("updated_channels"),
            extra,
            metadata,
            {c: value.inline for c, value in values.items() if value.inline is not None},
            [channel for channel in delta if channel not in values] if delta else [],
        ]
        try:
            data = self.serializer.encode(state, location, own=True)
        except (Unserializable, TypeNotAllowed):
            self.serializer.encode(metadata, "metadata")  # most likely, and then it is named so
            raise
        blob = self.envelope.seal(data, location, columns)
        if len(blob) > self.serializer.largest_blob:
            part = self.serializer.largest_part({"metadata": metadata})
            self.serializer.check_blob(len(blob), location, lambda: part)
        return blob

    def load_state(self, row: CheckpointRow) -> CheckpointState:
        location = checkpoint_location(*row[:3])
        data = self.envelope.unseal(row.state, location, checkpoint_columns(*row[3:7]))
        try:
            return CheckpointState(*self.serializer.decode(data, location))
        except TypeError as error:
            raise Damaged(location, str(error)) from error

    def load_values(
        self, thread_id: str, ns: str, rows: Iterable[tuple[ValueRef, bytes]]
    ) -> dict[ValueRef, bytes]:
        unseal = self.envelope.unseal
        return {ref: unseal(body, value_location(thread_id, ns, ref)) for ref, body in rows}

    def dump_writes(self, path: str, writes: TaskWrites, location: str) -> bytes:
        entries = [
            [n, channel, many, [element.stored_in or element.data for element in elements]]
            for n, channel, many, elements in writes.entries
        ]
        blob = self.envelope.seal(ormsgpack.packb([path, entries]), location)
        self.serializer.check_blob(len(blob), location, writes.largest)
        return blob

    def load_writes(self, row: WritesRow) -> tuple[str, list[list[Any]]]:
        """The task's path, and for each write [index, channel, whether a list, elements]."""
        location = writes_location(*row[:5])
        try:
            path, entries = ormsgpack.unpackb(self.envelope.unseal(row.body, location))
        except (TypeError, ValueError) as error:
            raise Damaged(location, str(error)) from error
        return path, entries


# Each row's name, in messages and as what its envelope is bound to: old rows need the same text.


def checkpoint_location(thread_id: str, ns: str, id: str) -> str:
    return f"checkpoint {id!r} of thread {thread_id!r}" + (f" namespace {ns!r}" if ns else "")


def checkpoint_columns(parent_id: str | None, run_id: str | None, step: int, refs: str) -> str:
    """The other columns of a checkpoint's row, which its envelope is bound to as well."""
    return f" {parent_id!r} {run_id!r} {step} {refs}"


def value_location(thread_id: str, ns: str, ref: ValueRef) -> str:
    channel, chain, seq, step = ref
    namespace = f" namespace {ns!r}" if ns else ""
    return f"channel {channel!r} (row {chain}.{seq}.{step}) of thread {thread_id!r}{namespace}"


def writes_location(thread_id: str, ns: str, checkpoint_id: str, task_id: str, stamp: int) -> str:
    checkpoint = checkpoint_location(thread_id, ns, checkpoint_id)
    return f"write {stamp} of task {task_id!r} at {checkpoint}"
