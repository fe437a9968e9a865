"""From rows back to LangGraph's tuples.

A plan yields operations and gets their results back, so that one piece of code serves both the
blocking methods and the coroutines of the saver.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    CheckpointTuple,
    DeltaChannelHistory,
    PendingWrite,
    writes_sort_key,
)
from langgraph.checkpoint.serde.types import RESUME

from perdure.checkpoint import rows
from perdure.checkpoint.cache import NULL_TASK, CachedCheckpoint, CheckpointCache
from perdure.checkpoint.rows import (
    LAST,
    CheckpointKey,
    CheckpointRow,
    WritesRow,
    configurable,
    parse_refs,
)
from perdure.checkpoint.values import StoredValue, ValueRef, elements_in_row, load_value
from perdure.errors import Damaged, Error
from perdure.journal import Plan
from perdure.journal.names import check_text
from perdure.langgraph_port import checkpoint_names
from perdure.serde.serializer import Serializer

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

    def __init__(self, serializer: Serializer, cache: CheckpointCache) -> None:
        self._serializer, self._cache = serializer, cache

    def state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        """The state of a thread at a checkpoint. None if it was pruned."""
        found = yield from self.get_tuple(CheckpointKey(thread_id, "", checkpoint_id), False)
        return None if found is None else found.checkpoint["channel_values"]

    def get_tuple(
        self, key: CheckpointKey, running: bool, blank: bool = False
    ) -> Plan[CheckpointTuple | None]:
        """The checkpoint of a key, or the newest. `running`: a run continues from it.

        `blank`: the thread is known to have none, so nothing is read.
        """
        if blank:
            return None
        before = None
        while True:
            row, writes = yield rows.checkpoint_at(*key)
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
        location, serializer = row.location, self._serializer
        state = rows.load_state(serializer, row)
        values = {c: serializer.decode(data, location) for c, data in state.inline.items()}
        found = {c: StoredValue(len(d), hash(d), inline=d) for c, d in state.inline.items()}
        thread = self._cache.get(row.thread_id, row.ns)
        with thread.changed:
            before = thread.latest
            is_same = before is not None and (before.id, before.step) == (row.id, row.step)
            # With a policy what is in memory may have what is not stored.
            if running and before is not None and is_same and not serializer.redacts:
                _take_cached(before, values, found)
        missing = [ref for ref in parse_refs(row.thread_id, row.refs) if ref.channel not in found]
        if missing:
            for channel, loaded in (yield from self._values(row, missing)).items():
                values[channel], found[channel] = loaded
        pending = yield from self._pending_writes(row, writes)
        if (running and newest) or before is None:
            size = sum(stored.size for stored in found.values())
            # LangGraph changes its own.
            seen = {node: {**versions} for node, versions in state.versions_seen.items()}
            sends = checkpoint_names.sent_nodes(values)
            latest = CachedCheckpoint(row.id, row.step, found, seen, sends, size, not running)
            done = {task for task, channel, _ in pending if channel not in WRITES_IDX_MAP}
            with thread.changed:
                if thread.latest is before:  # else a run went on meanwhile, with those values
                    thread.advance(latest)
                    thread.step(latest.id).tasks.update(done)
            self._cache.resize(thread, latest.size)
        return CheckpointTuple(
            configurable(row.thread_id, row.ns, row.id),
            state.checkpoint(row.id, values),
            state.metadata,
            configurable(row.thread_id, row.ns, row.parent_id) if row.parent_id else None,
            pending,
        )

    def _values(
        self, row: CheckpointRow, refs: Sequence[ValueRef]
    ) -> Plan[dict[str, tuple[Any, StoredValue]]]:
        """The values at some refs of a checkpoint, and how they are stored, by channel."""
        found = yield rows.values(row.thread_id, row.ns, refs, chains=True)
        bodies = rows.load_values(self._serializer, row.thread_id, row.ns, found)
        load = partial(load_value, self._serializer, rows=bodies, location=row.location)
        return {ref.channel: load(ref) for ref in refs}

    def _pending_writes(
        self, row: CheckpointRow, writes: Sequence[WritesRow]
    ) -> Plan[list[PendingWrite]]:
        """The writes of a checkpoint in LangGraph's order.

        Of an ordinary write the first call counts, of a special one the last.
        """
        chosen: dict[tuple[str, str, int], tuple[str, bool, list[Any]]] = {}
        for one in sorted(writes, key=lambda one: one.stamp):
            path, entries = rows.load_writes(self._serializer, one)
            for n, channel, many, elements in entries:
                order = writes_sort_key(path, one.task_id, n)
                if n < 0 or order not in chosen:
                    chosen[order] = (channel, many, elements)
        location = f"a write at {row.location}"
        every = [element for _, _, elements in chosen.values() for element in elements]
        refs = {ValueRef(*element[:4]) for element in every if isinstance(element, list)}
        wanted = rows.values(row.thread_id, row.ns, refs, chains=False)
        found = (yield wanted) if refs else []
        bodies = rows.load_values(self._serializer, row.thread_id, row.ns, found)
        shared = {ref: elements_in_row(body) for ref, body in bodies.items()}

        def value_of(element: Any) -> Any:
            if isinstance(element, list):
                ref = ValueRef(*element[:4])
                if ref not in shared:
                    raise Damaged(location, f"row {ref} is missing")
                element = shared[ref][element[4]]
            return self._serializer.decode(element, location)

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
        page = yield rows.page(search.thread_id, search.ns, search.before, PAGE)
        wanted = [row for row in page if search.id is None or row.id == search.id]
        wanted = [row for row in wanted if self._matches(row, search.filter)]
        if search.limit is not None:
            wanted = wanted[: search.limit]
        writes = (yield rows.writes_of(wanted)) if wanted else []
        for row, own in zip(wanted, writes, strict=True):
            try:
                found.append((yield from self._load(row, own)))
            except Damaged:
                still, _ = yield rows.checkpoint_at(row.thread_id, row.ns, row.id)
                if still is not None:  # else it was deleted meanwhile
                    raise
        return found, search.after(page, len(found))

    def _matches(self, row: CheckpointRow, filter: Mapping[str, Any] | None) -> bool:
        if not filter:
            return True
        metadata = cast(dict[str, Any], rows.load_state(self._serializer, row).metadata)
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
        row, _ = yield rows.checkpoint_at(*key)
        history: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        passed = {row.id} if row is not None else set()
        while row is not None and len(seeds) < len(history):
            ancestors = yield rows.ancestors(key.thread_id, key.ns, row.id, 4 * PAGE)
            row = ancestors[-1] if ancestors else None
            writes = (yield rows.writes_of(ancestors)) if ancestors else []
            for ancestor, own in zip(ancestors, writes, strict=True):
                open_channels = [channel for channel in history if channel not in seeds]
                if not open_channels:
                    break
                if ancestor.id in passed:
                    raise Damaged(ancestor.location, "it is among its own ancestors")
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
        location, inline = row.location, rows.load_state(self._serializer, row).inline
        seeds = {c: self._serializer.decode(inline[c], location) for c in channels if c in inline}
        refs = [ref for ref in parse_refs(row.thread_id, row.refs) if ref.channel in channels]
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


def without_command_answer(plan: Plan[CheckpointTuple | None]) -> Plan[CheckpointTuple | None]:
    """A checkpoint without the answer that a command left there for whichever task asks next. One
    has taken it, and LangGraph would give it to another."""
    found = yield from plan
    if found is None:
        return None
    writes = [one for one in found.pending_writes or () if one[:2] != (NULL_TASK, RESUME)]
    return found._replace(pending_writes=writes)
