"""How a call came about, by the stack and by asyncio, and which tool is being called."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from types import FrameType
from typing import Any

from langchain_core.tools import BaseTool


def is_parallel_call(in_thread: bool) -> bool:
    """A node runs below a frame of pregel/_retry.py, a tool below one of prebuilt/tool_node.py, a
    plain node or tool beside a loop below `wrapper` in langchain_core's runnables/config.py.

    Gives whether a tool of a ToolNode calls, or a thread that the node started.
    """
    frame: FrameType | None = sys._getframe(1)
    in_tool, before = False, None
    while frame is not None:
        code = frame.f_code
        kind = _kind_of(code.co_filename)
        if kind == "tool node":
            return True
        if kind == "node":
            return False  # the node itself, or one of a graph inside of a tool
        in_tool = in_tool or kind == "tool"
        if in_thread and kind == "thread" and code.co_name == "wrapper":
            # Here a plain node begins beside a loop; or a tool, or a part of a chain.
            return in_tool or before == "runnable"
        before = kind
        frame = frame.f_back
    return in_thread


@functools.cache
def _kind_of(file: str) -> str | None:
    """What a file on the stack says of a call, if anything. Every call looks at all of them."""
    langgraph, langchain = _homes()
    tail, is_langchain = file.removeprefix(langchain).replace("\\", "/"), file.startswith(langchain)
    kinds = {
        "tool node": file.startswith(langgraph) and tail.endswith("/prebuilt/tool_node.py"),
        "node": file.startswith(langgraph) and tail.endswith("/pregel/_retry.py"),
        "thread": is_langchain and tail == "runnables/config.py",
        "runnable": is_langchain and tail.startswith("runnables/"),
        "tool": is_langchain and tail.startswith("tools/"),
    }
    return next((kind for kind, is_it in kinds.items() if is_it), None)


@functools.cache
def _homes() -> tuple[tuple[str, ...], str]:
    import langchain_core
    import langgraph

    home = os.path.dirname(langchain_core.__file__)
    return tuple(os.path.join(path, "") for path in langgraph.__path__), os.path.join(home, "")


def is_of_node(caller: asyncio.Task[Any]) -> bool:
    """LangGraph runs a node in a task whose coroutine is its own, or waits in one for the task it
    made of the node's coroutine. Any other task was started by the node's own code.
    """
    if _is_langgraph(caller.get_coro()):
        return True
    above = [t for t in asyncio.all_tasks() if getattr(t, "_fut_waiter", None) is caller]
    return any(_is_langgraph(_innermost(task.get_coro())) for task in above)


def _innermost(coroutine: Any) -> Any:
    """The coroutine that really waits, of those that wait for each other."""
    while inspect.iscoroutine(inner := getattr(coroutine, "cr_await", None)):
        coroutine = inner
    return coroutine


def _is_langgraph(coroutine: Any) -> bool:
    code = getattr(coroutine, "cr_code", None)
    return code is not None and code.co_filename.startswith(_homes()[0])


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
