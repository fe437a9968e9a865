"""perdure: a durable runtime for LangGraph agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.allowlist import ask_graphs_for_their_types

if TYPE_CHECKING:
    from perdure.agent import ask as ask
    from perdure.agent import now as now
    from perdure.agent import random as random
    from perdure.agent import sleep as sleep
    from perdure.agent import uuid as uuid
    from perdure.agent import wait_for as wait_for
    from perdure.errors import Error as Error
    from perdure.errors import LeaseLost as LeaseLost
    from perdure.journal import connect as connect
    from perdure.runtime import Runtime as Runtime
    from perdure.saver import Saver as Saver
    from perdure.types import Retry as Retry

_HOME = {
    "Error": "perdure.errors",
    "LeaseLost": "perdure.errors",
    "Retry": "perdure.types",
    "Runtime": "perdure.runtime",
    "Saver": "perdure.saver",
    "ask": "perdure.agent",
    "connect": "perdure.journal",
    "now": "perdure.agent",
    "random": "perdure.agent",
    "sleep": "perdure.agent",
    "uuid": "perdure.agent",
    "wait_for": "perdure.agent",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


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
