"""For operators: schedules, the outbox, and the journal's health."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Response
from pydantic import Field

from perdure.server.agent_api.run_bodies import CheckedConfig
from perdure.server.authorization import Scope
from perdure.server.own_api.requests import Body, Limit, Name, Text, errors
from perdure.server.routes import ApiDep
from perdure.types import Message, Schedule

router = APIRouter(prefix="/perdure", tags=["operators"])


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


@dataclass(frozen=True)
class Finding:
    """A violated invariant, and the row it was found in."""

    problem: str
    thread_id: str
    id: str
    detail: str


@dataclass(frozen=True)
class Health:
    """Whether the journal keeps its invariants."""

    ok: bool
    checked: int
    findings: list[Finding]
    remarks: list[str]


@router.get("/messages", responses=errors())
async def list_messages(api: ApiDep, limit: Limit = 100) -> list[Message]:
    """List undelivered messages of the outbox, including webhooks, oldest first, without payloads.
    A message without a `due_at` was given up."""
    api.require(Scope.ADMIN)
    found = await api.runtime.messages(limit=limit)
    return [replace(one, payload=None) for one in found]


@router.post("/messages/{message_id:path}/redeliver", responses=errors(404), status_code=204)
async def redeliver(api: ApiDep, message_id: Name) -> Response:
    """Deliver a message now, if it was given up or waits for a retry."""
    api.require(Scope.ADMIN)
    await api.runtime.redeliver(message_id)
    return Response(status_code=204)


@router.get("/doctor", responses=errors())
async def doctor(api: ApiDep) -> Health:
    """Check the journal's invariants in one snapshot. Reads the whole journal."""
    api.require(Scope.ADMIN)
    found = await api.runtime.doctor()
    findings = [Finding(*one) for one in found.findings]
    return Health(not findings, found.checked, findings, list(found.remarks))


@router.get("/schedules", responses=errors())
async def list_schedules(api: ApiDep) -> list[Schedule]:
    """List every schedule, by name."""
    api.require(Scope.ADMIN)
    return await api.runtime.schedules()


@router.put("/schedules/{name}", responses=errors())
async def put_schedule(api: ApiDep, name: Name, body: ScheduleBody) -> Schedule:
    """Create a schedule, or change the one with this name."""
    api.require(Scope.ADMIN)
    late = body.catch_up
    catch_up = late if isinstance(late, bool) else timedelta(seconds=late)
    return await api.runtime.schedule(name, **{**dict(body), "catch_up": catch_up})


@router.delete("/schedules/{name}", responses=errors(404), status_code=204)
async def delete_schedule(api: ApiDep, name: Name) -> Response:
    """Delete a schedule. The runs it started stay."""
    api.require(Scope.ADMIN)
    await api.runtime.unschedule(name)
    return Response(status_code=204)
