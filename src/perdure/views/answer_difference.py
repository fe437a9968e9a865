"""The difference between an answer and what was shown, before it is sent. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from perdure.commands.answer_schema import as_json
from perdure.views.answer_form import AnswerForm
from perdure.views.field_texts import json_of
from perdure.views.markup import Html, element
from perdure.views.question import Question
from perdure.views.text_difference import text_diff
from perdure.views.tool_calls import Action, Decision


@dataclass(frozen=True)
class Difference:
    """One text or argument, before and after."""

    tool: str
    """The action it belongs to; empty if the question has none."""
    name: str
    before: str | None
    """None if it is new."""
    after: str | None
    """None if it was removed."""

    @property
    def html(self) -> Html:
        """The new text, with the changes marked."""
        if self.before is None:
            return element("pre", element("ins", self.after or ""))
        if self.after is None:
            return element("pre", element("del", self.before))
        return text_diff(self.before, self.after)


def differences(form: AnswerForm) -> list[Difference]:
    """The changes that a filled-in form makes to what the question showed."""
    if not form.is_good:
        return []
    if form.how == "decisions":
        return [*_of_actions(form)]
    shown, answer = form.question.shown, form.answer
    if not isinstance(shown, Mapping) or not isinstance(answer, Mapping):
        return []
    return [
        Difference("", key, shown[key], after)
        for key, after in answer.items()
        if isinstance(after, str) and isinstance(shown.get(key), str) and shown[key] != after
    ]


def _of_actions(form: AnswerForm) -> Iterator[Difference]:
    for one in form.actions:
        if one.decision is Decision.EDIT:
            yield from changed_arguments(
                one.action.tool, one.action.arguments, _edited_arguments(form.answer, one.n)
            )


def edited_calls(question: Question, answer: Any) -> list[Action]:
    """The calls that run with other arguments than the question showed, in an answer of any
    dialect. None of an answer that has another shape."""
    try:
        return [
            replace(action, arguments=_edited_arguments(answer, n), words="")
            for n, action in enumerate(question.actions)
            if _decision(answer, n)["type"] == Decision.EDIT
        ]
    except (TypeError, LookupError, AttributeError):
        return []


def _edited_arguments(answer: Any, n: int) -> Mapping[str, Any]:
    one = _decision(answer, n)
    found: Mapping[str, Any] = (one.get("edited_action") or one.get("args"))["args"]
    return found


def _decision(answer: Any, n: int) -> Any:
    """What an answer says about one action."""
    made = answer["decisions"] if isinstance(answer, Mapping) and "decisions" in answer else answer
    return made[n] if isinstance(made, list) else made


def changed_arguments(
    tool: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Difference]:
    """The arguments that differ."""
    for name in dict.fromkeys([*before, *after]):
        if name not in after:
            yield Difference(tool, name, _text(before[name]), None)
        elif name not in before:
            yield Difference(tool, name, None, _text(after[name]))
        elif not _same(before[name], after[name]):
            yield Difference(tool, name, _text(before[name]), _text(after[name]))


def _same(one: Any, other: Any) -> bool:
    return one is other or json_of(one) == json_of(other)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json_of(as_json(value))
