"""Saved work: what recovery did not repeat, and what crashes cost; by day, by graph, by run."""

from __future__ import annotations

from datetime import UTC, timedelta
from typing import Any

from fastapi import Response

from perdure.operations import saved
from perdure.operations.saved import RecoveredRun
from perdure.server.caller import Scope
from perdure.server.json_errors import ApiError
from perdure.server.own_api.access import find_run
from perdure.server.ui.lists import PAGE, as_cursor, from_cursor, require_every_thread
from perdure.server.ui.page import UiDep, ui_router
from perdure.service.saved import saved_by_run
from perdure.service.views.saved_days import saved_history, saved_plots
from perdure.times import LAST_MS, milliseconds, moment

router = ui_router()

TIMES = (7, 30, 90)
"""Days that can be chosen."""


@router.get("/saved")
async def totals(ui: UiDep, days: int = 30, behind: str = "") -> Response:
    await require_every_thread(ui)
    if days not in TIMES:
        raise ApiError(422, f"Choose one of {', '.join(map(str, TIMES))} days.")
    journal = ui.runtime.journal
    until = ui.now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    until += timedelta(days=1)
    since = until - timedelta(days=days)
    read = saved.saved_by_day(milliseconds(since), milliseconds(until))
    sums, counted_at = await ui.site.sums.get(f"saved {since}", lambda: journal.ado(read), ui.now)
    history = saved_history(sums, since.date(), (until - timedelta(days=1)).date())
    at = from_cursor(behind, int, str)
    position = (LAST_MS, "") if at is None else (int(at[0]), str(at[1]))
    found: list[RecoveredRun] = await journal.ado(saved.recovered(position, PAGE + 1))
    more = None
    if len(found) > PAGE:
        last = found[PAGE - 1]
        more = ui.url("/saved", days=days, behind=as_cursor((last.created_at, last.id)))
    return ui.page(
        "saved.html",
        title="Saved work",
        section="saved",
        days=days,
        times=TIMES,
        total=history.total,
        counted_at=min(counted_at, ui.now),
        lost=timedelta(milliseconds=history.total.lost_ms),
        graphs=[(name, one, timedelta(milliseconds=one.lost_ms)) for name, one in history.graphs],
        plots=saved_plots(history),
        runs=[_run(one) for one in found[:PAGE]],
        behind=behind,
        more=more,
    )


@router.get("/saved/run")
async def of_run(ui: UiDep, id: str) -> Response:
    """Each crash of a run."""
    ui.require(Scope.READ)
    row = await find_run(ui.api, id)
    found = await ui.runtime.journal.arun(saved_by_run(ui.runtime.services.runs, row.id))
    return ui.page(
        "saved_run.html", title=f"Crashes of {row.graph}", section="saved", run=row, found=found
    )


def _run(one: RecoveredRun) -> dict[str, Any]:
    return {
        **one._asdict(),
        "at": moment(one.created_at),
        "lost": timedelta(milliseconds=one.lost_ms),
    }
