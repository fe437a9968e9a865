"""perdure: a durable runtime for LangGraph agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.allowlist import ask_graphs_for_their_types

if TYPE_CHECKING:
    from perdure.errors import Error as Error
    from perdure.journal import connect as connect
    from perdure.saver import Saver as Saver

__all__ = ["Error", "Saver", "connect"]

_HOME = {"Error": "perdure.errors", "Saver": "perdure.saver", "connect": "perdure.journal"}


# Now, if LangGraph is here already: a subgraph may be compiled before a saver is made.
ask_graphs_for_their_types()


def __getattr__(name: str) -> Any:
    # LangGraph takes seconds to import: only what is used is loaded.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
