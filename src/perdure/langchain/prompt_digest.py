"""What tells prompts apart: a hash of all that changes a model's answer, in any process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from langchain.agents.middleware import ModelRequest
from langchain_core.tools import BaseTool
from pydantic import BaseModel

from perdure.effects import keys


def model_name(model: Any) -> str:
    """The name of a model; without one, that of its class."""
    model = getattr(model, "bound", model)
    names = (getattr(model, name, None) for name in ("model_name", "model", "model_id"))
    return next((name for name in names if isinstance(name, str)), type(model).__name__)


def digest(request: ModelRequest[Any]) -> str:
    prompt = [
        type(request.model).__qualname__,
        getattr(request.model, "_identifying_params", None),
        request.system_message,
        request.messages,
        request.tools,
        request.tool_choice,
        request.model_settings,
        request.response_format,
    ]
    text = json.dumps(prompt, default=_as_json, skipkeys=True)
    return keys.digest(text.encode(errors="replace"))


_NOT_SENT = {"id", "response_metadata", "usage_metadata", "artifact"}
"""Fields of a message that are not sent to a model."""
_TOOLS: dict[int, tuple[BaseTool, str]] = {}


def _tool_text(tool: BaseTool) -> str:
    """What a model sees of a tool. Cached: LangChain makes its schema anew for each access."""
    known = _TOOLS.get(id(tool))
    if known is None or known[0] is not tool:
        if len(_TOOLS) > 1000:
            _TOOLS.clear()
        seen = [tool.name, tool.description, tool.tool_call_schema]
        known = _TOOLS[id(tool)] = tool, json.dumps(seen, default=_as_json)
    return known[1]


def _as_json(value: Any) -> Any:
    """A value of a type that JSON lacks, in types that it has."""
    if isinstance(value, BaseTool):
        return _tool_text(value)
    if isinstance(value, BaseModel):
        return value.model_dump(exclude=_NOT_SENT, warnings=False)
    if isinstance(value, type):
        schema = getattr(value, "model_json_schema", None)
        return [value.__qualname__, schema() if callable(schema) else None]
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, (set, frozenset)):
        return sorted(map(repr, value))
    if isinstance(value, Mapping):
        return dict(value)
    return type(value).__qualname__
