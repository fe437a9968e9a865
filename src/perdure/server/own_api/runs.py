"""Runs with perdure's own states: list, show, join; and their scores, by people and programs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from datetime import timedelta
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from perdure.commands import run_reads
from perdure.commands.run_reads import select_runs
from perdure.server.authorization import Scope
from perdure.server.own_api.requests import (
    After,
    Body,
    Id,
    Limit,
    Page,
    Person,
    Text,
    ThreadFilter,
    Which,
    errors,
    find_row,
    position,
)
from perdure.server.routes import ApiDep
from perdure.types import Run, Score, State, WaitRecord

router = APIRouter(prefix="/perdure/runs", tags=["runs, perdure's own"])

Seconds = Annotated[float, Query(ge=0, le=300, description="Maximum seconds to wait.")]


class ScoreBody(Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    value: bool | float | Text | None = None
    """A number or a category; None if there is only a comment."""
    about: Text = ""
    step: Text | None = None
    effect: Text | None = None
    comment: Text | None = None
    by: Person = None


@router.get("", responses=errors())
async def list_runs(
    api: ApiDep,
    state: Annotated[list[State] | None, Query()] = None,
    graph: Which = None,
    thread_id: Which = None,
    parent_id: Which = None,
    limit: Limit = 100,
    after: After = None,
) -> Page[Run]:
    """List runs, newest first, without their outputs. `state` may be repeated."""
    api.require(Scope.READ)
    seen, on = await ThreadFilter.of(api), api.engine
    which = select_runs(thread_id=thread_id, parent_id=parent_id, state=state, graph=graph)
    rows, last = await seen.page(
        lambda before, count: api.do(which.page(before=before, count=count)),
        position(after),
        limit,
        lambda row: (row.created_at, row.id),
    )
    items = [await api.run(run_reads.show(on, row, output=False)) for row in rows]
    return Page.of(items, last)


@router.get("/{run_id}", responses=errors(404))
async def get_run(api: ApiDep, run_id: Id) -> Run:
    """Get a run with its output."""
    api.require(Scope.READ)
    row = await find_row(api, "run", run_id)
    return await api.run(run_reads.show(api.engine, row))


@router.get("/{run_id}/join", responses=errors(404))
async def join_run(api: ApiDep, run_id: Id, timeout: Seconds = 60.0) -> Run:
    """Wait until a run ends, the server stops, or `timeout` seconds pass, and return it: check its
    `state`."""
    api.require(Scope.READ)
    await find_row(api, "run", run_id)
    with api.open_stream(counts=False) as waiting:
        join = api.runtime.join(run_id, timeout=timedelta(seconds=timeout))
        either: list[Awaitable[object]] = [join, waiting.stopping.wait()]
        both = [asyncio.ensure_future(one) for one in either]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
    return await api.runtime.get(run_id)


@router.get("/{run_id}/waits", responses=errors(404))
async def waits_of_run(api: ApiDep, run_id: Id) -> list[WaitRecord]:
    """List every wait of a run, oldest first, each with its answer."""
    api.require(Scope.READ)
    await find_row(api, "run", run_id)
    return await api.runtime.wait_history(run_id)


@router.get("/{run_id}/scores", responses=errors(404))
async def list_scores(api: ApiDep, run_id: Id) -> list[Score]:
    """List the scores of a run, oldest first."""
    api.require(Scope.READ)
    await find_row(api, "run", run_id)
    return await api.runtime.scores(run_id)


@router.post("/{run_id}/scores", responses=errors(404))
async def score(api: ApiDep, run_id: Id, body: ScoreBody) -> list[Score]:
    """Score a run, the part that `about` names, a step or an effect. Replaces a score with the same
    name for the same part."""
    api.require(Scope.ANSWER)
    await find_row(api, "run", run_id, "update")
    await api.runtime.score(run_id, **{**dict(body), "by": api.actor(body.by)})
    return await api.runtime.scores(run_id)
