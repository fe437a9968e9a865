"""Which tool LangChain is about to call, for a callback, which gets only its name."""

from __future__ import annotations

import sys
from types import FrameType

from langchain_core.tools import BaseTool

DEEPEST = 50
"""Calls between a tool's `run` and the callback; LangChain makes about five."""


def tool_being_called() -> BaseTool | None:
    """The tool whose `run` or `arun` calls this, through LangChain's callback managers. Only for a
    handler with `run_inline`: others are called from elsewhere."""
    frame: FrameType | None = sys._getframe(1)
    for _ in range(DEEPEST):
        if frame is None:
            return None
        tool = frame.f_locals.get("self")
        if frame.f_code.co_name in ("run", "arun") and isinstance(tool, BaseTool):
            return tool
        frame = frame.f_back
    return None
