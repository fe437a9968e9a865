"""Health: the verdict and its signs, the size of the journal, and the doctor on demand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fastapi import Response

from perdure.commands.counts import MOST, first_signs
from perdure.commands.live import count_questions
from perdure.server.authorization import Scope
from perdure.server.ui.lists import require_every_thread
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.times import milliseconds
from perdure.types import Kind, WorkerInfo, WorkerState
from perdure.views.health_report import (
    HealthFacts,
    WorkerCount,
    health_report,
)

router = ui_router()


@router.get("/health")
async def show(ui: UiDep) -> Response:
    await require_every_thread(ui)
    return ui.page(
        "health.html",
        title="Health",
        section="health",
        report=health_report(await _facts(ui)),
    )


@router.get("/health/signs")
async def signs(ui: UiDep) -> Response:
    """The part of the page that refreshes itself."""
    await require_every_thread(ui)
    report = health_report(await _facts(ui))
    return ui.html(ui.fragment("parts/health_signs.html", report=report))


async def _facts(ui: Ui) -> HealthFacts:
    rt, journal = ui.runtime, ui.runtime.journal
    oldest = await rt.waits(kind=Kind.HUMAN, limit=1)
    return HealthFacts(
        ui.now,
        await journal.ado(first_signs(milliseconds(ui.now))),
        await journal.ado(count_questions(MOST)),
        oldest[0].created_at if oldest else None,
        await rt.run_counts(MOST),
        _count(await rt.workers()),
        rt.retention,
        rt.engine.failures.failing,
    )


def _count(workers: Sequence[WorkerInfo]) -> WorkerCount:
    states = Counter(one.state for one in workers)
    alive, draining = states[WorkerState.ALIVE], states[WorkerState.DRAINING]
    return WorkerCount(alive, states[WorkerState.SILENT] + states[WorkerState.DEAD], draining)


@router.post("/health/doctor")
async def doctor(ui: UiDep) -> Response:
    """Check the invariants. A form and not a link, because it reads the whole journal."""
    ui.require(Scope.ADMIN)
    found = await ui.runtime.doctor()
    return ui.page("doctor.html", title="Doctor", section="health", found=found)
