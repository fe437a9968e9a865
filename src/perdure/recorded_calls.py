"""What a node asks of a client is an effect: it happens once, however often the node runs again.

`recorded` makes a coroutine method of a client such an effect. Outside of a run it is the plain
method, and LangGraph is not loaded. The key of the effect makes a second attempt harmless: a run or
a signal has it as its own key, any other change is numbered by it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from perdure.journal import Journal
from perdure.operations.runs import Parent

P = ParamSpec("P")
T = TypeVar("T")

_IS_PARALLEL: ContextVar[bool | None] = ContextVar("perdure_is_parallel", default=None)
"""What the caller of a blocking method knows of its position in its node."""


def recorded(
    name: str, **options: Any
) -> Callable[
    [Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]],
    Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
]:
    """Make a method the effect `perdure.<name>` where a node calls it. `options` are those of
    `effect`. Its arguments and its result must be values that can be stored."""

    def decorate(
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
        @functools.cache
        def effect() -> Any:
            from perdure.effects.decorator import Effect

            made = Effect.of(method, name=f"perdure.{name}", retry=None, **options)
            return replace(made, spec=replace(made.spec, in_journal=True))

        @functools.wraps(method)
        async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if not _is_in_run():
                _refuse_in_evaluation(f"perdure.{name}")
                return await method(self, *args, **kwargs)
            from perdure.effects.client_calls import call_method

            result: T = await call_method(
                effect(), ((self, *args), dict(kwargs)), _IS_PARALLEL.get()
            )
            return result

        return call

    return decorate


@contextlib.contextmanager
def calling_from_node() -> Iterator[None]:
    """While a blocking method hands its call to another thread, where the node is not seen."""
    if not _is_in_run():
        yield
        return
    from perdure.effects.client_calls import is_parallel

    token = _IS_PARALLEL.set(is_parallel())
    try:
        yield
    finally:
        _IS_PARALLEL.reset(token)


def call_key() -> str | None:
    """The key of the recorded call this is in: the far side is given it. None outside of a run."""
    if not _is_in_run():
        return None
    from perdure.effects.context import key

    return key()


async def parent_of_call(journal: Journal, *, ignores_parent_cancel: bool) -> Parent | None:
    """The run that starts another one by the recorded call, if both are in this journal."""
    if not _is_in_run():
        return None
    from perdure.effects import client_calls

    return await journal.arun(
        client_calls.parent_of_call(journal, ignores_parent_cancel=ignores_parent_cancel)
    )


def call_number() -> int | None:
    """A number for the change that the recorded call makes, the same for every attempt."""
    if not _is_in_run():
        return None
    from perdure.effects.context import current

    context = current()
    if context is None or context.owner is None:
        return None
    return int.from_bytes(hashlib.blake2b(context.key.encode(), digest_size=8).digest()) >> 2


def _refuse_in_evaluation(name: str) -> None:
    """A graph with a checkpointer of its own, in a run of an evaluation, changes no other run."""
    if "perdure.saver" in sys.modules:
        from perdure.effects.simulation import refuse_in_evaluation

        refuse_in_evaluation(name)


def _is_in_run() -> bool:
    if "perdure.saver" not in sys.modules:  # then no graph of ours runs, and nothing has to load
        return False
    from perdure.effects.client_calls import is_in_run

    return is_in_run()
