"""Held runs, which only an operator decides. An approver sees why one is held, without buttons."""

from __future__ import annotations

from fastapi import Response

from perdure.server.caller import Scope
from perdure.server.own_api.access import find_run
from perdure.server.ui.answered import filters_of
from perdure.server.ui.page import UiDep, ui_router
from perdure.service.run_stakes import read_stakes
from perdure.service.runs import GRACE
from perdure.service.views.consequences import RunAction, consequence
from perdure.types import Run, State

router = ui_router()


@router.get("/held/{run_id}")
async def show(ui: UiDep, run_id: str) -> Response:
    """A held run: why, and what retrying and cancelling it would do."""
    ui.require(Scope.READ)
    await find_run(ui.api, run_id)
    run: Run = await ui.runtime.get(run_id, output=False)
    found = await ui.runtime.journal.arun(read_stakes([run]))
    says = {
        action.value: consequence(run, action, stakes, GRACE)
        for _, stakes in found
        for action in (RunAction.RETRY, RunAction.CANCEL)
    }
    return ui.page(
        "held.html",
        title=f"{run.graph} is {run.state}",
        section="inbox",
        run=run,
        is_held=run.state is State.HELD,
        says=says,
        filters=filters_of(ui),
    )


@router.post("/held/{run_id}/retry")
async def retry(ui: UiDep, run_id: str) -> Response:
    """Let a held run go on from its last step."""
    ui.require(Scope.ADMIN)
    await find_run(ui.api, run_id, "update")
    await ui.runtime.retry(run_id, by=ui.actor)
    return ui.redirect("/inbox", notice="It goes on from its last step.", **filters_of(ui))


@router.post("/held/{run_id}/cancel")
async def cancel(ui: UiDep, run_id: str) -> Response:
    """End a held run."""
    ui.require(Scope.ADMIN)
    await find_run(ui.api, run_id, "update")
    reason = (await ui.form()).get("reason").strip() or None
    await ui.runtime.cancel(run_id, by=ui.actor, reason=reason)
    return ui.redirect("/inbox", notice="It is cancelled.", **filters_of(ui))
