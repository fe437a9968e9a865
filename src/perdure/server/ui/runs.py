"""`/ui/runs`: the list of runs. Filters are in the address, pages are by key, rows update in place.

New runs do not move the rows on the screen: a link above them says how many there are.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Annotated

from fastapi import Query, Response

from perdure.commands import run_search, runs
from perdure.commands.run_search import Direct, Position, RunPage
from perdure.commands.runs import RunRow
from perdure.server.authorization import Scope
from perdure.server.ui.lists import as_cursor, bounded, from_cursor
from perdure.server.ui.page import Ui, UiDep, sse, ui_router
from perdure.server.ui.run_rows import (
    AGES,
    COUNTED,
    Filters,
    RowSource,
    Visible,
    read_rows,
    version,
    visibility,
    visible_runs,
)
from perdure.types import State
from perdure.views.formatting import count
from perdure.views.markup import element

router = ui_router()

PAGE = 50
"""Runs on one page."""
SHARED = 0.5
"""Seconds for which counts are shown on other pages, too."""
Ids = Annotated[list[str] | None, Query(max_length=2 * PAGE)]


@dataclass(frozen=True)
class Counter:
    """How many runs are in a state, and the address that shows only them."""

    state: State
    number: str
    address: str
    is_chosen: bool


@router.get("/runs")
async def list_runs(ui: UiDep, before: str = "", after: str = "") -> Response:
    ui.require(Scope.READ)
    Filters.check_names(ui, "before", "after")
    filters = Filters.of(ui)
    visible, sees_all = await visibility(ui)
    found, direct = await _find(ui, filters, visible, _position(before), _position(after))
    if direct is Direct.THREAD:
        filters = filters.on_thread(filters.query.text.strip())
    rows = await read_rows(ui, found.rows)
    counters = await _counters(ui, filters, time.monotonic() - SHARED) if sees_all else []
    return ui.page(
        "runs.html",
        title="Runs",
        section="runs",
        filters=filters,
        rows=rows,
        found=found,
        direct=direct,
        counters=counters,
        ages=AGES,
        graphs=sorted({*ui.runtime.graphs, *(row.run.graph for row in rows)}),
        older=_link(ui, filters, before=found.older),
        newer=_newer(ui, filters, found) if before or after else None,
        newest=ui.url("/runs", **filters.address()) if before or after else None,
        live=_live_address(ui, filters, found, counters, is_newest=not before and not after),
        most=COUNTED,
    )


async def _find(
    ui: Ui,
    filters: Filters,
    visible: Visible | None,
    before: Position | None,
    after: Position | None,
) -> tuple[RunPage, Direct | None]:
    """The runs of a page; the id of a run or thread in the text is looked up first."""
    on, journal = ui.runtime.engine, ui.runtime.journal
    query, kind = filters.query, None
    if query.text and before is None and after is None:
        named = await journal.arun(run_search.find_direct(on, query, visible))
        if named is not None:
            kind, query, rows = named
            if rows is not None:
                return RunPage(rows), kind
    plan = run_search.search(on, query, PAGE, before=before, after=after, visible=visible)
    return await journal.arun(plan), kind


async def _counters(ui: Ui, filters: Filters, since: float) -> list[Counter]:
    """How many runs are in each state, up to a thousand, now or after `since`."""
    counts = await ui.site.part(RowSource).counts(since)
    return [
        Counter(
            state,
            bounded(counts.get(state, 0), COUNTED),
            ui.url("/runs", **filters.toggled(state)),
            state.value in filters.written.get("state", ()),
        )
        for state in State
    ]


def _link(ui: Ui, filters: Filters, **places: Position | None) -> str | None:
    """The address of the page after a position."""
    [(name, place)] = places.items()
    if place is None:
        return None
    return ui.url("/runs", **filters.address(**{name: as_cursor(place)}))


def _position(text: str) -> Position | None:
    found = from_cursor(text, int, str)
    return None if found is None else (found[0], found[1])


def _newer(ui: Ui, filters: Filters, found: RunPage) -> str | None:
    if not found.rows:
        return _link(ui, filters, after=found.newer)
    first = found.rows[0]
    return _link(ui, filters, after=(first.created_at, first.id))


def _live_address(
    ui: Ui, filters: Filters, found: RunPage, counters: list[Counter], *, is_newest: bool
) -> str:
    """The address of the live updates of a page. On the first page they also announce runs newer
    than its first row."""
    shown = [f"{row.id}.{version(row)}" for row in found.rows]
    top = (ui.runtime.engine.clock.now(), "")
    if found.rows:
        top = max(top, (found.rows[0].created_at, found.rows[0].id))
    newer = as_cursor(top) if is_newest else None
    numbers = " ".join(one.number for one in counters)
    return ui.url("/run-list/live", **filters.address(id=shown, top=newer, counted=numbers))


@router.get("/run-list/live")
async def follow_runs(ui: UiDep, id: Ids = None, top: str = "", counted: str = "") -> Response:
    """Changed rows, each as one event; the number of runs newer than `top`; and the counters, once
    they differ from `counted`."""
    ui.require(Scope.READ)
    filters = Filters.of(ui)
    given = dict(one.rpartition(".")[::2] for one in id or ())
    rows = await visible_runs(ui, [*given])
    shown = {row.id: given[row.id] for row in rows}
    return ui.stream(_changes(ui, filters, shown, _position(top), counted))


async def _changes(
    ui: Ui, filters: Filters, shown: dict[str, str], top: Position | None, counted: str
) -> AsyncGenerator[bytes]:
    """`shown` is the version of each run that the page has: the same is not sent again."""
    source, known = ui.site.part(RowSource), {*shown}
    visible, sees_all = await visibility(ui)
    async with ui.live.follow(known) as changes:
        fresh = set[str]() if top is None else await _newer_than(ui, filters, top, visible)
        if fresh - known:
            yield sse("new-runs", _new_runs(ui, filters, len(fresh - known)))
        async for change in changes:
            await ui.renew()
            rows = await source.rendered(ui, change.changed, change.at)
            for id, (number, html) in rows.items():
                if shown[id] != number:
                    shown[id] = number
                    yield sse(f"run-{id}", html)
            if top is not None and (started := {*change.new_runs} - known - fresh):
                fresh |= await _matching(ui, filters, started, visible)
                yield sse("new-runs", _new_runs(ui, filters, len(fresh - known)))
            counters = await _counters(ui, filters, change.at) if sees_all else []
            if (now := " ".join(one.number for one in counters)) != counted:
                counted = now
                yield sse("counters", ui.fragment("parts/run_counters.html", counters=counters))


async def _newer_than(ui: Ui, filters: Filters, top: Position, visible: Visible | None) -> set[str]:
    """The runs that were started since a page was rendered."""
    plan = run_search.search(ui.runtime.engine, filters.query, PAGE, after=top, visible=visible)
    return {row.id for row in (await ui.runtime.journal.arun(plan)).rows}


async def _matching(ui: Ui, filters: Filters, ids: set[str], visible: Visible | None) -> set[str]:
    """The runs among these that the page would list."""
    on, journal = ui.runtime.engine, ui.runtime.journal
    rows: list[RunRow] = await journal.ado(runs.find_all(ids))
    found = await journal.arun(run_search.matching(on, rows, filters.query, visible))
    return {row.id for row in found}


def _new_runs(ui: Ui, filters: Filters, number: int) -> str:
    if not number:
        return ""
    address = ui.url("/runs", **filters.address())
    return element("a", f"Show {count(number, 'new run')}", href=address, class_="button")
