"""Chunks of a thread's runs as frames of the v2 protocol. Pure, no I/O.

`seq` numbers the frames of a thread. It is computed from what is stored, so it is the same in every
process and at any time:

    bits 33 to 52   number of the run on its thread, from 1; never reused
    bits 9 to 32    number of the chunk in the run; 0 is the beginning of the run
    bits 0 to 8     number of the frame within that chunk

The numbers have gaps, which the protocol and its clients expect, since streams are filtered by
channel. They fit the 53 bits of a JavaScript number. Frame 0 of a chunk is the `lifecycle` event
that says the run goes on; frame 511 says how it came to rest after that chunk: completed, failed or
interrupted. A chunk with more than 509 other frames (a message of 170 blocks) reuses 510 for the
last ones.

To send the frames after a `seq`, the run is read from its beginning, including what was replaced up
to there, and earlier frames are skipped. Output that a segment replaces is not sent to readers that
connect later. A reader that has already seen it gets an `error` for each message that was cut off,
and then a second `running`, which begins the segment.

A message is several frames:

    message-start {role, id}              content-block-start {index, content}
    content-block-delta {index, delta}    content-block-finish {index, content}
    message-finish {usage}

One that was not streamed produces the same events at once. The arguments of a tool call are
sent as `block-delta` events with the arguments so far, which clients of every release understand.
Each is at least an eighth longer than the one before, so that long arguments are not sent a
thousand times. Every event has the id of its message, because several may be streamed at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk, RemoveMessage, ToolMessage

from perdure.commands.streams import SEGMENT
from perdure.server.agent_api.run_reader import INTERRUPT, interrupts_in
from perdure.times import moment
from perdure.types import Chunk

MODES = ("values", "updates", "messages", "custom", "tasks", "checkpoints")
"""The stream modes kept for a run that this protocol starts."""
CHUNK_BITS, FRAME_BITS = 24, 9
GOES_ON, LAST_FRAME, RESTS = 0, 510, 511
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
Namespace = tuple[str, ...]
EPOCH = moment(0)


def seq_of(run: int, chunk: int, frame: int) -> int:
    """The number of a frame; `run` is the run's number on its thread."""
    chunk = min(chunk, (1 << CHUNK_BITS) - 1)
    return (((run << CHUNK_BITS) + chunk) << FRAME_BITS) + frame


def run_of(seq: int) -> int:
    """The number of the run that a frame belongs to."""
    return seq >> (CHUNK_BITS + FRAME_BITS)


def chunk_of(seq: int) -> int:
    """The number of the chunk that a frame belongs to."""
    return (seq >> FRAME_BITS) & ((1 << CHUNK_BITS) - 1)


def is_rest(seq: int) -> bool:
    """Whether a frame says how a run came to rest."""
    return seq & RESTS == RESTS


@dataclass(frozen=True)
class Frame:
    """One event of the protocol. Its number and time are set when all of its chunk are known."""

    method: str
    namespace: Namespace
    data: Any
    node: str | None = None
    seq: int = 0
    at: datetime = EPOCH

    @property
    def channel(self) -> str:
        """The channel it is sent on."""
        if self.method == "input.requested":
            return "input"
        name = self.data.get("name") if self.method == "custom" else None
        return f"custom:{name}" if isinstance(name, str) and name else self.method

    def wire(self) -> Data:
        params: Data = {"namespace": list(self.namespace)}
        params["timestamp"] = int(self.at.timestamp() * 1000)
        if self.node is not None:
            params["node"] = self.node
        params["data"] = self.data
        event = {"type": "event", "event_id": str(self.seq), "seq": self.seq}
        return {**event, "method": self.method, "params": params}


class RunFrames:
    """Turns the chunks of one run, in order, into frames."""

    def __init__(self, number: int, graph: str) -> None:
        self._number, self._graph = number, graph
        self._last, self._rests = 0, False
        self._messages: dict[str, OpenMessage] = {}
        self._sent: dict[tuple[str, Namespace | str], int] = {}
        """What was sent, and the number of its chunk: subgraphs that have `started` or `ended`, by
        their namespaces; calls of a `tool` and questions that were `asked`, by their ids."""

    def begin(self, at: datetime) -> Frame:
        """The frame that begins the run."""
        return self._frame(0, GOES_ON, self._lifecycle("running"), at)

    def rest(
        self, event: str, at: datetime, *, error: str | None = None, values: Any = None
    ) -> list[Frame]:
        """The frames of a run at rest: completed, failed or interrupted. `values` is its state, for
        a run whose chunks were not kept."""
        self._rests = True
        ends = [part for one in list(self._messages.values()) for part in self._close(one)]
        if values is not None:
            chunk = Chunk(self._last, "values", (), values, at)
            ends += [*self._requests(chunk), *self._values(chunk)]
        frames = self._numbered(ends, at, first=LAST_FRAME - min(len(ends), LAST_FRAME - 1))
        more = {} if error is None else {"error": error}
        last = self._frame(self._last, RESTS, self._lifecycle(event, **more), at)
        return [*frames, last]

    def note_rest(self) -> None:
        """Note that the reader has seen the `rest` frames after the last chunk."""
        self._rests = True

    def feed(self, chunk: Chunk) -> list[Frame]:
        """The frames of a chunk, on all channels."""
        rested, self._rests, self._last = self._rests, False, chunk.n
        frames = []
        if rested or chunk.mode == SEGMENT:
            frames.append(self._frame(chunk.n, GOES_ON, self._lifecycle("running"), chunk.at))
        return frames + self._numbered(list(self._parts(chunk)), chunk.at)

    def _numbered(self, parts: list[Frame], at: datetime, first: int = 1) -> list[Frame]:
        return [
            self._frame(self._last, min(first + k, LAST_FRAME), part, at)
            for k, part in enumerate(parts)
        ]

    def _frame(self, chunk: int, k: int, part: Frame, at: datetime) -> Frame:
        return replace(part, seq=seq_of(self._number, chunk, k), at=at)

    def _lifecycle(self, event: str, **more: Any) -> Frame:
        return Frame("lifecycle", (), {"event": event, "graph_name": self._graph, **more})

    def _parts(self, chunk: Chunk) -> Iterator[Frame]:
        yield from self._subgraphs_begun(chunk)
        match chunk.mode:
            case "segment":
                yield from self._replaced(chunk)
            case "messages":
                yield from self._message(chunk)
            case "values":
                yield from self._requests(chunk)
                yield from self._values(chunk)
            case "updates":
                yield from self._requests(chunk)
                yield from self._updates(chunk)
            case "tasks":
                yield from self._task(chunk)
            case "custom":
                is_named = isinstance(chunk.data, dict) and "name" in chunk.data
                data = chunk.data if is_named else {"payload": chunk.data}
                yield Frame("custom", chunk.namespace, data)
            case "checkpoints":
                yield from self._checkpoint(chunk)

    # -- messages

    def _message(self, chunk: Chunk) -> Iterator[Frame]:
        message, metadata = chunk.data
        if isinstance(message, ToolMessage):
            yield from self._tool_result(chunk, message)
        if not is_sent(message):
            return
        node = metadata.get("langgraph_node") if isinstance(metadata, dict) else None
        open = self._messages.get(message.id)
        if open is None:
            open = OpenMessage(message.id or f"message-{chunk.n}", chunk.n, chunk.namespace, node)
            self._messages[open.id] = open
            yield Frame("messages", chunk.namespace, open.start(message), node)
        for data in open.add(message):
            yield Frame("messages", chunk.namespace, data, node)
        if is_last(message):
            yield from self._close(open)

    def _close(self, message: OpenMessage) -> Iterator[Frame]:
        del self._messages[message.id]
        for data in message.finish():
            yield Frame("messages", message.namespace, data, message.node)

    def _replaced(self, chunk: Chunk) -> Iterator[Frame]:
        first = chunk.replaces_from
        if first is None:
            return
        for message in [one for one in self._messages.values() if one.first >= first]:
            del self._messages[message.id]
            yield Frame("messages", message.namespace, message.void(), message.node)
        self._sent = {sent: n for sent, n in self._sent.items() if n < first}

    # -- state

    def _values(self, chunk: Chunk) -> Iterator[Frame]:
        data = chunk.data
        if isinstance(data, dict) and INTERRUPT in data:
            data = {name: value for name, value in data.items() if name != INTERRUPT}
            if not data:
                return
        yield Frame("values", chunk.namespace, data)

    def _updates(self, chunk: Chunk) -> Iterator[Frame]:
        data = chunk.data if isinstance(chunk.data, dict) else {}
        for node, values in data.items():
            for message in list(self._messages.values()):
                if (message.namespace, message.node) == (chunk.namespace, node):
                    yield from self._close(message)  # some models do not mark the last piece
            if node != INTERRUPT:
                values = values if isinstance(values, dict) else {"value": values}
                yield Frame("updates", chunk.namespace, {"node": node, "values": values}, node)

    def _requests(self, chunk: Chunk) -> Iterator[Frame]:
        for one in interrupts_in(chunk):
            id, value, schema = _shown(one)
            if self._is_first("asked", id, chunk):  # a graph repeats those of its subgraphs
                data = {"interrupt_id": id, "payload": value, "value": value}
                if schema is not None:
                    data["response_schema"] = schema
                yield Frame("input.requested", chunk.namespace, data)

    def _checkpoint(self, chunk: Chunk) -> Iterator[Frame]:
        config, parent = chunk.data.get("config"), chunk.data.get("parent_config")
        metadata = chunk.data.get("metadata") or {}
        data = {"id": _checkpoint_id(config), "parent_id": _checkpoint_id(parent)}
        data |= {"step": metadata.get("step"), "source": metadata.get("source")}
        known = {name: value for name, value in data.items() if value is not None}
        yield Frame("checkpoints", chunk.namespace, known)

    # -- tasks, subgraphs and tools

    def _task(self, chunk: Chunk) -> Iterator[Frame]:
        data = chunk.data
        if "result" in data:
            for kind, namespace in list(self._sent):
                if kind != "started" or isinstance(namespace, str):
                    continue
                is_of_task = namespace[-1].partition(":")[2] == data.get("id")
                is_here = is_of_task and namespace[:-1] == chunk.namespace
                if is_here and self._is_first("ended", namespace, chunk):
                    yield Frame("lifecycle", namespace, _outcome(namespace, data))
        else:
            for call in _tool_calls(data.get("input")):
                yield from self._tool_start(chunk, call["id"], call["name"], call.get("args"))
        yield Frame("tasks", chunk.namespace, data)

    def _subgraphs_begun(self, chunk: Chunk) -> Iterator[Frame]:
        for depth in range(1, len(chunk.namespace) + 1):
            namespace = chunk.namespace[:depth]
            if self._is_first("started", namespace, chunk):
                data = {"event": "started", "graph_name": _graph_name(namespace)}
                yield Frame("lifecycle", namespace, data)

    def _is_first(self, kind: str, of: Namespace | str, chunk: Chunk) -> bool:
        """Whether this was not sent yet. It is now."""
        is_new = (kind, of) not in self._sent
        self._sent.setdefault((kind, of), chunk.n)
        return is_new

    def _tool_start(self, chunk: Chunk, id: str, name: str, args: Any) -> Iterator[Frame]:
        if self._is_first("tool", id, chunk):
            data = {"event": "tool-started", "tool_call_id": id, "tool_name": name, "input": args}
            yield Frame("tools", chunk.namespace, data)

    def _tool_result(self, chunk: Chunk, message: ToolMessage) -> Iterator[Frame]:
        id = message.tool_call_id
        yield from self._tool_start(chunk, id, message.name or "", None)
        data: Data = {"event": "tool-finished", "tool_call_id": id, "output": message}
        if message.status == "error":
            data = {"event": "tool-error", "tool_call_id": id, "message": str(message.text)}
        yield Frame("tools", chunk.namespace, data)


def _graph_name(namespace: Namespace) -> str:
    return namespace[-1].partition(":")[0]


def _shown(interrupt: Any) -> tuple[str, Any, Any]:
    """The id, value and schema of an interrupt, as LangGraph has it or as JSON."""
    if isinstance(interrupt, dict):
        return interrupt["id"], interrupt["value"], interrupt.get("response_schema")
    return interrupt.id, interrupt.value, getattr(interrupt, "response_schema", None)


def _outcome(namespace: Namespace, result: Data) -> Data:
    data: Data = {"event": "completed", "graph_name": _graph_name(namespace)}
    if result.get("interrupts"):
        return {**data, "event": "interrupted"}
    if result.get("error"):
        return {**data, "event": "failed", "error": str(result["error"])}
    return data


def _checkpoint_id(config: Any) -> str | None:
    id: str | None = ((config or {}).get("configurable") or {}).get("checkpoint_id")
    return id


def _tool_calls(calls: Any) -> list[Data]:
    """The calls in the input of a `ToolNode` task: one, or a list."""
    if isinstance(calls, dict) and calls.get("__type") == "tool_call_with_context":
        calls = [calls.get("tool_call")]
    if not isinstance(calls, list):
        return []
    return [
        one
        for one in calls
        if isinstance(one, dict) and one.get("type") == "tool_call" and isinstance(one["id"], str)
    ]


# -- LangGraph's message pieces as message events


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
