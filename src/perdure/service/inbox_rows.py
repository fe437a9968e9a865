"""Rows of everything that needs a person, merged into one list for the inbox.

Each kind is read through its index, after the same position; the lists are merged by time.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.journal import Op, Plan
from perdure.operations import effects, runs, waits
from perdure.operations.effects import EffectRow
from perdure.operations.runs import RunRow
from perdure.operations.waits import WaitRow
from perdure.service.reflections import PREFIX
from perdure.service.run_search import LAST_ID, Position
from perdure.times import milliseconds
from perdure.types import EffectState, Kind, WaitState
from perdure.views.question import SOON


class InboxKind(StrEnum):
    """What needs a person."""

    QUESTION = "question"
    EFFECT = "effect"
    """An effect with an unknown outcome."""
    HELD = "held"
    REFLECTION = "reflection"
    """A reflection that is held because it failed."""


@dataclass(frozen=True)
class InboxQuery:
    """A filter of the inbox. Empty fields match everything."""

    kinds: Collection[InboxKind] = ()
    graph: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    """Metadata and labels of the run, as text. An empty value matches any."""
    assignee: str | None = None
    """The assignee of questions; empty: unassigned ones."""
    until: datetime | None = None
    """Only items that have waited since this time or longer."""
    soon: datetime | None = None
    """Only questions that expire within a day of this time, soonest first."""

    @property
    def wanted(self) -> frozenset[InboxKind]:
        """The kinds that it can find."""
        kinds = frozenset(self.kinds or InboxKind)
        only = self.assignee is not None or self.soon is not None
        return kinds & {InboxKind.QUESTION} if only else kinds


class Found(NamedTuple):
    """A row of any kind."""

    kind: InboxKind
    position: Position
    thread_id: str
    run_id: str
    row: Any


def next_rows(
    query: InboxQuery, place: Position, count: int
) -> Plan[tuple[list[Found], Position | None]]:
    """The next rows of all kinds after a position, in order, and the next position; None at the
    end."""
    found: list[Found] = []
    ends: list[Position] = []
    for op, make in _lists(query, place, count):
        rows: list[Any] = yield op
        made = [make(row) for row in rows]
        found += made
        if len(rows) == count:
            ends.append(made[-1].position)
    last = min(ends, default=None)
    found = sorted(found, key=lambda one: one.position)
    found = [one for one in found if last is None or one.position <= last]
    until = None if query.until is None else milliseconds(query.until)
    if query.soon is not None:
        until = milliseconds(query.soon + SOON)
    if until is not None and any(one.position[0] > until for one in found):
        return [one for one in found if one.position[0] <= until], None
    return found, last


def without_a_name(found: list[Found], end: Position) -> tuple[list[Found], Position]:
    """A position that does not name the last row, which may be hidden from the caller: its whole
    millisecond is left to the next page."""
    return [one for one in found if one.position[0] < end[0]], (end[0] - 1, LAST_ID)


def _lists(query: InboxQuery, place: Position, count: int) -> Iterator[tuple[Op[Any], Any]]:
    """The reads for a query, each with the function that converts its rows."""
    wanted = query.wanted
    if query.soon is not None:
        yield waits.expiring(place, count), _of_expiring
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


def of_wait(row: WaitRow) -> Found:
    position = (row.created_at, row.id)
    return Found(InboxKind.QUESTION, position, row.thread_id, row.run_id, row)


def _of_expiring(row: WaitRow) -> Found:
    return of_wait(row)._replace(position=(row.expires_at or 0, row.id))


def of_effect(row: EffectRow) -> Found:
    position = (row.created_at, row.key)
    return Found(InboxKind.EFFECT, position, row.thread_id, row.run_id, row)


def of_run_row(row: RunRow) -> Found:
    kind = InboxKind.REFLECTION if row.graph.startswith(PREFIX) else InboxKind.HELD
    return Found(kind, (row.created_at, row.id), row.thread_id, row.id, row)


def is_run(one: Found) -> bool:
    return one.kind in (InboxKind.HELD, InboxKind.REFLECTION)


def is_wanted(query: InboxQuery, one: Found) -> bool:
    """Whether one row meets the conditions of the reads."""
    late = query.until is not None and one.position[0] > milliseconds(query.until)
    is_question = one.kind is InboxKind.QUESTION
    whose = not is_question or query.assignee in (None, one.row.assignee or "")
    return one.kind in query.wanted and whose and not late


def is_open_question(row: WaitRow) -> bool:
    return row.state == WaitState.OPEN and row.kind == Kind.HUMAN
