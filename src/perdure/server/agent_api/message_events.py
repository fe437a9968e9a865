"""LangGraph's message pieces as events of the stream mode `messages`. Pure, no I/O.

    messages/metadata   {id: {"metadata": {...}}}   before the first event of a message
    messages/partial    [message]                   a streamed message, as received so far
    messages/complete   [message]                   a message that was not streamed

For a reader that starts in the middle, the earlier pieces are fed too, so that its first partial
message is complete. `forget_from` removes pieces that a later segment replaces.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.messages.utils import message_chunk_to_message

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
