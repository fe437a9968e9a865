"""After an answer: the next page, and the notice on it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fastapi import Response

from perdure.errors import Error
from perdure.server.authorization import Scope
from perdure.server.ui.inbox_filter import InboxFilter
from perdure.server.ui.inbox_pages import next_question
from perdure.server.ui.page import Ui
from perdure.server.ui.question_access import Found, find_question, is_withdrawable
from perdure.times import milliseconds
from perdure.views.answer_decisions import Verdict, verdicts_in
from perdure.views.question import Question, headline
from perdure.views.question_end import End

SENT: dict[Verdict, str] = {
    Verdict.APPROVED: "You approved",
    Verdict.EDITED: "You edited",
    Verdict.REJECTED: "You rejected",
    Verdict.RESPONDED: "You responded to",
}


@dataclass(frozen=True)
class Done:
    """What the viewer just did."""

    wait_id: str
    text: str
    can_withdraw: bool


async def go_on(ui: Ui, found: Found) -> Response:
    """The next page: the list, if the viewer came from there, or the next open question."""
    query = ui.request.query_params
    filters, done = InboxFilter.of(query), found.record.id
    if query.get("back") == "list":
        return ui.redirect("/inbox", done=done, after=query.get("after"), **filters.written)
    asked = found.record.created_at if not filters.expires else found.record.expires_at
    place = None if asked is None else (milliseconds(asked), done)
    after = await next_question(ui, filters, place)
    if after is None or after.id == done:
        return ui.redirect("/inbox", done=done, **filters.written)
    return ui.redirect(f"/questions/{after.id}", done=done, **filters.written)


def filters_of(ui: Ui) -> dict[str, str]:
    """The filter of the list that the viewer came from."""
    return InboxFilter.of(ui.request.query_params).written


async def just_done(ui: Ui) -> Done | None:
    """What the viewer just did, from the address. None if someone else answered."""
    wait_id = ui.request.query_params.get("done", "")
    if not wait_id:
        return None
    try:
        found = await find_question(ui, wait_id)
    except Error:
        return None
    if found.end.end is not End.ANSWERED or (found.record.answered_by or "") != ui.actor:
        return None
    can_withdraw = ui.may(Scope.ANSWER) and await is_withdrawable(ui, found.record)
    return Done(
        wait_id, said(found.question, found.record.value, found.record.answer), can_withdraw
    )


def said(question: Question, value: Any, answer: Any) -> str:
    """What an answer decided, in a sentence."""
    made = set(verdicts_in(value, answer))
    verb = SENT[made.pop()] if len(made) == 1 else "You answered"
    title = headline(question)
    return (
        f"{verb}: {title}."
        if title and not title.endswith(("?", ".", "…"))
        else f"{verb}: {title or 'a question'}"
    )
