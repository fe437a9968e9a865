"""Controls for operators: pause, resume, cancel, retry, wake and fork a run."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field

from perdure.errors import Error
from perdure.server.agent_api.thread_views import update_error
from perdure.server.authorization import Scope
from perdure.server.own_api.access import allow_thread, find_run
from perdure.server.own_api.requests import Body, Id, Person, Text, errors
from perdure.server.routes import Api, ApiDep
from perdure.types import Run

router = APIRouter(prefix="/perdure/runs/{run_id}", tags=["runs, perdure's own"])

ERRORS = errors(404, 409)


class Request(Body):
    by: Person = None


class StopBody(Request):
    grace: Annotated[float, Field(ge=0, le=3600)] = 10.0
    """Seconds after which a step that has not ended is stopped."""


class CancelBody(StopBody):
    reason: Text | None = None


class ForkBody(Body):
    at: Text | None = None
    """The id of a checkpoint; the latest by default."""
    update: Any = None
    as_node: Text | None = None
    thread_id: Annotated[str | None, Field(min_length=1, max_length=256)] = None


@router.post("/pause", responses=ERRORS)
async def pause(api: ApiDep, run_id: Id, body: StopBody | None = None) -> Run:
    """Pause a run until it is resumed: at once, or after its current step."""
    await _operate(api, run_id)
    asked = body or StopBody()
    grace = timedelta(seconds=asked.grace)
    return await api.runtime.pause(run_id, grace=grace, by=api.actor(asked.by))


@router.post("/resume", responses=ERRORS)
async def resume(api: ApiDep, run_id: Id, body: Request | None = None) -> Run:
    """Continue a paused run."""
    await _operate(api, run_id)
    return await api.runtime.resume(run_id, by=api.actor((body or Request()).by))


@router.post("/cancel", responses=ERRORS)
async def cancel(api: ApiDep, run_id: Id, body: CancelBody | None = None) -> Run:
    """Cancel a run, at once or after its current step. Its effects are compensated first."""
    await _operate(api, run_id)
    asked = body or CancelBody()
    grace, by = timedelta(seconds=asked.grace), api.actor(asked.by)
    return await api.runtime.cancel(run_id, grace=grace, reason=asked.reason, by=by)


@router.post("/retry", responses=ERRORS)
async def retry(api: ApiDep, run_id: Id, body: Request | None = None) -> Run:
    """Retry a failed or held run from its last step."""
    await _operate(api, run_id)
    return await api.runtime.retry(run_id, by=api.actor((body or Request()).by))


@router.post("/wake", responses=ERRORS)
async def wake(api: ApiDep, run_id: Id, body: Request | None = None) -> Run:
    """End the sleep of a run now."""
    await _operate(api, run_id)
    return await api.runtime.wake(run_id, by=api.actor((body or Request()).by))


@router.post("/fork", responses=ERRORS, status_code=201)
async def fork(api: ApiDep, run_id: Id, body: ForkBody | None = None) -> Run:
    """Start a run on a new thread, from a checkpoint of this run."""
    await _operate(api, run_id)
    asked = body or ForkBody()
    if asked.thread_id is not None:
        await allow_thread(api, asked.thread_id, "create_run")
    try:
        return await api.runtime.fork(
            run_id,
            at=asked.at,
            update=asked.update,
            as_node=asked.as_node,
            thread_id=asked.thread_id,
        )
    except Exception as error:
        if asked.update is None or isinstance(error, Error):
            raise
        raise update_error(error) from error


async def _operate(api: Api, run_id: str) -> None:
    api.require(Scope.ADMIN)
    await find_run(api, run_id, "update")
