"""Workers: their state, the runs they drive and when the leases end; drain one."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Response

from perdure.commands import runs
from perdure.errors import NotFound
from perdure.server.authorization import Scope
from perdure.server.ui.lists import require_every_thread
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.times import maybe_moment
from perdure.types import DrivenRun, WorkerInfo, WorkerState

router = ui_router()

SHOWN = 20
"""Maximum number of runs listed for each worker."""
MOST = 100
"""Maximum number of workers on the page."""
HERE = (WorkerState.ALIVE, WorkerState.DRAINING)


@dataclass(frozen=True)
class Driven:
    """A run that a worker drives, and when its lease ends unless it is renewed."""

    run: DrivenRun
    lease_at: datetime | None


@router.get("/workers")
async def list_workers(ui: UiDep) -> Response:
    await require_every_thread(ui)
    return ui.page("workers.html", title="Workers", section="workers", **await _found(ui))


@router.get("/workers/list")
async def refreshed(ui: UiDep) -> Response:
    """The part of the page that refreshes itself."""
    await require_every_thread(ui)
    return ui.html(ui.fragment("parts/workers.html", **await _found(ui)))


@router.get("/workers/drain")
async def ask_drain(ui: UiDep, id: str) -> Response:
    ui.require(Scope.ADMIN)
    worker = await _find(ui, id)
    title = f"Drain {worker.host}, process {worker.pid}?"
    others = [one for one in await ui.runtime.workers() if one.id != id and one.state in HERE]
    return ui.page("worker_drain.html", title=title, section="workers", one=worker, others=others)


@router.post("/workers/drain")
async def drain(ui: UiDep) -> Response:
    ui.require(Scope.ADMIN)
    await ui.runtime.drain(ui.posted.get("id"), by=ui.actor)
    notice = "Drain requested. The worker claims nothing more and exits after its current steps."
    return ui.redirect("/workers", notice=notice)


async def _find(ui: Ui, id: str) -> WorkerInfo:
    for worker in await ui.runtime.workers():
        if worker.id == id:
            return worker
    raise NotFound("worker", id)


async def _found(ui: Ui) -> dict[str, Any]:
    """The workers, live ones first, each with its first runs."""
    every = await ui.runtime.workers()
    every.sort(key=lambda one: one.state not in HERE)
    shown = every[:MOST]
    ids = [run.run_id for one in shown for run in one.runs[:SHOWN]]
    rows = await ui.runtime.journal.ado(runs.find_all(ids)) if ids else []
    leases = {row.id: maybe_moment(row.due_at) for row in rows}
    return {
        "workers": [
            (one, [Driven(run, leases.get(run.run_id)) for run in one.runs[:SHOWN]])
            for one in shown
        ],
        "left": len(every) - len(shown),
        "alive": sum(one.state in HERE for one in every),
    }
