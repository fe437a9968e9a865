"""For operators: the outbox, and the journal's health."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fastapi import APIRouter, Response

from perdure.server.authorization import Scope
from perdure.server.own_api.requests import Limit, Name, errors
from perdure.server.routes import ApiDep
from perdure.types import Message

router = APIRouter(prefix="/perdure", tags=["operators"])


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
