"""Questions of a segment: LangGraph's interrupts, stored as waits of the run."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

from perdure.commands import waits
from perdure.commands.effects import Owner
from perdure.commands.events import change
from perdure.commands.waits import Body, Question
from perdure.commands.webhooks import Endpoint
from perdure.execution.progress import Progress
from perdure.journal import Op, Statement
from perdure.journal.clock import Clock
from perdure.times import LATEST, milliseconds
from perdure.types import Kind


class Interrupt(Protocol):
    """What LangGraph hands to a saver for each interrupt."""

    value: Any
    id: str
    response_schema: Any


class Answered(NamedTuple):
    """A question of a task, and its answer."""

    kind: Kind
    value: Any
    number: int
    """How many questions the task had asked before."""
    answer: Any


class Questions:
    """The questions of one segment."""

    def __init__(
        self,
        owner: Owner,
        progress: Progress,
        clock: Clock,
        *,
        announced: Sequence[Endpoint] = (),
        at_once: bool = False,
    ) -> None:
        """`announced`: who gets a message of the outbox about each new question for a person.
        `at_once`: whether every wait is due now, as in an evaluation."""
        self._owner, self._progress, self._clock = owner, progress, clock
        self._announced, self._at_once = announced, at_once
        self._expected: dict[str, list[tuple[Interrupt, Question]]] = {}
        self._depths: dict[str, tuple[int, int]] = {}
        self._answered: dict[str, list[Answered]] = {}  # by task
        self._used: dict[tuple[str, int], set[int]] = {}  # by task and attempt
        self.reached_top = False
        """Whether an interrupt reached the top of the graph: the run is about to wait."""
        self.in_command: Collection[str] = ()
        """Waits whose answers LangGraph gives to whichever task asks first. One that is asked again
        did not get its own."""

    def expect(self, interrupt: Interrupt, question: Question) -> None:
        """Say what an interrupt that is about to reach the saver waits for."""
        self._expected.setdefault(interrupt.id, []).append((interrupt, question))

    def _expectation(self, interrupt: Interrupt) -> Question:
        """What an interrupt waits for. Two questions of a task may have one id."""
        said = self._expected.get(interrupt.id, [])
        same = [question for one, question in said if one is interrupt]
        if same or said:
            return same[0] if same else said[-1][1]
        return _question(interrupt.value)

    def note_answer(self, task_id: str, answered: Answered) -> None:
        """Say what a task has asked, and what it was answered."""
        known = self._answered.setdefault(task_id, [])
        known.append(answered)
        known.sort(key=lambda one: one.number)

    def place_answer(
        self, task: tuple[str, int], index: int, given: list[Any], kind: Kind, value: Any
    ) -> None:
        """Put the answer to this question where LangGraph reads it, or take away that of another.

        LangGraph answers the n-th question of a task with its n-th answer, also if the task, run
        again, asks something else there. `task` is its id and the attempt at it; `given` are the
        answers as LangGraph has them.
        """
        known, used = self._answered.get(task[0], []), self._used.setdefault(task, set())
        free = [n for n, one in enumerate(known) if n not in used and one.kind is kind]
        equal = [n for n in free if self._is_same(known[n].value, value)]
        # Times may be computed again; sleeps are interchangeable.
        found = equal or (free if kind is Kind.CLOCK else [])
        if found and index <= len(given):
            used.add(found[0])
            given[index : index + 1] = [known[found[0]].answer]
        elif any(one.number == index for one in known):
            del given[index:]

    def _is_same(self, one: Any, other: Any) -> bool:
        with contextlib.suppress(Exception):  # an array does not say yes or no
            if bool(one == other):
                return True
        encode = self._progress.serializer.encode
        return bool(encode(one, "a question") == encode(other, "a question"))

    def ask(
        self, interrupts: Sequence[Interrupt], before: list[Any], place: dict[str, Any]
    ) -> list[Statement]:
        """The statements that store a task's interrupts as waits, for the batch of its writes."""
        self._progress.note_question()
        if place["ns"] == "":
            self.reached_top = True
        statements = []
        depth = (len(place["ns"]), len(place["path"]))
        for one in interrupts:
            # A parent repeats the interrupts of its child; the wait belongs to the child.
            if depth < self._depths.get(one.id, depth):
                continue
            self._depths[one.id] = depth
            schema = one.response_schema if isinstance(one.response_schema, dict) else None
            question, body = self._expectation(one), Body(one.value, schema, before)
            statements += self._ask(question, body, one.id, place)
        return statements

    def ask_for_run(
        self, question: Question, value: Any, interrupt_id: str, checkpoint_id: str = ""
    ) -> Op[None]:
        """Store a wait of the run itself, not of one of its tasks."""
        place = {"ns": "", "checkpoint_id": checkpoint_id, "task_id": "", "path": "", "stamp": 0}
        asked = self._ask(question, Body(value, None, []), interrupt_id, place)
        return self._owner.fenced(*asked)

    def _ask(
        self, question: Question, body: Body, interrupt_id: str, place: dict[str, Any]
    ) -> list[Statement]:
        made = change(self._owner.thread_id, self._owner.run_id, self._clock.now())
        if self._at_once and not interrupt_id.startswith("effect:"):  # that one is really retried
            question = _without_time(question, made.now)
        token, progress = self._owner.token, self._progress
        return waits.ask(
            progress.serializer,
            made,
            token,
            question,
            body,
            interrupt_id,
            place,
            progress.fingerprint,
            announced=self._announced if question.kind is Kind.HUMAN else (),
            reopened=self.in_command,
        )


def _without_time(question: Question, now: int) -> Question:
    """The same question, due now. What had a deadline keeps one."""
    if question.expires_at is not None:
        return question._replace(expires_at=now)
    return question._replace(wake_at=now)


def _question(value: Any) -> Question:
    """What a plain `interrupt(value)` waits for: the clock if it has a `wake_at`, else a person."""
    at = value.get("wake_at") if isinstance(value, dict) else None
    try:
        if isinstance(at, str):
            at = datetime.fromisoformat(at)
        elif isinstance(at, (int, float)) and not isinstance(at, bool):
            at = datetime.fromtimestamp(at, UTC)
        if isinstance(at, datetime) and at.tzinfo is None:
            at = at.astimezone()
    except (ValueError, OverflowError, OSError):  # not a time
        at = None
    if isinstance(at, datetime):
        return Question(Kind.CLOCK, wake_at=min(milliseconds(at), milliseconds(LATEST)))
    return Question(Kind.HUMAN)
