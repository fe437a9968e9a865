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
from perdure.checkpoint import operations, value_diff
from perdure.checkpoint.cache import Lanes, Tip
from perdure.checkpoint.operations import LAST, CheckpointRow, Place, WritesRow
from perdure.checkpoint.row_format import (
    Rows,
    State,
    beside_state,
    where_checkpoint,
    where_writes,
)
from perdure.checkpoint.value_diff import Cell, Ref
from perdure.errors import Damaged, Error
from perdure.journal import Plan
from perdure.journal.names import check_text

T = TypeVar("T")
PAGE = 32
"""Checkpoints read at once by a listing."""


class Search(NamedTuple):
    """Where a listing stands."""

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
        """The rest of the search behind these rows, or None when it is over."""
        if len(rows) < PAGE or (self.limit is not None and found >= self.limit):
            return None
        last = rows[-1]
        if self.id is not None and last.id < self.id:
            return None
        limit = None if self.limit is None else self.limit - found
        return self._replace(before=(last.id, last.thread_id, last.ns), limit=limit)


class Reader:
    """Loads checkpoints, from the journal or from what this process remembers."""

    def __init__(self, rows: Rows, lanes: Lanes) -> None:
        self._rows, self._lanes = rows, lanes

    def get_tuple(self, place: Place, running: bool) -> Plan[CheckpointTuple | None]:
        """The checkpoint at a place. `running` says that it is a run that goes on from it."""
        before = None
        while True:
            row, writes = yield operations.checkpoint_at(*place)
            if row is None:
                return None
            for one in writes:
                self._lanes.saw_stamp(one.stamp)
            try:
                return (yield from self._load(row, writes, place.id is None, running))
            except Damaged:
                # Deleted between the two reads, or really damaged: a second look tells.
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
        where = where_checkpoint(row.thread_id, row.ns, row.id)
        codec = self._rows.codec
        state = self._state(row, where)
        values = {channel: codec.decode(data, where) for channel, data in state.inline.items()}
        found = {c: Cell(len(data), hash(data), inline=data) for c, data in state.inline.items()}
        lane = self._lanes.touch(row.thread_id, row.ns)
        with lane.changed:
            before = lane.tip
            known = before is not None and (before.id, before.step) == (row.id, row.step)
            if running and known and before is not None and not before.lent:
                for channel, cell in before.cells.items():
                    if (kept := cell.elements) is not None and kept.trusted and kept.untouched():
                        values[channel], found[channel] = [*kept.objects], cell
        missing = [ref for ref in _refs(row) if ref.channel not in found]
        if missing:
            for channel, (value, cell) in (yield from self._values(row, missing, where)).items():
                values[channel], found[channel] = value, cell
        pending = yield from self._pending(row, writes)
        if (running and newest) or before is None:
            size = sum(cell.size for cell in found.values())
            seen = {node: {**versions} for node, versions in state.seen.items()}  # LangGraph's own
            sends = len(langgraph_port.pending_sends(values))
            tip = Tip(row.id, row.step, found, seen, sends, size, lent=not running)
            with lane.changed:
                if lane.tip is before:  # else somebody went on meanwhile, with those cells
                    lane.move(tip)
                    done = {task for task, channel, _ in pending if channel not in WRITES_IDX_MAP}
                    lane.tasks.setdefault(row.id, set()).update(done)
            self._lanes.weigh(lane, tip.size)
        return CheckpointTuple(
            configurable(row.thread_id, row.ns, row.id),
            state.checkpoint(row.id, values),
            state.metadata,
            configurable(row.thread_id, row.ns, row.parent_id) if row.parent_id else None,
            pending,
        )

    def _values(
        self, row: CheckpointRow, refs: Sequence[Ref], where: str
    ) -> Plan[dict[str, tuple[Any, Cell]]]:
        """The values at some refs of a checkpoint, with their cells, by channel."""
        rows = yield operations.chains(row.thread_id, row.ns, refs)
        bodies = {value[:4]: self._open_value(row, Ref(*value[:4]), value.body) for value in rows}
        return {ref.channel: value_diff.load(self._rows.codec, ref, bodies, where) for ref in refs}

    def _state(self, row: CheckpointRow, where: str) -> State:
        beside = beside_state(row.parent_id, row.run_id, row.step, row.refs)
        return self._rows.open_state(row.state, where, beside)

    def _open_value(self, row: CheckpointRow, ref: Ref, body: bytes) -> bytes:
        return self._rows.open_value(row.thread_id, row.ns, ref, body)

    def _pending(self, row: CheckpointRow, rows: Sequence[WritesRow]) -> Plan[list[PendingWrite]]:
        """The writes of a checkpoint in LangGraph's order.

        Of an ordinary write the first call counts, of a special one the last.
        """
        chosen: dict[tuple[str, str, int], tuple[str, bool, list[Any]]] = {}
        for one in sorted(rows, key=lambda one: one.stamp):
            where = where_writes(one.thread_id, one.ns, one.checkpoint_id, one.task_id, one.stamp)
            path, entries = self._rows.open_writes(one.body, where)
            for n, channel, many, parts in entries:
                place = writes_sort_key(path, one.task_id, n)
                if n < 0 or place not in chosen:
                    chosen[place] = (channel, many, parts)
        homes = {
            Ref(*part[:4])
            for _, _, parts in chosen.values()
            for part in parts
            if isinstance(part, list)
        }
        bodies: dict[Ref, list[bytes]] = {}
        if homes:
            found = yield operations.values_at(row.thread_id, row.ns, homes)
            for value in found:
                ref = Ref(*value[:4])
                bodies[ref] = value_diff.inserted_in(self._open_value(row, ref, value.body))
        where = "a write at " + where_checkpoint(row.thread_id, row.ns, row.id)

        def value_of(part: Any) -> Any:
            if isinstance(part, list):
                ref = Ref(*part[:4])
                if ref not in bodies:
                    raise Damaged(where, f"row {ref} is missing")
                part = bodies[ref][part[4]]
            return self._rows.codec.decode(part, where)

        return [
            (
                task_id,
                channel,
                [value_of(part) for part in parts] if many else value_of(parts[0]),
            )
            for (_, task_id, _), (channel, many, parts) in sorted(
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
        where = where_checkpoint(row.thread_id, row.ns, row.id)
        state = self._state(row, where)
        metadata = cast(dict[str, Any], state.metadata)
        return all(key in metadata and metadata[key] == value for key, value in filter.items())

    def delta_history(
        self, place: Place, channels: Sequence[str]
    ) -> Plan[Mapping[str, DeltaChannelHistory]]:
        """What each channel's ancestors wrote, back to the nearest one with a value."""
        try:
            return (yield from self._delta_history(place, channels))
        except Damaged:  # deleted meanwhile, or really damaged
            return (yield from self._delta_history(place, channels))

    def _delta_history(
        self, place: Place, channels: Sequence[str]
    ) -> Plan[Mapping[str, DeltaChannelHistory]]:
        row, _ = yield operations.checkpoint_at(*place)
        history: dict[str, list[PendingWrite]] = {channel: [] for channel in channels}
        seeds: dict[str, Any] = {}
        while row is not None and len(seeds) < len(history):
            line = yield operations.ancestors(place.thread_id, place.ns, row.id, 4 * PAGE)
            row = line[-1] if line else None
            by_id: dict[str, list[WritesRow]] = {}
            if line:
                for one in (yield operations.writes_of(line)):
                    by_id.setdefault(one.checkpoint_id, []).append(one)
            for ancestor in line:
                open_channels = [channel for channel in history if channel not in seeds]
                if not open_channels:
                    break
                pending = yield from self._pending(ancestor, by_id.get(ancestor.id, []))
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
        where = where_checkpoint(row.thread_id, row.ns, row.id)
        inline = self._state(row, where).inline
        seeds = {c: self._rows.codec.decode(inline[c], where) for c in channels if c in inline}
        refs = [ref for ref in _refs(row) if ref.channel in channels]
        if refs:
            values = yield from self._values(row, refs, where)
            seeds |= {channel: value for channel, (value, _) in values.items()}
        return seeds


def _refs(row: CheckpointRow) -> list[Ref]:
    return [Ref(*ref) for ref in json.loads(row.refs)]


def configurable(thread_id: str, ns: str, id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ns, "checkpoint_id": id}}
