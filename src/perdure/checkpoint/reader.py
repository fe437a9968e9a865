"""From rows back to LangGraph's tuples.

A plan yields operations and gets their results back, so that one piece of code serves both the
blocking methods and the coroutines of the saver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)

from perdure import langgraph_port
from perdure.checkpoint import operations
from perdure.checkpoint.cache import CachedCheckpoint, CheckpointCache, ThreadCache
from perdure.checkpoint.operations import LAST, CheckpointKey, CheckpointRow, WritesRow
from perdure.checkpoint.row_format import (
    CheckpointState,
    RowFormat,
    checkpoint_columns,
    checkpoint_location,
    writes_location,
)
from perdure.checkpoint.value_chain import StoredValue, ValueRef, elements_in_row, load_value
from perdure.errors import Damaged, Error
from perdure.journal import Plan
from perdure.journal.names import check_text

T = TypeVar("T")
PAGE = 32
"""Checkpoints read at once by a listing."""


class Search(NamedTuple):
    """What a listing looks for, and how far it got."""

    thread_id: str | None
    ns: str | None
    id: str | None
    filter: Mapping[str, Any] | None
    before: tuple[str, str, str]
    limit: int | None

    @classmethod
    def of(
        cls,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> Search:
        if config is not None and not config.get("configurable"):
            raise Error("The config names no thread. To list all threads, pass None.")
        wanted = config["configurable"] if config else {}
        thread_id = wanted.get("thread_id")
        edge = before["configurable"].get("checkpoint_id") if before else None
        exact = wanted.get("checkpoint_id")
        ns = wanted.get("checkpoint_ns")
        for name, text in (("checkpoint_ns", ns), ("checkpoint_id", exact), ("before", edge)):
            if text is not None:
                check_text(name, text)
        return cls(
            None if thread_id is None else check_text("thread_id", str(thread_id)),
            ns,
            exact,
            filter,
            (edge, "", "") if edge else (f"{exact} " if exact else LAST, LAST, LAST),
            limit,
        )

    def after(self, rows: Sequence[CheckpointRow], found: int) -> Search | None:
        """The search continued behind these rows; None when it is over."""
        if len(rows) < PAGE or (self.limit is not None and found >= self.limit):
            return None
        last = rows[-1]
        if self.id is not None and last.id < self.id:
            return None
        limit = None if self.limit is None else self.limit - found
        return self._replace(before=(last.id, last.thread_id, last.ns), limit=limit)


class Reader:
    """Loads checkpoints, from the journal or from the cache of this process."""

    def __init__(self, row_format: RowFormat, cache: CheckpointCache) -> None:
        self._format, self._cache = row_format, cache

    def get_tuple(self, key: CheckpointKey, running: bool) -> Plan[CheckpointTuple | None]:
        """The checkpoint of a key, or the newest. `running`: a run continues from it."""
        before = None
        while True:
            row, writes = yield operations.checkpoint_at(*key)
            if row is None:
                return None
            for one in writes:
                self._cache.observe_stamp(one.stamp)
            try:
                return (yield from self._load(row, writes, key.id is None, running))
            except Damaged:
                # Deleted between the two reads, or damaged: a second read decides.
                if before == (row.id, row.step):
                    raise
                before = (row.id, row.step)

    def _load(
        self,
        row: CheckpointRow,
        writes: Sequence[WritesRow],
        newest: bool = False,
        running: bool = False,
    ) -> Plan[CheckpointTuple]:
        location = checkpoint_location(row.thread_id, row.ns, row.id)
        codec = self._format.codec
        state = self._state(row, location)
        values = {channel: codec.decode(data, location) for channel, data in state.inline.items()}
        found = {c: StoredValue(len(d), hash(d), inline=d) for c, d in state.inline.items()}
        thread = self._cache.touch(row.thread_id, row.ns)
        with thread.changed:
            before = thread.latest
            if running and before is not None and (before.id, before.step) == (row.id, row.step):
                _take_cached(before, values, found)
        missing = [ref for ref in _refs(row) if ref.channel not in found]
        if missing:
            for channel, loaded in (yield from self._values(row, missing, location)).items():
                values[channel], found[channel] = loaded
        pending = yield from self._pending_writes(row, writes)
        if (running and newest) or before is None:
            size = sum(stored.size for stored in found.values())
            seen = {node: {**versions} for node, versions in state.seen.items()}  # LangGraph's own
            sends = len(langgraph_port.pending_sends(values))
            latest = CachedCheckpoint(row.id, row.step, found, seen, sends, size, not running)
            self._remember(thread, before, latest, pending)
        return CheckpointTuple(
            configurable(row.thread_id, row.ns, row.id),
            state.checkpoint(row.id, values),
            state.metadata,
            configurable(row.thread_id, row.ns, row.parent_id) if row.parent_id else None,
            pending,
        )

    def _remember(
        self,
        thread: ThreadCache,
        before: CachedCheckpoint | None,
        latest: CachedCheckpoint,
        pending: Sequence[PendingWrite],
    ) -> None:
        with thread.changed:
            if thread.latest is before:  # else a run went on meanwhile, with those values
                thread.advance(latest)
                done = {task for task, channel, _ in pending if channel not in WRITES_IDX_MAP}
                thread.tasks.setdefault(latest.id, set()).update(done)
        self._cache.resize(thread, latest.size)

    def _values(
        self, row: CheckpointRow, refs: Sequence[ValueRef], location: str
    ) -> Plan[dict[str, tuple[Any, StoredValue]]]:
        """The values at some refs of a checkpoint, and how they are stored, by channel."""
        rows = yield operations.chains(row.thread_id, row.ns, refs)
        bodies = {value[:4]: self._body(row, ValueRef(*value[:4]), value.body) for value in rows}
        return {ref.channel: load_value(self._format.codec, ref, bodies, location) for ref in refs}

    def _state(self, row: CheckpointRow, location: str) -> CheckpointState:
        columns = checkpoint_columns(row.parent_id, row.run_id, row.step, row.refs)
        return self._format.load_state(row.state, location, columns)

    def _body(self, row: CheckpointRow, ref: ValueRef, body: bytes) -> bytes:
        return self._format.load_value(row.thread_id, row.ns, ref, body)

    def _pending_writes(
        self, row: CheckpointRow, rows: Sequence[WritesRow]
    ) -> Plan[list[PendingWrite]]:
        """The writes of a checkpoint in LangGraph's order.

        Of an ordinary write the first call counts, of a special one the last.
        """
        chosen: dict[tuple[str, str, int], tuple[str, bool, list[Any]]] = {}
        for one in sorted(rows, key=lambda one: one.stamp):
            path, entries = self._format.load_writes(one.body, writes_location(*one[:5]))
            for n, channel, many, elements in entries:
                order = writes_sort_key(path, one.task_id, n)
                if n < 0 or order not in chosen:
                    chosen[order] = (channel, many, elements)
        location = "a write at " + checkpoint_location(row.thread_id, row.ns, row.id)
        bodies = yield from self._shared_bodies(row, [one[2] for one in chosen.values()])

        def value_of(element: Any) -> Any:
            if isinstance(element, list):
                ref = ValueRef(*element[:4])
                if ref not in bodies:
                    raise Damaged(location, f"row {ref} is missing")
                element = bodies[ref][element[4]]
            return self._format.codec.decode(element, location)

        return [
            (task_id, channel, [*map(value_of, elements)] if many else value_of(elements[0]))
            for (_, task_id, _), (channel, many, elements) in sorted(
                chosen.items(), key=lambda item: item[0]
            )
        ]

    def _shared_bodies(
        self, row: CheckpointRow, writes: Sequence[Sequence[Any]]
    ) -> Plan[dict[ValueRef, list[bytes]]]:
        """The elements in the value rows that some writes refer to."""
        refs = {ValueRef(*one[:4]) for write in writes for one in write if isinstance(one, list)}
        if not refs:
            return {}
        found = yield operations.values_at(row.thread_id, row.ns, refs)
        keyed = [(ValueRef(*value[:4]), value.body) for value in found]
        return {ref: elements_in_row(self._body(row, ref, body)) for ref, body in keyed}

    def page(self, search: Search) -> Plan[tuple[list[CheckpointTuple], Search | None]]:
        found: list[CheckpointTuple] = []
        if search.limit is not None and search.limit <= 0:
            return found, None
        rows = yield operations.page(search.thread_id, search.ns, search.before, PAGE)
        wanted = [row for row in rows if search.id is None or row.id == search.id]
        wanted = [row for row in wanted if self._matches(row, search.filter)]
        if search.limit is not None:
            wanted = wanted[: search.limit]
        writes: dict[tuple[str, str, str], list[WritesRow]] = {}
        if wanted:
            for one in (yield operations.writes_of(wanted)):
                writes.setdefault(one[:3], []).append(one)
        for row in wanted:
            own = writes.get((row.thread_id, row.ns, row.id), [])
            try:
                found.append((yield from self._load(row, own)))
            except Damaged:
                still, _ = yield operations.checkpoint_at(row.thread_id, row.ns, row.id)
                if still is not None:  # else it was deleted meanwhile
                    raise
        return found, search.after(rows, len(found))

    def _matches(self, row: CheckpointRow, filter: Mapping[str, Any] | None) -> bool:
        if not filter:
            return True
        location = checkpoint_location(row.thread_id, row.ns, row.id)
        state = self._state(row, location)
        metadata = cast(dict[str, Any], state.metadata)
        return all(key in metadata and metadata[key] == value for key, value in filter.items())

    def delta_history(
        self, key: CheckpointKey, channels: Sequence[str]
    ) -> Plan[Mapping[str, DeltaChannelHistory]]:
        """What the ancestors wrote to each channel, back to the nearest one with a value."""
        try:
            return (yield from self._delta_history(key, channels))
        except Damaged:  # deleted meanwhile, or damaged
            return (yield from self._delta_history(key, channels))

    def _delta_history(
        self, key: CheckpointKey, channels: Sequence[str]
    ) -> Plan[Mapping[str, DeltaChannelHistory]]:
        row, _ = yield operations.checkpoint_at(*key)
        history: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        while row is not None and len(seeds) < len(history):
            ancestors = yield operations.ancestors(key.thread_id, key.ns, row.id, 4 * PAGE)
            row = ancestors[-1] if ancestors else None
            by_id: dict[str, list[WritesRow]] = {}
            if ancestors:
                for one in (yield operations.writes_of(ancestors)):
                    by_id.setdefault(one.checkpoint_id, []).append(one)
            for ancestor in ancestors:
                open_channels = [channel for channel in history if channel not in seeds]
                if not open_channels:
                    break
                pending = yield from self._pending_writes(ancestor, by_id.get(ancestor.id, []))
                for write in reversed(pending):
                    if write[1] in open_channels:
                        history[write[1]].append(write)
                seeds |= yield from self._seeds(ancestor, open_channels)
        return {
            channel: cast(
                DeltaChannelHistory,
                {"writes": writes[::-1]} | ({"seed": seeds[channel]} if channel in seeds else {}),
            )
            for channel, writes in history.items()
        }

    def _seeds(self, row: CheckpointRow, channels: Sequence[str]) -> Plan[dict[str, Any]]:
        """The values this checkpoint itself has for some channels."""
        location = checkpoint_location(row.thread_id, row.ns, row.id)
        inline = self._state(row, location).inline
        seeds = {c: self._format.codec.decode(inline[c], location) for c in channels if c in inline}
        refs = [ref for ref in _refs(row) if ref.channel in channels]
        if refs:
            values = yield from self._values(row, refs, location)
            seeds |= {channel: value for channel, (value, _) in values.items()}
        return seeds


def _take_cached(
    cached: CachedCheckpoint, values: dict[str, Any], found: dict[str, StoredValue]
) -> None:
    """Use the lists in memory that are as they were stored; none that code outside may change."""
    if cached.shared:
        return
    for channel, stored in cached.values.items():
        if (chain := stored.elements) is not None and chain.trusted and chain.untouched():
            values[channel], found[channel] = [*chain.objects], stored


def _refs(row: CheckpointRow) -> list[ValueRef]:
    return [ValueRef(*ref) for ref in json.loads(row.refs)]


def configurable(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}
