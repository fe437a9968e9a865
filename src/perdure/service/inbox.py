"""Plans that list what needs a person: questions, unknown effects, held runs, failed reflections.

They form one paged list, oldest first. Each kind is read through its index, a little at a time.
Filters on data in blobs, such as labels, read at most `MOST_READ` rows; then the page reports where
it stopped, and the caller can continue from there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from perdure.journal import Plan
from perdure.operations import effects, runs, waits
from perdure.operations.effects import EffectRow
from perdure.operations.runs import RunRow
from perdure.operations.waits import WaitRow
from perdure.serde.serializer import Serializer
from perdure.service.inbox_rows import (
    Found,
    InboxKind,
    InboxQuery,
    is_open_question,
    is_run,
    is_wanted,
    next_rows,
    of_effect,
    of_run_row,
    of_wait,
    without_a_name,
)
from perdure.service.run_search import MOST_READ, Position, Visible, as_text
from perdure.service.runs import RunService
from perdure.times import FIRST_MS
from perdure.types import EffectRecord, EffectState, Run, State, Wait

CHUNK = 100
"""Rows of each kind that a filter reads at a time."""


@dataclass(frozen=True)
class InboxEntry:
    """One thing that needs a person."""

    kind: InboxKind
    id: str
    """A wait's id, an effect's key, or else a run's id."""
    record: Wait | EffectRecord | Run
    run: Run | None
    """The run it belongs to; None if that was deleted."""
    position: Position

    @property
    def since(self) -> datetime:
        """When it began to need a person."""
        return self.record.created_at


@dataclass(frozen=True)
class InboxPage:
    """A part of the inbox, oldest first."""

    entries: list[InboxEntry]
    after: Position | None = None
    """The position of the next page. None on the last page."""
    is_cut: bool = False
    """Whether the search stopped at its limit before the page was full."""


class InboxService:
    """What needs a person in a journal."""

    def __init__(self, serializer: Serializer, run_service: RunService) -> None:
        self._serializer, self._runs = serializer, run_service

    def page(
        self,
        query: InboxQuery,
        after: Position | None,
        limit: int,
        visible: Visible | None = None,
    ) -> Plan[InboxPage]:
        """At most `limit` items after a position. `visible` hides threads that the caller may not
        see."""
        found: list[Found] = []
        place, read = after or (FIRST_MS, ""), 0
        size = CHUNK if query.labels or query.graph or visible is not None else limit + 1
        while True:
            rows, end = yield from next_rows(query, place, size)
            read += len(rows)
            found += yield from self._matching(query, rows, visible)
            if len(found) > limit:
                entries = yield from self._entries(found[:limit])
                return InboxPage(entries, found[limit - 1].position)
            if end is None or read >= MOST_READ:
                if end is not None and visible is not None:
                    found, end = without_a_name(found, end)
                entries = yield from self._entries(found)
                return InboxPage(entries, end, is_cut=end is not None)
            place = end

    def of_runs(
        self, run_ids: Collection[str], query: InboxQuery | None = None
    ) -> Plan[list[InboxEntry]]:
        """The items of these runs; with a query, only those that match."""
        rows: list[RunRow] = (yield runs.find_all(run_ids)) if run_ids else []
        found: list[Found] = []
        for row in rows:
            asked: list[WaitRow] = yield waits.of_run(row.id)
            found += [of_wait(one) for one in asked if is_open_question(one)]
            if row.state == State.HELD:
                called: list[EffectRow] = yield effects.of_run(row.id)
                unknown = [of_effect(one) for one in called if one.state == EffectState.UNKNOWN]
                found += unknown or [of_run_row(row)]
        if query is not None:
            found = [one for one in found if is_wanted(query, one)]
            found = yield from self._matching(query, found, None)
        return (yield from self._entries(found))

    # -- filtering

    def _matching(
        self, query: InboxQuery, rows: Sequence[Found], visible: Visible | None
    ) -> Plan[list[Found]]:
        """The rows that match and that the caller may see."""
        kept = [one for one in rows if one.kind in query.wanted]
        held = [one.run_id for one in kept if is_run(one)]
        unknown: Mapping[str, Any] = (yield effects.unknown_of_runs(held)) if held else {}
        kept = [one for one in kept if not (is_run(one) and one.run_id in unknown)]
        if query.graph or query.labels:
            known = yield from self._rows_of(kept)
            kept = [one for one in kept if self._fits(query, known.get(one.run_id))]
        if visible is None or not kept:
            return kept
        allowed = yield from visible({one.thread_id for one in kept})
        return [one for one in kept if one.thread_id in allowed]

    def _rows_of(self, found: Sequence[Found]) -> Plan[dict[str, RunRow]]:
        """The rows of the runs that these belong to."""
        known = {one.run_id: one.row for one in found if is_run(one)}
        ids = {one.run_id for one in found} - known.keys()
        rows: list[RunRow] = (yield runs.find_all(ids)) if ids else []
        return known | {row.id: row for row in rows}

    def _fits(self, query: InboxQuery, row: RunRow | None) -> bool:
        if row is None or query.graph not in ("", row.graph):
            return False
        has = self._runs.labels(row) if query.labels else {}
        return all(
            name in has and wanted in ("", as_text(has[name])) for name, wanted in query.labels
        )

    def _entries(self, found: Sequence[Found]) -> Plan[list[InboxEntry]]:
        known = yield from self._rows_of(found)
        shown: dict[str, Run] = {}
        for id, row in known.items():
            shown[id] = yield from self._runs.show(row, output=False)
        return [self._entry(one, shown) for one in found]

    def _entry(self, one: Found, shown: Mapping[str, Run]) -> InboxEntry:
        record: Wait | EffectRecord | Run
        if one.kind is InboxKind.QUESTION:
            record = waits.to_wait(self._serializer, one.row)
        elif one.kind is InboxKind.EFFECT:
            record = effects.to_record(self._serializer, one.row)
        else:
            record = shown[one.run_id]
        id = one.row.key if one.kind is InboxKind.EFFECT else one.row.id
        return InboxEntry(one.kind, id, record, shown.get(one.run_id), one.position)
