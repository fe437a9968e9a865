"""The page of one question, its answer, its assignee and comments; and several questions at once.

An answer names the id of a question, which is a hash of what was shown. If the question has changed
or expired, or someone else answered first, a page says so and the answer is refused. Several are
previewed first; then a page says which answers were accepted.
"""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import Response

from perdure.commands.answer_schema import as_json
from perdure.errors import AlreadyAssigned, AnswerRefused, BadAnswer, Error, WaitClosed
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.question_access import (
    Found,
    filters_of,
    find_question,
    go_on,
    history,
    is_withdrawable,
    just_done,
    posted,
)
from perdure.views.answer_difference import differences, edited_calls
from perdure.views.answer_form import (
    AnswerForm,
    QuickAnswer,
    Verdict,
    answer_for,
    empty_form,
    filled_form,
    verdicts_in,
)
from perdure.views.formatting import count
from perdure.views.markup import Html
from perdure.views.question import Decision, End, Question, headline

router = ui_router()

NOT_SENT = frozenset({"csrf", "step"})


@router.get("/questions/{wait_id}")
async def show(ui: UiDep, wait_id: str) -> Response:
    ui.require(Scope.READ)
    found = await find_question(ui, wait_id)
    if not found.is_open:
        return await _over(ui, found)
    return await _open_page(ui, found, empty_form(found.question, ui.zone))


@router.post("/questions/{wait_id}/answer")
async def answer(ui: UiDep, wait_id: str) -> Response:
    """Send an answer, or show what it changes first."""
    ui.require(Scope.ANSWER)
    found, sent = await find_question(ui, wait_id, "update"), posted(await ui.form())
    form = filled_form(found.question, found.record.value, sent, ui.zone)
    if found.is_open and (not form.is_good or sent.get("step") == ["edit"]):
        page = await _open_page(ui, found, form)
        page.status_code = 200 if form.is_good else 422
        return page
    if found.is_open and sent.get("step") != ["send"] and needs_preview(form):
        send_to = ui.url(f"/questions/{wait_id}/answer", **filters_of(ui))
        return preview(ui, form, send_to, "inbox")
    return await send(ui, found, form)


async def send(ui: Ui, found: Found, form: AnswerForm) -> Response:
    """Store an answer. The same answer by the same person again is not an error."""
    try:
        if form.is_good:
            await ui.runtime.answer(found.record.id, form.answer, by=ui.actor)
    except BadAnswer:
        raise
    except AnswerRefused:
        found = await find_question(ui, found.record.id)
    else:
        if found.is_open:
            return await go_on(ui, found)
    if is_same(ui, found, form):
        return await go_on(ui, found)
    page = await _over(ui, found, refused=True)
    page.status_code = 409
    return page


def is_same(ui: Ui, found: Found, form: AnswerForm) -> bool:
    """Whether a question has this answer already, from this person."""
    record = found.record
    if found.end.end is not End.ANSWERED or (record.answered_by or "") != ui.actor:
        return False
    return form.is_good and bool(as_json(record.answer) == as_json(form.answer))


@router.post("/questions/{wait_id}/difference")
async def difference(ui: UiDep, wait_id: str) -> Response:
    """What an edit would change, while it is typed."""
    ui.require(Scope.ANSWER)
    found = await find_question(ui, wait_id)
    form = filled_form(found.question, found.record.value, posted(await ui.form()), ui.zone)
    return ui.html(difference_part(ui, form))


@router.post("/questions/{wait_id}/withdraw")
async def withdraw(ui: UiDep, wait_id: str) -> Response:
    """Withdraw an answer that the run has not used."""
    ui.require(Scope.ANSWER)
    await find_question(ui, wait_id, "update")
    await ui.runtime.withdraw(wait_id, by=ui.actor)
    said = "Answer withdrawn. The question is open again."
    return ui.redirect(f"/questions/{wait_id}", notice=said)


@router.post("/questions/{wait_id}/ask-again")
async def ask_again(ui: UiDep, wait_id: str) -> Response:
    """Have a damaged question asked again, by answering it: the answer is refused."""
    ui.require(Scope.ANSWER)
    found = await find_question(ui, wait_id, "update")
    try:
        if found.question.damaged is not None:
            await ui.runtime.answer(wait_id, None, by=ui.actor)
    except WaitClosed:
        return ui.redirect("/inbox", notice="The run asks again. The question will be back soon.")
    return ui.redirect(f"/questions/{wait_id}")


# -- pages


async def _open_page(ui: Ui, found: Found, form: AnswerForm) -> Response:
    return ui.page(
        "question.html",
        title=title_of(found.question),
        section="inbox",
        question=found.question,
        run=found.run,
        form=form,
        history=await history(ui, found),
        done=await just_done(ui),
        filters=filters_of(ui),
    )


def title_of(question: Question) -> str:
    """The heading of an open question."""
    title = headline(question) or "A question"
    return f"Approve {title}?" if question.can_all(Decision.APPROVE) else title


async def _over(ui: Ui, found: Found, *, refused: bool = False) -> Response:
    verdicts = verdicts_in(found.record.value, found.record.answer)
    return ui.page(
        "question_over.html",
        title=found.end.title,
        section="inbox",
        question=found.question,
        record=found.record,
        run=found.run,
        end=found.end,
        verdict=", ".join(dict.fromkeys(verdicts)),
        edited=edited_calls(found.question, found.record.answer),
        newer=found.newer,
        refused=refused,
        withdrawable=ui.api.may(Scope.ANSWER) and await is_withdrawable(ui, found.record),
        history=await history(ui, found),
        done=await just_done(ui),
        filters=filters_of(ui),
    )


def preview(ui: Ui, form: AnswerForm, send_to: str, section: str = "") -> Response:
    """What an answer changes, before it is sent to `send_to`."""
    return ui.page(
        "question_preview.html",
        title="Check your changes",
        section=section,
        send_to=send_to,
        found=differences(form),
        calls=edited_calls(form.question, form.answer),
        others=_other_decisions(form),
        fields=[(name, text) for name, text in ui.posted.pairs if name not in NOT_SENT],
    )


def difference_part(ui: Ui, form: AnswerForm) -> Html:
    """What an edit changes so far. If it is the whole answer, it can be sent from there: the
    person sees what a preview would show."""
    found = differences(form)
    return ui.fragment("parts/difference.html", found=found, sends=len(form.actions) == 1)


def needs_preview(form: AnswerForm) -> bool:
    """Whether an answer changes something that the person should see before it is sent."""
    is_edit = form.how == "decisions" and any(one.decision is Decision.EDIT for one in form.actions)
    return is_edit or bool(differences(form))


def _other_decisions(form: AnswerForm) -> list[str]:
    if form.how != "decisions":
        return []
    made = [(one.action.tool, one.decision) for one in form.actions]
    return [f"{tool}: {one.value}" for tool, one in made if one not in (None, Decision.EDIT)]


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
    """The answer to send_several."""
    problem: str = ""
    """Why it is not decided."""


@router.post("/inbox/several")
async def preview_several(ui: UiDep) -> Response:
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
async def send_several(ui: UiDep) -> Response:
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
