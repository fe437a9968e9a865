"""What a person decided by an answer: approved, edited, rejected or responded. Pure.

It is read from the well-known dialects, and from forms with a field for it. An answer whose meaning
is not clear gives no verdict: that is better than a guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

from perdure.commands.answer_dialects import dialect_of
from perdure.commands.answer_schema import as_json


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
