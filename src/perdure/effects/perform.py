"""Make an effect call: recorded in a run, plain outside of one; blocking or async."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from perdure.effects.identity import TaskContext, current_task
from perdure.effects.invocation import CallRaised, CallReturned, FunctionCall
from perdure.effects.settlement import Settlement

T = TypeVar("T")
PlainCall = Callable[[], FunctionCall]
"""Makes the call as it is outside of a run."""
RecordedCall = Callable[[TaskContext, int], Settlement]
"""Makes the call as it is in a task, for an attempt at that task."""

log = logging.getLogger("perdure")


def perform(plain: PlainCall, recorded: RecordedCall) -> Any:
    found = current_task()
    if found is None:
        return _unwrap(plain().run())
    task, settlement = found[0], recorded(*found)
    name = settlement.record.spec.name
    with _blocking(task, name) if _in_loop() else contextlib.nullcontext():
        return task.journal.run(settlement.run())


async def aperform(plain: PlainCall, recorded: RecordedCall) -> Any:
    found = current_task()
    if found is None:
        return _unwrap(await plain().arun())
    return await _shielded(found[0].journal.arun(recorded(*found).run()))


def _unwrap(outcome: CallReturned | CallRaised) -> Any:
    if isinstance(outcome, CallRaised):
        raise outcome.error
    return outcome.value


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_WARNED: set[str] = set()


@contextlib.contextmanager
def _blocking(task: TaskContext, name: str) -> Iterator[None]:
    """A coroutine calls a plain effect, which blocks its event loop."""
    if name not in _WARNED:
        _WARNED.add(name)
        log.warning(
            "effect %r is a plain function called from a coroutine: it blocks the event loop, and "
            "every other run in it. Make it a coroutine, or its node a plain function.",
            name,
        )
    with contextlib.nullcontext() if task.segment is None else task.segment.blocking():
        yield


_BACKGROUND: set[asyncio.Task[Any]] = set()


async def _shielded(call: Coroutine[Any, Any, T]) -> T:
    """Wait for a call. If the waiter is cancelled the call goes on, so its outcome is recorded."""
    task = asyncio.create_task(call)
    _BACKGROUND.add(task)
    task.add_done_callback(_forget)
    return await asyncio.shield(task)


def _forget(task: asyncio.Task[Any]) -> None:
    _BACKGROUND.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, so that asyncio does not warn if nothing awaits it
