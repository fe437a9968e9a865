"""The form of a question: empty, or with what a person filled in. Pure.

A form sends `how`: `decisions` (one for each action), `form` (the fields of a schema), `text`,
`json` or `quick`. The answer is made here from all of these. Either it fits the question, or the
form has an error at the field concerned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from typing import Any

from perdure.commands.answer_dialects import check_fits
from perdure.errors import BadAnswer
from perdure.views.form_fields import LEFT_OUT, Field
from perdure.views.question import Question
from perdure.views.question_answers import Given, QuickAnswer, answer_of, quick_answers
from perdure.views.question_form import Posted, fill
from perdure.views.schema_form import make_form
from perdure.views.schema_parts import schema_of
from perdure.views.tool_calls import Action, Decision
from perdure.views.typed_values import Refused, json_in

EMPTY = "Write an answer."


@dataclass(frozen=True)
class ActionForm:
    """The decision about one action, complete or not."""

    n: int
    action: Action
    edit: Field | None
    """The fields of its arguments, if it may be edited."""
    decision: Decision | None = None
    reason: str = ""
    message: str = ""
    error: str = ""


@dataclass(frozen=True)
class AnswerForm:
    """The form of a question."""

    question: Question
    actions: tuple[ActionForm, ...] = ()
    form: Field | None = None
    """The fields of the question's schema."""
    quick: tuple[QuickAnswer, ...] = ()
    how: str = ""
    """Which part of the form was sent."""
    text: str = ""
    json: str = ""
    error: str = ""
    answer: Any = LEFT_OUT
    """The answer, once the form was sent and has no errors."""

    @property
    def is_good(self) -> bool:
        return self.answer is not LEFT_OUT


def empty_form(question: Question, zone: tzinfo = UTC) -> AnswerForm:
    """The empty form of a question."""
    if question.damaged is not None:
        return AnswerForm(question)
    actions = tuple(
        ActionForm(n, one, _edit_form(n, one, zone)) for n, one in enumerate(question.actions)
    )
    form = None
    if question.schema is not None and not actions:
        form = make_form(question.schema, shown=question.shown, zone=zone)
    return AnswerForm(question, actions, form, tuple(quick_answers(question)))


def filled_form(question: Question, value: Any, posted: Posted, zone: tzinfo = UTC) -> AnswerForm:
    """The form of a question with what was sent. `value` is what the question's wait shows."""
    form = replace(empty_form(question, zone), how=_first(posted, "how"))
    if question.damaged is not None:
        return replace(form, error=question.damaged)
    match form.how:
        case "decisions" if form.actions:
            form = _decided(form, posted, zone)
        case "form" if form.form is not None and question.schema is not None:
            filled = fill(form.form, posted, question.schema, zone)
            form = replace(form, form=filled.form)
            form = replace(form, answer=filled.value) if filled.is_good else form
        case "text" if question.schema is None and not form.actions:
            text = _first(posted, "text").replace("\r\n", "\n")
            form = replace(form, text=text, answer=text) if text.strip() else _wrong(form, EMPTY)
        case "json":
            form = _as_json(form, _first(posted, "json"))
        case "quick":
            form = _clicked(form, _first(posted, "quick"))
        case _:
            form = _wrong(form, "This question does not take what the form sent. Reload the page.")
    return _checked(form, value)


def _wrong(form: AnswerForm, error: str) -> AnswerForm:
    return replace(form, error=error)


def _checked(form: AnswerForm, value: Any) -> AnswerForm:
    """The form, with an error if its answer would be refused."""
    if not form.is_good:
        return form
    try:
        check_fits(form.question.id, value, form.question.schema, form.answer)
    except BadAnswer as error:
        said = str(error).partition(": ")[2].partition(" For example: perdure answer")[0]
        return replace(form, answer=LEFT_OUT, error=said)
    return form


def _as_json(form: AnswerForm, text: str) -> AnswerForm:
    try:
        return replace(form, json=text, answer=json_in(text))
    except Refused as error:
        return replace(form, json=text, error=str(error))


def _clicked(form: AnswerForm, key: str) -> AnswerForm:
    at = int(key) if key.isascii() and key.isdigit() and len(key) < 4 else len(form.quick)
    if at >= len(form.quick):
        return _wrong(form, "Choose one of the answers.")
    return replace(form, answer=form.quick[at].answer)


# -- decisions about actions


def _edit_form(n: int, action: Action, zone: tzinfo) -> Field | None:
    """The fields of an action's arguments."""
    if Decision.EDIT not in action.allowed:
        return None
    schema = _edit_schema(action)
    return make_form(schema, name=f"edit.{n}", start=dict(action.arguments), zone=zone)


def _edit_schema(action: Action) -> Mapping[str, Any]:
    return schema_of(action.arguments) if action.schema is None else action.schema


def _decided(form: AnswerForm, posted: Posted, zone: tzinfo) -> AnswerForm:
    made = [_read(one, posted, zone) for one in form.actions]
    form = replace(form, actions=tuple(one for one, _ in made))
    given = [one for _, one in made if one is not None]
    if len(given) < len(made):
        return form
    return replace(form, answer=answer_of(form.question, given))


def _read(form: ActionForm, posted: Posted, zone: tzinfo) -> tuple[ActionForm, Given | None]:
    """The decision about one action, if there is one without errors."""
    said = _first(posted, f"decision.{form.n}")
    decision = next((one for one in form.action.allowed if one == said), None)
    texts = [_first(posted, f"{name}.{form.n}") for name in ("reason", "message")]
    reason, message = (one.replace("\r\n", "\n").strip() for one in texts)
    form = replace(form, decision=decision, reason=reason, message=message)
    match decision:
        case None:
            why = "Choose one." if not said else f"{said!r} cannot be chosen here."
            return replace(form, error=why), None
        case Decision.EDIT if form.edit is not None:
            filled = fill(form.edit, posted, _edit_schema(form.action), zone)
            form = replace(form, edit=filled.form)
            return form, Given(decision, arguments=filled.value) if filled.is_good else None
        case Decision.RESPOND if not message:
            return replace(form, error=EMPTY), None
        case Decision.RESPOND:
            return form, Given(decision, message)
        case Decision.REJECT:
            return form, Given(decision, reason)
    return form, Given(decision)


def _first(posted: Posted, name: str) -> str:
    found = posted.get(name)
    return found[0] if found else ""
