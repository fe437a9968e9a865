"""Actions on one run: pause, resume, retry, wake, cancel.

Each is a form on the run's page, which says what it will do (`views/run_offers`).
"""

from __future__ import annotations

from fastapi import Response

from perdure.server.caller import Scope
from perdure.server.own_api.access import find_run
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.types import Run, State

router = ui_router()


@router.post("/runs/{run_id}/pause")
async def pause(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    run = await ui.runtime.pause(run_id, by=ui.actor)
    return _back(ui, run, "Paused." if run.state is State.PAUSED else ASKED)


@router.post("/runs/{run_id}/resume")
async def resume(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    return _back(ui, await ui.runtime.resume(run_id, by=ui.actor), "Resumed.")


@router.post("/runs/{run_id}/retry")
async def retry(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    return _back(ui, await ui.runtime.retry(run_id, by=ui.actor), "Retried.")


@router.post("/runs/{run_id}/wake")
async def wake(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    return _back(ui, await ui.runtime.wake(run_id, by=ui.actor), "Woken.")


@router.post("/runs/{run_id}/cancel")
async def cancel(ui: UiDep, run_id: str) -> Response:
    await _operate(ui, run_id)
    reason = (await ui.form()).get("reason").strip() or None
    run = await ui.runtime.cancel(run_id, reason=reason, by=ui.actor)
    undoing = "Cancelling: its effects are undone first."
    notices = {State.CANCELLED: "Cancelled.", State.RUNNING: ASKED}
    return _back(ui, run, notices.get(run.state, undoing))


ASKED = "The run stops after its current step."


async def _operate(ui: Ui, run_id: str) -> None:
    """Raise 403 or 404 unless the viewer may control this run."""
    ui.require(Scope.ADMIN)
    await find_run(ui.api, run_id, "update")


def _back(ui: Ui, run: Run, notice: str) -> Response:
    return ui.redirect(f"/runs/{run.id}", notice=notice)
