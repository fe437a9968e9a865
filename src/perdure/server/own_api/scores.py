"""Scores of a run: how well it did, as judged by people and programs."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from perdure.server.authorization import Scope
from perdure.server.own_api.access import find_run
from perdure.server.own_api.requests import Body, Id, Person, Text, errors
from perdure.server.routes import ApiDep
from perdure.types import Score

router = APIRouter(prefix="/perdure/runs/{run_id}/scores", tags=["scores"])


class ScoreBody(Body):
    name: Annotated[str, Field(min_length=1, max_length=256)]
    value: bool | float | Text | None = None
    """A number or a category; None if there is only a comment."""
    about: Text = ""
    step: Text | None = None
    effect: Text | None = None
    comment: Text | None = None
    by: Person = None


@router.get("", responses=errors(404))
async def list_scores(api: ApiDep, run_id: Id) -> list[Score]:
    """List the scores of a run, oldest first."""
    api.require(Scope.READ)
    await find_run(api, run_id)
    return await api.runtime.scores(run_id)


@router.post("", responses=errors(404))
async def score(api: ApiDep, run_id: Id, body: ScoreBody) -> list[Score]:
    """Score a run, the part that `about` names, a step or an effect. Replaces a score with the same
    name for the same part."""
    api.require(Scope.ANSWER)
    await find_run(api, run_id, "update")
    await api.runtime.score(
        run_id,
        body.name,
        body.value,
        about=body.about,
        step=body.step,
        effect=body.effect,
        comment=body.comment,
        by=api.actor(body.by),
    )
    return await api.runtime.scores(run_id)
