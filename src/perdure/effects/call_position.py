"""Where in its task a call is made: by the node itself, or in parallel with other calls.

Calls that a node makes one after the other come in the same order when it runs again. Calls of a
ToolNode, of `gather` and of threads that the node starts may come in any order.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from perdure import langgraph_port


class CallPosition:
    """How a call came about: the attempt at its task, and whether its turn identifies it."""

    def __init__(
        self, attempt: int, *, is_parallel: bool | None = None, number: int | None = None
    ) -> None:
        """`is_parallel`: whether other calls may come before it, if the caller knows."""
        self.attempt = attempt
        self.number = number
        """The number of the call, if it is known."""
        self.instance: Any = None
        """The object whose method is called."""
        self._counter = langgraph_port.interrupt_counter(configurable())
        try:
            self._caller = asyncio.current_task()
        except RuntimeError:
            self._caller = None
        self._is_known = is_parallel is not None
        if is_parallel is None:
            is_parallel = langgraph_port.is_beside(self._caller is None)
        self._is_parallel = is_parallel

    def interrupts_so_far(self) -> int:
        """How many interrupts the task has come to."""
        return langgraph_port.interrupts_so_far(self._counter)

    def skip_interrupts(self, count: int) -> None:
        """Count the interrupts of a recorded call, which does not come to them again."""
        if self._counter is not None:
            for _ in range(count):
                self._counter()

    def is_in_turn(self) -> bool:
        """Whether the node itself calls, and not something it runs in parallel."""
        if self._is_known or self._is_parallel or self._caller is None:
            return not self._is_parallel
        return langgraph_port.is_of_node(self._caller)


def configurable() -> dict[str, Any]:
    """The `configurable` of the node this is called in, or nothing."""
    if "langgraph" not in sys.modules:
        return {}
    from langgraph.config import get_config

    try:
        return get_config().get("configurable") or {}
    except RuntimeError:
        return {}
