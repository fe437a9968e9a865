"""LangGraph's message pieces as the v2 protocol's message events. Pure, no I/O.

    message-start {role, id}              content-block-start {index, content}
    content-block-delta {index, delta}    content-block-finish {index, content}
    message-finish {usage}

A message that was not streamed produces the same events at once. The arguments of a tool call are
sent as `block-delta` events with the arguments so far, which clients of every release understand.
Each is at least an eighth longer than the one before, so that long arguments are not sent a
thousand times. Every event has the id of its message, because several may be streamed at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, RemoveMessage, ToolMessage

ROLES = {"ai": "ai", "AIMessageChunk": "ai", "human": "human", "HumanMessageChunk": "human"}
"""Roles by message type; any other type has the role `system`."""
PARTS = {"text": "text", "reasoning": "reasoning"}
"""Blocks that are streamed as text, and the field that holds the text."""
CALLS = {"tool_call_chunk": "tool_call", "server_tool_call_chunk": "server_tool_call"}
"""Streamed blocks of tool calls, and the type of the finished block."""
HEAVY = frozenset({"args", "data", "base64", "output", "value"})
"""Large fields that are left out until a block is finished."""
REPLACED = "replaced"
"""Error code of a message that a later segment sends again."""

Data = dict[str, Any]


@dataclass
class _Block:
    index: int
    content: Data
    sent: int = 0
    """Characters of the arguments sent so far."""


@dataclass
class OpenMessage:
    """A message that is being streamed."""

    id: str
    first: int
    """The chunk that began it."""
    namespace: tuple[str, ...]
    node: str | None
    _blocks: dict[Any, _Block] = field(default_factory=dict)
    _usage: Data = field(default_factory=dict)
    _metadata: Data = field(default_factory=dict)

    def start(self, message: BaseMessage) -> Data:
        data: Data = {"event": "message-start", "role": ROLES.get(message.type, "system")}
        data["id"] = self.id
        metadata = message.response_metadata or {}
        hints = {"provider": metadata.get("model_provider"), "model": metadata.get("model_name")}
        hints = {name: value for name, value in hints.items() if value}
        if self.node is not None:
            hints["langgraph_node"] = self.node
        return data | ({"metadata": hints} if hints else {})

    def add(self, message: BaseMessage) -> Iterator[Data]:
        """The events for a piece of the message, or for all of it."""
        self._metadata.update(message.response_metadata or {})
        _add_usage(self._usage, getattr(message, "usage_metadata", None) or {})
        for position, block in enumerate(_blocks(message)):
            key = block.get("index")
            yield from self._add(("", block.get("type"), position) if key is None else key, block)

    def _add(self, key: Any, block: Data) -> Iterator[Data]:
        known = self._blocks.get(key)
        if known is None:
            known = self._blocks[key] = _Block(len(self._blocks), {})
            yield self._event("content-block-start", known.index, content=_skeleton(block))
        kind = block.get("type", "")
        _merge(known.content, block)
        if kind in PARTS and block.get(PARTS[kind]):
            delta = {"type": f"{kind}-delta", PARTS[kind]: block[PARTS[kind]]}
            yield self._event("content-block-delta", known.index, delta=delta)
        elif kind in CALLS:
            length = len(known.content.get("args") or "")
            if length > known.sent * 9 // 8:
                known.sent = length
                delta = {"type": "block-delta", "fields": dict(known.content)}
                yield self._event("content-block-delta", known.index, delta=delta)

    def finish(self) -> Iterator[Data]:
        for block in self._blocks.values():
            content = _finished(block.content)
            yield self._event("content-block-finish", block.index, content=content)
        data: Data = {"event": "message-finish", "message_id": self.id}
        if self._usage:
            data["usage"] = self._usage
        if self._metadata:
            data["metadata"] = self._metadata
        yield data

    def void(self) -> Data:
        """The event for a message that was cut off and will be sent again."""
        message = "This message was cut off, and comes again."
        return {"event": "error", "message_id": self.id, "message": message, "code": REPLACED}

    def _event(self, name: str, index: int, **parts: Any) -> Data:
        return {"event": name, "message_id": self.id, "index": index, **parts}


def is_sent(message: Any) -> bool:
    """Whether a message belongs on the channel `messages`. Tool results are on `tools`."""
    return isinstance(message, BaseMessage) and not isinstance(
        message, (ToolMessage, RemoveMessage)
    )


def is_last(message: BaseMessage) -> bool:
    """Whether this is the last piece of its message."""
    if not isinstance(message, BaseMessageChunk):
        return True
    return getattr(message, "chunk_position", None) == "last"


def _blocks(message: BaseMessage) -> list[Data]:
    try:
        blocks: list[Any] = list(message.content_blocks)
    except Exception:  # content that no provider's translator understands
        blocks = [{"type": "text", "text": str(message.text)}]
    invalid = getattr(message, "invalid_tool_calls", ())
    if not isinstance(message, BaseMessageChunk):
        blocks += [dict(one, type="invalid_tool_call") for one in invalid or ()]
    return [dict(one) for one in blocks if isinstance(one, dict)]


def _skeleton(block: Data) -> Data:
    """A block at its start, with the streamed fields empty."""
    kind = block.get("type", "")
    if kind in PARTS:
        return {**_without(block, {"index", "annotations"}), PARTS[kind]: ""}
    if kind in CALLS:
        return {**block, "args": ""}
    empty: Data = {"args": {}} if kind in CALLS.values() else {}
    return {**_without(block, HEAVY), **empty}


def _merge(content: Data, block: Data) -> None:
    """Add a piece of a block to its content so far."""
    streamed = PARTS.get(block.get("type", "")) or ("args" if block.get("type") in CALLS else "")
    for name, value in block.items():
        if name == streamed:
            content[name] = (content.get(name) or "") + (value or "")
        elif value is not None or name not in content:
            content[name] = value


def _finished(content: Data) -> Data:
    kind = content.get("type", "")
    if kind not in CALLS:
        return content
    try:
        args = json.loads(content.get("args") or "{}")
    except ValueError:
        error = "The arguments of the tool call are not JSON."
        return {**_without(content, {"index"}), "type": "invalid_tool_call", "error": error}
    return {**_without(content, {"index"}), "type": CALLS[kind], "args": args}


def _without(block: Data, names: frozenset[str] | set[str]) -> Data:
    return {name: value for name, value in block.items() if name not in names}


def _add_usage(total: Data, more: Any) -> None:
    for name, value in more.items():
        if isinstance(value, dict):
            _add_usage(total.setdefault(name, {}), value)
        elif isinstance(value, int):
            total[name] = total.get(name, 0) + value
