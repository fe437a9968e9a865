"""What the function of an effect can ask for during its call: its key, its transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from perdure.errors import NotInRun
from perdure.journal import failpoints
from perdure.journal.operation import Transaction
from perdure.operations.effects import Owner
from perdure.types import PromptVersion


@dataclass
class EffectContext:
    """The effect call that this code runs in."""

    key: str
    owner: Owner | None = None
    transaction: Transaction | None = None
    now: int = 0
    """When the transaction began."""
    messages: int = 0
    """Outbox messages so far."""
    used_key: bool = False
    """Whether the function asked for its key: then the far side can recognise a second attempt."""
    is_verifying: bool = False
    """Whether `verify` is called: effects inside it are not recorded."""
    execution: int = 0
    """The execution of the task it is called in. A graph that it runs has another one."""
    outer: EffectContext | None = None
    task: Any = None
    """The `TaskContext` of the effects it calls itself."""
    reads: int = 0
    """Recorded reads so far."""
    prompts: dict[PromptVersion, None] = field(default_factory=dict)
    """Prompt versions that its task had read, and it has read itself."""
    attempt: int = 0
    """The number of the attempt at it."""
    is_model: bool = False
    """Whether it is the call of a model, whose cost is in its event."""


_CURRENT: ContextVar[EffectContext | None] = ContextVar("perdure_effect", default=None)


@contextlib.contextmanager
def entered(context: EffectContext) -> Iterator[None]:
    context.outer = current()
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def current() -> EffectContext | None:
    return _CURRENT.get()


def key() -> str:
    """The key of the effect this is called in: the same for every attempt, process and deploy.

    Pass it to the far side, so that it can tell a second attempt from a second order. Outside of
    a run each call has a new one.
    """
    context = current()
    if context is None:
        raise NotInRun(
            "key() is for the function of an effect: decorate it with @perdure.effect, or, for the "
            "tools of a LangChain agent, give the agent perdure.langchain.Durable()."
        )
    context.used_key = True
    if failpoints.asked is not None:
        failpoints.asked(context.key)
    return context.key


def transaction() -> Any:
    """The connection of a transactional effect: what it writes is committed with the outcome, or
    not at all.

    On SQLite it has the methods of `sqlite3.Connection` for statements, on PostgreSQL it is a
    `psycopg.Connection` inside a transaction. On D1 it has `execute` and `executemany`, which only
    write. Do not commit it, roll it back or keep it.
    """
    context = current()
    if context is None or context.transaction is None:
        raise NotInRun(
            "transaction() is for the function of an effect with transactional=True, in a run."
        )
    return context.transaction.connection
