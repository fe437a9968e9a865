"""The assignee of a question: claim, release, assign; and comments about it."""

from __future__ import annotations

from fastapi import Response

from perdure.errors import AlreadyAssigned, AnswerRefused
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.answered import filters_of
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.question_access import find_question

router = ui_router()

LONGEST_NAME = 200
LONGEST_COMMENT = 10_000


@router.post("/questions/{wait_id}/take")
async def take(ui: UiDep, wait_id: str) -> Response:
    """Claim a question; take one over only from the assignee that the form shows."""
    ui.require(Scope.ANSWER)
    if not ui.actor:
        raise ApiError(422, "This server does not know your name and cannot assign this to you.")
    return await _assign(ui, wait_id, ui.actor, (await ui.form()).get("from"), "Assigned to you.")


@router.post("/questions/{wait_id}/release")
async def release(ui: UiDep, wait_id: str) -> Response:
    """Release a question."""
    ui.require(Scope.ANSWER)
    holder = (await ui.form()).get("from")
    return await _assign(ui, wait_id, None, holder, "Released.")


@router.post("/questions/{wait_id}/hand-over")
async def hand_over(ui: UiDep, wait_id: str) -> Response:
    """Assign a question to another person."""
    ui.require(Scope.ANSWER)
    form = await ui.form()
    to = form.get("to").strip()
    if not to or len(to) > LONGEST_NAME:
        raise ApiError(422, "Enter the name of the new assignee.")
    return await _assign(ui, wait_id, to, form.get("from"), f"Assigned to {to}.")


@router.post("/questions/{wait_id}/comment")
async def comment(ui: UiDep, wait_id: str) -> Response:
    """Add a comment to the history of a question."""
    ui.require(Scope.ANSWER)
    found = await find_question(ui, wait_id, "update")
    text = (await ui.form()).get("text").strip()
    if not text or len(text) > LONGEST_COMMENT:
        raise ApiError(422, f"Enter a comment of up to {LONGEST_COMMENT:,} characters.")
    await ui.runtime.comment(found.record.run_id, text, wait_id=wait_id, by=ui.actor)
    return ui.redirect(f"/questions/{wait_id}", **filters_of(ui))


async def _assign(ui: Ui, wait_id: str, to: str | None, holder: str, notice: str) -> Response:
    await find_question(ui, wait_id, "update")
    try:
        await ui.runtime.assign(wait_id, to, by=ui.actor, expected=holder or None)
    except AlreadyAssigned as error:
        notice = f"Already assigned to {error.assignee}. Nothing was changed."
    except AnswerRefused:
        notice = ""  # the page says why
    return ui.redirect(f"/questions/{wait_id}", notice=notice, **filters_of(ui))
