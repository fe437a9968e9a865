"""The record of what people decided about all runs, newest first. It is append-only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from fastapi import Response

from perdure.journal import Plan
from perdure.operations import events, waits
from perdure.operations.waits import WaitRow
from perdure.server.caller import Scope
from perdure.server.own_api.access import ThreadFilter
from perdure.server.ui import display
from perdure.server.ui.lists import PAGE, as_cursor, from_cursor
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.service.run_search import MOST_READ, Visible
from perdure.service.views.decided import DecisionLine, decision_line
from perdure.times import milliseconds, moment
from perdure.types import Decision, Event

router = ui_router()

CHUNK = 250
"""Decisions that a filter reads at a time."""
LONGEST = 200
"""Maximum length of a filter."""


@dataclass(frozen=True)
class Found:
    """A page of decisions."""

    decisions: list[Decision]
    last: Decision | None
    """The position of the next page. None on the last page."""
    is_cut: bool = False
    """Whether the search stopped at its limit before the page was full."""


@router.get("/decisions")
async def decisions(ui: UiDep, person: str = "", graph: str = "", after: str = "") -> Response:
    """One page of the record."""
    ui.require(Scope.READ)
    person, graph = person.strip()[:LONGEST], graph.strip()[:LONGEST]
    seen = await ThreadFilter.of(ui.api)
    visible = None if seen.sees_all else seen.visible
    journal = ui.runtime.journal
    found: Found = await journal.arun(_search(ui, person, graph, _position(after), visible))
    lines = await journal.arun(_lines(ui, found.decisions))
    filters = {"person": person, "graph": graph}
    return ui.page(
        "decisions.html",
        title="Decisions",
        section="decisions",
        lines=lines,
        filters=filters,
        graphs=sorted(ui.runtime.graphs),
        after=after,
        next=found.last and ui.url("/decisions", **filters, after=_written(found.last)),
        is_cut=found.is_cut,
    )


def _search(
    ui: Ui, person: str, graph: str, before: Decision | None, visible: Visible | None
) -> Plan[Found]:
    """The next page of matching decisions, after at most `MOST_READ` reads."""
    kept: list[Decision] = []
    read, size = 0, CHUNK if person or graph or visible else PAGE + 1
    while True:
        rows: list[Decision] = yield events.decisions(ui.runtime.engine.serializer, before, size)
        read += len(rows)
        matching = [one for one in rows if _matches(one, person, graph)]
        if visible is not None and matching:
            allowed = yield from visible({one.thread_id for one in matching})
            matching = [one for one in matching if one.thread_id in allowed]
        kept += matching
        if len(kept) > PAGE:
            return Found(kept[:PAGE], kept[PAGE - 1])
        if len(rows) < size:
            return Found(kept, None)
        before = rows[-1]
        if read >= MOST_READ:
            return Found(kept, before, is_cut=True)


def _matches(one: Decision, person: str, graph: str) -> bool:
    return person in ("", one.event.data.get("by")) and graph in ("", one.graph)


def _lines(ui: Ui, found: list[Decision]) -> Plan[list[DecisionLine]]:
    """Decisions with the questions they are about."""
    ids = {str(one.event.data["wait"]) for one in found if one.event.data.get("wait")}
    rows: list[WaitRow] = (yield waits.find_all(ids)) if ids else []
    known = {row.id: ui.runtime.services.waits.record(row) for row in rows}
    clock = partial(display.clock, zone=ui.zone)
    return [
        decision_line(one, known.get(str(one.event.data.get("wait"))), format_time=clock)
        for one in found
    ]


def _written(last: Decision) -> str:
    """A position as a parameter of an address."""
    at = milliseconds(last.event.at)
    return as_cursor((at, last.event.n, last.run_id, last.thread_id))


def _position(text: str) -> Decision | None:
    """The position that a parameter names. Raises `ApiError`."""
    found = from_cursor(text, int, int, str, str)
    if found is None:
        return None
    at, n, run_id, thread_id = found
    return Decision(run_id, thread_id, "", Event(n, moment(at), "", {}))
