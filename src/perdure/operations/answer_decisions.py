"""What a person decided by an answer: approved, edited, rejected or responded. Pure.

It is read from the well-known dialects, and from forms with a field for it. An answer whose meaning
is not clear gives no decision: that is better than a guess.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from perdure.operations.answer_dialects import dialect_of
from perdure.operations.answer_schema import as_json

Pair = tuple[str, str]
"""A text as it was shown, and as it was answered."""


class Verdict(StrEnum):
    """What a person decided."""

    APPROVED = "approved"
    EDITED = "edited"
    REJECTED = "rejected"
    RESPONDED = "responded"
    """Answered in words instead of deciding."""


class Decision(NamedTuple):
    """One decision of an answer."""

    label: Verdict
    distance: float | None = None
    """How much of the shown text was changed, from 0 to 1, if it was edited."""
    action: str | None = None
    """The tool it is about."""
    call: str | None = None
    """The id of the tool call."""
    comment: str | None = None


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
LONGEST_BY_WORDS = 100_000
"""Longer texts are compared line by line."""
LARGEST = 1_000_000
"""Two sequences are compared exactly if the product of their lengths is not more. Replaced parts of
a text are compared character by character while the sum of their products is not more."""
MOST_PAIRS = 100_000_000
"""Of larger sequences only the common beginning and end count as kept: the rest would take long."""


def decisions_in(value: Any, answer: Any) -> list[Decision]:
    """What an answer to a question decided: a decision for each action of a well-known dialect, or
    the only one; none if that is not clear."""
    given = as_json(answer)
    dialect = dialect_of(value)
    if dialect is not None:
        made = given.get(dialect.field) if dialect.field and isinstance(given, dict) else given
        made = [made] if isinstance(made, dict) else made
        asked = _actions(value)
        if not isinstance(made, list) or len(made) != len(asked):
            return []
        found = [_of_action(*one) for one in zip(asked, made, strict=True)]
        return [one for one in found if one is not None] if None not in found else []
    if isinstance(value, Mapping) and value.get("type") == "tool_approval":
        found = [_of_action(value, given)]
    else:
        found = [_of_form(value, given)]
    return [one for one in found if one is not None]


# -- the dialects


def _actions(value: Any) -> list[Mapping[str, Any]]:
    """The actions that a question of a dialect asks about."""
    if isinstance(value, Mapping) and "action_requests" in value:
        return list(value["action_requests"])
    items = [value] if isinstance(value, Mapping) else value
    return [item["action_request"] for item in items]


def _of_action(action: Mapping[str, Any], made: Any) -> Decision | None:
    if not isinstance(made, dict) or made.get("type") not in TYPES:
        return None
    label, name = TYPES[made["type"]], action.get("name", action.get("action"))
    distance, comment = None, made.get("message")
    if label is Verdict.EDITED:
        edited = made.get("edited_action", made.get("args"))
        distance = _distance(_changed_call(action, edited))
    elif label is Verdict.RESPONDED and "args" in made:
        comment = made["args"]
    return Decision(
        label,
        distance,
        name if isinstance(name, str) else None,
        call if isinstance(call := action.get("tool_call_id"), str) else None,
        comment if isinstance(comment, str) and comment else None,
    )


def _changed_call(action: Mapping[str, Any], edited: Any) -> Iterator[Pair]:
    """The name and each argument of a call, before and after."""
    if not isinstance(edited, dict):
        return
    inner = edited.get("args")
    before, after = action.get("args") or {}, inner if isinstance(inner, dict) else edited
    names = [one.get("name", one.get("action")) for one in (action, edited)]
    if isinstance(inner, dict) and names[1] is not None and names[0] != names[1]:
        yield _text(names[0]), _text(names[1])
    if isinstance(before, Mapping):
        for key in dict.fromkeys([*before, *after]):
            yield _text(before.get(key, "")), _text(after.get(key, ""))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(as_json(value), default=str)


# -- forms


def _of_form(value: Any, answer: Any) -> Decision | None:
    """The decision of a plain text, or of an object that says it in a field."""
    if isinstance(answer, str):
        word = WORDS.get(answer.strip().lower())
        # Without the new text there is no edit, without a text no response.
        is_half = word in (Verdict.EDITED, Verdict.RESPONDED)
        return None if word is None or is_half else Decision(word)
    if not isinstance(answer, dict):
        return None
    words = (_verdict(name, answer[name]) for name in answer)
    said = {word for word in words if word is not None}
    pairs = list(_edited_texts(value, answer))
    if said == {Verdict.APPROVED} and any(before != after for before, after in pairs):
        # "Approve" with another text is an edit, unless the form has its own word for edits.
        said = {Verdict.EDITED} if not _has_word(answer) else said
    if len(said) != 1:
        return None
    [label] = said
    comment = next((answer[name] for name in COMMENT_FIELDS if answer.get(name)), None)
    distance = _distance(pairs) if label is Verdict.EDITED else None
    return Decision(label, distance, comment=comment if isinstance(comment, str) else None)


def _has_word(answer: Mapping[str, Any]) -> bool:
    return any(_verdict(name, answer[name]) for name in WORD_FIELDS if name in answer)


def _verdict(name: str, given: Any) -> Verdict | None:
    """What one field of a form decides."""
    if name in WORD_FIELDS and isinstance(given, str):
        return WORDS.get(given.strip().lower())
    if name in FLAG_FIELDS and isinstance(given, bool):
        return Verdict.APPROVED if given else Verdict.REJECTED
    return None


def _edited_texts(value: Any, answer: Mapping[str, Any]) -> Iterator[Pair]:
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


# -- how much was changed


def _distance(pairs: Iterable[Pair]) -> float | None:
    """How much of these texts changed, taken together. None without texts."""
    kept = whole = 0
    for before, after in pairs:
        kept += _kept(before, after)
        whole += len(before) + len(after)
    return None if not whole else round(1 - 2 * kept / whole, 4)


def edit_distance(before: str, after: str) -> float:
    """How much of a text changed, from 0 (nothing) to 1 (all of it)."""
    return _distance([(before, after)]) or 0.0


def _kept(before: str, after: str) -> int:
    """The number of characters that both texts have, in the same order."""
    if before == after:
        return len(before)
    first = _common(before, after)
    rest = [text[first:] for text in (before, after)]
    last = _common(*(text[::-1] for text in rest))
    a, b = (_pieces(text[: len(text) - last]) for text in rest)
    # Without shortcuts it takes the product of both; with them it may miss what is frequent.
    if len(a) * len(b) > MOST_PAIRS:
        return first + last
    junk = len(a) * len(b) > LARGEST
    kept, left = first + last, LARGEST
    for tag, a1, a2, b1, b2 in difflib.SequenceMatcher(None, a, b, autojunk=junk).get_opcodes():
        old, new = "".join(a[a1:a2]), "".join(b[b1:b2])
        if tag == "equal":
            kept += len(old)
        elif tag == "replace" and len(old) * len(new) <= left:
            left -= len(old) * len(new)
            blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks()
            kept += sum(block.size for block in blocks)
    return kept


def _common(one: str, other: str) -> int:
    """How many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _pieces(text: str) -> list[str]:
    """A text in words, or in lines if it is long."""
    by_line = len(text) > LONGEST_BY_WORDS
    return text.splitlines(keepends=True) if by_line else re.findall(r"\S+\s*|\s+", text)
