"""Inputs and outputs of agents as people read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.text import any_json, json_default


def value_text(value: Any) -> str:
    """A text as it is, an object as a line for each field, a message as its role and content,
    anything else as JSON."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if is_message(value):
        return f"{value.type}: {value_text(value.content)}"
    if isinstance(value, Mapping):
        return "\n".join(f"{name}: {_indented(value_text(one))}" for name, one in value.items())
    if isinstance(value, (list, tuple)) and any(map(is_message, value)):
        return "\n".join(value_text(one) for one in value)
    return any_json(value, _readable)


def _indented(text: str) -> str:
    return text if "\n" not in text else "\n" + "\n".join(f"  {one}" for one in text.splitlines())


def _readable(value: Any) -> Any:
    """A message without its ids and metadata."""
    if is_message(value):
        return {"type": value.type, "content": value.content}
    return json_default(value)


def is_message(value: Any) -> bool:
    """Whether a value is one of LangChain's messages."""
    return isinstance(getattr(value, "type", None), str) and hasattr(value, "content")
