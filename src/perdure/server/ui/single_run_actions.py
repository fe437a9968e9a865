"""Actions on one run: pause, resume, retry, wake, cancel, and a signal to its thread.

Each is a form on the run's page, which says what it will do (`views/run_offers`).
"""

from __future__ import annotations

from typing import Any

from fastapi import Response

from perdure.server.authorization import Scope
from perdure.server.own_api.access import find_run
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.types import Run, State
from perdure.views.typed_values import Refused, json_in

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


@router.post("/runs/{run_id}/signal")
async def send_signal(ui: UiDep, run_id: str) -> Response:
    """Send a signal to the thread of a run. A form that is sent twice stores it once."""
    await _operate(ui, run_id)
    run = await ui.runtime.get(run_id)
    form = await ui.form()
    name, (value, problem) = form.get("name").strip(), _signal_value(form.get("value"))
    if not name:
        problem = "Give the signal a name."
    if problem:
        page = ui.page(
            "signal.html",
            title="Send a signal",
            section="runs",
            run=run,
            name=name,
            value_text=form.get("value"),
            problem=problem,
            signal_key=form.get("key"),
        )
        page.status_code = 422
        return page
    is_new = await ui.runtime.signal(run.thread_id, name, value, key=form.get("key") or None)
    sent = "was sent" if is_new else "had already been sent"
    return _back(ui, run, f"The signal {name} {sent}.")


def _signal_value(text: str) -> tuple[Any, str]:
    """The value of a signal as typed, JSON or else plain text; and why it is refused."""
    if not text.strip():
        return None, ""
    try:
        return json_in(text), ""
    except Refused:
        pass
    if text.lstrip()[:1] in "{[":
        return None, "This looks like JSON but is not valid. Correct it, or write plain text."
    return text.strip(), ""


ASKED = "The run stops after its current step."


async def _operate(ui: Ui, run_id: str) -> None:
    """Raise 403 or 404 unless the viewer may control this run."""
    ui.require(Scope.ADMIN)
    await find_run(ui.api, run_id, "update")


def _back(ui: Ui, run: Run, notice: str) -> Response:
    return ui.redirect(f"/runs/{run.id}", notice=notice)
