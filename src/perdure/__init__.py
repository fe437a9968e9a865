"""perdure: a durable runtime for LangGraph agents.

`Runtime` drives graphs, `Client` asks about their runs, `Saver` stores checkpoints only. Agents
call `sleep`, `ask`, `wait_for`, `join`, `label`, `prompt`, `now`, `random`, `uuid` and `@effect`
functions.
Every error is in `perdure.errors`, every value in `perdure.types`; the common ones are here too.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure import errors as errors
    from perdure import types as types
    from perdure.agent import ask as ask
    from perdure.agent import join as join
    from perdure.agent import label as label
    from perdure.agent import now as now
    from perdure.agent import prompt as prompt
    from perdure.agent import random as random
    from perdure.agent import sleep as sleep
    from perdure.agent import uuid as uuid
    from perdure.agent import wait_for as wait_for
    from perdure.client import Client as Client
    from perdure.commands.mail import Mail as Mail
    from perdure.commands.webhooks import RunWebhooks as RunWebhooks
    from perdure.commands.webhooks import Webhook as Webhook
    from perdure.effects.context import key as key
    from perdure.effects.context import transaction as transaction
    from perdure.effects.decorator import effect as effect
    from perdure.effects.decorator import outbox as outbox
    from perdure.errors import AlreadyAnswered as AlreadyAnswered
    from perdure.errors import AlreadyAssigned as AlreadyAssigned
    from perdure.errors import AnswerRefused as AnswerRefused
    from perdure.errors import BadAnswer as BadAnswer
    from perdure.errors import BadArgument as BadArgument
    from perdure.errors import EffectFailed as EffectFailed
    from perdure.errors import Error as Error
    from perdure.errors import Expired as Expired
    from perdure.errors import JoinFailed as JoinFailed
    from perdure.errors import LeaseLost as LeaseLost
    from perdure.errors import NotDone as NotDone
    from perdure.errors import NotFound as NotFound
    from perdure.errors import TakenBack as TakenBack
    from perdure.errors import ThreadBusy as ThreadBusy
    from perdure.errors import Unavailable as Unavailable
    from perdure.errors import UnknownGraph as UnknownGraph
    from perdure.errors import WaitClosed as WaitClosed
    from perdure.errors import WaitExpired as WaitExpired
    from perdure.errors import WrongState as WrongState
    from perdure.journal import connect as connect
    from perdure.runtime import Runtime as Runtime
    from perdure.saver import Saver as Saver
    from perdure.serde.redaction import Redaction as Redaction
    from perdure.server.ui.identity import TrustedProxy as TrustedProxy
    from perdure.server.ui.identity import UiUser as UiUser
    from perdure.thread_import import import_threads as import_threads
    from perdure.types import Actor as Actor
    from perdure.types import Chunk as Chunk
    from perdure.types import Done as Done
    from perdure.types import EffectRecord as EffectRecord
    from perdure.types import EffectState as EffectState
    from perdure.types import Event as Event
    from perdure.types import EventKind as EventKind
    from perdure.types import Kind as Kind
    from perdure.types import Message as Message
    from perdure.types import Observer as Observer
    from perdure.types import Record as Record
    from perdure.types import Retention as Retention
    from perdure.types import Retry as Retry
    from perdure.types import Run as Run
    from perdure.types import Schedule as Schedule
    from perdure.types import State as State
    from perdure.types import Wait as Wait
    from perdure.types import WorkerInfo as WorkerInfo

_NAMES = {
    "perdure.agent": "ask join label now prompt random sleep uuid wait_for",
    "perdure.client": "Client",
    "perdure.commands.mail": "Mail",
    "perdure.commands.webhooks": "RunWebhooks Webhook",
    "perdure.effects.context": "key transaction",
    "perdure.effects.decorator": "effect outbox",
    "perdure.errors": (
        "AlreadyAnswered AlreadyAssigned AnswerRefused BadAnswer BadArgument EffectFailed Error "
        "Expired JoinFailed LeaseLost NotDone NotFound TakenBack ThreadBusy Unavailable "
        "UnknownGraph WaitClosed WaitExpired WrongState"
    ),
    "perdure.journal": "connect",
    "perdure.runtime": "Runtime",
    "perdure.saver": "Saver",
    "perdure.serde.redaction": "Redaction",
    "perdure.server.ui.identity": "TrustedProxy UiUser",
    "perdure.thread_import": "import_threads",
    "perdure.types": (
        "Actor Chunk Done EffectRecord EffectState Event EventKind Kind Message Observer Record "
        "Retention Retry Run Schedule State Wait WorkerInfo"
    ),
}
"""The public names of each module."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOME)
__version__ = "0.1.0"


if "langgraph" in sys.modules:  # now: a subgraph may be compiled before a saver is made
    from perdure.langgraph_port.compiled_graphs import ask_graphs_for_their_types

    ask_graphs_for_their_types(load=False)


def __getattr__(name: str) -> Any:
    # LangGraph takes seconds to import: only what is used is loaded.
    from importlib import import_module

    if name in ("errors", "types"):
        return import_module(f"perdure.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'perdure' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
