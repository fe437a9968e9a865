"""What is stored of a channel's value, and the way back from rows to the value.

A value is one of

    inline    small: its bytes are inside the checkpoint's own row
    a row     anything else: one row with the whole value
    a chain   a list or dict: a row with all its elements, then one row per change

Nothing here does I/O.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import ormsgpack
from langchain_core.messages import BaseMessage

from perdure.errors import Damaged
from perdure.journal.names import check_text
from perdure.serde.codec import Codec

INLINE = 64
"""Values up to so many bytes are stored inside the checkpoint's row."""
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))


class RowKind(IntEnum):
    """The first byte of a row of `perdure_values`."""

    WHOLE = 0
    LIST = 1
    LIST_CHANGE = 2
    DICT = 3
    DICT_CHANGE = 4


class ValueRef(NamedTuple):
    """The key of a row of `perdure_values`, inside its thread and namespace."""

    channel: str
    chain: int
    seq: int
    step: int


@lru_cache(maxsize=4096)
def check_channel(channel: str) -> str:
    """The name of a channel as JSON. Refuses one that a database cannot hold."""
    return json.dumps(check_text("channel", channel))


def refs_to_json(refs: Iterable[tuple[str, int, int, int]]) -> str:
    """A list of refs as JSON, several times faster than `json.dumps`."""
    return f"[{','.join([f'[{check_channel(r[0])},{r[1]},{r[2]},{r[3]}]' for r in refs])}]"


class ChainElements:
    """What the last row of a chain described, so that the next change can be found."""

    def __init__(
        self, kind: type, objects: Sequence[Any], encoded: Sequence[bytes], chain_size: int
    ) -> None:
        self.kind = kind  # list or dict
        self.chain_size = chain_size  # of all rows, to know when to start a new chain
        self.objects, self.ids = list(objects), set(map(id, objects))
        self.hashes, self.sizes = list(map(hash, encoded)), list(map(len, encoded))
        # Every element is a message or immutable: identity decides.
        self.trusted = all(map(is_trusted, objects))
        # For each message what its fields were, to notice a change in place.
        self.pristine = list(map(snapshot, objects))

    def untouched(self) -> bool:
        """No message was changed in place since it was stored or loaded."""
        try:
            return all(
                was is None or (obj.__dict__ == was and not obj.__pydantic_extra__)
                for obj, was in zip(self.objects, self.pristine, strict=True)
            )
        except Exception:  # a field whose comparison is not a truth value, such as an array
            return False


@dataclass(slots=True)
class StoredValue:
    """Where the value of one channel is stored, and how large it is."""

    size: int
    hash: int
    inline: bytes | None = None
    ref: ValueRef | None = None
    elements: ChainElements | None = None


def outgrown(stored: StoredValue) -> bool:
    """Whether the chain holds so many old elements that a new one should be started."""
    elements = stored.elements
    if elements is None or stored.ref is None:
        return False
    return (
        elements.chain_size > 2 * stored.size + 24 * len(elements.sizes) + 4096
        or stored.ref.seq > 2 * len(elements.sizes) + 64
    )


def is_trusted(value: Any) -> bool:
    """Whether identity proves an element unchanged, unless a node returned it."""
    if isinstance(value, BaseMessage):
        return not value.__pydantic_extra__
    return type(value) in _ATOMS


def snapshot(value: Any) -> dict[str, Any] | None:
    """The fields of a message, to notice a change in place; None of anything else."""
    if not isinstance(value, BaseMessage):
        return None
    return {
        name: item if type(item) in _ATOMS else copy.deepcopy(item)
        for name, item in value.__dict__.items()
    }


def load_value(
    codec: Codec, ref: ValueRef, rows: Mapping[ValueRef, bytes], location: str
) -> tuple[Any, StoredValue]:
    """The value at `ref`, and how it is stored, from the rows of its chain."""
    changes: list[Any] = []
    size, at = 0, ref
    while True:
        body = rows.get(at)
        if body is None:
            reason = f"row {at.seq} of chain {ref.chain} is missing"
            raise Damaged(f"{location} {ref.channel}", reason)
        size += len(body)
        kind = body[0]
        if kind == RowKind.WHOLE:
            data = body[1:]
            return codec.decode(data, location), StoredValue(len(data), hash(data), ref=ref)
        content = ormsgpack.unpackb(body[1:])
        if kind in (RowKind.LIST, RowKind.DICT):
            break
        changes.append(content)
        at = at._replace(seq=at.seq - 1, step=content[0])
    encoded: list[bytes] = content
    for _, drop, sets, start, delete, inserted in reversed(changes):
        del encoded[:drop]
        for n, data in sets:
            encoded[n] = data
        encoded[start : start + delete] = inserted
    objects = [codec.decode(data, location) for data in encoded]
    elements = ChainElements(list if kind == RowKind.LIST else dict, objects, encoded, size)
    stored = StoredValue(sum(elements.sizes), 0, ref=ref, elements=elements)
    return objects if kind == RowKind.LIST else dict(objects), stored


def elements_in_row(body: bytes) -> list[bytes]:
    """The encoded elements (or the one value) whose bytes are in a row."""
    if body[0] == RowKind.WHOLE:
        return [body[1:]]
    content = ormsgpack.unpackb(body[1:])
    encoded: list[bytes] = content if body[0] in (RowKind.LIST, RowKind.DICT) else content[5]
    return encoded
