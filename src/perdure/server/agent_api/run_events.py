"""Chunks of a run as v1 events, with their ids. Pure, no I/O.

The id of an event is the number of its chunk. If a chunk becomes several events, such as
`messages/metadata` and `messages/partial`, the first has the id `<n>` and the others `<n>-1`,
`<n>-2`. So ids increase strictly, and the events after any id are the same in every process and at
any time: the remaining events of chunk <n>, and those of all later chunks.

    id 0            the `metadata` that begins a stream
    id <n>, <n>-<k> an event of chunk n
    no id           `error`, `end`, and the last `values` of a run whose output was not kept

If a segment replaces earlier output, because a process died or a node runs again, the event
`metadata {run_id, attempt, replaces_from}` says so. A client that then drops its events with ids
from `replaces_from` on has what an undisturbed run would have sent.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.messages.utils import message_chunk_to_message

from perdure.server.errors import ApiError
from perdure.types import Chunk

ACCUMULATED, PIECES = "messages", "messages-tuple"
"""The two modes for messages."""
StreamMode = Literal[
    "values",
    "updates",
    "messages",
    "messages-tuple",
    "custom",
    "tasks",
    "checkpoints",
    "debug",
    "events",
]
DEFAULT = ("values",)
SEGMENT = "segment"
INTERRUPT = "__interrupt__"


def modes_of(modes: str | Sequence[str] | None) -> tuple[str, ...]:
    """The modes of a run's body: a name, a list, or nothing, which means `values`."""
    names = [modes] if isinstance(modes, str) else modes or ()
    return tuple(dict.fromkeys(names)) or DEFAULT


def parse_filter(modes: Iterable[str]) -> tuple[str, ...] | None:
    """The modes of a query, repeated or as a JSON list. None: no filter was given."""
    names: list[Any] = []
    for one in modes:
        if one.lstrip().startswith("["):
            try:
                names += json.loads(one)
            except (ValueError, RecursionError):
                raise ApiError(422, "stream_mode is not a JSON list of modes.") from None
        elif one.strip():
            names.append(one.strip())
    for name in names:
        if name not in get_args(StreamMode):
            known = ", ".join(get_args(StreamMode))
            raise ApiError(422, f"The stream mode {name!a:.60} is not one of {known}.")
    return modes_of(names) if names else None


def run_modes(setup: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """The modes that a run was started with, and whether its subgraphs are streamed too."""
    kept = setup.get("stream") or {}
    modes = [PIECES if one == ACCUMULATED else one for one in kept.get("modes", ())]
    return tuple(kept.get("wire") or modes), bool(kept.get("subgraphs"))


class Position(NamedTuple):
    """A place in the stream of a run: after event `k` of chunk `n`."""

    n: int
    k: int = 0

    def __str__(self) -> str:
        return f"{self.n}-{self.k}" if self.k else str(self.n)


START = Position(0)


def parse_position(text: str | None) -> Position | None:
    """The place that `Last-Event-ID` names. None if it is missing or not one of our ids."""
    if text is None:
        return None
    text = text.strip()
    if text in ("-1", "-"):
        return Position(-1)
    n, dash, k = text.partition("-")
    numbers = [n, k] if dash else [n]
    if not all(one.isascii() and one.isdigit() and len(one) <= 18 for one in numbers):
        return None
    return Position(*map(int, numbers))


@dataclass(frozen=True)
class WireEvent:
    """One event. `data` is not encoded as JSON yet."""

    name: str
    data: Any
    position: Position


class RunEvents:
    """Turns the chunks of one run, in order, into events of some modes."""

    def __init__(self, run_id: str, modes: Collection[str], *, subgraphs: bool = False) -> None:
        self._run_id, self._modes, self._subgraphs = run_id, frozenset(modes), subgraphs
        self._messages = MessageEvents()
        self._attempt = 1

    @property
    def needs_history(self) -> bool:
        """Whether the events of a chunk depend on the chunks before it."""
        return ACCUMULATED in self._modes

    def begin(self, at: Position = START) -> WireEvent:
        """The first event of a stream."""
        data = {"run_id": self._run_id, "attempt": self._attempt}
        return WireEvent("metadata", data, at)

    def feed(self, chunk: Chunk) -> list[WireEvent]:
        """The events of a chunk; empty if its mode was not requested."""
        return [
            WireEvent(name, data, Position(chunk.n, k))
            for k, (name, data) in enumerate(self._events(chunk))
        ]

    def _events(self, chunk: Chunk) -> Iterable[tuple[str, Any]]:
        if chunk.mode == SEGMENT:
            return self._segment(chunk)
        if chunk.namespace and not self._subgraphs:
            return ()
        if chunk.mode == "messages":
            return self._message(chunk)
        if chunk.mode not in self._modes:
            return ()
        return ((self._name(chunk.mode, chunk.namespace), chunk.data),)

    def _segment(self, chunk: Chunk) -> Iterable[tuple[str, Any]]:
        self._attempt += 1
        if chunk.replaces_from is None:
            return ()
        self._messages.forget_from(chunk.replaces_from)
        data = {
            "run_id": self._run_id,
            "attempt": self._attempt,
            "replaces_from": chunk.replaces_from,
        }
        return (("metadata", data),)

    def _message(self, chunk: Chunk) -> Iterable[tuple[str, Any]]:
        message, metadata = chunk.data
        if PIECES in self._modes:
            yield self._name("messages", chunk.namespace), [message, metadata]
        if ACCUMULATED in self._modes:
            yield from self._messages.feed(chunk.n, message, metadata)

    def _name(self, mode: str, namespace: tuple[str, ...]) -> str:
        return "|".join((mode, *namespace))


def interrupts_in(chunk: Chunk) -> tuple[Any, ...]:
    """The interrupts that a chunk of `values` or `updates` reports."""
    if chunk.mode not in ("values", "updates") or not isinstance(chunk.data, dict):
        return ()
    interrupts = chunk.data.get(INTERRUPT)
    return tuple(interrupts) if isinstance(interrupts, (list, tuple)) else ()


def without_interrupts(chunk: Chunk, ids: Collection[str]) -> Chunk | None:
    """A chunk without these interrupts. None if nothing else is left.

    LangGraph also reports an interrupt for a run that sleeps, or waits for a signal or another run.
    For clients such a run is still running.
    """
    left = tuple(one for one in interrupts_in(chunk) if one.id not in ids)
    if left:
        data = {**chunk.data, INTERRUPT: left}
        return Chunk(chunk.n, chunk.mode, chunk.namespace, data, chunk.at, chunk.replaces_from)
    return None


METADATA, PARTIAL, COMPLETE = "messages/metadata", "messages/partial", "messages/complete"


@dataclass
class _Open:
    """A message that is being streamed: its pieces, by chunk number, and their sum."""

    pieces: list[tuple[int, BaseMessageChunk]] = field(default_factory=list)
    whole: BaseMessageChunk | None = None

    def add(self, n: int, piece: BaseMessageChunk) -> BaseMessageChunk:
        self.pieces.append((n, piece))
        self.whole = _joined(self.whole, piece)
        return self.whole

    def forget_from(self, n: int) -> None:
        if self.pieces[-1][0] >= n:
            self.pieces = [one for one in self.pieces if one[0] < n]
            self.whole = None
            for _, piece in self.pieces:
                self.whole = _joined(self.whole, piece)


class MessageEvents:
    """Events of the messages of one run."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._known: dict[str, int] = {}
        """Ids of messages whose metadata was sent, and the chunk it was sent for."""

    def feed(self, n: int, message: Any, metadata: Any) -> Iterator[tuple[str, Any]]:
        """Names and data of the events for chunk `n`."""
        if not isinstance(message, BaseMessage):
            return
        id = message.id or ""
        if id not in self._known:
            self._known[id] = n
            yield METADATA, {id: {"metadata": metadata}}
        if not isinstance(message, BaseMessageChunk):
            yield COMPLETE, [message]
            return
        whole = self._open.setdefault(id, _Open()).add(n, message)
        yield PARTIAL, [message_chunk_to_message(whole)]
        if getattr(message, "chunk_position", None) == "last":
            del self._open[id]

    def forget_from(self, n: int) -> None:
        """Forget chunks from `n` on: they are void."""
        for one in self._open.values():
            one.forget_from(n)
        self._open = {id: one for id, one in self._open.items() if one.pieces}
        self._known = {id: first for id, first in self._known.items() if first < n}


def _joined(whole: BaseMessageChunk | None, piece: BaseMessageChunk) -> BaseMessageChunk:
    if whole is None:
        return piece
    joined = whole + piece
    if not isinstance(joined, BaseMessageChunk):  # its type allows a prompt template
        raise TypeError(f"{type(whole).__name__} + {type(piece).__name__} is not a message.")
    return joined
