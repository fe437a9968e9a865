"""The parts of messages in any stored format."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, ChatMessage, HumanMessage

from perdure.views.message_parts import Speaker, message_parts, messages_in

CALL = {"name": "send_email", "args": {"to": "ana"}, "id": "c1"}


def test_blocks_are_texts_thoughts_calls_or_named() -> None:
    parts = message_parts(
        AIMessage(
            [
                {"type": "thinking", "thinking": "Hm."},
                {"type": "text", "text": "Look:"},
                "and this",
                {"type": "tool_use", "id": "t", "name": "draw", "input": {"x": 1}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
                {"type": "file", "mime_type": "application/pdf", "filename": "a.pdf"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png"}},
                {"type": "reasoning", "summary": [{"text": "why"}]},
                {"type": "mystery"},
            ]
        )
    )
    assert parts.texts == ("Look:", "and this")
    assert parts.thoughts == ("Hm.", "why")
    assert [(one.id, one.name, one.arguments) for one in parts.calls] == [("t", "draw", {"x": 1})]
    assert parts.attachments == (
        "image",
        "file (application/pdf, a.pdf)",
        "image (image/png)",
        "mystery",
    )


def test_a_call_is_listed_once_though_a_provider_stores_it_twice() -> None:
    block = {"type": "tool_use", "id": "c1", "name": "send_email", "input": {}}
    assert len(message_parts(AIMessage([block], tool_calls=[CALL])).calls) == 1


def test_an_invalid_call_says_why() -> None:
    broken = {"name": "x", "args": "{", "id": "c", "error": "not JSON", "type": "invalid_tool_call"}
    parts = message_parts(AIMessage("", invalid_tool_calls=[broken]))
    assert [(one.name, one.problem) for one in parts.calls] == [("x", "not JSON")]


@pytest.mark.parametrize(
    ("message", "speaker", "name"),
    [
        (AIMessageChunk(content="x"), Speaker.AGENT, ""),
        (AIMessage("x", name="researcher"), Speaker.AGENT, "researcher"),
        (ChatMessage(content="x", role="critic"), Speaker.OTHER, "critic"),
        ({"type": "human", "content": "x"}, Speaker.PERSON, ""),
        ({"role": "developer", "content": "x"}, Speaker.SYSTEM, ""),
    ],
)
def test_each_speaker_is_named(message: Any, speaker: Speaker, name: str) -> None:
    parts = message_parts(message)
    assert (parts.speaker, parts.name, parts.text) == (speaker, name, "x")


@pytest.mark.parametrize(
    "odd",
    [
        {"role": "user", "content": None},
        {"role": "user", "content": 7},
        {"role": "user", "content": [None, 3, ["x"], {"type": 9}, {"type": "text", "text": 5}]},
        {"role": "assistant", "content": {}, "tool_calls": "x", "invalid_tool_calls": 3},
        {"role": "assistant", "content": "", "tool_calls": [7, {"function": {"arguments": "{"}}]},
        {"role": "tool", "content": "x", "tool_call_id": 9},
        {"type": "human", "content": "x", "id": 3, "name": ["x"]},
    ],
)
def test_a_message_with_odd_parts_is_still_shown(odd: Any) -> None:
    assert messages_in({"messages": [odd]})[0] == [odd]
    assert message_parts(odd).speaker is not Speaker.OTHER


def test_the_messages_of_a_state_are_in_its_channel_or_in_the_one_with_the_most() -> None:
    talk = [HumanMessage("a"), AIMessage("b")]
    assert messages_in({"messages": talk, "n": 1}) == (talk, {"n": 1})
    assert messages_in({"log": talk, "one": talk[:1]}) == (talk, {"one": talk[:1]})
    assert messages_in({"log": ["a"], "none": []}) == ((), {"log": ["a"], "none": []})
