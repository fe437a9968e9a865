"""Plans that list what needs a person: questions, unknown effects, held runs, failed reflections.

They form one paged list, oldest first. Each kind is read through its index, a little at a time.
Filters on data in blobs, such as labels, read at most `MOST_READ` rows; then the page reports where
it stopped, and the caller can continue from there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.commands import effects, run_reads, runs, waits
from perdure.commands.connection import Connection
from perdure.commands.effects import EffectRow
from perdure.commands.reflections import PREFIX
from perdure.commands.run_search import MOST_READ, Position, Visible, as_text
from perdure.commands.runs import LAST_ID, RunRow
from perdure.commands.waits import WaitRow
from perdure.journal import Op, Plan
from perdure.times import FIRST_MS, LAST_MS, milliseconds
from perdure.types import EffectRecord, EffectState, Kind, Run, State, Wait, WaitState


class InboxKind(StrEnum):
    """What needs a person.

    Attributes:
        EFFECT: An effect with an unknown outcome.
        REFLECTION: A reflection that is held because it failed.
    """

    QUESTION = "question"
    EFFECT = "effect"
    HELD = "held"
    REFLECTION = "reflection"


@dataclass(frozen=True)
class InboxQuery:
    """A filter of the inbox. Empty fields match everything.

    Attributes:
        labels: Metadata and labels of the run, as text. An empty value matches any.
        assignee: The assignee of questions; empty: unassigned ones.
        until: Only items that have waited since this time or longer.
        soon: Only questions that expire within a day of this time, soonest first.
    """

    kinds: Collection[InboxKind] = ()
    graph: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    assignee: str | None = None
    until: datetime | None = None
    soon: datetime | None = None

    @property
    def wanted(self) -> frozenset[InboxKind]:
        """The kinds that it can find."""
        kinds = frozenset(self.kinds or InboxKind)
        only = self.assignee is not None or self.soon is not None
        return kinds & {InboxKind.QUESTION} if only else kinds


class InboxRow(NamedTuple):
    """A row of any kind."""

    kind: InboxKind
    position: Position
    thread_id: str
    run_id: str
    row: Any

    @property
    def is_run(self) -> bool:
        return self.kind in (InboxKind.HELD, InboxKind.REFLECTION)


def next_rows(
    query: InboxQuery, place: Position, count: int
) -> Plan[tuple[list[InboxRow], Position | None]]:
    """The next rows of all kinds after a position, in order, and the next position; None at the
    end."""
    items: list[InboxRow] = []
    ends: list[Position] = []
    for op, make in _lists(query, place, count):
        rows: list[Any] = yield op
        items += map(make, rows)
        if len(rows) == count:
            ends.append(items[-1].position)
    last = min(ends, default=None)
    items = sorted(items, key=lambda one: one.position)
    items = [one for one in items if last is None or one.position <= last]
    until = None if query.until is None else milliseconds(query.until)
    if query.soon is not None:
        until = milliseconds(query.soon + SOON)
    if until is not None and any(one.position[0] > until for one in items):
        return [one for one in items if one.position[0] <= until], None
    return items, last


def _lists(query: InboxQuery, place: Position, count: int) -> Iterator[tuple[Op[Any], Any]]:
    """The reads for a query, each with the function that converts its rows."""
    wanted = query.wanted
    if query.soon is not None:
        yield (
            waits.expiring(place, count),
            lambda row: of_wait(row)._replace(position=(row.expires_at or 0, row.id)),
        )
    elif InboxKind.QUESTION in wanted:
        page = waits.page(
            kind=Kind.HUMAN,
            thread_id=None,
            after=place,
            count=count,
            graph=query.graph or None,
            assignee=query.assignee,
        )
        yield page, of_wait
    if InboxKind.EFFECT in wanted:
        state = EffectState.UNKNOWN
        yield effects.page(thread_id=None, state=state, after=place, count=count), of_effect
    if wanted & {InboxKind.HELD, InboxKind.REFLECTION}:
        yield runs.held(place, count), of_run_row


def of_wait(row: WaitRow) -> InboxRow:
    position = (row.created_at, row.id)
    return InboxRow(InboxKind.QUESTION, position, row.thread_id, row.run_id, row)


def of_effect(row: EffectRow) -> InboxRow:
    position = (row.created_at, row.key)
    return InboxRow(InboxKind.EFFECT, position, row.thread_id, row.run_id, row)


def of_run_row(row: RunRow) -> InboxRow:
    kind = InboxKind.REFLECTION if row.graph.startswith(PREFIX) else InboxKind.HELD
    return InboxRow(kind, (row.created_at, row.id), row.thread_id, row.id, row)


CHUNK = 100
"""Rows of each kind that a filter reads at a time."""


@dataclass(frozen=True)
class InboxEntry:
    """One thing that needs a person.

    Attributes:
        id: A wait's id, an effect's key, or else a run's id.
        run: The run it belongs to; None if that was deleted.
    """

    kind: InboxKind
    id: str
    record: Wait | EffectRecord | Run
    run: Run | None
    position: Position

    @property
    def since(self) -> datetime:
        """When it began to need a person."""
        return self.record.created_at


@dataclass(frozen=True)
class InboxPage:
    """A part of the inbox, oldest first.

    Attributes:
        after: The position of the next page. None on the last page.
        is_cut: Whether the search stopped at its limit before the page was full.
    """

    entries: list[InboxEntry]
    after: Position | None = None
    is_cut: bool = False


def page(
    on: Connection,
    query: InboxQuery,
    after: Position | None,
    limit: int,
    visible: Visible | None = None,
) -> Plan[InboxPage]:
    """At most `limit` items after a position. `visible` hides threads that the caller may not
    see."""
    items: list[InboxRow] = []
    place, read = after or (FIRST_MS, ""), 0
    size = CHUNK if query.labels or query.graph or visible is not None else limit + 1
    while True:
        rows, end = yield from next_rows(query, place, size)
        read += len(rows)
        items += yield from _matching(on, query, rows, visible)
        if len(items) > limit:
            entries = yield from _entries(on, items[:limit])
            return InboxPage(entries, items[limit - 1].position)
        if end is None or read >= MOST_READ:
            if end is not None and visible is not None:
                # The last row may be hidden from the caller, so the position must not name it: its
                # whole millisecond is left to the next page.
                items = [one for one in items if one.position[0] < end[0]]
                end = (end[0] - 1, LAST_ID)
            entries = yield from _entries(on, items)
            return InboxPage(entries, end, is_cut=end is not None)
        place = end


def of_runs(
    on: Connection, run_ids: Collection[str], query: InboxQuery | None = None
) -> Plan[list[InboxEntry]]:
    """The items of these runs; with a query, only those that match."""
    rows: list[RunRow] = (yield runs.find_all(run_ids)) if run_ids else []
    items: list[InboxRow] = []
    for row in rows:
        rows_of_run: list[WaitRow] = yield waits.of_run(row.id)
        open_waits = [one for one in rows_of_run if one.state == WaitState.OPEN]
        items += [of_wait(one) for one in open_waits if one.kind == Kind.HUMAN]
        if row.state == State.HELD:
            called: list[EffectRow] = yield effects.of_run(row.id)
            unknown = [of_effect(one) for one in called if one.state == EffectState.UNKNOWN]
            items += unknown or [of_run_row(row)]
    if query is not None:
        until = LAST_MS if query.until is None else milliseconds(query.until)
        items = [
            one
            for one in items
            if one.position[0] <= until
            and (
                not isinstance(one.row, WaitRow) or query.assignee in (None, one.row.assignee or "")
            )
        ]
        items = yield from _matching(on, query, items, None)
    return (yield from _entries(on, items))


# -- filtering


def _matching(
    on: Connection, query: InboxQuery, rows: Sequence[InboxRow], visible: Visible | None
) -> Plan[list[InboxRow]]:
    """The rows that match and that the caller may see."""
    kept = [one for one in rows if one.kind in query.wanted]
    held = [one.run_id for one in kept if one.is_run]
    unknown: Mapping[str, Any] = (yield effects.unknown_of_runs(held)) if held else {}
    kept = [one for one in kept if not (one.is_run and one.run_id in unknown)]
    if query.graph or query.labels:
        known = yield from _rows_of(on, kept)
        kept = [one for one in kept if _fits(on, query, known.get(one.run_id))]
    if visible is None or not kept:
        return kept
    allowed = yield from visible({one.thread_id for one in kept})
    return [one for one in kept if one.thread_id in allowed]


def _rows_of(on: Connection, items: Sequence[InboxRow]) -> Plan[dict[str, RunRow]]:
    """The rows of the runs that these belong to."""
    known = {one.run_id: one.row for one in items if one.is_run}
    ids = {one.run_id for one in items} - known.keys()
    rows: list[RunRow] = (yield runs.find_all(ids)) if ids else []
    return known | {row.id: row for row in rows}


def _fits(on: Connection, query: InboxQuery, row: RunRow | None) -> bool:
    if row is None or query.graph not in ("", row.graph):
        return False
    has = run_reads.labels(on, row) if query.labels else {}
    return all(name in has and wanted in ("", as_text(has[name])) for name, wanted in query.labels)


def _entries(on: Connection, items: Sequence[InboxRow]) -> Plan[list[InboxEntry]]:
    known = yield from _rows_of(on, items)
    runs_by_id: dict[str, Run] = {}
    for id, row in known.items():
        runs_by_id[id] = yield from run_reads.show(on, row, output=False)
    return [_entry(on, one, runs_by_id) for one in items]


def _entry(on: Connection, one: InboxRow, runs_by_id: Mapping[str, Run]) -> InboxEntry:
    record: Wait | EffectRecord | Run
    if one.kind is InboxKind.QUESTION:
        record = waits.to_wait(on.serializer, one.row)
    elif one.kind is InboxKind.EFFECT:
        record = effects.to_record(on.serializer, one.row)
    else:
        record = runs_by_id[one.run_id]
    id = one.row.key if one.kind is InboxKind.EFFECT else one.row.id
    return InboxEntry(one.kind, id, record, runs_by_id.get(one.run_id), one.position)


SOON = timedelta(hours=24)
"""A question that expires within this time stands out."""
