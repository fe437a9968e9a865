"""Waits: what runs wait for. Those of kind `human` are questions, which a person answers once."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from perdure.commands import waits
from perdure.commands.waits import WaitRow
from perdure.errors import AlreadyAnswered
from perdure.server.authorization import Scope
from perdure.server.errors import WireResponse
from perdure.server.own_api.requests import (
    After,
    Body,
    Detail,
    Id,
    Limit,
    Page,
    Person,
    Position,
    Text,
    ThreadFilter,
    Which,
    errors,
    find_row,
    position,
)
from perdure.server.routes import Api, ApiDep
from perdure.types import Kind, Wait, WaitRecord, WaitState

router = APIRouter(prefix="/perdure/waits", tags=["waits"])


class AnswerBody(Body):
    value: Any = None
    by: Person = None


class WithdrawBody(Body):
    by: Person = None
    reason: Text | None = None


class Conflict(Detail):
    """Why an answer was not accepted. If another one was: who answered, and when."""

    answered_by: str | None = None
    answered_at: str | None = None


@router.get("", responses=errors())
async def list_waits(
    api: ApiDep,
    kind: Kind | None = None,
    thread_id: Which = None,
    run_id: Which = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Wait]:
    """List open waits, oldest first. `kind=human` selects the questions to people."""
    api.require(Scope.READ)
    seen = await ThreadFilter.of(api)

    async def read(behind: Position | None, count: int) -> list[WaitRow]:
        if run_id is None:
            op = waits.page(kind=kind, thread_id=thread_id, after=behind, count=count)
            return await api.do(op)
        return [
            row
            for row in await api.do(waits.of_run(run_id))
            if row.state == WaitState.OPEN
            and kind in (None, row.kind)
            and thread_id in (None, row.thread_id)
            and (behind is None or (row.created_at, row.id) > behind)
        ][:count]

    rows, last = await seen.page(read, position(after), limit, lambda row: (row.created_at, row.id))
    return Page.of([waits.to_wait(api.serializer, row) for row in rows], last)


@router.get("/{wait_id}", responses=errors(404))
async def get_wait(api: ApiDep, wait_id: Id) -> WaitRecord:
    """Get a wait, open or not, with its answer."""
    api.require(Scope.READ)
    return await _record(api, wait_id)


@router.post("/{wait_id}/answer", responses={**errors(404), 409: {"model": Conflict}})
async def answer(api: ApiDep, wait_id: Id, body: AnswerBody) -> WaitRecord:
    """Answer a question. The first answer counts; a second one gets 409, which says who answered
    and when. An answer that does not fit the question gets 422."""
    api.require(Scope.ANSWER)
    await find_row(api, "wait", wait_id, "update")
    try:
        await api.runtime.answer(wait_id, body.value, by=api.actor(body.by))
    except AlreadyAnswered as error:
        one = await _record(api, wait_id)
        first = {"answered_by": one.answered_by, "answered_at": one.answered_at}
        return WireResponse({"detail": str(error), **first}, 409)  # type: ignore[return-value]
    return await _record(api, wait_id)


@router.post("/{wait_id}/withdraw", responses=errors(404, 409))
async def withdraw(api: ApiDep, wait_id: Id, body: WithdrawBody) -> WaitRecord:
    """Withdraw an answer that the run has not used yet. The question is open again."""
    api.require(Scope.ANSWER)
    await find_row(api, "wait", wait_id, "update")
    await api.runtime.withdraw(wait_id, by=api.actor(body.by), reason=body.reason)
    return await _record(api, wait_id)


async def _record(api: Api, wait_id: str) -> WaitRecord:
    return waits.to_record(api.engine, await find_row(api, "wait", wait_id))
