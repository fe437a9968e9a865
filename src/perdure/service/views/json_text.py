"""Values as JSON: of any type, for people and programs to read, not to be loaded again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from typing import Any


def json_default(value: Any) -> Any:
    """A value that JSON has no form for, as one that it has."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    dump = getattr(value, "model_dump", None)  # Pydantic, and so LangChain's messages
    return dump(mode="json") if callable(dump) and not isinstance(value, type) else str(value)


def json_text(value: Any) -> str:
    """A value as one line of JSON; a dataclass as its fields."""
    return json.dumps(value, default=json_default, skipkeys=True)
