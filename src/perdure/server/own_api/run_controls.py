"""Controls for operators: pause, resume, cancel, retry, wake and fork a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter
from pydantic import Field, create_model

from perdure.commands.run_control import cancel, pause, resume, retry, wake
from perdure.errors import Error
from perdure.server.agent_api.thread_views import update_error
from perdure.server.authorization import Scope
from perdure.server.own_api.requests import (
    TEXT,
    Body,
    Id,
    Person,
    Text,
    allow_thread,
    errors,
    find_row,
)
from perdure.server.routes import Api, ApiDep
from perdure.types import Run
from perdure.verbs import Verb

router = APIRouter(prefix="/perdure/runs/{run_id}", tags=["runs, perdure's own"])

ERRORS = errors(404, 409)


class ForkBody(Body):
    at: Text | None = None
    """The id of a checkpoint; the latest by default."""
    update: Any = None
    as_node: Text | None = None
    thread_id: Annotated[str | None, Field(min_length=1, max_length=256)] = None


def add_control(verb: Verb[..., Run]) -> None:
    """Add the route of a verb on a run: its body has the other parameters, by their names."""
    hints, fields = get_type_hints(verb.plan), dict[str, Any]()
    for one in verb.parameters[1:]:
        kind, default = FIELDS.get(one.name, hints[one.name]), one.default
        if isinstance(default, timedelta):
            default = default.total_seconds()
        fields[one.name] = (kind, default)
    shape: Any = create_model(f"{verb.name.title()}Body", __base__=Body, **fields)

    async def endpoint(api: Api, run_id: str, body: Any = None) -> Run:
        api.require(Scope.ADMIN)
        await find_row(api, "run", run_id, "update")
        asked = dict(body or shape())
        asked["by"] = api.actor(asked["by"])
        if "grace" in asked:
            asked["grace"] = timedelta(seconds=asked["grace"])
        method: Callable[..., Awaitable[Run]] = getattr(api.runtime, verb.name)
        return await method(run_id, **asked)

    types = {"api": ApiDep, "run_id": Id, "body": shape | None, "return": Run}
    endpoint.__annotations__ = types
    endpoint.__name__ = verb.name
    endpoint.__doc__ = (verb.__doc__ or "").partition("\n")[0]
    router.post(f"/{verb.name}", responses=ERRORS)(endpoint)


FIELDS: dict[str, Any] = {
    "by": Person,
    "reason": Annotated[str | None, Field(max_length=10_000, pattern=TEXT)],
    "grace": Annotated[
        float,
        Field(
            ge=0, le=3600, description="Seconds after which a step that has not ended is stopped."
        ),
    ],
}
"""Parameters that have another form, or limits, over HTTP."""
for control in (pause, resume, cancel, retry, wake):
    add_control(control)


@router.post("/fork", responses=ERRORS, status_code=201)
async def fork(api: ApiDep, run_id: Id, body: ForkBody | None = None) -> Run:
    """Start a run on a new thread, from a checkpoint of this run."""
    api.require(Scope.ADMIN)
    await find_row(api, "run", run_id, "update")
    asked = body or ForkBody()
    if asked.thread_id is not None:
        await allow_thread(api, asked.thread_id, "create_run")
    try:
        return await api.runtime.fork(run_id, **dict(asked))
    except Exception as error:
        if asked.update is None or isinstance(error, Error):
            raise
        raise update_error(error) from error
