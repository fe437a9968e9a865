"""Crons: schedules in the Agent Server API.

A cron is a schedule whose name is its id. A schedule made by `Runtime.schedule` is shown with an id
derived from its name. A cron keeps its assistant's config, context and metadata as they were when
the cron was created or last changed.
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from perdure.commands import schedules
from perdure.commands.assistants import Assistant, default_id
from perdure.commands.schedules import CRON, ScheduleRow
from perdure.errors import UNREADABLE
from perdure.server.agent_api.resources import (
    Page,
    as_uuid,
    check_filters,
    find_assistant,
    find_thread,
    has_metadata,
    page_of,
    passes,
)
from perdure.server.agent_api.run_bodies import Json, PayloadBody, WireBody
from perdure.server.agent_api.run_request import also_stateless, make_setup
from perdure.server.authorization import Filters
from perdure.server.errors import ApiError, invalid
from perdure.server.perdure_api.requests import ThreadFilter, allow_thread
from perdure.server.routes import READ, START, Api, ApiDep
from perdure.times import milliseconds, moment
from perdure.verbs import new_id
from perdure.views.wire_run import wire_time

router = APIRouter(tags=["crons"])

ORDERS = (
    *("cron_id", "assistant_id", "thread_id", "created_at", "updated_at"),
    *("next_run_date", "end_time"),
)
OnCompleted = Literal["delete", "keep"]


def _with_zone(value: datetime) -> datetime:
    """A time without a zone is in UTC."""
    return value if value.tzinfo else value.replace(tzinfo=UTC)


Time = Annotated[datetime, AfterValidator(_with_zone)]


class CronBody(PayloadBody):
    """A new cron."""

    schedule: str = Field(max_length=200)
    timezone: str | None = Field(default=None, max_length=100)
    end_time: Time | None = None
    enabled: bool = True
    on_run_completed: OnCompleted | None = None


class CronPatch(BaseModel):
    """A change to a cron. A null `end_time` removes the end; any other null changes nothing."""

    model_config = ConfigDict(extra="allow")
    schedule: str | None = None
    timezone: str | None = None
    end_time: Time | None = None
    enabled: bool | None = None
    on_run_completed: OnCompleted | None = None
    metadata: Json | None = None


class CronQuery(WireBody):
    """Conditions that crons must meet."""

    assistant_id: str | None = None
    thread_id: str | None = None
    enabled: bool | None = None
    metadata: Json | None = None


class CronSearch(CronQuery, Page):
    """A page of crons, and their order."""

    sort_by: Literal[ORDERS] = "created_at"  # type: ignore[valid-type]


@also_stateless(router.post, "/crons", dependencies=[START])
async def create(thread_id: str | None, body: CronBody, api: ApiDep) -> Any:
    """Create a cron whose runs share one thread, or without one each get their own."""
    if thread_id is not None:
        run: Json = {
            "assistant_id": body.assistant_id,
            "metadata": dict(body.metadata),
            "kwargs": body.model_dump(include={"input", "config", "context"}),
        }
        thread_id = (await find_thread(api, thread_id, "create_run", run)).thread_id
    cron_id = new_id()
    payload = body.model_dump(mode="json", exclude_unset=True)
    if thread_id is None and body.on_run_completed is None:
        body = body.model_copy(update={"on_run_completed": "delete"})
    value: Json = {
        "payload": payload,
        "schedule": body.schedule,
        "cron_id": UUID(cron_id),
        "thread_id": thread_id and as_uuid(thread_id),
        "user_id": api.caller.identity,
        "end_time": body.end_time,
        "metadata": dict(body.metadata),
    }
    filters = await api.authorize("crons", "create", value)
    if thread_id is not None:
        await check_filters(api, thread_id, filters)
    body = body.model_copy(update={"metadata": dict(value.get("metadata") or {})})
    return await _store(api, cron_id, thread_id, body, payload, value.get("user_id") or "")


async def _store(
    api: Api, cron_id: str, thread_id: str | None, body: CronBody, payload: Json, user: str
) -> Json:
    """Store a cron under its id. Raises 422 for an invalid cron line, time zone or end."""
    runtime = api.runtime
    assistant = await find_assistant(api, body.assistant_id, "run")
    if body.webhook is not None:
        runtime.engine.webhook_topic(body.webhook)  # check the URL now, not when a run starts
    setup = make_setup(api, assistant, body)
    setup["config"]["configurable"]["cron_id"] = cron_id
    if "stream_mode" in body.model_fields_set:
        setup["stream"] = body.kept_stream()
    setup[CRON] = {
        "thread_id": thread_id,
        "strategy": body.multitask_strategy,
        "assistant_id": assistant.assistant_id,
        "keep": body.on_run_completed == "keep",
        "on_run_completed": body.on_run_completed,
        "payload": _shown_payload(payload, assistant, cron_id),
        "metadata": body.metadata,
        "timezone": body.timezone,
        "user_id": user,
    }
    end = None if body.end_time is None else milliseconds(body.end_time)
    graph = runtime.engine.resolve_graph(assistant.graph_id, None)
    row = ScheduleRow(
        cron_id,
        cron=body.schedule,
        timezone=body.timezone or "UTC",
        end_at=end,
        thread_id=thread_id,
    )
    row = await api.journal.arun(schedules.store(api.engine, graph, setup, row, body.enabled))
    return wire_cron(api.serializer, row)


def _shown_payload(payload: Json, assistant: Assistant, cron_id: str) -> Json:
    config = payload.get("config") or {}
    configurable = {**(config.get("configurable") or {}), "cron_id": cron_id}
    config = {**config, "configurable": configurable}
    return {**payload, "assistant_id": assistant.assistant_id, "config": config}


@router.post("/runs/crons/search", dependencies=[READ])
async def search(body: CronSearch, api: ApiDep) -> Any:
    """List crons, by default newest first."""
    crons = await _matching(api, body)
    crons.sort(key=lambda one: str(one[body.sort_by] or ""), reverse=body.sort_order != "asc")
    return page_of(crons, body, dict)


@router.post("/runs/crons/count", dependencies=[READ])
async def count(body: CronQuery, api: ApiDep) -> Any:
    """Count crons."""
    return len(await _matching(api, body))


async def _matching(api: Api, query: CronQuery) -> list[Json]:
    value = query.model_dump(exclude_none=True)
    filters = await api.authorize("crons", "search", value)
    threads, wanted = await ThreadFilter.of(api), value.get("metadata")
    runtime, assistant_id = api.runtime, query.assistant_id
    if assistant_id is not None and assistant_id in runtime.graphs:
        assistant_id = default_id(assistant_id)
    rows = await api.journal.ado(schedules.page())
    crons = [wire_cron(api.serializer, row) for row in rows]
    return [
        one
        for one in crons
        if assistant_id in (None, one["assistant_id"])
        and query.thread_id in (None, one["thread_id"])
        and query.enabled in (None, one["enabled"])
        and has_metadata(one["metadata"], wanted)
        and passes(filters, one["metadata"])
        and (one["thread_id"] is None or await threads.sees(one["thread_id"]))
    ]


@router.patch("/runs/crons/{cron_id}", dependencies=[START])
async def update(cron_id: UUID, body: CronPatch, api: ApiDep) -> Any:
    """Change a cron. Fields that are not passed stay as they are."""
    patch = body.model_dump(exclude_unset=True)
    changes = {name: value for name, value in patch.items() if value is not None}
    value: Json = {"cron_id": cron_id, "payload": changes, "schedule": body.schedule}
    filters = await api.authorize("crons", "update", value)
    row, cron = await _find(api, str(cron_id), filters, "update")
    if CRON not in row.load(api.serializer):
        raise ApiError(409, f"Change the schedule {row.name!r} with Runtime.schedule, not here.")
    before = {**cron["payload"], "enabled": cron["enabled"], "end_time": cron["end_time"]}
    merged = {**before, **changes}
    if "end_time" in patch and patch["end_time"] is None:
        merged.pop("end_time")
    if "metadata" in changes:
        merged["metadata"] = {**cron["metadata"], **changes["metadata"]}
    try:
        changed = CronBody.model_validate(merged)
    except ValidationError as error:
        raise invalid(error, "body") from error
    if cron["thread_id"] is None and changed.on_run_completed is None:
        changed = changed.model_copy(update={"on_run_completed": cron["on_run_completed"]})
    payload = changed.model_dump(mode="json", exclude_unset=True)
    return await _store(api, row.name, cron["thread_id"], changed, payload, cron["user_id"])


@router.get("/runs/crons/{cron_id}", dependencies=[READ])
async def get(cron_id: UUID, api: ApiDep) -> Any:
    """Get a cron."""
    filters = await api.authorize("crons", "read", {"cron_id": cron_id})
    return (await _find(api, str(cron_id), filters, "read"))[1]


@router.delete("/runs/crons/{cron_id}", status_code=204, dependencies=[START])
async def delete(cron_id: UUID, api: ApiDep) -> None:
    """Delete a cron. The runs it started stay."""
    filters = await api.authorize("crons", "delete", {"cron_id": cron_id})
    row, _ = await _find(api, str(cron_id), filters, "update")
    await api.runtime.unschedule(row.name)


async def _find(
    api: Api, cron_id: str, filters: Filters | None, action: str
) -> tuple[ScheduleRow, Json]:
    """A cron that the caller may have; of one of a thread, if they may have the thread."""
    missing = ApiError(404, f"There is no cron {cron_id}.")
    row = await api.journal.ado(schedules.find(cron_id))
    if row is None:
        every = await api.journal.ado(schedules.page())
        row = next((one for one in every if _id_of(one.name) == cron_id), None)
    if row is not None:
        cron = wire_cron(api.serializer, row)
        if passes(filters, cron["metadata"]):
            if cron["thread_id"] is not None:
                await allow_thread(api, cron["thread_id"], action, missing)
            return row, cron
    raise missing


def _id_of(name: str) -> str:
    """The id of a schedule: its name, or one derived from it."""
    try:
        return str(UUID(name))
    except ValueError:
        return str(uuid.uuid5(uuid.NAMESPACE_OID, name))


def wire_cron(serializer: Any, row: ScheduleRow) -> Json:
    """A schedule as a cron. If its content cannot be read, only what its columns say."""
    try:
        setup = row.load(serializer)
    except UNREADABLE:
        setup = {}
    cron: Json = setup.get(CRON) or {}
    is_over = row.end_at is not None and row.next_at > row.end_at
    return {
        "cron_id": _id_of(row.name),
        "assistant_id": cron.get("assistant_id") or default_id(row.graph),
        "thread_id": cron.get("thread_id"),
        "user_id": cron.get("user_id") or "",
        "end_time": None if row.end_at is None else moment(row.end_at).isoformat(),
        "schedule": row.cron,
        "timezone": cron.get("timezone") if cron else row.timezone,
        "payload": cron.get("payload") or {"input": setup.get("input"), "name": row.name},
        "next_run_date": None if is_over else moment(row.next_at).isoformat(),
        "metadata": cron.get("metadata") or {},
        "on_run_completed": cron.get("on_run_completed"),
        "enabled": bool(row.enabled),
        "created_at": wire_time(row.created_at),
        "updated_at": wire_time(row.updated_at),
    }
