"""The streams of single runs: `runs.stream` and `runs.join_stream`.

    POST /threads/{t}/runs/stream, /runs/stream    accept a run, and stream it
    GET  /threads/{t}/runs/{r}/stream              join or resume the stream of a run
    GET  /runs/{r}/stream                          the same for a stateless run

`Last-Event-ID` names the last event that a client has. The stream resumes after it, even after the
run has ended or in another process. `-1` and `-` mean the beginning. A join without it, or with an
id that is not ours, gets only new events.

A stream ends with `end` when the run ends or asks a person; if the run failed, an `error` comes
first. Ids are always sent, so every stream can be resumed. If a run's output was not kept, because
its request named no stream mode or it was deleted, the stream has one `values`: the last state.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from perdure.operations.run_payload import load_setup
from perdure.server.agent_api.run_acceptance import accept_run
from perdure.server.agent_api.run_bodies import RunBody
from perdure.server.agent_api.run_endings import cancel
from perdure.server.agent_api.run_events import (
    START,
    Position,
    RunEvents,
    WireEvent,
    parse_position,
)
from perdure.server.agent_api.run_reader import RunReader
from perdure.server.agent_api.run_results import find_run
from perdure.server.agent_api.run_shapes import wire_error
from perdure.server.agent_api.sse import DOCUMENTED, EventStreamResponse, StreamSlot, encode
from perdure.server.agent_api.stream_modes import parse_filter, parse_modes, run_modes
from perdure.server.caller import Scope
from perdure.server.context import Api, ApiDep
from perdure.types import RunError

router = APIRouter(tags=["runs"])


@router.post("/threads/{thread_id}/runs/stream", response_model=None, responses=DOCUMENTED)
async def stream_run(thread_id: str, body: RunBody, request: Request, api: ApiDep) -> Response:
    """Create a run on a thread, and stream its output as server-sent events."""
    return await _accept_and_stream(api, str(thread_id), body, request)


@router.post("/runs/stream", response_model=None, responses=DOCUMENTED)
async def stream_stateless_run(body: RunBody, request: Request, api: ApiDep) -> Response:
    """Create a stateless run, and stream its output as server-sent events."""
    return await _accept_and_stream(api, None, body, request)


@router.get("/threads/{thread_id}/runs/{run_id}/stream", response_model=None, responses=DOCUMENTED)
async def join_run_stream(
    thread_id: UUID, run_id: UUID, request: Request, api: ApiDep, cancel_on_disconnect: bool = False
) -> Response:
    """Stream the output of a run as server-sent events, after `Last-Event-ID` or from now on."""
    return await _join(api, str(thread_id), str(run_id), request, cancel_on_disconnect)


@router.get("/runs/{run_id}/stream", response_model=None, responses=DOCUMENTED)
async def join_stateless_run_stream(
    run_id: UUID, request: Request, api: ApiDep, cancel_on_disconnect: bool = False
) -> Response:
    """Stream the output of a stateless run as server-sent events."""
    return await _join(api, None, str(run_id), request, cancel_on_disconnect)


async def _accept_and_stream(
    api: Api, thread_id: str | None, body: RunBody, request: Request
) -> Response:
    modes = parse_modes(body.stream_mode)
    asked = body.model_copy(update={"stream_mode": [*modes]})
    with StreamSlot(api) as slot:
        accepted = await accept_run(api, thread_id, asked)
        source = RunEvents(accepted.row.id, modes, subgraphs=body.stream_subgraphs)
        reader = RunReader(api, accepted.row)
        stream = RunStream(reader, source, Position(accepted.after), is_new=True)
        place = accepted.location
        headers = {"location": f"{place}/stream", "content-location": place}
        return _respond(api, slot, stream, headers, cancels=body.on_disconnect == "cancel")


async def _join(
    api: Api, thread_id: str | None, run_id: str, request: Request, cancels: bool
) -> Response:
    api.require(Scope.START if cancels else Scope.READ)
    wanted = parse_filter(request.query_params.getlist("stream_mode"))
    with StreamSlot(api) as slot:
        row = (await find_run(api, thread_id, run_id)).row
        modes, subgraphs = run_modes(load_setup(api.runtime.engine.serializer, row))
        source = RunEvents(row.id, wanted or modes, subgraphs=subgraphs)
        reader = RunReader(api, row)
        position = parse_position(request.headers.get("last-event-id"))
        if position is None:
            stream = RunStream(reader, source, Position(await reader.last()), is_new=True)
        else:
            stream = RunStream(reader, source, position, is_new=position < START)
        path = f"/threads/{thread_id}/runs/{run_id}" if thread_id else f"/runs/{run_id}"
        # A client that reconnects calls `location`, and must get the same stream.
        query = [("stream_mode", mode) for mode in wanted or ()]
        query += [("cancel_on_disconnect", "true")] if cancels else []
        location = f"{path}/stream{'?' if query else ''}{urlencode(query)}"
        return _respond(api, slot, stream, {"location": location}, cancels=cancels)


def _respond(
    api: Api, slot: StreamSlot, stream: RunStream, headers: dict[str, str], *, cancels: bool
) -> Response:
    async def cancel_run() -> None:
        row = stream.reader.row
        found = await find_run(api, row.thread_id, row.id)
        if not found.is_over:
            await cancel(api, found, action="interrupt", wait=False)

    on_leave = cancel_run if cancels else None
    return EventStreamResponse(slot, stream.events(), headers, on_leave=on_leave)


@dataclass(frozen=True)
class RunStream:
    """The stream of one run for one client."""

    reader: RunReader
    source: RunEvents
    behind: Position
    is_new: bool
    """Whether it begins with `metadata`, after all events of the chunk in `behind`."""

    async def events(self) -> AsyncGenerator[bytes]:
        """Encoded events, until the run ends or rests."""
        behind = max(self.behind, START)
        after = behind.n if self.is_new else max(behind.n - 1, 0)
        if self.is_new:
            yield _encoded(self.source.begin(behind))
        async with aclosing(self.reader.chunks(self._first(after))) as chunks:
            async for chunk in chunks:
                for event in self.source.feed(chunk):
                    if event.position > behind and event.position.n > after:
                        yield _encoded(event)
        rest = await self.reader.rest()
        if (values := await self.reader.final_values()) is not None:
            yield encode("values", values)
        if rest.error is not None:
            yield encode("error", error_data(rest.error))
        yield encode("end", None)

    def _first(self, after: int) -> int:
        return 0 if self.source.needs_history else after


def error_data(error: RunError) -> dict[str, Any]:
    return wire_error(error.kind, error.message)


def _encoded(event: WireEvent) -> bytes:
    return encode(event.name, event.data, str(event.position))
