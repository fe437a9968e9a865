"""The v1 streams of single runs and of threads.

    POST /threads/{t}/runs/stream, /runs/stream    accept a run, and stream it
    GET  /threads/{t}/runs/{r}/stream              join or resume the stream of a run
    GET  /runs/{r}/stream                          the same for a stateless run
    GET  /threads/{t}/stream                       all runs of a thread, without end

`Last-Event-ID` names the last event that a client has. The stream resumes after it, even after the
run has ended or in another process. `-1` and `-` mean the beginning. A join without it, or with an
id that is not ours, gets only new events.

A stream ends with `end` when the run ends or asks a person; if the run failed, an `error` comes
first. Ids are always sent, so every stream can be resumed. If a run's output was not kept, because
its request named no stream mode or it was deleted, the stream has one `values`: the last state.

In the stream of a thread, each run begins with `metadata {run_id, attempt}`, unless it was already
under way, and ends with `metadata {status: "run_done", run_id}`, which is also sent each time it
asks a person. An id is `<run>.<id of the event in the stream of that run>`, where <run> is the
number of the run on its thread.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Request
from starlette.responses import Response

from perdure.commands import runs, streams
from perdure.commands.runs import load_setup
from perdure.server.agent_api.run_bodies import RunBody
from perdure.server.agent_api.run_events import (
    START,
    Position,
    RunEvents,
    WireEvent,
    modes_of,
    parse_filter,
    parse_position,
    run_modes,
)
from perdure.server.agent_api.run_reader import Begun, RunAtRest, RunReader, follow_thread
from perdure.server.agent_api.run_request import Accepted, accept_run, also_stateless
from perdure.server.agent_api.run_results import cancel_left, find_run
from perdure.server.agent_api.sse import DOCUMENTED, EventStreamResponse, StreamSlot, encode
from perdure.server.agent_api.thread_access import find_thread
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api, ApiDep
from perdure.types import Chunk
from perdure.views.wire_run import wire_error

router = APIRouter(tags=["runs"])


@also_stateless(router.post, "/stream", response_model=None, responses=DOCUMENTED)
async def stream_run(thread_id: str | None, body: RunBody, api: ApiDep) -> Response:
    """Create a run, and stream its output as server-sent events."""
    modes = modes_of(body.stream_mode)
    kept = body.model_copy(update={"stream_mode": [*modes]})
    with StreamSlot(api) as slot:
        accepted = await accept_run(api, thread_id, kept)
        source = RunEvents(accepted.row.id, modes, subgraphs=body.stream_subgraphs)
        reader = RunReader(api, accepted.row)
        stream = RunStream(reader, source, Position(accepted.after), is_new=True)
        place = accepted.location
        headers = {"location": f"{place}/stream", "content-location": place}
        return _respond(api, slot, stream, headers, cancels=body.on_disconnect == "cancel")


@also_stateless(router.get, "/{run_id}/stream", response_model=None, responses=DOCUMENTED)
async def join_run_stream(
    thread_id: str | None,
    run_id: UUID,
    request: Request,
    api: ApiDep,
    cancel_on_disconnect: bool = False,
) -> Response:
    """Stream the output of a run as server-sent events, after `Last-Event-ID` or from now on."""
    cancels = cancel_on_disconnect
    api.require(Scope.START if cancels else Scope.READ)
    wanted = parse_filter(request.query_params.getlist("stream_mode"))
    with StreamSlot(api) as slot:
        row = (await find_run(api, thread_id, str(run_id))).row
        modes, subgraphs = run_modes(load_setup(api.serializer, row))
        source = RunEvents(row.id, wanted or modes, subgraphs=subgraphs)
        reader = RunReader(api, row)
        position = parse_position(request.headers.get("last-event-id"))
        if position is None:
            stream = RunStream(reader, source, Position(await reader.last()), is_new=True)
        else:
            stream = RunStream(reader, source, position, is_new=position < START)
        path = Accepted(row, thread_id is None).location
        # A client that reconnects calls `location`, and must get the same stream.
        query = [("stream_mode", mode) for mode in wanted or ()]
        query += [("cancel_on_disconnect", "true")] if cancels else []
        location = f"{path}/stream{'?' if query else ''}{urlencode(query)}"
        return _respond(api, slot, stream, {"location": location}, cancels=cancels)


def _respond(
    api: Api, slot: StreamSlot, stream: RunStream, headers: dict[str, str], *, cancels: bool
) -> Response:
    on_leave = partial(cancel_left, api, stream.reader.row.id) if cancels else None
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
            yield encode("error", wire_error(rest.error.kind, rest.error.message))
        yield encode("end", None)

    def _first(self, after: int) -> int:
        return 0 if self.source.needs_history else after


def _encoded(event: WireEvent) -> bytes:
    return encode(event.name, event.data, str(event.position))


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
    head = await api.do(runs.head(thread_id))
    if head is not None:
        last = await api.do(streams.last(head))
        return ThreadPosition(head.n, Position(last, DONE - 1))
    newest = await api.do(runs.page(thread_id=thread_id, count=1))
    return ThreadPosition(newest[0].n + 1 if newest else 1, Position(-1))


async def _events(
    api: Api, thread_id: str, behind: ThreadPosition, *, has_output: bool
) -> AsyncGenerator[bytes]:
    source: RunEvents | None = None
    last = 0
    async with aclosing(follow_thread(api, thread_id, max(behind.run, 1))) as items:
        async for reader, item in items:
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
                        yield encode("error", wire_error(item.error.kind, item.error.message))
                    done = {"status": "run_done", "run_id": reader.row.id}
                    yield encode("metadata", done, str(position))


def _source(api: Api, reader: RunReader, has_output: bool) -> RunEvents:
    modes, subgraphs = run_modes(load_setup(api.serializer, reader.row))
    return RunEvents(reader.row.id, modes if has_output else (), subgraphs=subgraphs)
