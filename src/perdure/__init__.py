"""perdure: a durable runtime for LangGraph agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.langgraph_port import ask_graphs_for_their_types

if TYPE_CHECKING:
    from perdure.agent import ask as ask
    from perdure.agent import label as label
    from perdure.agent import now as now
    from perdure.agent import random as random
    from perdure.agent import sleep as sleep
    from perdure.agent import uuid as uuid
    from perdure.agent import wait_for as wait_for
    from perdure.client import Client as Client
    from perdure.effects.context import key as key
    from perdure.effects.context import transaction as transaction
    from perdure.effects.decorator import effect as effect
    from perdure.effects.outbox import outbox as outbox
    from perdure.errors import Error as Error
    from perdure.errors import LeaseLost as LeaseLost
    from perdure.errors import NotDone as NotDone
    from perdure.journal import connect as connect
    from perdure.runtime import Runtime as Runtime
    from perdure.saver import Saver as Saver
    from perdure.types import Done as Done
    from perdure.types import Record as Record
    from perdure.types import Retry as Retry

_HOME = {
    "Client": "perdure.client",
    "Done": "perdure.types",
    "Error": "perdure.errors",
    "LeaseLost": "perdure.errors",
    "NotDone": "perdure.errors",
    "Record": "perdure.types",
    "Retry": "perdure.types",
    "Runtime": "perdure.runtime",
    "Saver": "perdure.saver",
    "ask": "perdure.agent",
    "connect": "perdure.journal",
    "effect": "perdure.effects.decorator",
    "key": "perdure.effects.context",
    "label": "perdure.agent",
    "now": "perdure.agent",
    "outbox": "perdure.effects.outbox",
    "random": "perdure.agent",
    "sleep": "perdure.agent",
    "transaction": "perdure.effects.context",
    "uuid": "perdure.agent",
    "wait_for": "perdure.agent",
}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


# Now, if LangGraph is here already: a subgraph may be compiled before a saver is made.
ask_graphs_for_their_types(load=False)


def __getattr__(name: str) -> Any:
    # LangGraph takes seconds to import: only what is used is loaded.
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
