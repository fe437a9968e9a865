"""The parts of a message in any stored format: speaker, texts, tool calls.

LangChain's message objects and plain dicts, `{"role": …, "content": …}` or `{"type": …}`, with a
text or a list of content blocks. Nothing here trusts the content: any part may have any type.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from perdure.text import any_json


class Speaker(StrEnum):
    """Who says a message."""

    PERSON = "person"
    AGENT = "agent"
    TOOL = "tool"
    SYSTEM = "system"
    """The instructions of the agent."""
    OTHER = "other"


SPEAKERS: Mapping[str, Speaker] = {
    "human": Speaker.PERSON,
    "user": Speaker.PERSON,
    "ai": Speaker.AGENT,
    "assistant": Speaker.AGENT,
    "tool": Speaker.TOOL,
    "function": Speaker.TOOL,
    "system": Speaker.SYSTEM,
    "developer": Speaker.SYSTEM,
    "chat": Speaker.OTHER,
}
"""By LangChain's types and OpenAI's roles; a piece of a streamed message ends with MessageChunk."""
CHANNEL = "messages"
"""The channel that holds the messages of most graphs."""
ATTACHMENTS = {"image_url": "image", "input_audio": "audio", "media": "file", "document": "file"}
"""Content blocks whose type differs from what they are."""


@dataclass(frozen=True)
class Call:
    """A tool call that a message asks for."""

    id: str
    name: str
    arguments: Any
    problem: str = ""
    """Why it cannot be made."""


@dataclass(frozen=True)
class MessageParts:
    """The parts of one message."""

    speaker: Speaker
    id: str = ""
    name: str = ""
    """Of the tool, or of one of several agents."""
    texts: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    attachments: tuple[str, ...] = ()
    """Content that is not shown, in words: `image (image/png)`."""
    calls: tuple[Call, ...] = ()
    answers: str = ""
    """The id of the call whose result it is."""
    is_error: bool = False

    @property
    def text(self) -> str:
        return "\n\n".join(self.texts)


def is_message(value: Any) -> bool:
    """Whether a value is a message."""
    if isinstance(value, Mapping):
        kind = value.get("role", value.get("type"))
        return isinstance(kind, str) and _speaker(kind) is not None and "content" in value
    kind = getattr(value, "type", None)
    return isinstance(kind, str) and hasattr(value, "content")


def messages_in(state: Mapping[str, Any]) -> tuple[Sequence[Any], dict[str, Any]]:
    """The messages of a state, and its other channels. They are in the channel `messages`, or else
    in the one with the most."""
    found = {name: one for name, one in state.items() if _are_messages(one)}
    if not found:
        return (), dict(state)
    channel = CHANNEL if CHANNEL in found else max(found, key=lambda name: len(found[name]))
    return found[channel], {name: one for name, one in state.items() if name != channel}


def _are_messages(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(is_message, value))


def message_parts(message: Any) -> MessageParts:
    """The parts of a message."""
    get = _getter(message)
    kind = get("role") if isinstance(get("role"), str) else get("type")
    texts: list[str] = []
    thoughts: list[str] = []
    attachments: list[str] = []
    calls = [*_calls(get("tool_calls")), *_invalid_calls(get("invalid_tool_calls"))]
    for block in _blocks(get("content")):
        if isinstance(block, str):
            texts.append(block)
        elif (call := _call_in(block)) is not None:
            calls += [call] if call.id not in {one.id for one in calls} else []
        elif thought := _thought_in(block):
            thoughts.append(thought)
        else:
            attachments.append(_attachment(block))
    speaker = _speaker(kind) or Speaker.OTHER
    return MessageParts(
        speaker,
        _text(get("id")),
        _text(get("name")) or (_text(get("role")) if speaker is Speaker.OTHER else ""),
        tuple(one for one in texts if one.strip()),
        tuple(thoughts),
        tuple(attachments),
        tuple(calls),
        _text(get("tool_call_id")),
        get("status") == "error",
    )


def _getter(message: Any) -> Any:
    if isinstance(message, Mapping):
        return message.get
    return lambda name: getattr(message, name, None)


def _speaker(kind: Any) -> Speaker | None:
    if not isinstance(kind, str):
        return None
    return SPEAKERS.get(kind) or SPEAKERS.get(kind.removesuffix("MessageChunk").lower())


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _blocks(content: Any) -> list[Any]:
    """The parts of a content: texts, and the blocks that are something else."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    blocks = content if isinstance(content, list | tuple) else [content]
    return [_text_in(one) for one in blocks]


def _text_in(block: Any) -> Any:
    if isinstance(block, Mapping) and block.get("type") in ("text", "output_text", "input_text"):
        return _text(block.get("text"))
    return block


def _thought_in(block: Any) -> str:
    """The model's reasoning, from the blocks that contain it."""
    if not isinstance(block, Mapping) or block.get("type") not in ("reasoning", "thinking"):
        return ""
    found = block.get("reasoning", block.get("thinking", block.get("summary")))
    if isinstance(found, list):
        found = "\n".join(_text(one.get("text")) for one in found if isinstance(one, Mapping))
    return _text(found) or "(hidden by the model's provider)"


def _call_in(block: Any) -> Call | None:
    """The tool call in a block of a provider's own format."""
    if not isinstance(block, Mapping) or block.get("type") not in ("tool_use", "tool_call"):
        return None
    arguments = block.get("input", block.get("args"))
    return Call(_text(block.get("id")), _text(block.get("name")), arguments)


def _calls(given: Any) -> list[Call]:
    """Tool calls as LangChain stores them, or as OpenAI sends them."""
    found = []
    for one in given if isinstance(given, Sequence) and not isinstance(given, str) else ():
        if not isinstance(one, Mapping):
            continue
        function = one.get("function")
        if isinstance(function, Mapping):
            arguments = _parsed(function.get("arguments"))
            found.append(Call(_text(one.get("id")), _text(function.get("name")), arguments))
        else:
            found.append(Call(_text(one.get("id")), _text(one.get("name")), one.get("args")))
    return found


def _invalid_calls(given: Any) -> list[Call]:
    if not isinstance(given, list | tuple):
        return []
    return [
        Call(
            _text(one.get("id")),
            _text(one.get("name")),
            one.get("args"),
            _text(one.get("error")) or "its arguments are not valid",
        )
        for one in given
        if isinstance(one, Mapping)
    ]


def _parsed(text: Any) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else text
    except (ValueError, RecursionError):
        return text


def _attachment(block: Any) -> str:
    """Something that is not text, in a few words."""
    if not isinstance(block, Mapping):
        return any_json(block)[:200]
    kind = _text(block.get("type")) or "part"
    kind = ATTACHMENTS.get(kind, kind.removeprefix("input_"))
    source = block.get("source")
    inner = source if isinstance(source, Mapping) else {}
    facts = [
        _text(place.get(name))
        for place in (block, inner)
        for name in ("mime_type", "media_type", "filename", "title")
    ]
    said = ", ".join(dict.fromkeys(one for one in facts if one))
    return f"{kind} ({said})" if said else kind
