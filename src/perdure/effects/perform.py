"""Make an effect call: recorded in a run, plain outside of one; blocking or async."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import Any, TypeVar

from perdure.effects.call_record import CallRecord
from perdure.effects.identity import TaskContext, current_task
from perdure.effects.invocation import Bound, Caller, CallRaised, CallReturned
from perdure.effects.settlement import Settlement

T = TypeVar("T")
MakeRecord = Callable[[TaskContext, int, tuple[Any, ...], Mapping[str, Any]], CallRecord]
"""Makes the record of a call, from its task, the attempt at that task, and the arguments."""

log = logging.getLogger("perdure")


def perform(caller: Caller, bound: Bound, make_record: MakeRecord) -> Any:
    found = current_task()
    if found is None:
        return _unwrap(caller.plain(bound).run())
    task, settlement = found[0], Settlement(make_record(*found, *bound), caller)
    with _blocking(task, caller.name):
        return task.journal.run(settlement.run())


async def aperform(caller: Caller, bound: Bound, make_record: MakeRecord) -> Any:
    found = current_task()
    if found is None:
        return _unwrap(await caller.plain(bound).arun())
    settlement = Settlement(make_record(*found, *bound), caller)
    return await _shielded(found[0].journal.arun(settlement.run()))


def _unwrap(outcome: CallReturned | CallRaised) -> Any:
    if isinstance(outcome, CallRaised):
        raise outcome.error
    return outcome.value


_WARNED: set[str] = set()


@contextlib.contextmanager
def _blocking(task: TaskContext, name: str) -> Iterator[None]:
    """Warn and let the segment know if a coroutine calls: that blocks its event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        yield
        return
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
