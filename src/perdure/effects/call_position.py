"""Where in its task a call is made: by the node itself, or in parallel with other calls.

Calls that a node makes one after the other come in the same order when it runs again. Calls of a
ToolNode, of `gather` and of threads that the node starts may come in any order.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import sys
from types import FrameType
from typing import Any

import langchain_core
import langgraph


class CallPosition:
    """How a call came about: the attempt at its task, and whether its turn identifies it."""

    def __init__(
        self, attempt: int, *, beside: bool | None = None, number: int | None = None
    ) -> None:
        """`beside`: whether it runs in parallel with others, if the caller knows."""
        self.attempt = attempt
        self.number = number
        """The number of the call, if it is known."""
        self.instance: Any = None
        """The object whose method is called."""
        scratchpad = configurable().get("__pregel_scratchpad")
        self._counter: Any = getattr(scratchpad, "interrupt_counter", None)
        try:
            self._caller = asyncio.current_task()
        except RuntimeError:
            self._caller = None
        self._known = beside is not None
        self._beside = _is_beside(self._caller is None) if beside is None else beside

    def asked(self) -> int:
        """How many interrupts the task has come to so far, by LangGraph's counter."""
        counter = getattr(self._counter, "_counter", None)
        return 0 if counter is None else int(repr(counter.__self__)[len("count(") : -1])

    def skip(self, interrupts: int) -> None:
        """A recorded call came to these, and does not come to them again: the next is its own."""
        if self._counter is not None:
            for _ in range(interrupts):
                self._counter()

    def is_in_turn(self) -> bool:
        """Whether the node itself calls, and not something it runs side by side."""
        if self._known or self._beside or self._caller is None:
            return not self._beside
        if _is_langgraph(_code_of(self._caller.get_coro())):
            return True
        above = [t for t in asyncio.all_tasks() if getattr(t, "_fut_waiter", None) is self._caller]
        # LangGraph runs a node in a task of its own, or in one it made; a helper's is the node's.
        return any(_is_langgraph(_code_of(_innermost(task.get_coro()))) for task in above)


def _innermost(coroutine: Any) -> Any:
    """The coroutine that really waits, of those that wait for each other."""
    while inspect.iscoroutine(inner := getattr(coroutine, "cr_await", None)):
        coroutine = inner
    return coroutine


def _code_of(coroutine: Any) -> str:
    code = getattr(coroutine, "cr_code", None)
    return "" if code is None else code.co_filename


_LANGGRAPH = tuple(os.path.join(path, "") for path in langgraph.__path__)
_LANGCHAIN = os.path.join(os.path.dirname(langchain_core.__file__), "")


def _is_langgraph(file: str) -> bool:
    return file.startswith(_LANGGRAPH)


def _is_beside(in_thread: bool) -> bool:
    """Whether this is called by a tool of a ToolNode, or in a thread that the node started."""
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
    if file.startswith(_LANGGRAPH):
        tail = file.replace("\\", "/")
        if tail.endswith("/prebuilt/tool_node.py"):
            return "tool node"
        return "node" if tail.endswith("/pregel/_retry.py") else None
    if not file.startswith(_LANGCHAIN):
        return None
    tail = file.removeprefix(_LANGCHAIN).replace("\\", "/")
    if tail == "runnables/config.py":
        return "thread"
    if tail.startswith("runnables/"):
        return "runnable"
    return "tool" if tail.startswith("tools/") else None


def configurable() -> dict[str, Any]:
    """The `configurable` of the node this is called in, or nothing."""
    if "langgraph" not in sys.modules:
        return {}
    from langgraph.config import get_config

    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}
