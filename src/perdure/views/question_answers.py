"""A person's decisions as an answer in the question's dialect. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.commands.answer_schema import SchemaCheck
from perdure.serde.redaction import HIDDEN
from perdure.views.answer_decisions import Verdict, verdicts_in
from perdure.views.form_fields import Field, Widget
from perdure.views.question import Dialect, Question
from perdure.views.schema_form import make_form
from perdure.views.tool_calls import Action, Decision

MOST_QUICK = 4
"""Maximum number of choices shown as buttons in a list."""
LONGEST_LABEL = 40
"""Maximum length of a choice on a button."""
HALF = (Verdict.EDITED, Verdict.RESPONDED)
"""Decisions that require a text."""


@dataclass(frozen=True)
class Given:
    """A person's decision about one action."""

    decision: Decision
    message: str = ""
    """The reason of a rejection, or the words of a response."""
    arguments: Mapping[str, Any] | None = None
    """All arguments of an edited call."""


@dataclass(frozen=True)
class QuickAnswer:
    """An answer that takes one click."""

    label: str
    answer: Any
    verdict: Verdict | None
    """Its verdict, if clear."""


def answer_of(question: Question, given: Sequence[Given]) -> Any:
    """The answer with these decisions, one for each action."""
    make = _response if question.dialect is Dialect.AGENT_INBOX else _decision
    made = [make(action, one) for action, one in zip(question.actions, given, strict=True)]
    if question.dialect is Dialect.REVIEW:
        return {"decisions": made}
    return made[0] if question.dialect is Dialect.CALL else made


def _decision(action: Action, given: Given) -> dict[str, Any]:
    """A decision of `HumanInTheLoopMiddleware`."""
    if given.decision is Decision.EDIT:
        edited = {"name": action.tool, "args": dict(given.arguments or {})}
        return {"type": "edit", "edited_action": edited}
    if given.decision is Decision.RESPOND or given.message:
        return {"type": given.decision.value, "message": given.message}
    return {"type": given.decision.value}


def _response(action: Action, given: Given) -> dict[str, Any]:
    """A response of the Agent Inbox. Its own page sends the request back when it is accepted."""
    match given.decision:
        case Decision.EDIT:
            args: Any = {"action": action.tool, "args": dict(given.arguments or {})}
            return {"type": "edit", "args": args}
        case Decision.RESPOND:
            return {"type": "response", "args": given.message}
        case Decision.APPROVE:
            args = {"action": action.tool, "args": dict(action.arguments)}
            return {"type": "accept", "args": None if action.note or HIDDEN in str(args) else args}
    return {"type": "ignore", "args": None}


# -- one-click answers


def quick_answers(question: Question) -> list[QuickAnswer]:
    """The one-click answers to a question."""
    if question.damaged is not None:
        return []
    if question.actions:
        return [one for one in (_approval(question), _refusal(question)) if one is not None]
    if question.dialect is Dialect.BREAKPOINT:
        return [QuickAnswer("Go on", True, Verdict.APPROVED)]
    return [] if question.schema is None else _choices(question, question.schema)


def answer_for(question: Question, verdict: Verdict, reason: str = "") -> QuickAnswer | None:
    """The answer that approves or rejects a whole question. None if there is not exactly one: then
    a person has to open it."""
    if question.actions and question.damaged is None:
        return _refusal(question, reason) if verdict is Verdict.REJECTED else _approval(question)
    found = [one for one in quick_answers(question) if one.verdict is verdict]
    return found[0] if len(found) == 1 else None


def _approval(question: Question) -> QuickAnswer | None:
    if not question.can_all(Decision.APPROVE):
        return None
    return _for_all(question, Given(Decision.APPROVE), Verdict.APPROVED)


def _refusal(question: Question, reason: str = "") -> QuickAnswer | None:
    if question.can_all(Decision.REJECT):
        return _for_all(question, Given(Decision.REJECT, reason), Verdict.REJECTED)
    if question.can_all(Decision.SKIP):
        return _for_all(question, Given(Decision.SKIP), Verdict.REJECTED)
    return None


def _for_all(question: Question, given: Given, verdict: Verdict) -> QuickAnswer:
    answer = answer_of(question, [given] * len(question.actions))
    every = " all" if len(question.actions) > 1 else ""
    return QuickAnswer(f"{given.decision.value.capitalize()}{every}", answer, verdict)


def _choices(question: Question, schema: Mapping[str, Any]) -> list[QuickAnswer]:
    """The choices of a form that needs only one choice."""
    form, check = make_form(schema), SchemaCheck(schema)
    field = _only_choice(form)
    if field is None or len(field.choices) > MOST_QUICK:
        return []
    if any(len(choice.label) > LONGEST_LABEL for choice in field.choices):
        return []
    found = []
    for choice in field.choices:
        answer = {field.key: choice.value} if field is not form else choice.value
        verdict = next(iter(verdicts_in(question.shown, answer)), None)
        if verdict not in HALF and not check.faults(answer):
            found.append(QuickAnswer(choice.label, answer, verdict))
    return found


def _only_choice(form: Field) -> Field | None:
    """The only required field of a form, if it has choices."""
    if form.widget is Widget.RADIO:
        return form
    needed = [one for one in form.fields if one.required and one.widget is not Widget.FIXED]
    is_only = form.widget is Widget.GROUP and len(needed) == 1
    return needed[0] if is_only and needed[0].widget is Widget.RADIO else None
