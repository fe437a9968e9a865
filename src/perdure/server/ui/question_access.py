"""Finds a question that the viewer may see or answer, with its run and its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from perdure.commands import waits
from perdure.commands.waits import Answer, WaitRow
from perdure.errors import NotFound
from perdure.server.own_api.access import allow_thread
from perdure.server.ui import display
from perdure.server.ui.page import Form, Ui
from perdure.types import EventKind, Kind, Run, Wait, WaitRecord
from perdure.views.event_wording import EventView, view_event
from perdure.views.question import Question, question_of
from perdure.views.question_end import End, QuestionEnd, question_end

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
    plan = waits.answers_of(ui.runtime.engine, record.run_id)
    answers: dict[str, Answer] = await ui.runtime.journal.arun(plan)
    return record.id in answers and answers[record.id].can_withdraw


def posted(form: Form) -> dict[str, list[str]]:
    """The fields of a form, as the views of forms take them."""
    sent: dict[str, list[str]] = {}
    for name, text in form.pairs:
        sent.setdefault(name, []).append(text)
    return sent
