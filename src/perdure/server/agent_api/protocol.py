"""The v2 protocol: commands to a thread, and the stream of its events.

    POST /threads/{t}/commands        run.start, input.respond; errors are responses with status 200
    POST /threads/{t}/stream/events   server-sent events of all runs of the thread, without end

`meta.applied_through_seq` of a response is the number of the last frame before the command: clients
use it to recognise history. `run.start` creates the thread if it does not exist, and a stream of a
missing thread waits until it exists.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

import orjson
from fastapi import APIRouter
from pydantic import BaseModel, Field, ValidationError
from starlette.responses import Response

from perdure.commands import runs
from perdure.commands.assistants import default_id
from perdure.commands.runs import RunRow, load_setup
from perdure.server.agent_api.protocol_events import (
    MODES,
    RESTS,
    Frame,
    RunFrames,
    chunk_of,
    is_rest,
    run_of,
    seq_of,
)
from perdure.server.agent_api.resources import find_thread
from perdure.server.agent_api.run_bodies import RunBody
from perdure.server.agent_api.run_reader import Begun, SeenRun, follow_thread
from perdure.server.agent_api.run_request import accept_run
from perdure.server.agent_api.sse import DOCUMENTED, EventStreamResponse, encode
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError, error_response, invalid
from perdure.server.routes import Api, ApiDep
from perdure.times import moment
from perdure.types import Chunk
from perdure.views.wire_run import WIRE, run_failure

router = APIRouter(tags=["threads"])

CHANNELS = frozenset({*MODES, "tools", "lifecycle", "input"})
CODES = {
    400: "invalid_argument",
    404: "no_such_run",
    409: "no_such_interrupt",
    422: "invalid_argument",
    501: "not_supported",
}
"""Error codes of the protocol, by the HTTP status that the same error has elsewhere."""

Json = dict[str, Any]


class EventStreamBody(BaseModel):
    """Which events of a thread to send."""

    channels: list[str]
    namespaces: list[list[str]] | None = None
    depth: int | None = Field(None, ge=0)
    since: int | None = Field(None, ge=0, lt=2**53)

    def check(self) -> None:
        for name in self.channels:
            if name not in CHANNELS and not name.startswith("custom:"):
                known = ", ".join(sorted(CHANNELS))
                raise ApiError(400, f"The channel {ascii(name)[:60]} is not one of {known}.")

    def has(self, frame: Frame) -> bool:
        """Whether to send a frame."""
        channel = frame.channel
        if channel not in self.channels and not (
            channel.startswith("custom:") and "custom" in self.channels
        ):
            return False
        return not self.namespaces or any(
            _begins(frame.namespace, prefix)
            and (self.depth is None or len(frame.namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces
        )


def _begins(namespace: Sequence[str], prefix: Sequence[str]) -> bool:
    """Whether a namespace begins with a prefix. Parts of the prefix may leave out task ids."""
    return len(prefix) <= len(namespace) and all(
        part in (whole, whole.partition(":")[0])
        for part, whole in zip(prefix, namespace, strict=False)
    )


# -- commands


class CommandBody(BaseModel):
    """A command of the v2 protocol."""

    id: int | str | None = None
    method: str | None = None
    params: Json | None = None


@router.post("/threads/{thread_id}/commands")
async def run_command(thread_id: UUID, body: CommandBody, api: ApiDep) -> Json:
    """Start a run, or answer a question, with a command of the v2 protocol."""
    id, method, params = body.id, body.method, body.params or {}
    handle = HANDLERS.get(method or "")
    if handle is None:
        known = ", ".join(HANDLERS)
        return _error(id, "unknown_command", f"No command {ascii(method)[:60]}; use {known}.")
    try:
        result, through = await handle(api, str(thread_id), params)
    except ValidationError as error:
        return _error(id, "invalid_argument", invalid(error, "params").detail)
    except Exception as error:
        response = error_response(error, api.runtime.redact)
        if response.status_code not in CODES:
            raise
        return _error(id, CODES[response.status_code], orjson.loads(response.body)["detail"])
    meta = {"applied_through_seq": through}
    return {"type": "success", "id": id, "result": result, "meta": meta}


def _error(id: Any, code: str, message: str) -> Json:
    return {"type": "error", "id": id, "error": code, "message": message}


STARTS = {
    **{name: name for name in ("assistant_id", "input", "config", "metadata", "context")},
    "multitaskStrategy": "multitask_strategy",
}
"""Parameters of `run.start`, and their names in the body of a run."""


async def _start(api: Api, thread_id: str, params: Any) -> tuple[Json, int]:
    """`run.start`. On an idle thread everything before the run is history. Frames of another run
    that is under way are not: a client that has not seen them yet would miss them."""
    passed = {name: params.get(param) for param, name in STARTS.items()}
    body = RunBody.model_validate({**passed, **KEPT, "if_not_exists": "create"})
    accepted = await accept_run(api, thread_id, body)
    head = await api.journal.ado(runs.head(thread_id))
    is_next = head is None or head.n >= accepted.row.n
    through = seq_of(accepted.row.n, 0, 0) - 1 if is_next else 0
    if accepted.after:  # it rested at a breakpoint, and goes on
        through = seq_of(accepted.row.n, accepted.after, RESTS)
    return {"run_id": accepted.row.id}, through


KEPT: Json = {"stream_mode": [*MODES], "stream_subgraphs": True}
"""The stream settings of a run, enough for every channel."""


class OneAnswer(BaseModel):
    """One answer of `input.respond`."""

    interrupt_id: str
    response: Any = None


class RespondParams(BaseModel):
    """Parameters of `input.respond`: one answer, or several in `responses`."""

    interrupt_id: str | None = None
    response: Any = None
    responses: list[OneAnswer] | None = None
    update: Any = None
    goto: Any = None
    config: Json | None = None
    metadata: Json | None = None

    def answers(self) -> Json:
        answers = {one.interrupt_id: one.response for one in self.responses or ()}
        if self.interrupt_id is not None:
            answers[self.interrupt_id] = self.response
        if not answers:
            raise ApiError(422, "input.respond needs an interrupt_id and a response.")
        return answers


async def _respond(api: Api, thread_id: str, params: Any) -> tuple[Json, int]:
    """`input.respond`."""
    api.require(Scope.ANSWER)
    reply = RespondParams.model_validate(params)
    command = {"resume": reply.answers(), "update": reply.update, "goto": reply.goto}
    head = await api.journal.ado(runs.head(thread_id))
    if head is None:
        await find_thread(api, thread_id)
        raise ApiError(404, f"No run of thread {thread_id} waits for an answer.")
    body = {"assistant_id": _assistant(api, head), "command": command, **KEPT}
    body |= {"config": reply.config, "metadata": reply.metadata}
    accepted = await accept_run(api, thread_id, RunBody.model_validate(body))
    return {}, seq_of(accepted.row.n, accepted.after, RESTS)


def _assistant(api: Api, row: RunRow) -> str:
    setup = load_setup(api.serializer, row)
    assistant_id = (setup.get(WIRE) or {}).get("assistant_id") or default_id(row.graph)
    return str(assistant_id)


Handler = Callable[[Api, str, Any], Coroutine[Any, Any, tuple[Json, int]]]
HANDLERS: dict[str, Handler] = {"run.start": _start, "input.respond": _respond}


# -- events


@router.post("/threads/{thread_id}/stream/events", response_model=None, responses=DOCUMENTED)
async def stream_events(thread_id: UUID, body: EventStreamBody, api: ApiDep) -> Response:
    """Stream the events of all runs of a thread in the v2 protocol: from the first that is kept,
    or after `since`."""
    api.require(Scope.READ)
    body.check()
    with api.open_stream() as slot:
        try:
            await find_thread(api, str(thread_id))
        except ApiError as error:
            # With handlers, a missing thread may be one that the caller must not know of.
            if error.status_code != 404 or api.options.auth is not None:
                raise
        return EventStreamResponse(slot, _events(api, str(thread_id), body))


async def _events(api: Api, thread_id: str, wanted: EventStreamBody) -> AsyncGenerator[bytes]:
    since = wanted.since or 0
    source: RunFrames | None = None
    first, seen = (run_of(since), chunk_of(since)) if run_of(since) else (1, 0)
    async with aclosing(follow_thread(api, thread_id, first, seen)) as items:
        async for reader, item in items:
            frames: list[Frame] = []
            if isinstance(item, Begun) or source is None:
                source = RunFrames(reader.row.n, reader.row.graph)
                frames.append(source.begin(moment(reader.row.created_at)))
            if isinstance(item, Chunk):
                frames += source.feed(item)
                if item.n == seen and reader.row.n == first and is_rest(since):
                    source.note_rest()
            elif isinstance(item, SeenRun):
                failure = run_failure(api.serializer, item.row)
                error = None if failure is None else "{error}: {message}".format(**failure)
                values, at = await reader.final_values(item), moment(item.row.updated_at)
                frames += source.rest(item.outcome, at, error=error, values=values)
            for frame in frames:
                if frame.seq > since and wanted.has(frame):
                    yield encode(frame.method, frame.wire(), str(frame.seq))
