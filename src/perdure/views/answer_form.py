"""The form of a question, and the answer that it gives in the question's dialect. Pure.

What a person decided (approved, edited, rejected or responded) is read from the well-known
dialects, and from forms with a field for it. An answer whose meaning is not clear gives no verdict:
that is better than a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from enum import StrEnum
from typing import Any

from perdure.commands.answer_dialects import check_fits, dialect_of
from perdure.commands.answer_schema import SchemaCheck, as_json
from perdure.errors import BadAnswer
from perdure.serde.redaction import HIDDEN
from perdure.views.question import Action, Decision, Dialect, Question
from perdure.views.question_form import Posted, Refused, fill, json_in
from perdure.views.schema_form import LEFT_OUT, Field, Widget, make_form, schema_of


class Verdict(StrEnum):
    """What a person decided."""

    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    """Answered in words instead of deciding."""


WORDS: Mapping[str, Verdict] = {
    **dict.fromkeys(("approve", "approved", "accept", "accepted"), Verdict.APPROVED),
    **dict.fromkeys(("edit", "edited"), Verdict.EDITED),
    **dict.fromkeys(
        ("reject", "rejected", "deny", "denied", "decline", "declined"), Verdict.REJECTED
    ),
    **dict.fromkeys(("respond", "response"), Verdict.RESPONDED),
}
TYPES: Mapping[str, Verdict] = {**WORDS, "ignore": Verdict.REJECTED}
"""What the dialects' decision types mean. Ignoring an item rejects it: its action is not done."""
WORD_FIELDS = ("type", "action", "decision", "verdict")
"""Fields of a form whose text may be one of the words."""
FLAG_FIELDS = ("ok", "approved", "approve", "accepted", "accept")
"""Fields of a form that say yes or no."""
TEXT_FIELDS = ("draft", "text", "body", "content", "edited")
"""Fields of a form that hold an edited text, if the question showed just one text."""
COMMENT_FIELDS = ("comment", "message", "reason", "feedback", "note")


def verdicts_in(value: Any, answer: Any) -> list[Verdict]:
    """What an answer to a question decided: a verdict for each action of a well-known dialect, or
    the only one; none if that is not clear."""
    answer = as_json(answer)
    dialect = dialect_of(value)
    if dialect is None:
        if isinstance(value, Mapping) and value.get("type") == "tool_approval":
            verdict = _of_action(answer)
        else:
            verdict = _of_form(value, answer)
        return [] if verdict is None else [verdict]
    answers = answer.get(dialect.field) if dialect.field and isinstance(answer, dict) else answer
    answers = [answers] if isinstance(answers, dict) else answers
    if not isinstance(answers, list) or len(answers) != _action_count(value):
        return []
    verdicts = [_of_action(one) for one in answers]
    clear = [verdict for verdict in verdicts if verdict is not None]
    return clear if len(clear) == len(verdicts) else []


def _action_count(value: Any) -> int:
    """How many actions a question of a dialect asks about."""
    if isinstance(value, Mapping):
        return len(value["action_requests"]) if "action_requests" in value else 1
    return len(value)


def _of_action(answer: Any) -> Verdict | None:
    return TYPES.get(str(answer.get("type"))) if isinstance(answer, dict) else None


def _of_form(value: Any, answer: Any) -> Verdict | None:
    """The verdict of a plain text, or of an object that says it in a field."""
    if isinstance(answer, str):
        word = WORDS.get(answer.strip().lower())
        # Without the new text there is no edit, without a text no response.
        return None if word in (Verdict.EDITED, Verdict.RESPONDED) else word
    if not isinstance(answer, dict):
        return None
    found = {verdict for name in answer if (verdict := _verdict(name, answer[name])) is not None}
    is_edited = any(before != after for before, after in _edited_texts(value, answer))
    if found == {Verdict.APPROVED} and is_edited and not _has_word(answer):
        return Verdict.EDITED  # "approve" with another text, where the form has no word for edits
    return found.pop() if len(found) == 1 else None


def _has_word(answer: Mapping[str, Any]) -> bool:
    return any(_verdict(name, answer[name]) for name in WORD_FIELDS if name in answer)


def _verdict(name: str, given: Any) -> Verdict | None:
    """What one field of a form decides."""
    if name in WORD_FIELDS and isinstance(given, str):
        return WORDS.get(given.strip().lower())
    if name in FLAG_FIELDS and isinstance(given, bool):
        return Verdict.APPROVED if given else Verdict.REJECTED
    return None


def _edited_texts(value: Any, answer: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The texts that were shown and that the answer has, too: by the same name, or the only one."""
    shown = dict(_texts(value))
    given = {name: text for name, text in _texts(answer) if text and name not in COMMENT_FIELDS}
    same = shown.keys() & given.keys()
    if same:
        yield from ((shown[name], given[name]) for name in given if name in same)
        return
    edits = [name for name in given if name in TEXT_FIELDS]
    if len(shown) == 1 and len(edits) == 1:
        yield next(iter(shown.values())), given[edits[0]]


def _texts(value: Any) -> Iterator[tuple[str, str]]:
    """The texts of an object by their names, those of objects in it too."""
    for name, one in value.items() if isinstance(value, Mapping) else ():
        if isinstance(one, str):
            yield str(name), one
        elif isinstance(one, Mapping):
            yield from _texts(one)


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
            form = (
                replace(form, text=text, answer=text)
                if text.strip()
                else replace(form, error=EMPTY)
            )
        case "json":
            form = _as_json(form, _first(posted, "json"))
        case "quick":
            form = _clicked(form, _first(posted, "quick"))
        case _:
            wrong = "This question does not take what the form sent. Reload the page."
            form = replace(form, error=wrong)
    return _checked(form, value)


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
        return replace(form, error="Choose one of the answers.")
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
