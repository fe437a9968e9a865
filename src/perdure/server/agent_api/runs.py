"""Runs: create, wait, join, batch, list, get, cancel, delete.

Runs of a thread are at `/threads/{thread_id}/runs`, stateless runs at `/runs`. A stateless run has
its own thread, which is erased some time after the run ends, unless the caller keeps it. Until then
the run can be joined and cancelled by its id alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Collection
from functools import partial
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.responses import Response

from perdure.commands import deleting, run_control
from perdure.commands import runs as run_operations
from perdure.commands import waits as wait_operations
from perdure.commands.runs import RunRow
from perdure.errors import NotFound, WrongState
from perdure.server.agent_api.resources import Page, check_filters, find_thread, page_of
from perdure.server.agent_api.run_bodies import Json, RunBody, WireBody
from perdure.server.agent_api.run_reader import SeenRun, find_run, is_shown, look, result_of, until
from perdure.server.agent_api.run_request import GRACE, Accepted, accept_run, also_stateless
from perdure.server.agent_api.sse import WaitingResponse
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError, WireResponse, log_failure
from perdure.server.lifespan import OpenStream
from perdure.server.routes import READ, START, Api, ApiDep
from perdure.types import Control, State
from perdure.views.wire_run import (
    STATES_OF,
    UNDER_WAY,
    RunStatus,
    asks_person,
    run_status,
    wire_error,
    wire_run,
)

router = APIRouter(tags=["runs"])

PAGE = 200
"""Runs that are read at once."""
STOPPING: dict[int | str, dict[str, Any]] = {202: {"description": "The run was asked to stop"}}
"""The response to a cancel request that does not wait."""
REASON = "it was cancelled over HTTP"
Action = Literal["interrupt", "rollback"]
_FINISHING: set[asyncio.Task[None]] = set()
"""Keeps references to background tasks that finish a cancellation."""


class BatchBody(RunBody):
    """One run of a batch."""

    thread_id: str | None = None


class CancelBody(WireBody):
    """Which runs to cancel."""

    thread_id: UUID | None = None
    run_ids: list[UUID] | None = Field(default=None, max_length=1000)
    status: Literal["pending", "running", "all"] | None = None


# -- creating


@also_stateless(router.post, "")
async def create(thread_id: str | None, body: RunBody, api: ApiDep) -> Any:
    """Create a run. It is on disk when this returns."""
    accepted = await accept_run(api, thread_id, body)
    return WireResponse(_wire(api, accepted), headers={"Content-Location": accepted.location})


@router.post("/runs/batch")
async def create_batch(
    body: Annotated[list[BatchBody], Field(max_length=1000)], api: ApiDep
) -> Any:
    """Create several runs, each on the thread it names or on its own."""
    accepting = (accept_run(api, one.thread_id, one) for one in body)
    results = await asyncio.gather(*accepting, return_exceptions=True)
    for one in results:
        if isinstance(one, BaseException):
            raise one
    return [_wire(api, one) for one in results if isinstance(one, Accepted)]


def _wire(api: Api, accepted: Accepted) -> Json:
    status = run_status(accepted.row, asks=False)
    return wire_run(api.serializer, accepted.row, status)


# -- waiting


@also_stateless(router.post, "/wait")
async def create_and_wait(thread_id: str | None, body: RunBody, api: ApiDep) -> Any:
    """Create a run, wait until it is over, and return its values."""
    with api.open_stream(counts=False) as slot:
        accepted = await accept_run(api, thread_id, body)
        return _wait(api, slot, accepted, cancels=body.on_disconnect == "cancel")


def _wait(api: Api, slot: OpenStream, accepted: Accepted, *, cancels: bool) -> WaitingResponse:
    run_id, location = accepted.row.id, accepted.location

    async def value() -> Any:
        return await result_of(api, run_id, await until(api, run_id, lambda run: run.is_over))

    headers = {"Content-Location": location, "Location": f"{location}/join"}
    return WaitingResponse(
        slot, value, headers, on_leave=partial(cancel_left, api, run_id) if cancels else None
    )


@also_stateless(router.get, "/{run_id}/join")
async def join(
    thread_id: str | None, run_id: UUID, api: ApiDep, cancel_on_disconnect: bool = False
) -> Any:
    """Wait until a run is over, and return its values."""
    api.require(Scope.START if cancel_on_disconnect else Scope.READ)
    with api.open_stream(counts=False) as slot:
        try:
            run = await find_run(api, thread_id, str(run_id))
        except NotFound as missing:  # clients of the Agent Server expect 200 here
            return {"__error__": wire_error("NotFound", str(missing))}
        accepted = Accepted(run.row, thread_id is None)
        return _wait(api, slot, accepted, cancels=cancel_on_disconnect)


# -- reading


class RunPage(Page):
    """A page of a thread's runs."""

    status: RunStatus | None = None


@router.get("/threads/{thread_id}/runs", dependencies=[READ])
async def list_runs(thread_id: str, api: ApiDep, page: Annotated[RunPage, Query()]) -> Any:
    """List the runs of a thread, newest first."""
    on = (await find_thread(api, thread_id)).thread_id
    await check_filters(api, on, await api.authorize("threads", "search", {"thread_id": on}))
    newest = await _newest(api, on, page.status, page.offset + page.limit + 1)
    return page_of(newest, page, lambda one: wire_run(api.serializer, one.row, one.status))


async def _newest(api: Api, thread_id: str, status: RunStatus | None, count: int) -> list[SeenRun]:
    """The newest visible runs of a thread; with `status`, those that have it."""
    open = await api.journal.ado(
        wait_operations.page(kind="human", thread_id=thread_id, after=None, count=PAGE)
    )
    now, newest = api.now(), list[SeenRun]()
    rows = _rows(api, thread_id, None if status is None else STATES_OF[status])
    async with contextlib.aclosing(rows):
        async for row in rows:
            seen = SeenRun(row, open, asks_person(row, open, now))
            if status in (None, seen.status) and is_shown(api, row):
                newest.append(seen)
            if len(newest) == count:
                break
    return newest


async def _rows(
    api: Api, thread_id: str | None, states: Collection[str] | None
) -> AsyncGenerator[RunRow]:
    """The runs of a thread, or of all, in these states, newest first."""
    before: tuple[int, str] | None = None
    while True:
        rows = await api.journal.ado(
            run_operations.page(thread_id=thread_id, states=states, before=before, count=PAGE)
        )
        for row in rows:
            yield row
        if len(rows) < PAGE:
            return
        before = (rows[-1].created_at, rows[-1].id)


@also_stateless(router.get, "/{run_id}", dependencies=[READ])
async def get(thread_id: str | None, run_id: UUID, api: ApiDep) -> Any:
    """Get a run; a stateless one until its thread is erased."""
    run = await find_run(api, thread_id, str(run_id))
    return wire_run(api.serializer, run.row, run.status)


# -- ending


@router.delete("/threads/{thread_id}/runs/{run_id}", status_code=204, dependencies=[START])
async def delete(thread_id: str, run_id: UUID, api: ApiDep) -> None:
    """Delete a run and its history; the state of its thread stays. Cancel a running run first; one
    that rests is cancelled here."""
    run = await find_run(api, thread_id, str(run_id), action="delete")
    if not run.has_ended and run.row.state != State.RUNNING:
        stop = run_control.stop_run(api.engine, run.row.id, Control.CANCEL, GRACE, reason=REASON)
        await api.journal.arun(stop)
    await api.journal.arun(deleting.delete_run(api.engine, run.row.id))


@also_stateless(router.post, "/{run_id}/cancel", responses=STOPPING, dependencies=[START])
async def cancel(
    thread_id: str | None,
    run_id: UUID,
    api: ApiDep,
    wait: bool = False,
    action: Action = "interrupt",
) -> Any:
    """Cancel a run. `rollback` also deletes it and its checkpoints."""
    run = await find_run(api, thread_id, str(run_id), action="update")
    await cancel_run(api, run, action=action, wait=wait)
    return WireResponse({}) if wait else Response(status_code=202)


@router.post("/runs/cancel", status_code=204, dependencies=[START])
async def cancel_many(body: CancelBody, api: ApiDep, action: Action = "interrupt") -> None:
    """Cancel runs of a thread by their ids, or all that are pending, running, or either."""
    on = None if body.thread_id is None else str(body.thread_id)
    if body.run_ids:
        ids = [str(one) for one in body.run_ids]
    elif body.status is not None:
        wanted = [one for one in UNDER_WAY if body.status in ("all", one.value)]
        states = {state.value for one in wanted for state in STATES_OF[one]}
        ids = [row.id async for row in _rows(api, on, states)]
    else:
        raise ApiError(422, "Pass thread_id and run_ids, or status.")
    cancelled = 0
    for run_id in ids:
        try:
            run = await find_run(api, on, run_id, action="update")
        except NotFound:
            continue
        if not run.has_ended and (body.run_ids or not run.is_over):
            await cancel_run(api, run, action=action, wait=False)
            cancelled += 1
    if not cancelled:
        raise ApiError(404, "No matching run is pending or running.")


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
        await api.journal.arun(stop)
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
        task.add_done_callback(partial(_finished, api))
    else:
        finish.close()


async def cancel_left(api: Api, run_id: str) -> None:
    """Cancel a run whose client has left, unless it is over."""
    run = await look(api, run_id)
    if run is not None and not run.is_over:
        await cancel_run(api, run, action="interrupt", wait=False)


def _finished(api: Api, task: asyncio.Task[None]) -> None:
    _FINISHING.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        log_failure("Rolling back a cancelled run", error, api.runtime.redact)


async def _finish(api: Api, run_id: str, undo: bool) -> None:
    """Wait until a cancelled run has ended; with `undo`, delete it and its checkpoints. After a
    crash in between, the thread's next run deletes the checkpoints when it starts."""
    run = await until(api, run_id, lambda one: one.has_ended)
    if undo and run is not None and run.row.undo:
        with contextlib.suppress(NotFound):  # another request was faster
            await api.journal.arun(
                api.runtime.saver.pruner.delete_for_runs([run_id], run.row.thread_id)
            )
            await api.journal.ado(deleting.note_rolled_back(run.row.thread_id, run_id))
            await api.journal.arun(deleting.delete_run(api.engine, run_id))
