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

In the stream of a run, the id of an event is the number of its chunk. If a chunk becomes several
events, such as `messages/metadata` and `messages/partial`, the first has the id `<n>` and the
others `<n>-1`, `<n>-2`. So ids increase strictly, and the events after any id are the same in every
process and at any time: the remaining events of chunk <n>, and those of all later chunks.

    id 0            the `metadata` that begins a stream
    id <n>, <n>-<k> an event of chunk n
    no id           `error`, `end`, and the last `values` of a run whose output was not kept

If a segment replaces earlier output, because a process died or a node runs again, the event
`metadata {run_id, attempt, replaces_from}` says so. A client that then drops its events with ids
from `replaces_from` on has what an undisturbed run would have sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, get_args
from urllib.parse import urlencode
from uuid import UUID

from fastapi import APIRouter, Request
from langchain_core.messages import BaseMessage, BaseMessageChunk
from langchain_core.messages.utils import message_chunk_to_message
from starlette.responses import Response

from perdure.commands import runs, streams
from perdure.commands.runs import RunRow, load_setup
from perdure.commands.streams import SEGMENT
from perdure.server.agent_api.resources import find_thread
from perdure.server.agent_api.run_bodies import ACCUMULATED, PIECES, RunBody, StreamMode, modes_of
from perdure.server.agent_api.run_reader import Begun, RunReader, SeenRun, find_run, follow_thread
from perdure.server.agent_api.run_request import Accepted, accept_run, also_stateless
from perdure.server.agent_api.runs import cancel_left
from perdure.server.agent_api.sse import DOCUMENTED, EventStreamResponse, encode
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api, ApiDep
from perdure.types import Chunk
from perdure.views.wire_run import run_failure

router = APIRouter(tags=["runs"])


@also_stateless(router.post, "/stream", response_model=None, responses=DOCUMENTED)
async def stream_run(thread_id: str | None, body: RunBody, api: ApiDep) -> Response:
    """Create a run, and stream its output as server-sent events."""
    modes = modes_of(body.stream_mode)
    kept = body.model_copy(update={"stream_mode": [*modes]})
    with api.open_stream() as slot:
        accepted = await accept_run(api, thread_id, kept)
        source = RunEvents(accepted.row.id, modes, subgraphs=body.stream_subgraphs)
        events = _run_stream(api, accepted.row, source, Position(accepted.after), is_new=True)
        place = accepted.location
        headers = {"location": f"{place}/stream", "content-location": place}
        cancels = body.on_disconnect == "cancel"
        on_leave = partial(cancel_left, api, accepted.row.id) if cancels else None
        return EventStreamResponse(slot, events, headers, on_leave=on_leave)


@also_stateless(router.get, "/{run_id}/stream", response_model=None, responses=DOCUMENTED)
async def join_run_stream(
    thread_id: str | None,
    run_id: UUID,
    request: Request,
    api: ApiDep,
    cancel_on_disconnect: bool = False,
) -> Response:
    """Stream the output of a run as server-sent events, after `Last-Event-ID` or from now on."""
    api.require(Scope.START if cancel_on_disconnect else Scope.READ)
    wanted = parse_filter(request.query_params.getlist("stream_mode"))
    with api.open_stream() as slot:
        row = (await find_run(api, thread_id, str(run_id))).row
        modes, subgraphs = run_modes(load_setup(api.serializer, row))
        source = RunEvents(row.id, wanted or modes, subgraphs=subgraphs)
        position = parse_position(request.headers.get("last-event-id"))
        is_new = position is None or position < START
        if position is None:
            position = Position(await api.journal.aread_committed(streams.last(row)))
        events = _run_stream(api, row, source, position, is_new=is_new)
        # A client that reconnects calls `location`, and must get the same stream.
        query, on_leave = [("stream_mode", mode) for mode in wanted or ()], None
        if cancel_on_disconnect:
            query.append(("cancel_on_disconnect", "true"))
            on_leave = partial(cancel_left, api, row.id)
        path = Accepted(row, thread_id is None).location
        location = f"{path}/stream{'?' if query else ''}{urlencode(query)}"
        return EventStreamResponse(slot, events, {"location": location}, on_leave=on_leave)


async def _run_stream(
    api: Api, row: RunRow, source: RunEvents, position: Position, *, is_new: bool
) -> AsyncGenerator[bytes]:
    """The encoded events of a run until it ends or rests. `is_new`: they begin with `metadata`,
    after all events of the chunk in `position`."""
    reader, behind = RunReader(api, row), max(position, START)
    after = behind.n if is_new else max(behind.n - 1, 0)
    if is_new:
        yield source.begin(behind).encoded()
    # Where messages accumulate, the events of a chunk depend on the chunks before it.
    async with aclosing(reader.chunks(0 if ACCUMULATED in source.modes else after)) as chunks:
        async for chunk in chunks:
            for event in source.feed(chunk):
                if event.position > behind and event.position.n > after:
                    yield event.encoded()
    for last in await _last_events(api, reader, await reader.rest()):
        yield last
    yield encode("end", None)


async def _last_events(
    api: Api, reader: RunReader, run: SeenRun, *, has_output: bool = True
) -> list[bytes]:
    """What is sent about a run at rest: its state if its output was not kept, and its error."""
    values = await reader.final_values(run) if has_output else None
    events = [] if values is None else [encode("values", values)]
    failure = run_failure(api.serializer, run.row)
    return events if failure is None else [*events, encode("error", failure)]


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
    run, _, rest = (text or "").strip().partition(".")
    if run in ("-1", "-", "0"):
        return ThreadPosition(1, Position(-1))
    at = parse_position(rest)
    return None if at is None or not NUMBER.fullmatch(run) else ThreadPosition(int(run), at)


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
    with api.open_stream() as slot:
        await find_thread(api, str(thread_id))
        position = parse_thread_position(request.headers.get("last-event-id"))
        if position is None:
            position = await _now(api, str(thread_id))
        events = _events(api, str(thread_id), position, has_output=modes != {LIFECYCLE})
        return EventStreamResponse(slot, events)


async def _now(api: Api, thread_id: str) -> ThreadPosition:
    """The current end of the stream."""
    head = await api.journal.ado(runs.head(thread_id))
    if head is not None:
        last = await api.journal.ado(streams.last(head))
        return ThreadPosition(head.n, Position(last, DONE - 1))
    newest = await api.journal.ado(runs.page(thread_id=thread_id, count=1))
    return ThreadPosition(newest[0].n + 1 if newest else 1, Position(-1))


async def _events(
    api: Api, thread_id: str, behind: ThreadPosition, *, has_output: bool
) -> AsyncGenerator[bytes]:
    source, last = RunEvents("", ()), 0
    async with aclosing(follow_thread(api, thread_id, max(behind.run, 1))) as items:
        async for reader, item in items:
            events: list[WireEvent] = []
            if isinstance(item, Begun):
                modes, subgraphs = run_modes(load_setup(api.serializer, reader.row))
                modes, last = modes if has_output else (), 0
                source = RunEvents(reader.row.id, modes, subgraphs=subgraphs)
                events = [source.begin()]
            elif isinstance(item, Chunk):
                last, events = item.n, source.feed(item)
            for event in events:
                position = ThreadPosition(reader.row.n, event.position)
                if position > behind:
                    yield event.encoded(str(position))
            if isinstance(item, SeenRun):
                position = ThreadPosition(reader.row.n, Position(last, DONE))
                if position > behind:
                    for end in await _last_events(api, reader, item, has_output=has_output):
                        yield end
                    done = {"status": "run_done", "run_id": reader.row.id}
                    yield encode("metadata", done, str(position))


# -- chunks as events


def parse_filter(modes: Iterable[str]) -> tuple[str, ...] | None:
    """The modes of a query, repeated or as a JSON list. None: no filter was given."""
    names: list[Any] = []
    for one in modes:
        if one.lstrip().startswith("["):
            try:
                names += json.loads(one)
            except (ValueError, RecursionError):
                raise ApiError(422, "stream_mode is not a JSON list of modes.") from None
        elif one.strip():
            names.append(one.strip())
    for name in names:
        if name not in get_args(StreamMode):
            known = ", ".join(get_args(StreamMode))
            raise ApiError(422, f"The stream mode {name!a:.60} is not one of {known}.")
    return modes_of(names) if names else None


def run_modes(setup: Mapping[str, Any]) -> tuple[tuple[str, ...], bool]:
    """The modes that a run was started with, and whether its subgraphs are streamed too."""
    kept = setup.get("stream") or {}
    modes = [PIECES if one == ACCUMULATED else one for one in kept.get("modes", ())]
    return tuple(kept.get("wire") or modes), bool(kept.get("subgraphs"))


class Position(NamedTuple):
    """A place in the stream of a run: after event `k` of chunk `n`."""

    n: int
    k: int = 0

    def __str__(self) -> str:
        return f"{self.n}-{self.k}" if self.k else str(self.n)


START = Position(0)
NUMBER = re.compile(r"[0-9]{1,18}")


def parse_position(text: str | None) -> Position | None:
    """The place that `Last-Event-ID` names. None if it is missing or not one of our ids."""
    n, dash, k = (text or "").strip().partition("-")
    if (n, k) in (("", "1"), ("", "")) and dash:
        return Position(-1)
    numbers = [n, k] if dash else [n]
    return Position(*map(int, numbers)) if all(map(NUMBER.fullmatch, numbers)) else None


@dataclass(frozen=True)
class WireEvent:
    """One event. `data` is not encoded as JSON yet."""

    name: str
    data: Any
    position: Position

    def encoded(self, id: str | None = None) -> bytes:
        return encode(self.name, self.data, id or str(self.position))


class RunEvents:
    """Turns the chunks of one run, in order, into events of some modes."""

    def __init__(self, run_id: str, modes: Collection[str], *, subgraphs: bool = False) -> None:
        self.modes, self._run_id, self._subgraphs = frozenset(modes), run_id, subgraphs
        self._messages = MessageEvents()
        self._attempt = 1

    def begin(self, at: Position = START) -> WireEvent:
        """The first event of a stream."""
        data = {"run_id": self._run_id, "attempt": self._attempt}
        return WireEvent("metadata", data, at)

    def feed(self, chunk: Chunk) -> list[WireEvent]:
        """The events of a chunk; empty if its mode was not requested."""
        return [
            WireEvent(name, data, Position(chunk.n, k))
            for k, (name, data) in enumerate(self._events(chunk))
        ]

    def _events(self, chunk: Chunk) -> Iterator[tuple[str, Any]]:
        name = "|".join((chunk.mode, *chunk.namespace))
        if chunk.mode == SEGMENT:
            self._attempt += 1
            if chunk.replaces_from is not None:
                self._messages.forget_from(chunk.replaces_from)
                yield "metadata", {**self.begin().data, "replaces_from": chunk.replaces_from}
        elif chunk.namespace and not self._subgraphs:
            return
        elif chunk.mode == "messages":
            message, metadata = chunk.data
            if PIECES in self.modes:
                yield name, [message, metadata]
            if ACCUMULATED in self.modes:
                yield from self._messages.feed(chunk.n, message, metadata)
        elif chunk.mode in self.modes:
            yield name, chunk.data


METADATA, PARTIAL, COMPLETE = "messages/metadata", "messages/partial", "messages/complete"


@dataclass
class _Open:
    """A message that is being streamed: its pieces, by chunk number, and their sum."""

    pieces: list[tuple[int, BaseMessageChunk]] = field(default_factory=list)
    whole: BaseMessageChunk | None = None

    def add(self, n: int, piece: BaseMessageChunk) -> BaseMessageChunk:
        self.pieces.append((n, piece))
        self.whole = _joined(self.whole, piece)
        return self.whole

    def forget_from(self, n: int) -> None:
        if self.pieces[-1][0] >= n:
            self.pieces = [one for one in self.pieces if one[0] < n]
            self.whole = None
            for _, piece in self.pieces:
                self.whole = _joined(self.whole, piece)


class MessageEvents:
    """Events of the messages of one run."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}
        self._known: dict[str, int] = {}
        """Ids of messages whose metadata was sent, and the chunk it was sent for."""

    def feed(self, n: int, message: Any, metadata: Any) -> Iterator[tuple[str, Any]]:
        """Names and data of the events for chunk `n`."""
        if not isinstance(message, BaseMessage):
            return
        id = message.id or ""
        if id not in self._known:
            self._known[id] = n
            yield METADATA, {id: {"metadata": metadata}}
        if not isinstance(message, BaseMessageChunk):
            yield COMPLETE, [message]
            return
        whole = self._open.setdefault(id, _Open()).add(n, message)
        yield PARTIAL, [message_chunk_to_message(whole)]
        if getattr(message, "chunk_position", None) == "last":
            del self._open[id]

    def forget_from(self, n: int) -> None:
        """Forget chunks from `n` on: they are void."""
        for one in self._open.values():
            one.forget_from(n)
        self._open = {id: one for id, one in self._open.items() if one.pieces}
        self._known = {id: first for id, first in self._known.items() if first < n}


def _joined(whole: BaseMessageChunk | None, piece: BaseMessageChunk) -> BaseMessageChunk:
    if whole is None:
        return piece
    joined = whole + piece
    if not isinstance(joined, BaseMessageChunk):  # its type allows a prompt template
        raise TypeError(f"{type(whole).__name__} + {type(piece).__name__} is not a message.")
    return joined
