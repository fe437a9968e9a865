"""What the function of an effect can ask while it is called: its key, its transaction."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from perdure.errors import NotInRun
from perdure.journal import failpoints
from perdure.journal.operation import Transaction
from perdure.operations.effects import Owner


@dataclass
class Inside:
    """The call of an effect that is being made."""

    key: str
    owner: Owner | None = None
    transaction: Transaction | None = None
    now: int = 0
    """When that was begun."""
    messages: int = 0
    asked: bool = False
    """Whether the function asked for its key: then the far side can tell a second attempt."""
    verifying: bool = False
    """Whether it is the question to the far side: what that calls is not recorded."""
    execution: int = 0
    """Of the task it is called in. Another graph that it runs has its own."""
    outer: Inside | None = None
    desk: Any = None
    """Where the effects it calls itself find their records."""
    reads: int = 0
    """Recorded reads of the function so far."""

    def is_within(self, key: str) -> bool:
        """Whether it is called, through whatever, by an effect of this key."""
        return self.key == key or (self.outer is not None and self.outer.is_within(key))


_INSIDE: ContextVar[Inside | None] = ContextVar("perdure_effect", default=None)


@contextlib.contextmanager
def calling(inside: Inside) -> Iterator[None]:
    inside.outer = current()
    token = _INSIDE.set(inside)
    try:
        yield
    finally:
        _INSIDE.reset(token)


def current() -> Inside | None:
    return _INSIDE.get()


def plain() -> Inside:
    """For a call that is not recorded. Inside of one that is, it has that one's key."""
    outer = current()
    return Inside(uuid.uuid4().hex if outer is None or outer.owner is None else outer.key)


def key() -> str:
    """The key of the effect this is called in: the same for every attempt, process and deploy.

    Give it to the far side, so that it can tell a second attempt from a second order. Outside of
    a run each call has a new one.
    """
    inside = current()
    if inside is None:
        raise NotInRun("key() is for the function of an effect: decorate it with @perdure.effect.")
    inside.asked = True
    if failpoints.asked is not None:
        failpoints.asked(inside.key)
    return inside.key


def transaction() -> Any:
    """The connection of a transactional effect: what is written with it is committed with the
    outcome, or not at all.

    On SQLite it has the methods of `sqlite3.Connection` for statements, on PostgreSQL it is a
    `psycopg.Connection` inside a transaction. Neither may be committed, rolled back or kept.
    """
    inside = current()
    if inside is None or inside.transaction is None:
        raise NotInRun(
            "transaction() is for the function of an effect with transactional=True, in a run."
        )
    return inside.transaction.connection
