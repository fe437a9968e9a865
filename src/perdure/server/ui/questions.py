"""The page of one question, and its answer.

An answer names the id of a question, which is a hash of what was shown. If the question has changed
or expired, or someone else answered first, a page says so and the answer is refused.
"""

from __future__ import annotations

from fastapi import Response

from perdure.commands.answer_schema import as_json
from perdure.errors import AnswerRefused, BadAnswer, WaitClosed
from perdure.server.authorization import Scope
from perdure.server.ui.answered import filters_of, go_on, just_done
from perdure.server.ui.page import Ui, UiDep, ui_router
from perdure.server.ui.question_access import (
    Found,
    find_question,
    history,
    is_withdrawable,
    posted,
)
from perdure.views.answer_decisions import verdicts_in
from perdure.views.answer_difference import differences, edited_calls
from perdure.views.answer_form import AnswerForm, empty_form, filled_form
from perdure.views.markup import Html
from perdure.views.question import Question, headline
from perdure.views.question_end import End
from perdure.views.tool_calls import Decision

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
        withdrawable=ui.may(Scope.ANSWER) and await is_withdrawable(ui, found.record),
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
