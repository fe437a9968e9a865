"""Of runs what is no verb: join, fork, their history as pages and live, and the events of all.

A live stream is server-sent events: `event` is the kind, `data` the event with its run. For one
run, `id` is the event's number: a reader that reconnects sends it as `Last-Event-ID`, or as
`after`, and misses nothing. The stream ends with `event: end` when the run ends. For all runs, `id`
is a time: after a reconnect, events may repeat; `run_id` and `n` identify them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import Field

from perdure.commands import Poll
from perdure.commands.runs import RunRow
from perdure.commands.streams import EventFeed
from perdure.errors import Error
from perdure.server.agent_api.sse import EventStreamResponse, encode
from perdure.server.agent_api.thread_state import update_error
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.perdure_api.requests import (
    Body,
    Id,
    Limit,
    Text,
    ThreadFilter,
    allow_thread,
    errors,
    find_row,
)
from perdure.server.routes import Api, ApiDep
from perdure.times import LAST_MS, milliseconds, moment
from perdure.types import Event, Run

router = APIRouter(prefix="/perdure", tags=["perdure: runs"])

Seconds = Annotated[float, Query(ge=0, le=300, description="Maximum seconds to wait.")]
PAGE = 1000
LOOK = 0.5
"""Seconds between two reads, unless the database has a longer poll interval."""
SSE: Any = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

Number = Annotated[int, Query(ge=0, le=2**53, description="Number of the last event seen.")]
LastId = Annotated[str | None, Header(alias="Last-Event-ID", max_length=64)]


class ForkBody(Body):
    at: Text | None = None
    """The id of a checkpoint; the latest by default."""
    update: Any = None
    as_node: Text | None = None
    thread_id: Annotated[str | None, Field(min_length=1, max_length=256)] = None


@router.get("/runs/{run_id}/join", responses=errors(404))
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


@router.post("/runs/{run_id}/fork", responses=errors(404, 409), status_code=201)
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


@dataclass(frozen=True)
class RunEvent(Event):
    """An event and its run."""

    run_id: str = ""
    thread_id: str = ""
    graph: str = ""

    @classmethod
    def of(cls, row: RunRow, event: Event) -> RunEvent:
        return cls(**vars(event), run_id=row.id, thread_id=row.thread_id, graph=row.graph)


@router.get("/runs/{run_id}/events", responses=errors(404))
async def events_of_run(
    api: ApiDep, run_id: Id, after: Number = 0, limit: Limit = 100
) -> list[RunEvent]:
    """List the events of a run, oldest first, after event number `after`."""
    api.require(Scope.READ)
    row = await find_row(api, "run", run_id)
    found = await api.runtime.events(run_id, after=after, limit=limit)
    return [RunEvent.of(row, event) for event in found]


@router.get(
    "/runs/{run_id}/events/stream",
    response_class=EventStreamResponse,
    responses={**errors(404), **SSE},
)
async def stream_events_of_run(
    api: ApiDep, run_id: Id, after: Number = 0, last_event_id: LastId = None
) -> EventStreamResponse:
    """Stream the events of a run, past and new, until it ends."""
    api.require(Scope.READ)
    row = await find_row(api, "run", run_id)
    start = after if last_event_id is None else _number(last_event_id)
    return EventStreamResponse(api.open_stream(), _follow_run(api, row, start))


@router.get("/events/stream", response_class=EventStreamResponse, responses={**errors(), **SSE})
async def stream_events(api: ApiDep, last_event_id: LastId = None) -> EventStreamResponse:
    """Stream the events of all runs from now on. A segment of an old run that begins and ends
    between two reads may be missing. The history of each run is complete."""
    api.require(Scope.READ)
    seen = await ThreadFilter.of(api)
    since = await api.runtime.now()
    if last_event_id is not None:
        since = moment(min(_number(last_event_id), LAST_MS))
    return EventStreamResponse(api.open_stream(), _follow_all(api, seen, since))


async def _follow_run(api: Api, row: RunRow, after: int) -> AsyncGenerator[bytes]:
    runtime, journal = api.runtime, api.journal
    pause = max(LOOK, journal.capabilities.poll)
    with journal.feed.watch(row.id) as watch:
        while True:
            seen = watch.count
            ended = (await runtime.get(row.id, output=False)).ended  # before its last events
            while found := await runtime.events(row.id, after=after, limit=PAGE):
                for event in found:
                    yield encode(event.kind, RunEvent.of(row, event), str(event.n))
                after = found[-1].n
            if ended:
                yield encode("end", {"run_id": row.id})
                return
            await watch.wait(seen, pause)


async def _follow_all(api: Api, seen: ThreadFilter, since: datetime) -> AsyncGenerator[bytes]:
    journal = api.journal
    feed, poll = EventFeed(api.engine.serializer, since), Poll(LOOK)
    while True:
        for row, event in await journal.arun(feed.look()):
            if await seen.sees(row.thread_id):
                at = str(milliseconds(event.at))
                yield encode(event.kind, RunEvent.of(row, event), at)
        await journal.apause(poll)


def _number(last_event_id: str) -> int:
    if not (last_event_id.isascii() and last_event_id.isdigit() and len(last_event_id) <= 15):
        raise ApiError(422, "Last-Event-ID is not the id of an event of this stream.")
    return int(last_event_id)
