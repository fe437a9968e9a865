"""Keeps the tools of LangChain agents in the process during an evaluation.

Under `perdure.langchain.Durable()` tool calls are effects, and simulated or refused as such. For
any other agent a tool is plain code that LangChain calls. LangChain calls this callback first,
which refuses the tool unless it only reads or its function is an effect.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler

from perdure.effects.decorator import is_effect_tool
from perdure.effects.simulation import check_tool
from perdure.langgraph_port.call_stack import tool_being_called
from perdure.segments.segment import Segment


class ToolGuard(BaseCallbackHandler):
    """Refuses tools in a segment of an evaluation."""

    raise_error = True
    run_inline = True

    def __init__(self, segment: Segment) -> None:
        self._segment = segment

    def on_tool_start(self, serialized: Mapping[str, Any], input_str: str, **more: Any) -> None:
        name = str((serialized or {}).get("name", ""))
        hints = more.get("metadata") or {}
        hints = {**hints, **(hints.get("annotations") or {})}
        reads = hints.get("readOnlyHint") is True or is_effect_tool(tool_being_called())
        check_tool(self._segment, name, reads=reads)
