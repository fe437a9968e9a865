"""The difference between an answer and what was shown, before it is sent; and of texts, by word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.commands.answer_schema import as_json
from perdure.views.answer_form import AnswerForm
from perdure.views.markup import Html, element
from perdure.views.question import Action, Decision, Question
from perdure.views.schema_form import json_of

WORD = re.compile(r"\s+|\w+(?:[.,:@/-]\w+)*|[^\w\s]")
"""A word, spaces or a sign. A number, a date or an address is one word: its digits and parts are
not compared one by one."""
WORDS_COMPARED = 4000
"""Words of each text up to which two texts are compared word by word; line by line beyond."""
PAIRS_COMPARED = 100_000_000
"""Product of the lengths of two sequences up to which they are compared: about a second."""


def text_diff(before: str, after: str) -> Html:
    """The second text with what changed: removed words struck out, new ones underlined."""
    old, new = WORD.findall(before), WORD.findall(after)
    if len(old) > WORDS_COMPARED or len(new) > WORDS_COMPARED:
        old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    start = _common(old, new)
    end = _common(old[start:][::-1], new[start:][::-1])
    changed = _changes(old[start : len(old) - end], new[start : len(new) - end])
    return element("pre", "".join(new[:start]), *changed, "".join(new[len(new) - end :]))


def _common(old: Sequence[str], new: Sequence[str]) -> int:
    """How many words both begin with."""
    pairs = enumerate(zip(old, new, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(old), len(new)))


def _changes(old: Sequence[str], new: Sequence[str]) -> Iterator[object]:
    gone = come = ""
    if len(old) * len(new) > PAIRS_COMPARED:
        yield from _changed("".join(old), "".join(new))
        return
    # Words that are everywhere in a long text are not looked up, or it would take minutes.
    changes = difflib.SequenceMatcher(a=old, b=new).get_opcodes()
    for at, (kind, i, j, k, m) in enumerate(changes, 1):
        same = "".join(new[k:m])
        # A space between two changed words is part of the change: phrases stay together.
        if kind != "equal" or (same == " " and gone + come and at < len(changes)):
            gone, come = gone + "".join(old[i:j]), come + same
            continue
        yield from _changed(gone, come)
        yield same
        gone = come = ""
    yield from _changed(gone, come)


def _changed(gone: str, come: str) -> Iterator[object]:
    yield element("del", gone) if gone else None
    yield element("ins", come) if come else None


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
