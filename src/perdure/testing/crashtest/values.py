"""Results of runs as plain data, and how two of them differ.

`plain` makes JSON of whatever a graph's state holds. `differences` compares two of them. Ids that
are drawn anew in each run (UUIDs, keys, hashes) are compared by where they stand: the same id at
the same places, whatever it is. So a message that is there twice, or an answer that refers to
another call, is a difference; a fresh id is not.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_ID = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|(?<![0-9a-zA-Z])(?=[0-9a-f]*\d)[0-9a-f]{16,}(?![0-9a-zA-Z])",
    re.IGNORECASE,
)
ABSENT = object()
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain(value: Any) -> Any:
    """`value` as JSON has it; what JSON has no form for is described."""
    if isinstance(value, enum.Enum):
        return plain(value.value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else repr(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (set, frozenset)):
        return sorted((plain(one) for one in value), key=repr)
    return _described(value)


def _described(value: Any) -> Any:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return f"{len(value)} bytes, {hashlib.blake2b(bytes(value), digest_size=8).hexdigest()}"
    if isinstance(value, (datetime.datetime, datetime.date, datetime.time)):
        return value.isoformat()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: plain(getattr(value, field.name)) for field in fields}
    if hasattr(value, "model_dump"):  # Pydantic: messages, documents
        return plain(value.model_dump())
    if hasattr(value, "tolist"):  # an array
        return plain(value.tolist())
    return _ADDRESS.sub("", repr(value))


def differences(expected: Any, found: Any, ignore: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Where two plain values differ: the path, and how. `ignore` names keys or whole paths."""
    return list(_Comparison(frozenset(ignore)).compare("", expected, found))


class _Comparison:
    def __init__(self, ignore: frozenset[str]) -> None:
        self._ignore = ignore
        self._there: dict[str, str] = {}
        self._here: dict[str, str] = {}

    def compare(self, path: str, a: Any, b: Any) -> Iterator[tuple[str, str]]:
        if path in self._ignore:
            return
        if isinstance(a, dict) and isinstance(b, dict):
            for key in {**a, **b}:
                if key not in self._ignore:
                    inner = f"{path}.{key}" if path else key
                    yield from self.compare(inner, a.get(key, ABSENT), b.get(key, ABSENT))
        elif isinstance(a, list) and isinstance(b, list):
            for n, (one, other) in enumerate(zip(a, b, strict=False)):
                yield from self.compare(f"{path}[{n}]", one, other)
            if len(a) != len(b):
                yield path, f"{len(a)} items, then {len(b)}"
        elif type(a) is not type(b) or not (self._same_text(a, b) if type(a) is str else a == b):
            yield path, f"{_short(a)}, then {_short(b)}"

    def _same_text(self, a: str, b: str) -> bool:
        if a == b and not _ID.search(a):
            return True
        if _ID.sub("#", a) != _ID.sub("#", b):
            return False
        return all(
            self._there.setdefault(one, other) == other and self._here.setdefault(other, one) == one
            for one, other in zip(_ID.findall(a), _ID.findall(b), strict=True)
        )


def _short(value: Any) -> str:
    text = "nothing" if value is ABSENT else repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"
