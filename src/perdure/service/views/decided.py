"""Decisions as lines: who decided what, about which question or call. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from perdure.operations.answer_decisions import decisions_in
from perdure.service.views.event_wording import EventView, FormatTime, view_event
from perdure.service.views.formatting import utc_time
from perdure.service.views.question import headline, question_of
from perdure.types import Decision, Event, EventKind, WaitRecord, WaitState

ACTOR = ("by", "via", "from")
"""Fields of an event that say who decided, through what and from where."""


@dataclass(frozen=True)
class DecisionLine:
    """One decision."""

    decision: Decision
    what: EventView
    """What was decided, without who did it."""
    verdict: str
    """The verdict of an answer that stands: `approved`, or several. Empty if it is not clear."""
    about: str
    """The question it is about, in a line."""
    answer: Any = None
    """The answer, if it still stands."""
    is_standing: bool = False

    @property
    def who(self) -> str:
        return str(self.decision.event.data.get("by") or "")

    @property
    def via(self) -> str:
        """How it was made; without a mark, from Python."""
        return str(self.decision.event.data.get("via") or "Python")

    @property
    def address(self) -> str:
        return str(self.decision.event.data.get("from") or "")

    @property
    def wait_id(self) -> str:
        return str(self.decision.event.data.get("wait") or "")

    @property
    def effect_key(self) -> str:
        is_effect = self.decision.event.kind == EventKind.SETTLED
        return str(self.decision.event.data.get("key") or "") if is_effect else ""


def decision_line(
    decision: Decision, wait: WaitRecord | None, *, format_time: FormatTime = utc_time
) -> DecisionLine:
    """A decision as a line. `wait` is its question, if it has one."""
    event = decision.event
    bare = {name: one for name, one in event.data.items() if name not in ACTOR}
    what = view_event(replace(event, data=bare), decision.run_id, format_time=format_time)
    standing = wait is not None and is_standing(event, wait)
    return DecisionLine(
        decision,
        what,
        verdict_of(event, wait),
        "" if wait is None else headline(question_of(wait)),
        wait.answer if wait is not None and standing else None,
        standing,
    )


def is_standing(event: Event, wait: WaitRecord) -> bool:
    """Whether an event is the current answer to its question; earlier ones were withdrawn."""
    is_answered = wait.state not in (WaitState.OPEN, WaitState.CLOSED)
    return event.kind == EventKind.ANSWER and is_answered and wait.answered_at == event.at


def verdict_of(event: Event, wait: WaitRecord | None) -> str:
    """The verdict of an answer, if it is clear and the answer still stands. Of an effect, how it
    was settled."""
    if event.kind == EventKind.SETTLED:
        return str(event.data.get("state") or "")
    if wait is None or not is_standing(event, wait) or wait.damaged is not None:
        return ""
    labels = [one.label.value for one in decisions_in(wait.value, wait.answer)]
    return ", ".join(dict.fromkeys(labels))
