"""What a step changed in a state, channel by channel."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage

from perdure.views.event_details import LONGEST, MOST_MESSAGES, ChangeKind, state_difference
from perdure.views.message_parts import Speaker

HOSTILE = "<script>alert(1)</script>"


def kinds(before: Any, after: Any) -> dict[str, str]:
    return {one.name: one.kind.value for one in state_difference(before, after)}


def test_channels_are_new_removed_changed_or_extended_and_equal_ones_are_left_out() -> None:
    before = {"same": {"a": [1]}, "gone": 1, "text": "a quick fox", "log": ["one"], "set": [1, 2]}
    after = {"same": {"a": [1]}, "new": 1, "text": "a slow fox", "log": ["one", "two"], "set": [2]}
    assert kinds(before, after) == {
        "gone": "removed",
        "text": "changed",
        "log": "extended",
        "set": "changed",
        "new": "new",
    }
    found = {one.name: one for one in state_difference(before, after)}
    assert found["log"].after == ["two"]
    assert "<del>quick</del><ins>slow</ins>" in (found["text"].difference or "")


def test_new_messages_are_shown_as_messages() -> None:
    asked, said = HumanMessage("hi", id="1"), AIMessage("hello", id="2")
    [change] = state_difference({"messages": [asked]}, {"messages": [asked, said]})
    assert change.kind is ChangeKind.EXTENDED
    assert [(one.speaker, one.text) for one in change.messages] == [(Speaker.AGENT, "hello")]
    [first] = state_difference({}, {"messages": [asked]})
    assert [one.text for one in first.messages] == ["hi"]
    many = [HumanMessage(str(n)) for n in range(MOST_MESSAGES + 3)]
    [long] = state_difference({}, {"messages": many})
    assert (len(long.messages), long.left_out) == (MOST_MESSAGES, 3)


def test_a_message_that_was_edited_is_compared_as_text() -> None:
    [change] = state_difference(
        {"messages": [AIMessage("hello you", id="2")]}, {"messages": [AIMessage("hello", id="2")]}
    )
    assert change.kind is ChangeKind.CHANGED
    assert "<del> you</del>" in (change.difference or "")


def test_what_was_written_is_escaped_and_very_long_texts_are_not_compared() -> None:
    [change] = state_difference({"a": HOSTILE}, {"a": f"{HOSTILE}!"})
    assert "<script" not in (change.difference or "")
    [long] = state_difference({"a": "x" * (LONGEST + 1)}, {"a": "y"})
    assert long.difference is None


class Stubborn:
    """A value that cannot be compared."""

    def __eq__(self, other: object) -> bool:
        raise TypeError("no")

    __hash__ = None  # type: ignore[assignment]

    def __str__(self) -> str:
        return "stubborn"


def test_values_that_refuse_to_be_compared_are_compared_as_text() -> None:
    assert kinds({"a": Stubborn()}, {"a": Stubborn()}) == {}


def test_a_state_that_is_not_a_mapping_is_one_channel() -> None:
    assert kinds(None, 3) == {"state": "changed"}
    assert kinds({}, "x") == {"state": "new"}
