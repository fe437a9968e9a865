"""The rows of checkpoints, of their values and of their tasks' writes: keys, bytes and operations.

What a row holds is bytes in an envelope that is bound to the row's location. Pure: no I/O.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import ormsgpack
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointMetadata

from perdure.checkpoint.values import StoredValue, ValueRef
from perdure.errors import Damaged, Error, TypeNotAllowed, Unserializable
from perdure.journal import Op, Row, Statement, is_left, no_result, with_params
from perdure.journal.names import check_text
from perdure.serde.serializer import FindPart, Serializer

T = TypeVar("T")
LAST = "\U0010ffff"
"""Sorts after every checkpoint id."""


# -- keys


class CheckpointKey(NamedTuple):
    """What LangGraph's config points at; without an id, the newest checkpoint."""

    thread_id: str
    ns: str
    id: str | None


def configurable(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}


def key_of(config: RunnableConfig) -> CheckpointKey:
    wanted = config.get("configurable") or {}
    thread_id = wanted.get("thread_id")
    if thread_id is None or thread_id == "":
        raise Error("The config names no thread: pass {'configurable': {'thread_id': ...}}.")
    ns, id = wanted.get("checkpoint_ns") or "", wanted.get("checkpoint_id") or None
    if isinstance(ns, str) and isinstance(id, str | None):
        return _key(str(thread_id), ns, id)
    return _key.__wrapped__(str(thread_id), ns, id)  # which refuses them


@functools.lru_cache(maxsize=1024)
def _key(thread_id: str, ns: str, id: str | None) -> CheckpointKey:
    check_text("thread_id", thread_id)
    if ns:
        check_text("checkpoint_ns", ns)
    if id is not None:
        check_text("checkpoint_id", id)
    return CheckpointKey(thread_id, ns, id)


# A location is a row's name in messages, and what its envelope is bound to: old rows need the same
# text.


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


class CheckpointRow(NamedTuple):
    thread_id: str
    ns: str
    id: str
    parent_id: str | None
    run_id: str | None
    step: int
    refs: str
    state: bytes
    created_at: int = 0
    """Only read with a whole thread."""

    @property
    def location(self) -> str:
        return checkpoint_location(*self[:3])

    @property
    def columns(self) -> str:
        return checkpoint_columns(*self[3:7])


class WritesRow(NamedTuple):
    thread_id: str
    ns: str
    checkpoint_id: str
    task_id: str
    stamp: int
    body: bytes


Found = tuple[CheckpointRow | None, list[WritesRow]]
"""A checkpoint with its writes, as `checkpoint_at` reads it."""


# -- bytes


class CheckpointState(NamedTuple):
    """What a checkpoint's own row holds: everything but the larger values."""

    v: int
    ts: str
    channel_versions: dict[str, Any]
    versions_seen: dict[str, dict[str, Any]]
    updated_channels: list[str] | None
    extra: dict[str, Any]
    """Its other fields."""
    metadata: CheckpointMetadata
    inline: dict[str, bytes]
    unfinished: list[str]
    """Channels of LangGraph's DeltaChannel that have no value of their own here."""

    def checkpoint(self, id: str, values: dict[str, Any]) -> Checkpoint:
        fields = dict(zip(_FIELDS, self, strict=False))
        return cast(Checkpoint, {**fields, "id": id, "channel_values": values, **self.extra})


_FIELDS = ("v", "ts", "channel_versions", "versions_seen", "updated_channels")


def dump_state(
    serializer: Serializer,
    row: CheckpointRow,
    checkpoint: Checkpoint,
    metadata: CheckpointMetadata,
    values: Mapping[str, StoredValue],
) -> bytes:
    """The state of a checkpoint's row, whose other columns are known."""
    location = row.location
    fields = cast(dict[str, Any], checkpoint)
    delta = cast(dict[str, Any], metadata).get("counters_since_delta_snapshot")
    others = fields.keys() - {*_FIELDS, "id", "channel_values"}
    extra = {name: fields[name] for name in others} if others else {}
    if serializer.redacts:
        redacted = serializer.redacted_entries(cast(dict[str, Any], metadata))
        metadata, extra = cast(CheckpointMetadata, redacted), serializer.redacted(extra)
    state = [
        *map(fields.get, _FIELDS),
        extra,
        metadata,
        {c: value.inline for c, value in values.items() if value.inline is not None},
        [channel for channel in delta if channel not in values] if delta else [],
    ]
    try:
        data = serializer.encode(state, location, own=True)
    except (Unserializable, TypeNotAllowed):
        serializer.encode(metadata, "metadata")  # most likely, and then it is named so
        raise
    blob = serializer.envelope.seal(data, location, row.columns)
    if len(blob) > serializer.largest_blob:
        part = serializer.largest_part({"metadata": metadata})
        serializer.check_blob(len(blob), location, lambda: part)
    return blob


def load_state(serializer: Serializer, row: CheckpointRow) -> CheckpointState:
    location = row.location
    data = serializer.envelope.unseal(row.state, location, row.columns)
    try:
        return CheckpointState(*serializer.decode(data, location))
    except TypeError as error:
        raise Damaged(location, str(error)) from error


def load_values(
    serializer: Serializer, thread_id: str, ns: str, rows: Iterable[tuple[ValueRef, bytes]]
) -> dict[ValueRef, bytes]:
    unseal = serializer.envelope.unseal
    return {ref: unseal(body, value_location(thread_id, ns, ref)) for ref, body in rows}


def dump_writes(
    serializer: Serializer, path: str, entries: list[list[Any]], location: str, largest: FindPart
) -> bytes:
    """The task's path, and for each write [index, channel, whether a list, elements]."""
    blob = serializer.envelope.seal(ormsgpack.packb([path, entries]), location)
    serializer.check_blob(len(blob), location, largest)
    return blob


def load_writes(serializer: Serializer, row: WritesRow) -> tuple[str, list[list[Any]]]:
    location = writes_location(*row[:5])
    try:
        path, entries = ormsgpack.unpackb(serializer.envelope.unseal(row.body, location))
    except (TypeError, ValueError) as error:
        raise Damaged(location, str(error)) from error
    return path, entries


# -- operations


def _select(name: str, make: Callable[..., T], every: Iterable[dict[str, Any]]) -> Op[list[T]]:
    """The rows of one statement, run with each of these parameters."""
    return Op(
        name,
        [Statement(name, params) for params in every],
        lambda rows: [make(*row) for some in rows for row in some],
    )


def checkpoint_at(thread_id: str, ns: str, at: str | None) -> Op[Found]:
    """The checkpoint `at`, or the newest, with its writes."""
    params = {"thread_id": thread_id, "ns": ns, "at": at or LAST}

    def result(rows: Sequence[Sequence[Row]]) -> Found:
        found = [CheckpointRow(*row) for row in rows[0]]
        if not found or (at and found[0].id != at):
            return None, []
        return found[0], [WritesRow(*row) for row in rows[1]]

    return Op("checkpoint_at", with_params(params, "checkpoint_at", "writes_at"), result)


def values(
    thread_id: str, ns: str, refs: Iterable[ValueRef], *, chains: bool
) -> Op[list[tuple[ValueRef, bytes]]]:
    """The bodies of the rows at `refs`; with `chains`, of all the rows each is made of."""
    place = {"thread_id": thread_id, "ns": ns}
    every = [{**place, **ref._asdict(), "from": -1 if chains else ref.seq} for ref in refs]
    return _select("chain_of", lambda *row: (ValueRef(*row[:4]), row[4]), every)


def insert_value(
    thread_id: str, ns: str, ref: ValueRef, base: int | None, body: bytes
) -> Statement:
    """One row of a value; `base` is the step of the row it changes."""
    change = {"base": base if ref.seq else None, "body": body}
    params = {"thread_id": thread_id, "ns": ns, **ref._asdict(), **change}
    return Statement("insert_value", params)


def writes_of(checkpoints: Iterable[CheckpointRow]) -> Op[list[list[WritesRow]]]:
    """The writes of each checkpoint."""
    names = ("thread_id", "ns", "checkpoint_id")
    return Op(
        "writes_of",
        [Statement("writes_of", dict(zip(names, row[:3], strict=True))) for row in checkpoints],
        lambda rows: [[WritesRow(*row) for row in some] for some in rows],
    )


def page(
    thread_id: str | None, ns: str | None, before: tuple[str, str, str], count: int
) -> Op[list[CheckpointRow]]:
    """Checkpoints older than the position `before` = (id, thread, namespace), newest first."""
    place = {"thread_id": thread_id, "ns": ns, "count": count}
    edge = dict(zip(("before", "before_thread", "before_ns"), before, strict=True))
    of_thread = "list_thread" if ns is None else "list_namespace"
    name = "list_all" if thread_id is None else of_thread
    return _select(name, CheckpointRow, [{**place, **edge}])


def ancestors(thread_id: str, ns: str, id: str, count: int) -> Op[list[CheckpointRow]]:
    params = {"thread_id": thread_id, "ns": ns, "id": id, "count": count}
    return _select("ancestors", CheckpointRow, [params])


def checkpoints_of(thread_id: str) -> Op[list[CheckpointRow]]:
    """Every checkpoint of a thread, oldest first in its namespace."""

    def make(*row: Any) -> CheckpointRow:
        return CheckpointRow._make((thread_id, *row[:5], *row[6:], row[5]))

    return _select("outline_of_thread", make, [{"thread_id": thread_id}])


def threads_of_runs(run_ids: Iterable[str | None]) -> Op[list[str]]:
    """The threads of each run; one that has several of these runs comes several times. None: all
    threads."""
    return _select("threads_of_run", str, [{"run_id": run_id} for run_id in run_ids])


def delete_thread(thread_id: str, count: int) -> Op[bool]:
    """Delete the checkpoints of a thread, and up to `count` of its writes, values and effects each.
    True: rows are left, so it has to be done again."""
    names = ("delete_state", "delete_state_writes", "delete_state_values", "delete_effects")
    params = {"thread_id": thread_id, "count": count, "only": None, "id": None, "old": 0}
    statements = with_params(params, *names, "is_thread_left")
    return Op("delete_thread", statements, is_left, write=True)


def delete_checkpoints(thread_id: str, checkpoints: Iterable[tuple[str, str]]) -> Op[None]:
    """Delete checkpoints given as (namespace, id), each with its writes."""
    statements = [
        Statement(name, {"thread_id": thread_id, "ns": ns, "id": id})
        for ns, id in checkpoints
        for name in ("delete_checkpoint", "delete_writes")
    ]
    return Op("delete_checkpoints", statements, no_result, write=True)


def delete_old_effects(thread_id: str, count: int) -> Op[bool]:
    """Delete up to `count` effects whose tasks cannot run again. True: some are left."""
    params = {"thread_id": thread_id, "count": count, "old": 1}
    statements = with_params(params, "delete_effects", "is_thread_left")
    return Op("delete_old_effects", statements, is_left, write=True)


def value_bases(
    thread_id: str,
) -> Op[tuple[dict[tuple[str, ValueRef], int | None], list[tuple[str, ValueRef]]]]:
    """All values of a thread as (namespace, ref) with the base of each, and those in use."""

    def result(rows: Sequence[Sequence[Row]]) -> Any:
        bases = {(row[0], ValueRef(*row[1:5])): row[5] for row in rows[0]}
        used = (*rows[1], *rows[2])
        return bases, [(ns, ref) for ns, refs in used for ref in parse_refs(thread_id, refs)]

    names = ("value_keys", "checkpoint_refs", "writes_refs")
    return Op("value_keys", with_params({"thread_id": thread_id}, *names), result)


def parse_refs(thread_id: str, refs: Any) -> list[ValueRef]:
    try:
        return [ValueRef(*ref) for ref in json.loads(refs)]
    except (TypeError, ValueError, RecursionError) as error:
        where = f"the list of values of a checkpoint, or of a write, of thread {thread_id!r}"
        raise Damaged(where, str(error)) from error


def delete_values(thread_id: str, values: Iterable[tuple[str, ValueRef]]) -> Op[None]:
    every = [{"thread_id": thread_id, "ns": ns, **ref._asdict()} for ns, ref in values]
    statements = [Statement("delete_value", params) for params in every]
    return Op("delete_values", statements, no_result, write=True)


def whole_thread(thread_id: str) -> Op[tuple[list[CheckpointRow], Sequence[Row], Sequence[Row]]]:
    """The checkpoints, values and writes of a thread."""
    checkpoints, rest = checkpoints_of(thread_id), ("all_values", "all_writes")
    return Op(
        "copy_thread",
        [*checkpoints.render(), *with_params({"thread_id": thread_id}, *rest)],
        lambda rows: (checkpoints.result(rows[:1]), rows[1], rows[2]),
    )
