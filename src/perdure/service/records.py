"""Read the rows of a flat table from a journal, in batches of bounded size, newest runs first.

A batch is one or two reads, so a long table is not one snapshot: a run that goes on meanwhile is
shown as it was when its batch was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from perdure.errors import UNREADABLE
from perdure.journal import Op, Plan, Row, Statement
from perdure.operations import effects, events, scores, waits
from perdure.operations.run_payload import load_setup
from perdure.operations.runs import RunRow
from perdure.serde.serializer import Serializer
from perdure.service.run_selection import Selection
from perdure.service.runs import RunService
from perdure.service.views import tables
from perdure.service.views.tables import RunPart, Table
from perdure.service.waits import WaitService
from perdure.types import Event, EventKind, Run, WaitRecord

T = TypeVar("T")

RUNS = 50
"""Runs in a batch."""
EVENTS = 1000
"""Events of one run in a batch."""
CLAIMS = (EventKind.CLAIMED, EventKind.RECOVERED)


@dataclass(frozen=True)
class Pending:
    """A run whose rows are to be read: of its events, those after a number."""

    row: RunRow
    after: int = 0
    segment: int = 0

    @property
    def part(self) -> RunPart:
        return RunPart(self.row.id, self.row.thread_id, self.row.graph)


@dataclass(frozen=True)
class Cursor:
    """How far a table has been read."""

    selection: Selection
    pending: tuple[Pending, ...] = ()
    is_last: bool = False
    """Whether there are no runs besides the pending ones."""

    @property
    def is_end(self) -> bool:
        return self.is_last and not self.pending


class RecordService:
    """The flat tables of a journal."""

    def __init__(self, serializer: Serializer, runs: RunService, waits: WaitService) -> None:
        self._serializer, self._runs, self._waits = serializer, runs, waits

    def batch(
        self, what: Table, cursor: Cursor, *, content: bool
    ) -> Plan[tuple[list[tables.Row], Cursor]]:
        """The next rows of a table, with exactly its columns, and how far it is read then."""
        if not cursor.pending:
            cursor = yield from self._more(cursor)
        pending = cursor.pending
        left: tuple[Pending, ...] = ()
        if what is Table.RUNS:
            rows = yield from self._show([one.row for one in pending], content=content)
        elif what is Table.EVENTS:
            rows, left = yield from self._events(pending)
        else:
            rows = yield from self._parts(what, pending)
        shown = tables.columns(what, content=content)
        return tables.fit(rows, shown), replace(cursor, pending=left)

    def _more(self, cursor: Cursor) -> Plan[Cursor]:
        """The next runs."""
        which = cursor.selection
        if which.ids is not None:
            row = yield from self._runs.find(which.ids[0])
            rest = which.ids[1:]
            return Cursor(replace(which, ids=rest), (Pending(row),), not rest)
        rows = yield from self._runs.rows(which.page, which.before, RUNS, which.metadata)
        if rows:
            which = replace(which, before=(rows[-1].created_at, rows[-1].id))
        return Cursor(which, tuple(map(Pending, rows)), len(rows) < RUNS)

    def _show(self, rows: Sequence[RunRow], *, content: bool) -> Plan[list[tables.Row]]:
        found: list[tables.Row] = []
        for row in rows:
            run: Run = yield from self._runs.show(row, output=content)
            given = self._input(row) if content else None
            found += [tables.run_row(run, segments=row.token, events=row.events, input=given)]
        return found

    def _input(self, row: RunRow) -> Any:
        try:
            return load_setup(self._serializer, row).get("input")
        except UNREADABLE:  # which `damaged` says
            return None

    def _events(
        self, pending: Sequence[Pending]
    ) -> Plan[tuple[list[tables.Row], tuple[Pending, ...]]]:
        """The events of these runs up to the first that has more, and which are left then."""
        rows: list[tables.Row] = []
        found: list[list[Event]] = yield _together(
            [
                events.events(self._serializer, one.row.thread_id, one.row.id, one.after, EVENTS)
                for one in pending
            ]
        )
        for n, (one, history) in enumerate(zip(pending, found, strict=True)):
            segment = one.segment
            for event in history:
                segment += event.kind in CLAIMS
                rows.append(tables.event_row(one.part, event, segment))
            if len(history) == EVENTS:
                rest = replace(one, after=history[-1].n, segment=segment)
                return rows, (rest, *pending[n + 1 :])
        return rows, ()

    def _parts(self, what: Table, pending: Sequence[Pending]) -> Plan[list[tables.Row]]:
        """The effects, waits, scores or decisions of these runs."""
        found: list[list[Any]] = yield _together([self._read(what, one.row) for one in pending])
        return [
            self._part(what, one.part, row)
            for one, rows in zip(pending, found, strict=True)
            for row in rows
        ]

    def _read(self, what: Table, run: RunRow) -> Op[Any]:
        if what is Table.EFFECTS:
            return effects.of_run(run.id)
        if what is Table.WAITS:
            return waits.of_run(run.id)
        if what is Table.DECISIONS:
            return self._decisions(run)
        return scores.of_run(self._serializer, run.thread_id, run.id)

    def _decisions(self, run: RunRow) -> Op[list[tuple[Event, WaitRecord | None]]]:
        """The decisions about a run, each with the question it is about."""
        made = events.decisions_of_run(self._serializer, run.thread_id, run.id)
        reads: list[Op[Any]] = [made, waits.of_run(run.id)]
        both = _together(reads)

        def result(rows: Sequence[Sequence[Row]]) -> list[tuple[Event, WaitRecord | None]]:
            decided, asked = both.result(rows)
            known = {row.id: self._waits.record(row) for row in asked}
            return [(one, known.get(str(one.data.get("wait")))) for one in decided]

        return Op("decisions", both.render(), result)

    def _part(self, what: Table, part: RunPart, row: Any) -> tables.Row:
        if what is Table.EFFECTS:
            return tables.effect_row(part, effects.to_record(self._serializer, row))
        if what is Table.WAITS:
            return tables.wait_row(part, self._waits.record(row))
        if what is Table.DECISIONS:
            return tables.decision_row(part, *row)
        score, _ = row
        return tables.score_row(part, score)


def _together(ops: Sequence[Op[T]]) -> Op[list[T]]:
    """Several reads in one, from one snapshot."""
    parts: list[Sequence[Statement]] = [op.render() for op in ops]

    def result(rows: Sequence[Sequence[Row]]) -> list[T]:
        found, at = [], 0
        for op, statements in zip(ops, parts, strict=True):
            found.append(op.result(rows[at : at + len(statements)]))
            at += len(statements)
        return found

    return Op("together", [one for statements in parts for one in statements], result)
