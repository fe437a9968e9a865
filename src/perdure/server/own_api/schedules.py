"""Schedules: start runs at the times of a cron line."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field

from perdure.server.agent_api.run_bodies import CheckedConfig
from perdure.server.authorization import Scope
from perdure.server.own_api.requests import Body, Name, Text, errors
from perdure.server.routes import ApiDep
from perdure.types import Schedule

router = APIRouter(prefix="/perdure/schedules", tags=["schedules"])


class ScheduleBody(Body):
    graph: Text
    cron: Text
    timezone: Text = "UTC"
    input: Any = None
    catch_up: bool | Annotated[float, Field(ge=0, le=10**8)] = False
    """Whether to start slots that were missed while no worker ran; or how many seconds late they
    may be."""
    metadata: dict[str, Any] | None = None
    tags: tuple[Text, ...] = ()
    context: Any = None
    config: CheckedConfig | None = None


@router.get("", responses=errors())
async def list_schedules(api: ApiDep) -> list[Schedule]:
    """List every schedule, by name."""
    api.require(Scope.ADMIN)
    return await api.runtime.schedules()


@router.put("/{name}", responses=errors())
async def put_schedule(api: ApiDep, name: Name, body: ScheduleBody) -> Schedule:
    """Create a schedule, or change the one with this name."""
    api.require(Scope.ADMIN)
    late = body.catch_up
    return await api.runtime.schedule(
        name,
        body.graph,
        cron=body.cron,
        timezone=body.timezone,
        input=body.input,
        catch_up=late if isinstance(late, bool) else timedelta(seconds=late),
        metadata=body.metadata,
        tags=body.tags,
        context=body.context,
        config=body.config,
    )


@router.delete("/{name}", responses=errors(404), status_code=204)
async def delete_schedule(api: ApiDep, name: Name) -> Response:
    """Delete a schedule. The runs it started stay."""
    api.require(Scope.ADMIN)
    await api.runtime.unschedule(name)
    return Response(status_code=204)
