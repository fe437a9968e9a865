"""The state of a thread as a conversation."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.views.conversation import Conversation, Turn, asked_in, conversation
from perdure.views.message_parts import Speaker, message_parts

CALL = {"name": "send_email", "args": {"to": "ana"}, "id": "c1"}
OBJECTS = [
    SystemMessage("Be brief."),
    HumanMessage("Write to Ana", id="h1"),
    AIMessage("On it.", tool_calls=[CALL], id="a1"),
    ToolMessage("sent", tool_call_id="c1", name="send_email"),
    AIMessage("Done."),
]
DICTS = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Write to Ana"},
    {
        "role": "assistant",
        "content": "On it.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "send_email", "arguments": '{"to": "ana"}'},
            }
        ],
    },
    {"role": "tool", "content": "sent", "tool_call_id": "c1", "name": "send_email"},
    {"role": "assistant", "content": "Done."},
]


def said(found: Conversation) -> list[tuple[str, str]]:
    return [(one.parts.speaker.value, one.parts.text) for one in found.bubbles]


@pytest.mark.parametrize("messages", [OBJECTS, DICTS, tuple(OBJECTS)])
@pytest.mark.parametrize("channel", ["messages", "chat"])
def test_messages_are_bubbles_in_order_with_each_result_at_its_call(
    messages: Any, channel: str
) -> None:
    found = conversation({channel: messages, "topic": "tea", "n": 7})
    assert said(found) == [
        ("system", "Be brief."),
        ("person", "Write to Ana"),
        ("agent", "On it."),
        ("agent", "Done."),
    ]
    [made] = found.bubbles[2].calls
    assert (made.call.name, made.call.arguments) == ("send_email", {"to": "ana"})
    assert made.brief == "to='ana'"
    assert made.result is not None
    assert (made.result.text, made.result.speaker) == ("sent", Speaker.TOOL)
    assert found.values == {"topic": "tea", "n": 7}
    assert (found.total, found.earlier) == (5, 0)


def test_a_state_that_is_only_messages_is_a_conversation_without_values() -> None:
    found = conversation(OBJECTS)
    assert len(found.bubbles) == 4
    assert found.values is None


@pytest.mark.parametrize("state", [{}, {"log": [1, 2]}, {"messages": []}, None, 7, "x", [1]])
def test_a_state_without_messages_has_only_values(state: Any) -> None:
    found = conversation(state)
    assert found.is_empty
    assert found.values == (state if isinstance(state, dict) else None)


def test_a_result_without_its_call_stands_alone_and_a_call_without_result_waits() -> None:
    lone = ToolMessage("late", tool_call_id="c9", name="x", status="error")
    found = conversation({"messages": [lone, AIMessage("", tool_calls=[CALL])]})
    assert said(found) == [("tool", "late"), ("agent", "")]
    assert found.bubbles[0].parts.is_error
    assert found.bubbles[1].calls[0].result is None


def test_two_calls_with_one_id_have_each_its_own_result() -> None:
    talk = [
        AIMessage("", tool_calls=[CALL]),
        ToolMessage("first", tool_call_id="c1"),
        AIMessage("", tool_calls=[CALL]),
        ToolMessage("second", tool_call_id="c1"),
    ]
    found = conversation({"messages": talk})
    results = [made.result.text for one in found.bubbles for made in one.calls if made.result]
    assert results == ["first", "second"]


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
    assert len(conversation({"messages": [odd]}).bubbles) == 1


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"messages": [{"role": "user", "content": " hi "}]}, "hi"),
        ({"messages": [HumanMessage("a"), HumanMessage([{"type": "text", "text": "b"}])]}, "b"),
        ({"messages": [HumanMessage("a"), AIMessage("b")]}, "a"),
        ({"messages": "hi"}, "hi"),
        ({"messages": ("user", "hi")}, "hi"),
        ({"messages": [("user", "hi")]}, "hi"),
        ({"messages": ("ai", "hi")}, ""),
        ({"messages": {"role": "user", "content": "hi"}}, "hi"),
        ([HumanMessage("hi")], "hi"),
        ({"topic": "tea"}, ""),
        (None, ""),
        (7, ""),
    ],
)
def test_what_a_person_said_to_a_run_is_in_its_input(given: Any, text: str) -> None:
    assert asked_in(given) == text


def started(*texts: Any) -> list[Turn]:
    return [
        Turn(f"r{n}", {"messages": [{"role": "user", "content": text}]} if text else None)
        for n, text in enumerate(texts)
    ]


TALK = [HumanMessage("a"), AIMessage("A"), HumanMessage("b"), AIMessage("B"), AIMessage("BB")]


@pytest.mark.parametrize(
    ("turns", "runs"),
    [
        (started("a", "b"), ["r0", "r0", "r1", "r1", "r1"]),
        (started("b"), [None, None, "r0", "r0", "r0"]),
        (started("a", None, "b"), ["r0", None, "r2", "r2", "r2"]),
        (started("a", "b", None), ["r0", "r0", "r1", None, None]),
        (started("b", "a"), ["r1", "r1", None, None, None]),
        (started(), [None] * 5),
    ],
)
def test_a_message_names_its_run_only_where_that_is_known(
    turns: list[Turn], runs: list[str | None]
) -> None:
    found = conversation({"messages": TALK}, turns)
    assert [one.run_id for one in found.bubbles] == runs


def test_the_same_words_twice_belong_to_two_runs() -> None:
    talk = [HumanMessage("yes"), AIMessage("1"), HumanMessage("yes"), AIMessage("2")]
    found = conversation({"messages": talk}, started("yes", "yes"))
    assert [one.run_id for one in found.bubbles] == ["r0", "r0", "r1", "r1"]
    assert [one.begins_run for one in found.bubbles] == [True, False, True, False]


def test_what_was_said_to_a_run_that_has_not_begun_is_queued() -> None:
    turns = [*started("a", "b"), Turn("r9", {"messages": "c"}, has_begun=False)]
    found = conversation({"messages": TALK}, turns)
    assert [(one.run_id, one.parts.text) for one in found.queued] == [("r9", "c")]
    assert found.bubbles[-1].run_id == "r1"
    assert conversation({}, [Turn("r", {"messages": "x"}, has_begun=False)]).queued


def test_a_long_conversation_is_shown_from_its_end_and_page_by_page() -> None:
    talk = [HumanMessage(str(n)) for n in range(25)]
    last = conversation({"messages": talk}, most=10)
    assert [one.parts.text for one in last.bubbles] == [str(n) for n in range(15, 25)]
    assert (last.earlier, last.total) == (15, 25)
    before = conversation({"messages": talk}, most=10, until=last.bubbles[0].number)
    assert [one.number for one in before.bubbles] == [*range(5, 15)]
    first = conversation({"messages": talk}, most=10, until=5)
    assert (len(first.bubbles), first.earlier) == (5, 0)
