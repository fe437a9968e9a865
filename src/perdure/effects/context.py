"""What the function of an effect can ask for during its call: its key, its transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from perdure import failpoints
from perdure.commands.effects import Owner
from perdure.errors import NotInRun
from perdure.journal.operation import Transaction
from perdure.types import PromptVersion


@dataclass
class EffectContext:
    """The effect call that this code runs in.

    Attributes:
        now: When the transaction began.
        messages: Outbox messages so far.
        used_key: Whether the function asked for its key: then the far side can recognise a
            second attempt.
        is_verifying: Whether `verify` is called: effects inside it are not recorded.
        execution: The execution of the task it is called in. A graph that it runs has another
            one.
        task: The `TaskContext` of the effects it calls itself.
        reads: Recorded reads so far.
        prompts: Prompt versions that its task had read, and it has read itself.
        attempt: The number of the attempt at it.
        is_model: Whether it is the call of a model, whose cost is in its event.
    """

    key: str
    owner: Owner | None = None
    transaction: Transaction | None = None
    now: int = 0
    messages: int = 0
    used_key: bool = False
    is_verifying: bool = False
    execution: int = 0
    outer: EffectContext | None = None
    task: Any = None
    reads: int = 0
    prompts: dict[PromptVersion, None] = field(default_factory=dict)
    attempt: int = 0
    is_model: bool = False


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


def _current_key() -> str | None:
    around = current()
    return None if around is None else around.key


failpoints.current_effect = _current_key


def key() -> str:
    """The idempotency key of the calling effect, the same for every attempt and process.

    For the function of an effect, its `verify` and its `compensate`. Pass it to the far side, so
    that it can tell a retry from a new request. A function that asks for its key is
    assumed to pass it on, so perdure does not wait for its outcome: it is committed with the next
    write. Outside of a run each call gets a new key.

    Returns:
        The business key of the effect, or a hash of the run, the task, the name and the place of
        the call.

    Raises:
        NotInRun: It is called outside of an effect.
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
    """The journal's connection, inside the transaction of a transactional effect.

    What the function writes with it is committed with the outcome of the effect, or not at all. Do
    not commit it, roll it back or keep it.

    Returns:
        On SQLite an object with `execute`, `executemany` and `cursor` of `sqlite3.Connection`. On
        PostgreSQL a `psycopg.Connection`. On D1 an object with `execute` and `executemany`, which
        only write.

    Raises:
        NotInRun: It is called outside of an effect with `transactional=True`.
    """
    context = current()
    if context is None or context.transaction is None:
        raise NotInRun(
            "transaction() is for the function of an effect with transactional=True, in a run."
        )
    return context.transaction.connection
