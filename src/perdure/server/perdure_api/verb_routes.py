"""The routes that are verbs, made from their declarations: path, body, thread check, response.

What a verb's types do not say, the call of `add_route` does: the path, and who may call. The first
parameter in the path says which thread it is about; those that are not in it are the fields of the
body, of the types in `TYPES` and `FIELDS`. `add_list` is for verbs that list, page by page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Response
from pydantic import Field, create_model

from perdure.commands import effect_decisions, effects, messages, signals, waits
from perdure.commands.answering import answer, withdraw
from perdure.commands.run_control import cancel, pause, resume, retry, wake
from perdure.commands.run_reads import get, list_runs
from perdure.commands.schedules import list_schedules, schedule, unschedule
from perdure.commands.scores import list_scores, score
from perdure.errors import AlreadyAnswered
from perdure.server.agent_api.run_bodies import CheckedConfig
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError, WireResponse
from perdure.server.perdure_api.requests import (
    After,
    Body,
    Detail,
    Id,
    Limit,
    Name,
    Page,
    Person,
    Position,
    Text,
    ThreadFilter,
    Which,
    allow_thread,
    errors,
    find_row,
    position,
)
from perdure.server.routes import Api, ApiDep
from perdure.times import milliseconds, moment
from perdure.types import EffectRecord, EffectState, Kind, Message, State, WaitRecord
from perdure.verbs import Verb

router = APIRouter(prefix="/perdure")

Seconds = Annotated[float, Field(ge=0, le=10**8)]
TYPES: dict[Any, Any] = {
    str: Text,
    str | None: Text | None,
    float | str | None: bool | float | Text | None,
    timedelta: Annotated[Seconds, Field(le=3600, description="Seconds.")],
    bool | timedelta: bool | Seconds,
    Iterable[str]: tuple[Text, ...],
    Mapping[str, Any] | None: dict[str, Any] | None,
}
"""What a parameter of a type is in a body. Any other type is as it is."""
FIELDS: dict[tuple[str, str], Any] = {
    ("score", "name"): Annotated[str, Field(min_length=1, max_length=256)],
    ("schedule", "config"): CheckedConfig | None,
}
"""Parameters with limits of their own."""
KINDS = {"run_id": "run", "wait_id": "wait", "key": "effect"}
"""What a parameter in a path names."""
RECORDS = {"wait": WaitRecord, "effect": EffectRecord}
"""The response of a verb on it that has no result: it, as it is now."""
IdempotencyKey = Annotated[str | None, Header(alias="Idempotency-Key", max_length=200)]


@dataclass(frozen=True)
class Sent:
    """Whether the signal was stored. False if one with this key was sent before."""

    stored: bool


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


class Conflict(Detail):
    """Why an answer was not accepted. If another one was: who answered, and when."""

    answered_by: str | None = None
    answered_at: str | None = None


def add_route(
    at: str,
    verb: Verb[..., Any],
    scope: Scope = Scope.ADMIN,
    statuses: tuple[int, ...] = (404,),
    shows: Verb[..., Any] | None = None,
) -> None:
    """Add the route of a verb. `statuses` are its errors besides those of every operation. If it
    has no result, the response is that of `shows`, or what it changed as it is now."""
    method, path = at.split()
    ids = re.findall(r"\{(\w+)", path)
    of = next(iter(ids), "")
    kind, action = KINDS.get(of, ""), "read" if method == "GET" else "update"
    shape = None if method == "GET" else _body(verb, ids)
    result = (shows or verb).types["return"]
    shown = {bool: Sent, type(None): RECORDS.get(kind)}.get(result, result)

    async def endpoint(
        api: Api, body: Any = None, idempotency_key: str | None = None, **path: str
    ) -> Any:
        api.require(scope)
        if kind:
            await find_row(api, kind, path[of], action)
        elif of == "thread_id":
            await allow_thread(api, path[of], action)
        values = {} if shape is None else _values(api, body or shape(), idempotency_key)
        try:
            found = await getattr(api.runtime, verb.name)(**path, **values)
        except AlreadyAnswered as error:
            first = await _record(api, "wait", path[of])
            who = {"answered_by": first.answered_by, "answered_at": first.answered_at}
            return WireResponse({"detail": str(error), **who}, 409)
        if shows is not None:
            return await getattr(api.runtime, shows.name)(path[of])
        if found is not None:
            return Sent(found) if shown is Sent else found
        return await _record(api, kind, path[of]) if kind else Response(status_code=204)

    types: dict[str, Any] = {id: Name if id in ("name", "message_id") else Id for id in ids}
    defaults = dict[str, Any]()
    if shape is not None and shape.model_fields:
        types["body"] = shape
        if not any(one.is_required() for one in shape.model_fields.values()):
            types["body"], defaults["body"] = shape | None, None
        if "key" in shape.model_fields:
            types["idempotency_key"], defaults["idempotency_key"] = IdempotencyKey, None
    _declare(endpoint, verb, types, defaults, shown)
    responses = errors(*statuses)
    if verb is answer:
        responses[409] = {"model": Conflict}
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        responses=responses,
        tags=_tags(path),
        status_code=204 if shown is None else None,
    )


def _tags(path: str) -> list[str | Enum]:
    return [f"perdure: {path.split('/')[1]}"]


def _body(verb: Verb[..., Any], ids: list[str]) -> Any:
    """The body of a verb: its parameters that are not in the path."""
    fields: dict[str, Any] = {}
    for one in verb.parameters:
        kind = verb.types[one.name]
        kind = Person if one.name == "by" else TYPES.get(kind, kind)
        default = one.default
        if isinstance(default, timedelta):
            default = default.total_seconds()
        default = ... if default is one.empty and kind is not Any else default
        default = None if default is one.empty else default
        fields[one.name] = (FIELDS.get((verb.name, one.name), kind), default)
    for id in ids:
        del fields[id]
    return create_model(f"{verb.name.title()}Body", __base__=Body, **fields)


def _values(api: Api, body: Any, idempotency_key: str | None) -> dict[str, Any]:
    """The arguments that a body has."""
    values = dict(body)
    if "by" in values:
        values["by"] = api.actor(values["by"])
    for name in ("grace", "catch_up"):
        if isinstance(values.get(name), int | float) and not isinstance(values[name], bool):
            values[name] = timedelta(seconds=values[name])
    if idempotency_key:
        if values["key"] not in (None, "", idempotency_key):
            raise ApiError(422, "Idempotency-Key and the key in the body differ. Send one of them.")
        values["key"] = idempotency_key
    return values


def _declare(endpoint: Any, verb: Verb[..., Any], types: Any, defaults: Any, result: Any) -> None:
    """Give an endpoint the signature that FastAPI reads."""
    parameters = [
        Parameter(
            name,
            Parameter.KEYWORD_ONLY,
            default=defaults.get(name, Parameter.empty),
            annotation=kind,
        )
        for name, kind in {"api": ApiDep, **types}.items()
    ]
    endpoint.__signature__ = Signature(parameters, return_annotation=result)
    endpoint.__name__ = verb.plan.__name__
    endpoint.__doc__ = (verb.__doc__ or "").partition("\n")[0]


async def _record(api: Api, kind: str, id: str) -> Any:
    """A wait or an effect as it is now."""
    row = await find_row(api, kind, id)
    if kind == "wait":
        return waits.to_record(api.engine, row)
    return effects.to_record(api.serializer, row)


# -- lists


@dataclass(frozen=True)
class Last:
    """The last item of a page, as far as the next one needs it."""

    created_at: datetime
    id: str

    @property
    def key(self) -> str:
        return self.id


def add_list(name: str, verb: Verb[..., Any], filters: dict[str, Any]) -> None:
    """Add the route of a verb that lists, for callers who may see only some threads too."""
    without = {"output": False} if "output" in verb.types else {}
    items = verb.types["return"]

    async def endpoint(api: Api, limit: int, after: str | None, **chosen: Any) -> Page[Any]:
        api.require(Scope.READ)
        seen, method = await ThreadFilter.of(api), getattr(api.runtime, verb.name)

        async def read(behind: Position | None, count: int) -> Any:
            last = None if behind is None else Last(moment(behind[0]), behind[1])
            return await method(**chosen, **without, after=last, limit=count)

        def place(one: Any) -> Position:
            return milliseconds(one.created_at), one.key if items == list[EffectRecord] else one.id

        return Page.of(*(await seen.page(read, position(after), limit, place)))

    types = {**filters, "limit": Limit, "after": After}
    defaults: dict[str, Any] = {**dict.fromkeys(filters), "limit": 100, "after": None}
    page: Any = Page
    _declare(endpoint, verb, types, defaults, page[items.__args__])
    router.add_api_route(f"/{name}", endpoint, responses=errors(), tags=_tags(f"/{name}"))


STATES = Annotated[list[State] | None, Query()]
OF_RUNS = {"state": STATES, "graph": Which, "thread_id": Which, "parent_id": Which}
OF_EFFECTS = {"run_id": Which, "thread_id": Which, "state": EffectState | None}
add_list("runs", list_runs, OF_RUNS)
add_list("waits", waits.open_waits, {"kind": Kind | None, "thread_id": Which, "run_id": Which})
add_list("effects", effect_decisions.list_effects, OF_EFFECTS)

add_route("GET /runs/{run_id}", get, Scope.READ)
add_route("GET /runs/{run_id}/waits", waits.wait_history, Scope.READ)
add_route("GET /runs/{run_id}/scores", list_scores, Scope.READ)
add_route("POST /runs/{run_id}/scores", score, Scope.ANSWER, shows=list_scores)
for control in (pause, resume, cancel, retry, wake):
    add_route(f"POST /runs/{{run_id}}/{control.name}", control, statuses=(404, 409))
add_route("POST /waits/{wait_id}/answer", answer, Scope.ANSWER, (404, 409))
add_route("POST /waits/{wait_id}/withdraw", withdraw, Scope.ANSWER, (404, 409))
add_route("POST /effects/{key:path}/settle", effect_decisions.settle, statuses=(404, 409))
add_route("POST /threads/{thread_id}/signals/{name}", signals.signal, Scope.START)
add_route("GET /schedules", list_schedules, statuses=())
add_route("PUT /schedules/{name}", schedule, statuses=())
add_route("DELETE /schedules/{name}", unschedule)
add_route("POST /messages/{message_id:path}/redeliver", messages.redeliver)


# -- what no verb returns as it is


@router.get("/waits/{wait_id}", responses=errors(404), tags=_tags("/waits"))
async def get_wait(api: ApiDep, wait_id: Id) -> WaitRecord:
    """Get a wait, open or not, with its answer."""
    api.require(Scope.READ)
    record: WaitRecord = await _record(api, "wait", wait_id)
    return record


@router.get("/effects/{key:path}", responses=errors(404), tags=_tags("/effects"))
async def get_effect(api: ApiDep, key: Id) -> EffectRecord:
    """Get an effect by its key."""
    api.require(Scope.READ)
    record: EffectRecord = await _record(api, "effect", key)
    return record


@router.get("/messages", responses=errors(), tags=_tags("/messages"))
async def list_messages(api: ApiDep, limit: Limit = 100) -> list[Message]:
    """List undelivered messages of the outbox, including webhooks, oldest first, without payloads.
    A message without a `due_at` was given up."""
    api.require(Scope.ADMIN)
    return [replace(one, payload=None) for one in await api.runtime.messages(limit=limit)]


@router.get("/doctor", responses=errors(), tags=_tags("/doctor"))
async def doctor(api: ApiDep) -> Health:
    """Check the journal's invariants in one snapshot. Reads the whole journal."""
    api.require(Scope.ADMIN)
    found = await api.runtime.doctor()
    findings = [Finding(*one) for one in found.findings]
    return Health(not findings, found.checked, findings, list(found.remarks))
