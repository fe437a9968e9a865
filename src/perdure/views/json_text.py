"""Values as JSON: of any type, for people and programs to read, not to be loaded again."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any

from perdure.views.terminal_text import printable_json


def json_default(value: Any) -> Any:
    """A value that JSON has no form for, as one that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime):
        return _utc(value).isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    dump = getattr(value, "model_dump", None)  # Pydantic, and so LangChain's messages
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else str(value)


def _utc(at: datetime) -> datetime:
    """A time in UTC; as it is if UTC has no such year."""
    try:
        return at.astimezone(UTC)
    except (OverflowError, ValueError, OSError):
        return at


def any_json(
    value: Any, default: Callable[[Any], Any] = json_default, indent: int | None = None
) -> str:
    """A value as JSON for people, with all that is in it: a key that JSON does not have, such as a
    tuple, is shown as its text."""
    given: Any = {"ensure_ascii": False, "default": default, "indent": indent}
    try:
        return json.dumps(value, **given)
    except TypeError:
        return json.dumps(_with_text_keys(value, default), **given)


def _with_text_keys(value: Any, default: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {
            key if isinstance(key, KEYS) else str(key): _with_text_keys(one, default)
            for key, one in value.items()
        }
    if isinstance(value, list | tuple):
        return [_with_text_keys(one, default) for one in value]
    if value is None or isinstance(value, str | int | float):
        return value
    return _with_text_keys(default(value), default)


KEYS = (str, int, float, bool, type(None))
"""Types of keys that `json` writes."""


def json_text(value: Any) -> str:
    """A value as one line of JSON; a dataclass as its fields."""
    return printable_json(json.dumps(value, default=json_default, skipkeys=True))
