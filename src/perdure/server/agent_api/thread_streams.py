"""`GET /threads/{t}/stream`: the output of all runs of a thread, as v1 events, without end.

Each run begins with `metadata {run_id, attempt}`, unless it was already under way, and ends with
`metadata {status: "run_done", run_id}`, which is also sent each time it asks a person.

An id is `<run>.<id of the event in the stream of that run>`, where <run> is the number of the run
on its thread. `Last-Event-ID` resumes after that event; `-1`, `-` and `0` mean the beginning.
Without it, the stream has only new events.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NamedTuple
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from perdure.operations import runs, streams
from perdure.operations.run_payload import load_setup
from perdure.server.agent_api.run_events import Position, RunEvents, parse_position
from perdure.server.agent_api.run_reader import Begun, RunAtRest, RunReader, read_thread
from perdure.server.agent_api.run_streams import error_data
from perdure.server.agent_api.sse import DOCUMENTED, EventStreamResponse, StreamSlot, encode
from perdure.server.agent_api.stream_modes import run_modes
from perdure.server.agent_api.threads import find_thread
from perdure.server.caller import Scope
from perdure.server.context import Api, ApiDep
from perdure.server.json_errors import ApiError
from perdure.types import Chunk

router = APIRouter(tags=["threads"])

OUTPUT, LIFECYCLE = "run_modes", "lifecycle"
"""All events of each run, or only its beginning and end."""
DONE = 999
"""Number, within the last chunk, of the event that says a run has ended or rests."""


class ThreadPosition(NamedTuple):
    """A place in the stream of a thread."""

    run: int
    at: Position

    def __str__(self) -> str:
        return f"{self.run}.{self.at}"


def parse_thread_position(text: str | None) -> ThreadPosition | None:
    """The place that `Last-Event-ID` names. None if it is missing or not one of our ids."""
    if text is not None and text.strip() in ("-1", "-", "0"):
        return ThreadPosition(1, Position(-1))
    run, dot, rest = (text or "").strip().partition(".")
    at = parse_position(rest)
    if not dot or at is None or not run.isascii() or not run.isdigit() or len(run) > 18:
        return None
    return ThreadPosition(int(run), at)


@router.get("/threads/{thread_id}/stream", response_model=None, responses=DOCUMENTED)
async def join_thread_stream(thread_id: UUID, request: Request, api: ApiDep) -> Response:
    """Stream the output of all runs of a thread, after `Last-Event-ID` or from now on."""
    api.require(Scope.READ)
    modes = frozenset(request.query_params.getlist("stream_mode") or [OUTPUT]) - {""}
    if unknown := modes - {OUTPUT, LIFECYCLE}:
        name = sorted(unknown)[0]
        if name == "state_update":
            raise ApiError(501, "The stream mode state_update is not supported for threads.")
        raise ApiError(
            422, f"The stream mode of a thread is run_modes or lifecycle, not {ascii(name)[:60]}."
        )
    with StreamSlot(api) as slot:
        await find_thread(api, str(thread_id))
        position = parse_thread_position(request.headers.get("last-event-id"))
        if position is None:
            position = await _now(api, str(thread_id))
        events = _events(api, str(thread_id), position, has_output=modes != {LIFECYCLE})
        return EventStreamResponse(slot, events)


async def _now(api: Api, thread_id: str) -> ThreadPosition:
    """The current end of the stream."""
    journal = api.runtime.journal
    head = await journal.ado(runs.head(thread_id))
    if head is not None:
        last = await journal.ado(streams.last(head))
        return ThreadPosition(head.n, Position(last, DONE - 1))
    newest = await journal.ado(runs.page(thread_id=thread_id, count=1))
    return ThreadPosition(newest[0].n + 1 if newest else 1, Position(-1))


async def _events(
    api: Api, thread_id: str, behind: ThreadPosition, *, has_output: bool
) -> AsyncGenerator[bytes]:
    source: RunEvents | None = None
    last = 0
    async with aclosing(read_thread(api, thread_id, max(behind.run, 1))) as found:
        async for reader, item in found:
            if isinstance(item, Begun) or source is None:
                source, last = _source(api, reader, has_output), 0
            events = []
            if isinstance(item, Begun):
                events.append(source.begin())
            elif isinstance(item, Chunk):
                last = item.n
                events += source.feed(item)
            for event in events:
                position = ThreadPosition(reader.row.n, event.position)
                if position > behind:
                    yield encode(event.name, event.data, str(position))
            if isinstance(item, RunAtRest):
                position = ThreadPosition(reader.row.n, Position(last, DONE))
                if position > behind:
                    values = await reader.final_values() if has_output else None
                    if values is not None:
                        yield encode("values", values)
                    if item.error is not None:
                        yield encode("error", error_data(item.error))
                    done = {"status": "run_done", "run_id": reader.row.id}
                    yield encode("metadata", done, str(position))


def _source(api: Api, reader: RunReader, has_output: bool) -> RunEvents:
    modes, subgraphs = run_modes(load_setup(api.runtime.engine.serializer, reader.row))
    return RunEvents(reader.row.id, modes if has_output else (), subgraphs=subgraphs)
