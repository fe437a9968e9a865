"""What is stored of a channel's value, and the way back from rows to the value.

A value is one of

    inline    small: its bytes are inside the checkpoint's own row
    a row     anything else: one row with the whole value
    a chain   a list or dict: a row with all its elements, then one row per change

The next row of a chain is found by comparing the new value with what the last row described. An
element counts as unchanged when it is the same object and no node returned it in this step, or when
its bytes are the same. So what a node returns is always compared, and what it left alone costs
nothing. Whether to trust identity is decided by type: messages and immutable values are; dicts and
other mutable elements are compared by their bytes every time.

Nothing here does I/O.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple

import ormsgpack
from langchain_core.messages import BaseMessage

from perdure.errors import Damaged
from perdure.journal.names import check_text
from perdure.serde.serializer import Serializer

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
    serializer: Serializer, ref: ValueRef, rows: Mapping[ValueRef, bytes], location: str
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
            return serializer.decode(data, location), StoredValue(len(data), hash(data), ref=ref)
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
    objects = [serializer.decode(data, location) for data in encoded]
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


class Difference(NamedTuple):
    """What has to be stored for a value: the row to insert, if there is one."""

    stored: StoredValue
    body: bytes | None
    inserted: Sequence[Any]
    """The objects whose bytes are in that row, in order; to share them with task writes."""


def difference(
    serializer: Serializer,
    channel: str,
    value: Any,
    before: StoredValue | None,
    returned: set[int] | None,
    step: int,
) -> Difference:
    """Find the least that must be stored for `value`, given what is stored already.

    `returned` are the ids of all objects that tasks returned for this channel in this step; None
    when that is not known, and then everything is compared by its bytes.
    """
    if value is None:
        return _NONE
    kind = type(value)
    if (kind is list or kind is dict) and value:
        return _elements_difference(serializer, channel, value, before, returned, step)
    data = serializer.encode(value, channel)
    if before is not None and before.elements is None and before.hash == hash(data):
        return Difference(before, None, ())
    stored = StoredValue(len(data), hash(data))
    if len(data) <= INLINE:
        stored.inline = data
        return Difference(stored, None, ())
    stored.ref = ValueRef(channel, step, 0, step)
    return Difference(stored, bytes([RowKind.WHOLE]) + data, (value,))


_NONE = Difference(StoredValue(1, hash(b"\xc0"), inline=b"\xc0"), None, ())


def _elements_difference(
    serializer: Serializer,
    channel: str,
    value: Any,
    before: StoredValue | None,
    returned: set[int] | None,
    step: int,
) -> Difference:
    if type(value) is list:
        items = value

        def encode(n: int) -> bytes:
            return serializer.encode(items[n], f"{channel}[{n}]")
    else:
        items = [list(pair) for pair in value.items()]

        def encode(n: int) -> bytes:
            return serializer.encode_pair(items[n], channel)

    last = before.elements if before is not None else None
    if before is not None and before.ref is not None and last and last.kind is type(value):
        change = _find_change(items, last, returned, encode)
        if change is not None:
            found = _changed_elements(before, before.ref, last, change, step)
            if not outgrown(found.stored):
                return found
    encoded = [encode(n) for n in range(len(items))]
    size = sum(map(len, encoded))
    if size <= INLINE:
        data = serializer.encode(value, channel)
        return Difference(StoredValue(len(data), hash(data), inline=data), None, ())
    body = bytes([RowKind.LIST if type(value) is list else RowKind.DICT]) + ormsgpack.packb(encoded)
    elements = ChainElements(type(value), items, encoded, len(body))
    stored = StoredValue(size, 0, ref=ValueRef(channel, step, 0, step), elements=elements)
    return Difference(stored, body, items)


class _Change(NamedTuple):
    """From the old elements to the new: drop the first, replace some, then cut and insert."""

    drop: int
    sets: list[tuple[int, Any, bytes]]
    start: int
    delete: int
    inserted: list[Any]
    encoded: list[bytes]


def _find_change(
    items: list[Any], last: ChainElements, returned: set[int] | None, encode: Callable[[int], bytes]
) -> _Change | None:
    """How `items` came about from `last`, or None when storing all of it is better."""
    old = last.objects
    start = len(old)
    trusted = last.trusted and returned is not None
    suspects = returned & last.ids if returned else ()
    if trusted and not suspects and len(items) >= start and all(map(is_, old, items)):
        fresh = [encode(n) for n in range(start, len(items))]
        return _Change(0, [], start, 0, items[start:], fresh)
    drop = 0
    if old and items and old[0] is not items[0]:
        drop = next((n for n, obj in enumerate(old) if obj is items[0]), 0)
    kept, hashes = old[drop:], last.hashes[drop:]
    overlap = min(len(kept), len(items))
    encoded: dict[int, bytes] = {}

    def bytes_of(n: int) -> bytes:
        if n not in encoded:
            encoded[n] = encode(n)
        return encoded[n]

    def same(was: int, n: int) -> bool:
        if kept[was] is items[n] and trusted and id(items[n]) not in suspects:
            return True
        return hashes[was] == hash(bytes_of(n))

    sets = [(n, items[n], bytes_of(n)) for n in range(overlap) if not same(n, n)]
    if len(items) >= len(kept):
        if sets and sum(len(data) for _, _, data in sets) > sum(last.sizes) // 2:
            return None
        start, end, delete = len(kept), len(items), 0
    else:
        # It became shorter: everything between the first and the last difference is replaced.
        start = sets[0][0] if sets else overlap
        behind = 0
        while behind < overlap - start and same(len(kept) - 1 - behind, len(items) - 1 - behind):
            behind += 1
        end, delete = len(items) - behind, len(kept) - behind - start
        if end - start > len(items) // 2:
            return None
        sets = []
    fresh = [bytes_of(n) for n in range(start, end)]
    return _Change(drop, sets, start, delete, items[start:end], fresh)


def _changed_elements(
    before: StoredValue, ref: ValueRef, last: ChainElements, change: _Change, step: int
) -> Difference:
    drop, sets, start, delete, objects, encoded = change
    if not (drop or sets or delete or objects):
        return Difference(before, None, ())
    kind = RowKind.LIST_CHANGE if last.kind is list else RowKind.DICT_CHANGE
    replaced = [[n, data] for n, _, data in sets]
    body = ormsgpack.packb([ref.step, drop, replaced, start, delete, encoded])
    size = before.size + sum(map(len, encoded))
    # `last` is changed and handed on, not copied: `before` is not used again.
    if drop or delete or sets:
        size -= sum(last.sizes[:drop]) + sum(last.sizes[drop + start : drop + start + delete])
        for held in (last.objects, last.hashes, last.sizes, last.pristine):
            del held[:drop]
            del held[start : start + delete]
        for n, obj, data in sets:
            size += len(data) - last.sizes[n]
            last.objects[n], last.hashes[n], last.sizes[n] = obj, hash(data), len(data)
            last.pristine[n] = snapshot(obj)
            last.trusted = last.trusted and is_trusted(obj)
        last.ids = set(map(id, last.objects))
    last.objects[start:start] = objects
    last.hashes[start:start] = map(hash, encoded)
    last.sizes[start:start] = map(len, encoded)
    last.pristine[start:start] = map(snapshot, objects)
    last.ids.update(map(id, objects))
    last.trusted = last.trusted and all(map(is_trusted, objects))
    last.chain_size += 1 + len(body)
    at = ValueRef(ref.channel, ref.chain, ref.seq + 1, step)
    return Difference(StoredValue(size, 0, ref=at, elements=last), bytes([kind]) + body, objects)
