"""Effects: list calls that left the process, and settle those with an unknown outcome."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter

from perdure.commands import effects
from perdure.commands.effects import EffectRow
from perdure.server.authorization import Scope
from perdure.server.own_api.requests import (
    After,
    Body,
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
from perdure.server.routes import ApiDep
from perdure.types import EffectRecord, EffectState

router = APIRouter(prefix="/perdure/effects", tags=["effects"])


class SettleBody(Body):
    how: Literal["done", "retry", "fail"]
    result: Any = None
    """With `done`: what the call would have returned."""
    by: Person = None
    reason: Text | None = None


@router.get("", responses=errors())
async def list_effects(
    api: ApiDep,
    run_id: Which = None,
    thread_id: Which = None,
    state: EffectState | None = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[EffectRecord]:
    """List effects, oldest first. `state=unknown` selects those that a person has to settle."""
    api.require(Scope.READ)
    seen = await ThreadFilter.of(api)

    async def read(behind: Position | None, count: int) -> list[EffectRow]:
        if run_id is None:
            op = effects.page(thread_id=thread_id, state=state, after=behind, count=count)
            return await api.do(op)
        return [
            row
            for row in await api.do(effects.of_run(run_id))
            if state in (None, row.state)
            and thread_id in (None, row.thread_id)
            and (behind is None or (row.created_at, row.key) > behind)
        ][:count]

    rows, last = await seen.page(
        read, position(after), limit, lambda row: (row.created_at, row.key)
    )
    return Page.of([effects.to_record(api.serializer, row) for row in rows], last)


@router.get("/{key:path}", responses=errors(404))
async def get_effect(api: ApiDep, key: Id) -> EffectRecord:
    """Get an effect by its key."""
    api.require(Scope.READ)
    return effects.to_record(api.serializer, await find_row(api, "effect", key))


@router.post("/{key:path}/settle", responses=errors(404, 409))
async def settle(api: ApiDep, key: Id, body: SettleBody) -> EffectRecord:
    """Settle an effect with an unknown outcome: `done`, with its `result`; `retry`, it
    did not happen and is called again; `fail`, it did not happen and is not called again."""
    api.require(Scope.ADMIN)
    await find_row(api, "effect", key, "update")
    await api.runtime.settle(key, **{**dict(body), "by": api.actor(body.by)})
    return effects.to_record(api.serializer, await find_row(api, "effect", key))
