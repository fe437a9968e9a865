"""Several questions decided at once: first a preview, then which answers were accepted."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response

from perdure.commands.answer_schema import as_json
from perdure.errors import Error
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.answered import filters_of
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.question_access import Found, find_question
from perdure.views.answer_decisions import Verdict
from perdure.views.formatting import count
from perdure.views.question import Question, headline
from perdure.views.question_answers import QuickAnswer, answer_for
from perdure.views.question_end import End

router = ui_router()

MOST = 100
"""Maximum number of questions decided at once."""
VERDICTS = {"approve": Verdict.APPROVED, "reject": Verdict.REJECTED}
NOT_ALIKE = "It cannot simply be approved or rejected. Open it and answer it."


@dataclass(frozen=True)
class Line:
    """One question of several."""

    id: str
    title: str
    question: Question | None = None
    answer: QuickAnswer | None = None
    """The answer to send."""
    problem: str = ""
    """Why it is not decided."""


@router.post("/inbox/several")
async def preview(ui: UiDep) -> Response:
    """Preview the answer to each question. Changes nothing."""
    ui.require(Scope.ANSWER)
    decision, reason, ids = await _asked(ui)
    lines = [await _line(ui, id, VERDICTS[decision], reason) for id in ids]
    return ui.page(
        "several.html",
        title=f"{decision.capitalize()} {count(len(lines), 'question')}?",
        section="inbox",
        lines=lines,
        sendable=[line for line in lines if line.answer is not None],
        decision=decision,
        filters=filters_of(ui),
    )


@router.post("/inbox/several/send")
async def send(ui: UiDep) -> Response:
    """Send the answers, and show which were accepted."""
    ui.require(Scope.ANSWER)
    decision, reason, ids = await _asked(ui)
    lines = [await _sent(ui, id, VERDICTS[decision], reason) for id in ids]
    return ui.page(
        "several_done.html",
        title=f"{sum(not line.problem for line in lines)} of {len(lines)} questions decided",
        section="inbox",
        lines=lines,
        decision=decision,
        filters=filters_of(ui),
    )


async def _asked(ui: Ui) -> tuple[str, str, list[str]]:
    form = await ui.form()
    ids, decision = list(dict.fromkeys(form.all("id"))), form.get("decision")
    if decision not in VERDICTS:
        raise ApiError(422, "Choose to approve or to reject.")
    if not ids:
        raise ApiError(422, "Select at least one question, and try again.")
    if len(ids) > MOST:
        raise ApiError(422, f"At most {MOST} questions can be decided at once.")
    return decision, form.get("reason").strip(), ids


async def _line(ui: Ui, id: str, verdict: Verdict, reason: str) -> Line:
    try:
        found = await find_question(ui, id, "update")
    except Error as error:
        return Line(id, "A deleted question", problem=str(error))
    return _line_of(found, verdict, reason)


def _line_of(found: Found, verdict: Verdict, reason: str) -> Line:
    question = found.question
    title = headline(question) or f"A question from {question.graph}"
    if not found.is_open:
        return Line(question.id, title, question, problem=f"{found.end.title}. {found.end.text}")
    answer = answer_for(question, verdict, reason)
    return Line(question.id, title, question, answer, "" if answer else NOT_ALIKE)


async def _sent(ui: Ui, id: str, verdict: Verdict, reason: str) -> Line:
    line = await _line(ui, id, verdict, reason)
    if line.answer is not None:
        try:
            await ui.runtime.answer(id, line.answer.answer, by=ui.actor)
        except Error as error:
            line = await _line(ui, id, verdict, reason)
            line = line if line.problem else Line(id, line.title, line.question, None, str(error))
    if line.problem and await _is_mine(ui, id, verdict, reason):
        return Line(id, line.title, line.question)
    return line


async def _is_mine(ui: Ui, id: str, verdict: Verdict, reason: str) -> bool:
    """Whether this person sent the same answer before, as with a form sent twice."""
    try:
        found = await find_question(ui, id)
    except Error:
        return False
    made = answer_for(found.question, verdict, reason)
    if made is None or found.end.end is not End.ANSWERED:
        return False
    same = as_json(found.record.answer) == as_json(made.answer)
    return bool(same) and (found.record.answered_by or "") == ui.actor
