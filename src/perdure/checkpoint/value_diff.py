"""How a channel's value becomes rows: only what changed is stored.

A value is one of

    inline    small: its bytes are inside the checkpoint's own row
    a row     anything else: one row with the whole value
    a chain   a list or dict: a row with all its elements, then one row per change

A chain's next row is found by comparing the new value with what the last row described. An
element counts as unchanged when it is the same object and nobody returned it from a node in
this step, or when its bytes are the same. So what a node returns is always looked at, and what
it left alone costs nothing. Whether to trust identity is decided by type: messages and
immutable values are; dicts and other mutable elements are compared by their bytes every time.

Nothing here does I/O.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter, is_
from typing import Any, NamedTuple

import ormsgpack
from langchain_core.messages import BaseMessage

from perdure.errors import Damaged
from perdure.serde.codec import Codec

INLINE = 64
"""Values up to so many bytes are kept inside the checkpoint's row."""

WHOLE, LIST, LIST_CHANGE, DICT, DICT_CHANGE = range(5)
_ATOMS = frozenset((str, int, float, bool, bytes, type(None)))
_DICT_OF = attrgetter("__dict__")
_EXTRA_OF = attrgetter("__pydantic_extra__")


class Ref(NamedTuple):
    """A row of `perdure_values`, inside its thread and namespace."""

    channel: str
    chain: int
    seq: int
    step: int


@dataclass(slots=True)
class Elements:
    """What the last row of a chain described, so that the next change can be found."""

    objects: list[Any]
    hashes: list[int]
    sizes: list[int]
    stored: int
    """Bytes of the whole chain, to know when to start a new one."""
    kind: type
    """list or dict."""
    trusted: bool = True
    """Every element is a message or immutable: identity decides."""
    messages: int = 0
    """How many elements are messages."""
    ids: set[int] = field(default_factory=set)
    pristine: list[dict[str, Any] | None] = field(default_factory=list)
    """For each message what its fields were, to notice a change in place."""

    def untouched(self) -> bool:
        """No message was changed in place since it was stored or loaded."""
        if not self.messages:
            return True
        messages = [obj for obj in self.objects if isinstance(obj, BaseMessage)]
        pristine = self.pristine
        if len(messages) < len(pristine):
            pristine = [was for was in pristine if was is not None]
        try:
            return list(map(_DICT_OF, messages)) == pristine and not any(map(_EXTRA_OF, messages))
        except Exception:  # a field whose comparison is not a truth value, such as an array
            return False


@dataclass(slots=True)
class Cell:
    """Where the value of one channel is, and how large it is."""

    size: int
    hash: int
    inline: bytes | None = None
    ref: Ref | None = None
    elements: Elements | None = None


class Stored(NamedTuple):
    """The outcome of storing one value: its cell, and the row to insert if there is one."""

    cell: Cell
    body: bytes | None
    inserted: Sequence[Any]
    """The objects whose bytes are in that row, in order; to share them with task writes."""


def store(
    codec: Codec,
    channel: str,
    value: Any,
    before: Cell | None,
    returned: set[int] | None,
    step: int,
) -> Stored:
    """Find the least that must be stored for `value`, given where it was before.

    `returned` are the ids of all objects that tasks returned for this channel in this step; None
    when that is not known, and then everything is compared by its bytes.
    """
    if value is None:
        return _NONE
    kind = type(value)
    if (kind is list or kind is dict) and value:
        return _store_elements(codec, channel, value, before, returned, step)
    data = codec.encode(value, channel)
    if before is not None and before.elements is None and before.hash == hash(data):
        return Stored(before, None, ())
    cell = Cell(len(data), hash(data))
    if len(data) <= INLINE:
        cell.inline = data
        return Stored(cell, None, ())
    cell.ref = Ref(channel, step, 0, step)
    return Stored(cell, bytes([WHOLE]) + data, (value,))


_NONE = Stored(Cell(1, hash(b"\xc0"), inline=b"\xc0"), None, ())


def _store_elements(
    codec: Codec,
    channel: str,
    value: Any,
    before: Cell | None,
    returned: set[int] | None,
    step: int,
) -> Stored:
    if type(value) is list:
        items = value

        def encode(n: int) -> bytes:
            return codec.encode(items[n], f"{channel}[{n}]")
    else:
        items = [list(pair) for pair in value.items()]

        def encode(n: int) -> bytes:
            return codec.encode_pair(items[n], channel)

    last = before.elements if before is not None else None
    if before is not None and before.ref is not None and last and last.kind is type(value):
        grown = len(items) - len(last.objects)
        if (
            grown >= 0
            and last.trusted
            and returned is not None
            and returned.isdisjoint(last.ids)
            and all(map(is_, last.objects, items))
        ):
            start = len(last.objects)
            encoded = [encode(n) for n in range(start, len(items))]
            change: _Change | None = _Change(0, [], start, 0, items[start:], encoded)
        else:
            change = _change(items, last, returned, encode)
        if change is not None:
            stored = _store_change(channel, type(value), before, before.ref, last, change, step)
            if not outgrown(stored.cell):
                return stored
    return _store_all(codec, channel, value, items, encode, step)


def _store_all(
    codec: Codec,
    channel: str,
    value: Any,
    items: list[Any],
    encode: Callable[[int], bytes],
    step: int,
) -> Stored:
    encoded = [encode(n) for n in range(len(items))]
    size = sum(map(len, encoded))
    if size <= INLINE:
        data = codec.encode(value, channel)
        return Stored(Cell(len(data), hash(data), inline=data), None, ())
    body = bytes([LIST if type(value) is list else DICT]) + ormsgpack.packb(encoded)
    elements = _elements(type(value), items, encoded, len(body))
    cell = Cell(size, 0, ref=Ref(channel, step, 0, step), elements=elements)
    return Stored(cell, body, items)


class _Change(NamedTuple):
    """From the old elements to the new: drop the first, replace some, then cut and insert."""

    drop: int
    sets: list[tuple[int, Any, bytes]]
    start: int
    delete: int
    inserted: list[Any]
    encoded: list[bytes]


def _change(
    items: list[Any], last: Elements, returned: set[int] | None, encode: Callable[[int], bytes]
) -> _Change | None:
    """How `items` came about from `last`, or None when storing all of it is better."""
    old = last.objects
    drop = 0
    if old and items and old[0] is not items[0]:
        drop = next((n for n, obj in enumerate(old) if obj is items[0]), 0)
    kept, hashes = old[drop:], last.hashes[drop:]
    overlap = min(len(kept), len(items))
    trusted = last.trusted and returned is not None
    suspects = returned & last.ids if returned else ()
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


def _store_change(
    channel: str,
    kind: type,
    before: Cell,
    ref: Ref,
    last: Elements,
    change: _Change,
    step: int,
) -> Stored:
    drop, sets, start, delete, objects, encoded = change
    if not (drop or sets or delete or objects):
        return Stored(before, None, ())
    body = bytes([LIST_CHANGE if kind is list else DICT_CHANGE]) + ormsgpack.packb(
        [ref.step, drop, [[n, data] for n, _, data in sets], start, delete, encoded]
    )
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
            last.pristine[n] = _snapshot(obj)
            last.trusted = last.trusted and is_trusted(obj)
        last.ids = set(map(id, last.objects))
        last.messages = sum(isinstance(obj, BaseMessage) for obj in last.objects)
    last.objects[start:start] = objects
    last.hashes[start:start] = map(hash, encoded)
    last.sizes[start:start] = map(len, encoded)
    last.pristine[start:start] = map(_snapshot, objects)
    last.ids.update(map(id, objects))
    last.trusted = last.trusted and all(map(is_trusted, objects))
    last.messages += sum(isinstance(obj, BaseMessage) for obj in objects)
    last.stored += len(body)
    cell = Cell(size, 0, ref=Ref(channel, ref.chain, ref.seq + 1, step), elements=last)
    return Stored(cell, body, objects)


def outgrown(cell: Cell) -> bool:
    """Whether the chain holds so much that is past that a new one should be started."""
    elements = cell.elements
    if elements is None or cell.ref is None:
        return False
    return (
        elements.stored > 2 * cell.size + 24 * len(elements.sizes) + 4096
        or cell.ref.seq > 2 * len(elements.sizes) + 64
    )


def _elements(kind: type, objects: list[Any], encoded: Sequence[bytes], stored: int) -> Elements:
    pristine = list(map(_snapshot, objects))
    return Elements(
        objects=list(objects),
        hashes=list(map(hash, encoded)),
        sizes=list(map(len, encoded)),
        stored=stored,
        kind=kind,
        trusted=all(map(is_trusted, objects)),
        ids=set(map(id, objects)),
        pristine=pristine,
        messages=len(pristine) - pristine.count(None),
    )


def is_trusted(value: Any) -> bool:
    """Whether an element is unchanged as long as it is the same object and was not returned."""
    if isinstance(value, BaseMessage):
        return not value.__pydantic_extra__
    return type(value) in _ATOMS


def _snapshot(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, BaseMessage):
        return None
    return {
        name: item if type(item) in _ATOMS else copy.deepcopy(item)
        for name, item in value.__dict__.items()
    }


# -- the way back


Rows = Mapping[tuple[str, int, int, int], bytes]


def load(codec: Codec, ref: Ref, rows: Rows, where: str) -> tuple[Any, Cell]:
    """The value at `ref` and its cell, from the opened rows of its chain."""
    line: list[Any] = []
    stored = 0
    at, seq = ref.step, ref.seq
    while True:
        body = rows.get((ref.channel, ref.chain, seq, at))
        if body is None:
            raise Damaged(f"{where} {ref.channel}", f"row {seq} of chain {ref.chain} is missing")
        stored += len(body)
        kind = body[0]
        if kind == WHOLE:
            data = body[1:]
            return codec.decode(data, where), Cell(len(data), hash(data), ref=ref)
        content = ormsgpack.unpackb(body[1:])
        if kind in (LIST, DICT):
            break
        line.append(content)
        at, seq = content[0], seq - 1
    encoded: list[bytes] = content
    for _, drop, sets, start, delete, inserted in reversed(line):
        del encoded[:drop]
        for n, data in sets:
            encoded[n] = data
        encoded[start : start + delete] = inserted
    objects = [codec.decode(data, where) for data in encoded]
    elements = _elements(list if kind == LIST else dict, objects, encoded, stored)
    cell = Cell(sum(elements.sizes), 0, ref=ref, elements=elements)
    return objects if kind == LIST else dict(objects), cell


def inserted_in(body: bytes) -> list[bytes]:
    """The encoded elements (or the one value) whose bytes are in a row."""
    if body[0] == WHOLE:
        return [body[1:]]
    content = ormsgpack.unpackb(body[1:])
    encoded: list[bytes] = content if body[0] in (LIST, DICT) else content[5]
    return encoded
