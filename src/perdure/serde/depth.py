"""How deep the lists and dicts of a MessagePack document are nested, without decoding it.

A decoder uses some stack for every list inside a list, so a forged document could crash the process
that reads it. The decoder limits one document. The documents inside its extension types, which are
decoded in the middle of it, are counted here.
"""

from __future__ import annotations

from perdure.errors import Damaged

_CONTAINERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
# First byte of other values: how many bytes follow it.
_FIXED = dict.fromkeys([0xC0, 0xC2, 0xC3, *range(0x80), *range(0xE0, 0x100)], 0)
_FIXED |= {0xA0 + size: size for size in range(32)}
_FIXED |= {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xCA: 4, 0xCB: 8}
# The same of extensions with a fixed size, without the byte of their type; of values with a size,
# in how many bytes that is.
_FIXED_EXTENSIONS = {0xD4: 1, 0xD5: 2, 0xD6: 4, 0xD7: 8, 0xD8: 16}
_SIZED = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_EXTENSIONS = {0xC7: 1, 0xC8: 2, 0xC9: 4}
_SIZED_CONTAINERS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}


def depth_at_most(data: bytes, few: int, location: str) -> int:
    """A bound of how deep the lists and dicts of a document are nested, outside its extensions.

    A document in which at most `few` bytes can begin one is not looked into: this is quick.
    """
    headers = len(data) - len(data.translate(None, _CONTAINERS))
    return headers if headers <= few else _scan(data, location)[0]


def is_within(data: bytes, objects: int, lists: int) -> bool:
    """Whether no more extensions, and lists and dicts inside them, are nested in a document."""
    if objects < 0 or lists < 0:
        return False
    _, extensions = _scan(data, "")
    return all(
        is_within(body, objects - 1, lists - depth_at_most(body, 0, "")) for body in extensions
    )


def _scan(data: bytes, location: str) -> tuple[int, list[bytes]]:
    """How deep the lists and dicts of a document are nested, and its extensions."""
    at, end, deepest = 0, len(data), 0
    extensions: list[bytes] = []
    left: list[int] = []  # values still to come, of each list and dict that is open
    while at < end:
        first = data[at]
        at += 1
        if first in _FIXED:
            at += _FIXED[first]
        elif first in _SIZED:
            width = _SIZED[first]
            at += width + int.from_bytes(data[at : at + width], "big")
        elif first in _FIXED_EXTENSIONS or first in _EXTENSIONS:
            width = _EXTENSIONS.get(first, 0)
            size = _FIXED_EXTENSIONS.get(first) or int.from_bytes(data[at : at + width], "big")
            at += width + 1 + size
            extensions.append(data[at - size : at])
        else:
            at, size = _container(data, first, at, location)
            if size:
                left.append(size)
                deepest = max(deepest, len(left))
                continue
        while left:
            left[-1] -= 1
            if left[-1]:
                break
            left.pop()
    return deepest, extensions


def _container(data: bytes, first: int, at: int, location: str) -> tuple[int, int]:
    """Where the first value of a list or dict is, and how many values it has."""
    if first < 0xA0:
        return at, first & 0x0F if first >= 0x90 else 2 * (first & 0x0F)
    width = _SIZED_CONTAINERS.get(first)
    if width is None:
        raise Damaged(location, "it is not MessagePack")
    size = int.from_bytes(data[at : at + width], "big")
    return at + width, size if first < 0xDE else 2 * size
