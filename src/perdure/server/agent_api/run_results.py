"""Find runs, wait until they are over, return their results; cancel and delete them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from perdure.commands import deleting, run_control, run_reads, waits
from perdure.commands.runs import RunRow, load_error, load_output
from perdure.commands.waits import WaitRow
from perdure.errors import UNREADABLE, NotFound, WrongState
from perdure.server.agent_api.run_request import GRACE
from perdure.server.agent_api.thread_access import check_filters, known_thread
from perdure.server.agent_api.thread_views import place, read_state
from perdure.server.routes import Api
from perdure.types import ENDED, Control, Kind, State, WaitState
from perdure.views.wire_run import RunStatus, asks_person, is_gone, run_status, wire_error

log = logging.getLogger("perdure")

LOOK = 5.0
"""Maximum number of seconds between two reads of a run that is waited for."""
REASON = "it was cancelled over HTTP"
_FINISHING: set[asyncio.Task[None]] = set()
"""Keeps references to background tasks that finish a cancellation."""


class SeenRun(NamedTuple):
    """A run and its waits, read in one snapshot."""

    row: RunRow
    waits: Sequence[WaitRow]
    asks: bool
    """Whether it rests until a person answers."""

    @property
    def status(self) -> RunStatus:
        return run_status(self.row, asks=self.asks)

    @property
    def is_over(self) -> bool:
        """Whether clients consider it finished."""
        return self.asks or self.has_ended or self.row.state in (State.PAUSED, State.HELD)

    @property
    def has_ended(self) -> bool:
        return self.row.state in ENDED

    @property
    def questions(self) -> list[WaitRow]:
        """The open questions to people, without breakpoints."""
        return [
            one
            for one in self.waits
            if one.state == WaitState.OPEN and one.kind == Kind.HUMAN and not one.is_breakpoint
        ]


async def look(api: Api, run_id: str, *, flush: bool = True) -> SeenRun | None:
    """A run as it is now; without `flush`, as far as it is on disk."""
    journal, op = api.runtime.journal, waits.with_run(run_id)
    await journal.aopen()
    row, every = await (journal.ado(op) if flush else journal.aread_committed(op))
    return None if row is None else SeenRun(row, every, asks_person(row, every, api.now()))


async def find_run(
    api: Api, thread_id: str | None, run_id: str, *, action: str = "read"
) -> SeenRun:
    """A run on which the caller may do `action`. Raises 404. Without a `thread_id` it must be a
    stateless run."""
    if thread_id is not None:
        thread_id = await known_thread(api, thread_id)
    run = await look(api, run_id)
    gone = run is None or is_gone(run.row)
    if run is None or gone or thread_id not in (None, run.row.thread_id):
        raise NotFound("run", run_id)
    on = run.row.thread_id
    filters = await api.authorize("threads", action, {"thread_id": on, "run_id": run_id})
    await check_filters(api, on, filters, missing=NotFound("run", run_id))
    return run


async def until(api: Api, run_id: str, is_done: Callable[[SeenRun], bool]) -> SeenRun | None:
    """Wait until `is_done` holds, whichever process drives the run. None: it was deleted."""
    with api.runtime.journal.feed.watch(run_id) as watch:
        while True:
            seen = watch.count
            run = await look(api, run_id, flush=False)
            if run is None or is_done(run):
                return run
            await watch.wait(seen, LOOK)


async def result_of(api: Api, run_id: str, run: SeenRun | None) -> Any:
    """What `wait` and `join` return for a run that is over."""
    if run is None or is_gone(run.row):
        return as_error("NotFound", f"Run {run_id} was deleted.")
    row, serializer = run.row, api.serializer
    if row.state in (State.FAILED, State.HELD):
        try:
            error = load_error(serializer, row)
        except UNREADABLE as unreadable:
            return as_error(type(unreadable).__name__, str(unreadable))
        if error is not None and row.state == State.FAILED:
            return as_error(error.kind, error.message)
        return as_error("Held", f"Run {row.id} is held until a person decides: {row.reason}")
    graph = api.runtime.compiled(row.graph)
    if row.state == State.DONE and (graph is None or _returns_state(graph)):
        return await api.run(load_output(serializer, row, api.engine.state_at), flush=False)
    values: Any = {}
    if graph is not None:
        runtime, config = api.runtime, place(row.thread_id)
        state = await runtime.journal.in_thread(lambda: read_state(runtime, graph, config))
        values = state.values
    if not run.asks or not isinstance(values, dict):
        return values
    questions = [as_interrupt(api, one) for one in run.questions]
    return {**values, "__interrupt__": questions} if questions else values


def as_error(kind: str, message: str) -> dict[str, Any]:
    """A failed run as `wait` and `join` return it. The HTTP status is still 200."""
    return {"__error__": wire_error(kind, message)}


def as_interrupt(api: Api, wait: WaitRow) -> dict[str, Any]:
    """An open question as LangGraph's `Interrupt`."""
    question = waits.to_wait(api.serializer, wait)
    return {
        "value": question.value,
        "id": wait.interrupt_id,
        "response_schema": question.response_schema,
    }


def _returns_state(graph: Any) -> bool:
    """Whether the output of a graph's run is its whole state."""
    output, state = graph.output_channels, graph.stream_channels_asis
    if isinstance(output, str) or isinstance(state, str):
        return bool(output == state)
    return {*output} == {*state}


async def cancel_run(api: Api, run: SeenRun, *, action: str, wait: bool) -> None:
    """Cancel a run; `rollback` also deletes it and its checkpoints. A run that has ended is not
    changed. Without `wait`, this returns once the request to stop is on disk."""
    if run.has_ended:
        return
    runtime, run_id, undo = api.runtime, run.row.id, action == "rollback"
    stop = run_control.stop_run(
        api.engine, run_id, Control.CANCEL, GRACE, reason=REASON, by=api.actor(), undo=undo
    )
    try:
        await api.run(stop)
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


async def cancel_left(api: Api, run_id: str) -> None:
    """Cancel a run whose client has left, unless it is over."""
    run = await look(api, run_id)
    if run is not None and not run.is_over:
        await cancel_run(api, run, action="interrupt", wait=False)


def _finished(task: asyncio.Task[None]) -> None:
    _FINISHING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("rolling back a cancelled run failed: %s", error)


async def _finish(api: Api, run_id: str, undo: bool) -> None:
    """Wait until a cancelled run has ended; with `undo`, roll it back."""
    run = await until(api, run_id, lambda one: one.has_ended)
    if undo and run is not None and run.row.undo:
        with contextlib.suppress(NotFound):  # another request was faster
            await _roll_back(api, run_id)


async def _roll_back(api: Api, run_id: str) -> None:
    """Delete an ended run and its checkpoints. After a crash in between, the thread's next run
    deletes the checkpoints when it starts."""
    row = await api.run(run_reads.find_row(api.engine, run_id))
    await api.run(api.runtime.saver.pruner.delete_for_runs([run_id], row.thread_id))
    await api.do(deleting.note_rolled_back(row.thread_id, run_id))
    await api.run(deleting.delete_run(api.engine, run_id))


async def delete_run(api: Api, run: SeenRun) -> None:
    """Delete a run and its history; the state of its thread stays. A run that is not being driven
    is cancelled first. Raises `WrongState` if it is."""
    if not run.has_ended and run.row.state != State.RUNNING:
        stop = run_control.stop_run(api.engine, run.row.id, Control.CANCEL, GRACE, reason=REASON)
        await api.run(stop)
    await api.run(deleting.delete_run(api.engine, run.row.id))
