"""Finds a question that the viewer may see or answer, with its run and its history; and where the
viewer goes after an answer, with the notice on that page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fastapi import Response

from perdure.commands import waits
from perdure.commands.waits import WaitRow
from perdure.errors import Error, NotFound
from perdure.server.authorization import Scope
from perdure.server.perdure_api.requests import allow_thread
from perdure.server.ui import display
from perdure.server.ui.inbox_items import InboxFilter, next_question
from perdure.server.ui.page import Form, Ui
from perdure.times import milliseconds
from perdure.types import EventKind, Kind, Run, Wait, WaitRecord
from perdure.views.answer_form import Verdict, verdicts_in
from perdure.views.event_wording import EventView, view_event
from perdure.views.question import End, Question, QuestionEnd, headline, question_end, question_of

MOST_EVENTS = 2000
"""Maximum number of events read to find those about one question."""
KINDS = (
    *(EventKind.WAIT, EventKind.ANSWER, EventKind.WITHDRAWN, EventKind.EXPIRED),
    *(EventKind.SIGNAL, EventKind.ASSIGNED, EventKind.COMMENT),
)


@dataclass(frozen=True)
class Found:
    """A question with its run and its answer, if it has one."""

    record: WaitRecord
    question: Question
    run: Run | None
    end: QuestionEnd
    newer: Wait | None = None
    """The question that its run asks now instead."""

    @property
    def is_open(self) -> bool:
        return self.end.end is End.OPEN


async def find_question(ui: Ui, wait_id: str, action: str = "read") -> Found:
    """A question that the viewer may read, or `update`. Raises `NotFound`."""
    row: WaitRow | None = await ui.runtime.journal.ado(waits.find(wait_id))
    if row is None or row.kind != Kind.HUMAN:
        raise NotFound("question", wait_id)
    await allow_thread(ui.api, row.thread_id, action, NotFound("question", wait_id))
    record = waits.to_record(ui.runtime.engine, row)
    run = await run_of(ui, record)
    asked = await ui.runtime.waits(run_id=row.run_id, kind="human", limit=2)
    newer = next((one for one in asked if one.id != row.id), None)
    state = None if run is None else run.state
    again = newer is not None
    end = question_end(record, state, ui.now, asks_again=again, viewer=str(ui.actor))
    return Found(record, question_of(record), run, end, newer)


async def run_of(ui: Ui, record: WaitRecord) -> Run | None:
    """The run that asks; None if it was deleted."""
    try:
        return await ui.runtime.get(record.run_id, output=False)
    except NotFound:
        return None


async def history(ui: Ui, found: Found) -> Sequence[tuple[datetime, EventView]]:
    """The history of a question, oldest first."""
    events = await ui.runtime.events(found.record.run_id, limit=MOST_EVENTS, kinds=KINDS)
    mine = [one for one in events if one.data.get("wait") == found.record.id]
    return [
        (one.at, view_event(one, format_time=lambda at: display.clock(at, ui.zone))) for one in mine
    ]


async def is_withdrawable(ui: Ui, record: WaitRecord) -> bool:
    """Whether the answer to a question can be withdrawn now."""
    answers = await ui.runtime.journal.ado(waits.answer_options_of(record.run_id))
    return record.id in answers and answers[record.id].can_withdraw


def posted(form: Form) -> dict[str, list[str]]:
    """The fields of a form, as the views of forms take them."""
    sent: dict[str, list[str]] = {}
    for name, text in form.pairs:
        sent.setdefault(name, []).append(text)
    return sent


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
    can_withdraw = ui.api.may(Scope.ANSWER) and await is_withdrawable(ui, found.record)
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
