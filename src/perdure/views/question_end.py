"""Why a question no longer takes an answer, for the person who wanted to give one. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from perdure.types import ENDED, State, WaitRecord, WaitState


class End(StrEnum):
    """How a question ended."""

    OPEN = "open"
    ANSWERED = "answered"
    EXPIRED = "expired"
    TAKEN_BACK = "taken back"
    CHANGED = "changed"
    RUN_ENDED = "run ended"


@dataclass(frozen=True)
class QuestionEnd:
    """How a question ended, in words."""

    end: End
    title: str
    text: str


def question_end(
    record: WaitRecord, state: State | None, now: datetime, *, asks_again: bool, viewer: str = ""
) -> QuestionEnd:
    """How a question ended. `state` is that of its run; None if it was deleted. `asks_again`: the
    run has another open question. `viewer` is who is told."""
    late = record.expires_at is not None and record.expires_at <= now
    if record.state == WaitState.OPEN and not late:
        return QuestionEnd(End.OPEN, "Open", "It waits for an answer.")
    if record.state == WaitState.CLOSED:
        return _closed(state, asks_again)
    expired = record.expires_at is not None and (
        record.answered_at is None or record.answered_at >= record.expires_at
    )
    if record.answered_by == "clock" or (late and expired):
        text = "No answer came in time, so the agent continued without one."
        return QuestionEnd(End.EXPIRED, "This question has expired", text)
    if record.answered_by == "signal":
        text = f"The signal {record.name} came first, so the agent continued without an answer."
        return QuestionEnd(End.TAKEN_BACK, "The agent withdrew this question", text)
    who = record.answered_by or "Someone"
    who = "You" if viewer and who == viewer else who
    return QuestionEnd(End.ANSWERED, f"{who} answered this question", "The first answer counts.")


def _closed(state: State | None, asks_again: bool) -> QuestionEnd:
    if state is None:
        return QuestionEnd(End.RUN_ENDED, "The run is gone", "Its run was deleted.")
    if state in ENDED:
        text = f"Its run is {state}, so no answer is needed."
        return QuestionEnd(End.RUN_ENDED, f"The run is {state}", text)
    text = "The agent now wants to do something else, so this question takes no answer."
    if asks_again:
        text += " Answer the new question instead."
    return QuestionEnd(End.CHANGED, "This question has changed", text)
