"""What a step changed in the state of a run, channel by channel.

A list of messages is compared by message, so new ones are shown as messages; any other list shows
what was appended. The rest is compared as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.text import any_json
from perdure.views.markup import Html
from perdure.views.message_parts import MessageParts, is_message, message_parts
from perdure.views.text_difference import text_diff
from perdure.views.value_text import value_text

LONGEST = 20_000
"""Maximum length of the values that are compared."""
MOST_MESSAGES = 50
"""Maximum number of messages shown for one step."""


class ChangeKind(StrEnum):
    """How a channel changed."""

    ADDED = "new"
    REMOVED = "removed"
    CHANGED = "changed"
    EXTENDED = "extended"
    """Something was appended to a list."""


@dataclass(frozen=True)
class ChannelChange:
    """How one channel changed."""

    name: str
    kind: ChangeKind
    before: Any = None
    after: Any = None
    """The new value; for an extended list, only what was appended."""
    messages: tuple[MessageParts, ...] = ()
    """What was appended, if it is messages."""
    left_out: int = 0
    """How many more messages were appended."""
    difference: Html | None = None
    """The new text with what was removed and what was added, if both can be compared."""


def state_difference(before: Any, after: Any) -> list[ChannelChange]:
    """What changed from one state to the next. A state that is no mapping is one channel."""
    old = before if isinstance(before, Mapping) else {"state": before}
    new = after if isinstance(after, Mapping) else {"state": after}
    found: list[ChannelChange] = []
    for name in dict.fromkeys([*old, *new]):
        if name not in new:
            found.append(ChannelChange(str(name), ChangeKind.REMOVED, before=old[name]))
        elif name not in old:
            found.append(_added(str(name), new[name]))
        elif not _is_equal(old[name], new[name]):
            found.append(_changed(str(name), old[name], new[name]))
    return found


def _added(name: str, value: Any) -> ChannelChange:
    if _are_messages(value):
        return _said(name, ChangeKind.ADDED, value)
    return ChannelChange(name, ChangeKind.ADDED, after=value)


def _said(name: str, kind: ChangeKind, messages: Sequence[Any]) -> ChannelChange:
    shown = tuple(message_parts(one) for one in messages[:MOST_MESSAGES])
    left_out = max(0, len(messages) - MOST_MESSAGES)
    return ChannelChange(name, kind, after=list(messages), messages=shown, left_out=left_out)


def _changed(name: str, old: Any, new: Any) -> ChannelChange:
    if isinstance(old, list) and isinstance(new, list) and _begins_with(new, old):
        more = new[len(old) :]
        if _are_messages(more):
            return _said(name, ChangeKind.EXTENDED, more)
        return ChannelChange(name, ChangeKind.EXTENDED, before=old, after=more)
    texts = _text(old), _text(new)
    difference = text_diff(*texts) if max(map(len, texts)) <= LONGEST else None
    return ChannelChange(name, ChangeKind.CHANGED, old, new, difference=difference)


def _begins_with(new: Sequence[Any], old: Sequence[Any]) -> bool:
    pairs = zip(old, new, strict=False)
    return len(new) > len(old) and all(_is_equal(one, other) for one, other in pairs)


def _is_equal(one: Any, other: Any) -> bool:
    """Whether two values are equal; values of a user's own type may refuse to be compared."""
    try:
        return bool(one == other)
    except Exception:
        return _text(one) == _text(other)


def _are_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping | list | tuple) and not _are_messages(value):
        return any_json(value, indent=2)
    return value_text(value)
