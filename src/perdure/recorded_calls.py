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
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Concatenate, ParamSpec, TypeVar

from perdure.commands.starting import Parent
from perdure.journal import Journal
from perdure.types import Record, Run

P = ParamSpec("P")
T = TypeVar("T")

_IS_PARALLEL: ContextVar[bool | None] = ContextVar("perdure_is_parallel", default=None)
"""What the caller of a blocking method knows of its position in its node."""


def recorded(
    name: str, *, returns_run: bool = False, without: Collection[str] = (), **options: Any
) -> Callable[
    [Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]],
    Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
]:
    """Make a method the effect `perdure.<name>` where a node calls it.

    Its arguments, `without` some, and its result must be values that can be stored. Of a method
    that `returns_run`, the record has the id, and its caller gets the run as it is now. `options`
    are those of `effect`.
    """

    def decorate(
        method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
    ) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
        @functools.cache
        def effect() -> Any:
            from perdure.effects.decorator import Effect

            record = Record(without=tuple(without), result=_id_of if returns_run else None)
            found = Effect.of(
                method, **{"record": record, **options}, name=f"perdure.{name}", retry=None
            )
            return replace(found, spec=replace(found.spec, in_journal=True))

        @functools.wraps(method)
        async def call(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
            if not _is_in_run():
                refuse_in_evaluation(f"perdure.{name}")
                return await method(self, *args, **kwargs)
            from perdure.effects.decorator import aperform

            own = replace(effect(), is_parallel=_IS_PARALLEL.get())
            result: T = await aperform(own, (self, *args), kwargs)
            if not returns_run:
                return result
            # Older journals have no result of a call that changed an existing run.
            found: T = await self.get(result or (args[0] if args else kwargs["run_id"]))
            return found

        return call

    return decorate


def _id_of(run: Run) -> str:
    return run.id


@contextlib.contextmanager
def calling_from_node() -> Iterator[None]:
    """While a blocking method hands its call to another thread, where the node is not seen."""
    if not _is_in_run():
        yield
        return
    from perdure.effects.task import is_parallel

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
    from perdure.effects.task import parent_of_call

    return await journal.arun(parent_of_call(journal, ignores_parent_cancel=ignores_parent_cancel))


def call_number() -> int | None:
    """A number for the change that the recorded call makes, the same for every attempt."""
    if not _is_in_run():
        return None
    from perdure.effects.context import current

    context = current()
    if context is None or context.owner is None:
        return None
    return int.from_bytes(hashlib.blake2b(context.key.encode(), digest_size=8).digest()) >> 2


def refuse_in_evaluation(name: str) -> None:
    """A graph with a checkpointer of its own, in a run of an evaluation, changes no other run."""
    if "perdure.saver" in sys.modules:
        from perdure.effects.simulation import refuse_in_evaluation

        refuse_in_evaluation(name)


def _is_in_run() -> bool:
    if "perdure.saver" not in sys.modules:  # then no graph of ours runs, and nothing has to load
        return False
    from perdure.langgraph_port.configs import current_configurable

    if not current_configurable():
        return False
    from perdure.effects.task import is_in_run

    return is_in_run()
