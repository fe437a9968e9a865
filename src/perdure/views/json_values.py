"""Values as JSON for clients: `dump` takes anything and never raises.

A LangChain message becomes an object of its fields (`type`, `content`, `id`, `additional_kwargs`
...), as clients of LangGraph's Agent Server expect; so does a pydantic model, a dataclass or a
NamedTuple. An enum becomes its value, a set a list, bytes base64, an exception its `repr`; NaN and
infinity become null. Anything else becomes its `str`.

orjson does the work. It refuses deep nesting, integers of more than 64 bits, unpaired surrogates
and unusual keys: those are converted in Python first.
"""

from __future__ import annotations

import base64
import math
from collections import deque
from collections.abc import Mapping, Set
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any

import orjson

OPTIONS = orjson.OPT_NON_STR_KEYS
DEEPEST = 200
"""Levels of nested lists and objects. Deeper values become strings."""
LONGEST_TEXT = 1000
"""Characters of the `str` of a value that has no JSON form."""
BIGGEST = 2**64 - 1


def dump(value: Any) -> bytes:
    """The JSON of a value. Never raises."""
    try:
        return orjson.dumps(value, _convert, OPTIONS)
    except (TypeError, ValueError, RecursionError):
        return orjson.dumps(_plain(value, 0))


def _convert(value: Any) -> Any:
    """Convert one level of a value of a type that orjson does not know."""
    try:
        return _shape(value)
    except Exception:  # raised by a user's property or serialiser
        return _text(value)


def _shape(value: Any) -> Any:
    kind: Any = type(value)
    if names := _message_fields(kind):
        return {name: getattr(value, name, None) for name in names}
    if isinstance(value, type):
        schema = getattr(value, "model_json_schema", None)
        return f"{value.__module__}.{value.__qualname__}" if schema is None else schema()
    if hasattr(kind, "model_dump"):
        return value.model_dump(warnings=False, serialize_as_any=True)
    if isinstance(value, tuple):
        fields = getattr(kind, "_fields", None)
        return list(value) if fields is None else dict(zip(fields, value, strict=False))
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Set):
        return sorted(value) if all(isinstance(one, str) for one in value) else list(value)
    if isinstance(value, deque):
        return list(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode()
    if isinstance(value, BaseException):
        return repr(value)[:LONGEST_TEXT]
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Decimal | PurePath):
        return str(value)
    if hasattr(kind, "__attrs_attrs__"):
        return {one.name: getattr(value, one.name) for one in kind.__attrs_attrs__}
    if hasattr(kind, "tolist"):  # numpy
        return value.tolist()
    if kind.__module__ == "langgraph.types" and kind.__name__ == "Send":
        return {"node": value.node, "arg": value.arg}
    return _text(value)


@cache
def _message_fields(kind: type) -> tuple[str, ...]:
    """The fields of a LangChain message class. Reading them is four times faster than dumping."""
    if not any(base.__name__ == "BaseMessage" for base in kind.__mro__):
        return ()
    fields = getattr(kind, "model_fields", {})
    return tuple(name for name, field in fields.items() if not field.exclude)


def _text(value: Any) -> str:
    try:
        text = str(value)
    except Exception:
        text = f"<{type(value).__qualname__}>"
    return text[:LONGEST_TEXT]


def _plain(value: Any, depth: int) -> Any:
    """Convert a value to plain types that orjson always accepts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _plain(value.value, depth + 1) if depth < DEEPEST else _text(value.value)
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, int):
        return int(value) if -(2**63) <= value <= BIGGEST else _integer(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if depth >= DEEPEST:
        return f"<{type(value).__qualname__}>"  # its `repr` would be as deep
    if isinstance(value, dict):
        return {_key(key): _plain(one, depth + 1) for key, one in list(value.items())}
    if isinstance(value, list) or type(value) is tuple:
        return [_plain(one, depth + 1) for one in list(value)]
    try:
        return orjson.loads(orjson.dumps(value, option=OPTIONS))  # a datetime, a UUID
    except (TypeError, ValueError, RecursionError):
        pass
    shape = _convert_dataclass(value)
    return _plain(shape, depth + 1)


def _convert_dataclass(value: Any) -> Any:
    fields = getattr(type(value), "__dataclass_fields__", None)
    if fields is None or isinstance(value, type):
        return _convert(value)
    return {name: getattr(value, name, None) for name in fields if not name.startswith("_")}


def _integer(value: int) -> Any:
    """An integer of any size. JSON allows it; orjson writes it only as a fragment."""
    try:
        return orjson.Fragment(str(value))
    except ValueError:  # Python refuses to print this many digits
        return None


def _key(key: Any) -> str:
    if isinstance(key, str):
        return str(key).encode("utf-8", "replace").decode()
    if key is None or isinstance(key, bool | int | float):
        return orjson.dumps(_plain(key, 0)).decode()
    return _text(key).encode("utf-8", "replace").decode()
