"""Variables that a function of LangGraph or LangChain closes over."""

from __future__ import annotations

from typing import Any


def closed_over(function: Any, name: str) -> Any:
    """A variable that a function closes over, or None."""
    names = getattr(getattr(function, "__code__", None), "co_freevars", ())
    return function.__closure__[names.index(name)].cell_contents if name in names else None
