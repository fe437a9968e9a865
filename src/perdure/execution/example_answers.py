"""Answers of an example, for a run of an evaluation: no person is asked, and nothing is waited for.

Everything such a run waits for is due at once. A sleep or a deadline ends; a question gets the next
answer of the example, a wait for a signal the signal of that name. A wait without an answer or a
deadline fails the run. The answers are in the setup of the run, and its waits say how many of them
were given, so any driver goes on with the next one.
"""

from __future__ import annotations

from typing import Any, ClassVar

from perdure.errors import BadAnswer, Unanswered
from perdure.execution.segment_drive import Drive
from perdure.operations import waits
from perdure.operations.answer_dialects import check_fits
from perdure.operations.waits import WaitRow
from perdure.segments.evaluation_policy import EvaluationPolicy
from perdure.serde.serializer import Serializer
from perdure.types import Kind, WaitState


class ExampleAnswers:
    """The answers that a run of an evaluation can be given."""

    BY: ClassVar[str] = "example"

    def __init__(self, run_id: str, policy: EvaluationPolicy, given: int) -> None:
        self._run_id, self._policy, self._given = run_id, policy, given

    @classmethod
    def of(cls, drive: Drive, found: list[WaitRow]) -> ExampleAnswers | None:
        """The answers for this run. None if it is not part of an evaluation."""
        policy = drive.segment.evaluation
        if policy is None:
            return None
        given = sum(_is_question(wait) and wait.answered_by == cls.BY for wait in found)
        return cls(drive.row.id, policy, given)

    def take(self, wait: WaitRow, serializer: Serializer) -> tuple[Any] | None:
        """The answer to a wait, if the example has one. Raises `Unanswered` if it does not fit."""
        if wait.interrupt_id.startswith("breakpoint:"):
            return (None,)
        if wait.kind == Kind.SIGNAL and (name := wait.name or "") in self._policy.signals:
            return (self._policy.signals[name],)
        if not _is_question(wait) or self._given >= len(self._policy.answers):
            return None
        value, body = self._policy.answers[self._given], waits.load_body(serializer, wait)
        try:
            check_fits(wait.id, body.value, body.schema, value)
        except BadAnswer as error:
            asked = f"cannot be given answer {self._given + 1} of its example: {error}"
            raise Unanswered(self._run_id, asked, "Change the answer.") from error
        self._given += 1
        return (value,)

    def check(self, found: list[WaitRow]) -> None:
        """Raise `Unanswered` if the run still waits for something that nothing will answer."""
        for wait in found:
            if wait.state != WaitState.OPEN or wait.interrupt_id.startswith("effect:"):
                continue
            if wait.kind == Kind.HUMAN:
                asked = (
                    f"asks question {self._given + 1}, and its example has {self._given} answers"
                )
                raise Unanswered(self._run_id, asked, "Add one to Example(answers=[...]).")
            if wait.kind == Kind.SIGNAL:
                asked = f"waits for the signal {wait.name!r}, which its example does not have"
                hint = f"Add it: Example(signals={{{wait.name!r}: value}})."
                raise Unanswered(self._run_id, asked, hint)
            if wait.kind == Kind.RUN:
                raise Unanswered(
                    self._run_id, "waits for runs that have not ended", "Give join() a timeout=."
                )


def _is_question(wait: WaitRow) -> bool:
    return wait.kind == Kind.HUMAN and not wait.interrupt_id.startswith("breakpoint:")
