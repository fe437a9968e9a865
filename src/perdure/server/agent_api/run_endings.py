"""Cancelling and deleting runs over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from perdure.errors import NotFound, WrongState
from perdure.journal import Plan
from perdure.operations import runs
from perdure.server.agent_api.run_acceptance import GRACE
from perdure.server.agent_api.run_results import SeenRun, until
from perdure.server.context import Api
from perdure.types import Control, State

log = logging.getLogger("perdure")

REASON = "it was cancelled over HTTP"

_FINISHING: set[asyncio.Task[None]] = set()
"""Keeps references to background tasks that finish a cancellation."""


async def cancel(api: Api, found: SeenRun, *, action: str, wait: bool) -> None:
    """Cancel a run; `rollback` also deletes it and its checkpoints. A run that has ended is not
    changed. Without `wait`, this returns once the request to stop is on disk."""
    if found.has_ended:
        return
    runtime, run_id, undo = api.runtime, found.row.id, action == "rollback"
    stop = runtime.services.runs.stop(
        run_id, Control.CANCEL, GRACE, reason=REASON, by=api.actor(), undo=undo
    )
    try:
        await runtime.journal.arun(stop)
    except WrongState:
        return  # it has just ended
    runtime.engine.stop(run_id, Control.CANCEL)
    runtime.engine.wake(stopped=True)
    finish = _finish(api, run_id, undo)
    if wait:
        await finish
    elif undo:
        task = asyncio.ensure_future(finish)
        _FINISHING.add(task)
        task.add_done_callback(_finished)
    else:
        finish.close()


def _finished(task: asyncio.Task[None]) -> None:
    _FINISHING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("rolling back a cancelled run failed: %s", error)


async def _finish(api: Api, run_id: str, undo: bool) -> None:
    """Wait until a cancelled run has ended; with `undo`, roll it back."""
    found = await until(api, run_id, lambda one: one.has_ended)
    if undo and found is not None and found.row.undo:
        with contextlib.suppress(NotFound):  # another request was faster
            await api.runtime.journal.arun(_roll_back(api, run_id))


def _roll_back(api: Api, run_id: str) -> Plan[None]:
    """Delete an ended run and its checkpoints. After a crash in between, the thread's next run
    deletes the checkpoints when it starts."""
    row = yield from api.runtime.services.runs.find(run_id)
    yield from api.runtime.engine.saver.pruner.delete_for_runs([run_id], row.thread_id)
    yield runs.note_rolled_back(row.thread_id, run_id)
    yield from api.runtime.services.runs.delete(run_id)


async def delete(api: Api, found: SeenRun) -> None:
    """Delete a run and its history; the state of its thread stays. A run that is not being driven
    is cancelled first. Raises `WrongState` if it is."""
    runtime = api.runtime
    if not found.has_ended and found.row.state != State.RUNNING:
        stop = runtime.services.runs.stop(found.row.id, Control.CANCEL, GRACE, reason=REASON)
        await runtime.journal.arun(stop)
    await runtime.journal.arun(runtime.services.runs.delete(found.row.id))
