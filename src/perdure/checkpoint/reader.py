"""From rows back to LangGraph's tuples.

A plan yields operations and gets their results back, so that one piece of code serves both the
blocking methods and the coroutines of the saver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import RESUME

from perdure.checkpoint import operations
from perdure.checkpoint.cache import NULL_TASK, CachedCheckpoint, CheckpointCache, ThreadCache
from perdure.checkpoint.config import PAGE, Found, Search, configurable
from perdure.checkpoint.operations import CheckpointKey, CheckpointRow, WritesRow, parse_refs
from perdure.checkpoint.row_format import RowFormat, checkpoint_location
from perdure.checkpoint.values import StoredValue, ValueRef, elements_in_row, load_value
from perdure.errors import Damaged
from perdure.journal import Plan
from perdure.langgraph_port import checkpoint_names


class Reader:
    """Loads checkpoints, from the journal or from the cache of this process."""

    def __init__(self, row_format: RowFormat, cache: CheckpointCache) -> None:
        self._format, self._cache = row_format, cache

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state of a thread at a checkpoint. None if it was pruned."""
        found = yield from self.get_tuple(CheckpointKey(thread_id, "", checkpoint_id), False)
        return None if found is None else found.checkpoint["channel_values"]

    def get_tuple(
        self, key: CheckpointKey, running: bool, blank: bool = False, found: Found | None = None
    ) -> Plan[CheckpointTuple | None]:
        """The checkpoint of a key, or the newest. `running`: a run continues from it.

        `blank`: the thread is known to have none, so nothing is read. `found` was read already.
        """
        if blank:
            return None
        before = None
        while True:
            row, writes = found or (yield operations.checkpoint_at(*key))
            found = None
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
        location, codec = checkpoint_location(*row[:3]), self._format.serializer
        state = self._format.load_state(row)
        values = {channel: codec.decode(data, location) for channel, data in state.inline.items()}
        found = {c: StoredValue(len(d), hash(d), inline=d) for c, d in state.inline.items()}
        thread = self._cache.touch(row.thread_id, row.ns)
        with thread.changed:
            before = thread.latest
            is_same = before is not None and (before.id, before.step) == (row.id, row.step)
            # With a policy what is in memory may have what is not stored.
            if running and before is not None and is_same and codec.redactor is None:
                _take_cached(before, values, found)
        missing = [ref for ref in _refs(row) if ref.channel not in found]
        if missing:
            for channel, loaded in (yield from self._values(row, missing)).items():
                values[channel], found[channel] = loaded
        pending = yield from self._pending_writes(row, writes)
        if (running and newest) or before is None:
            size = sum(stored.size for stored in found.values())
            seen = {node: {**versions} for node, versions in state.seen.items()}  # LangGraph's own
            sends = checkpoint_names.sent_nodes(values)
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
                thread.step(latest.id).tasks.update(done)
        self._cache.resize(thread, latest.size)

    def _values(
        self, row: CheckpointRow, refs: Sequence[ValueRef]
    ) -> Plan[dict[str, tuple[Any, StoredValue]]]:
        """The values at some refs of a checkpoint, and how they are stored, by channel."""
        rows = yield operations.values(row.thread_id, row.ns, refs, chains=True)
        bodies = self._format.load_values(row.thread_id, row.ns, rows)
        codec, location = self._format.serializer, checkpoint_location(*row[:3])
        return {ref.channel: load_value(codec, ref, bodies, location) for ref in refs}

    def _pending_writes(
        self, row: CheckpointRow, rows: Sequence[WritesRow]
    ) -> Plan[list[PendingWrite]]:
        """The writes of a checkpoint in LangGraph's order.

        Of an ordinary write the first call counts, of a special one the last.
        """
        chosen: dict[tuple[str, str, int], tuple[str, bool, list[Any]]] = {}
        for one in sorted(rows, key=lambda one: one.stamp):
            path, entries = self._format.load_writes(one)
            for n, channel, many, elements in entries:
                order = writes_sort_key(path, one.task_id, n)
                if n < 0 or order not in chosen:
                    chosen[order] = (channel, many, elements)
        location = "a write at " + checkpoint_location(*row[:3])
        every = [element for _, _, elements in chosen.values() for element in elements]
        refs = {ValueRef(*element[:4]) for element in every if isinstance(element, list)}
        wanted = operations.values(row.thread_id, row.ns, refs, chains=False)
        bodies = self._format.load_values(row.thread_id, row.ns, (yield wanted) if refs else [])
        shared = {ref: elements_in_row(body) for ref, body in bodies.items()}

        def value_of(element: Any) -> Any:
            if isinstance(element, list):
                ref = ValueRef(*element[:4])
                if ref not in shared:
                    raise Damaged(location, f"row {ref} is missing")
                element = shared[ref][element[4]]
            return self._format.serializer.decode(element, location)

        return [
            (task_id, channel, [*map(value_of, elements)] if many else value_of(elements[0]))
            for (_, task_id, _), (channel, many, elements) in sorted(
                chosen.items(), key=lambda item: item[0]
            )
        ]

    def page(self, search: Search) -> Plan[tuple[list[CheckpointTuple], Search | None]]:
        found: list[CheckpointTuple] = []
        if search.limit is not None and search.limit <= 0:
            return found, None
        rows = yield operations.page(search.thread_id, search.ns, search.before, PAGE)
        wanted = [row for row in rows if search.id is None or row.id == search.id]
        wanted = [row for row in wanted if self._matches(row, search.filter)]
        if search.limit is not None:
            wanted = wanted[: search.limit]
        writes = (yield operations.writes_of(wanted)) if wanted else []
        for row, own in zip(wanted, writes, strict=True):
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
        metadata = cast(dict[str, Any], self._format.load_state(row).metadata)
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
        passed = {row.id} if row is not None else set()
        while row is not None and len(seeds) < len(history):
            ancestors = yield operations.ancestors(key.thread_id, key.ns, row.id, 4 * PAGE)
            row = ancestors[-1] if ancestors else None
            writes = (yield operations.writes_of(ancestors)) if ancestors else []
            for ancestor, own in zip(ancestors, writes, strict=True):
                open_channels = [channel for channel in history if channel not in seeds]
                if not open_channels:
                    break
                if ancestor.id in passed:
                    location = checkpoint_location(*ancestor[:3])
                    raise Damaged(location, "it is among its own ancestors")
                passed.add(ancestor.id)
                pending = yield from self._pending_writes(ancestor, own)
                for write in reversed(pending):
                    if write[1] in open_channels:
                        history[write[1]].append(write)
                seeds |= yield from self._seeds(ancestor, open_channels)
        return {
            channel: cast(
                DeltaChannelHistory,
                {"writes": newest[::-1]} | ({"seed": seeds[channel]} if channel in seeds else {}),
            )
            for channel, newest in history.items()
        }

    def _seeds(self, row: CheckpointRow, channels: Sequence[str]) -> Plan[dict[str, Any]]:
        """The values this checkpoint itself has for some channels."""
        location, inline = checkpoint_location(*row[:3]), self._format.load_state(row).inline
        seeds = {
            c: self._format.serializer.decode(inline[c], location) for c in channels if c in inline
        }
        refs = [ref for ref in _refs(row) if ref.channel in channels]
        if refs:
            values = yield from self._values(row, refs)
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
    return parse_refs(row.thread_id, row.refs)


def without_command_answer(plan: Plan[CheckpointTuple | None]) -> Plan[CheckpointTuple | None]:
    """A checkpoint without the answer that a command left there for whichever task asks next. One
    has taken it, and LangGraph would give it to another."""
    found = yield from plan
    if found is None:
        return None
    writes = [one for one in found.pending_writes or () if one[:2] != (NULL_TASK, RESUME)]
    return found._replace(pending_writes=writes)
