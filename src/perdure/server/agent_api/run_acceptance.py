"""Accept a run over HTTP: a new one, or the one that waits for the answer in the request.

    an input                       a new run; it replaces a run that asks a person, as in LangGraph
    a command with `resume`        answers the run that asks, which goes on under its id
    a command without `resume`     a new run that begins with the command
    a jump to the end              ends the run that asks; LangGraph itself would ask again
    neither, at a breakpoint       continues the run that rests there
    with an old checkpoint         a new run from there

What is accepted is on disk, in one batch: the thread's record and the run, or the answers and the
rest of their command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn
from urllib.parse import quote
from uuid import UUID

from perdure.engine.bound_graph import BoundGraph
from perdure.engine.command_answers import answer_with_command, names_waits
from perdure.engine.graphs import Graph
from perdure.engine.segment_drive import latest_checkpoint
from perdure.errors import AlreadyAnswered, NotFound, WaitClosed
from perdure.journal import Plan
from perdure.journal.ids import new_id
from perdure.journal.operation import Refused
from perdure.langgraph_port import call_config
from perdure.operations import assistants, runs, streams, threads, waits
from perdure.operations.assistants import Assistant
from perdure.operations.run_payload import load_setup
from perdure.operations.runs import Beside, RunRow
from perdure.operations.threads import ThreadContent
from perdure.operations.waits import WaitRow
from perdure.server.agent_api.run_answers import translated
from perdure.server.agent_api.run_bodies import (
    END,
    PayloadBody,
    RunBody,
    merged_config,
    merged_context,
    passed_on,
)
from perdure.server.agent_api.run_shapes import WIRE
from perdure.server.agent_api.statuses import asks_person
from perdure.server.agent_api.threads import canonical
from perdure.server.auth_handlers import Filters
from perdure.server.caller import Scope
from perdure.server.context import Api
from perdure.server.json_errors import ApiError
from perdure.types import Kind, WaitState

GRACE = timedelta(seconds=0.5)
"""How long a step of a run that is cancelled or interrupted may go on. Short, because a person may
be waiting."""
STATELESS_TTL = 1.0
"""Minutes from its start until a stateless run's thread is erased, if the run has ended."""
BREAKPOINT = "breakpoint:"
IN_PATHS = "!$&'()*+,:;=@"
"""Characters that a part of a path may have unquoted: clients read ids from the path."""


@dataclass(frozen=True)
class Accepted:
    """A run that was accepted or continued."""

    row: RunRow
    is_stateless: bool = False
    after: int = 0
    """Number of the last chunk before it was continued."""

    @property
    def location(self) -> str:
        """The path of the run, quoted for a header."""
        if self.is_stateless:
            return f"/runs/{self.row.id}"
        return f"/threads/{quote(self.row.thread_id, IN_PATHS)}/runs/{self.row.id}"


@dataclass(frozen=True)
class RunRequest:
    """A request that creates a run, with everything it refers to."""

    thread_id: str
    run_id: str
    is_stateless: bool
    body: RunBody
    assistant: Assistant
    graph: tuple[str, str]
    setup: dict[str, Any]
    thread_metadata: Mapping[str, Any]
    """The metadata of the thread, if the run creates it."""
    is_read: bool
    """Whether the assistant was read for this request, not taken from memory."""


async def accept_run(api: Api, thread_id: str | None, body: RunBody) -> Accepted:
    """Accept a run on a thread; without a `thread_id`, on a new one. Raises 404, 409, 422."""
    api.require(Scope.ANSWER if body.resumes else Scope.START)
    api.require_worker()
    if thread_id is not None:
        thread_id = await known_thread(api, thread_id)
    body.check_thread(thread_id)
    if body.begins_anew and (seen := api.runtime.services.assistants.seen(body.assistant_id)):
        try:
            return await _accept(api, await _authorized(api, thread_id, body, seen, is_read=False))
        except Refused:  # the assistant has changed, or there is no such thread
            pass
    assistant = await find_assistant(api, body.assistant_id)
    return await _accept(api, await _authorized(api, thread_id, body, assistant))


async def _accept(api: Api, request: RunRequest) -> Accepted:
    body = request.body
    journal = api.runtime.journal
    accepted = None
    if request.is_stateless:
        if body.resumes:
            raise ApiError(422, "A stateless run has nothing to resume. Send it to a thread.")
    elif body.jumps_to_end:
        accepted = await _end_asking(api, request)
    elif body.resumes or body.run_input is None:
        accepted = await journal.arun(_continue(api, request))
    if accepted is None:
        row = await journal.arun(_start(api, request))
        accepted = Accepted(row, request.is_stateless)
    stops = body.multitask_strategy in ("interrupt", "rollback")
    if stops or not body.after_seconds:
        api.runtime.engine.wake(stopped=stops)
    return accepted


async def known_thread(api: Api, thread_id: str) -> str:
    """A thread's id as it is stored. Raises 422 unless it is a UUID or an existing thread."""
    if (id := canonical(thread_id)) is not None:
        return id
    runtime = api.runtime
    if await runtime.journal.arun(runtime.services.threads.find(thread_id)) is None:
        raise missing_thread(thread_id)
    return thread_id


def missing_thread(thread_id: str) -> Exception:
    """What a request for a thread that is not there raises: 404, or 422 if the id is no UUID."""
    if canonical(thread_id) is not None:
        return NotFound("thread", thread_id)
    return ApiError(422, f"The thread id {thread_id[:100]!a} is not a UUID.")


async def find_assistant(api: Api, name: str) -> Assistant:
    """The assistant with an id, or the default one of the graph with that name."""
    runtime = api.runtime
    return await runtime.journal.arun(runtime.services.assistants.find(name), flush=False)


def resolve_graph(api: Api, assistant: Assistant) -> tuple[str, str]:
    """The name and version of an assistant's graph."""
    return api.runtime.engine.resolve_graph(assistant.graph_id, None)


async def _authorized(
    api: Api, thread_id: str | None, body: RunBody, assistant: Assistant, *, is_read: bool = True
) -> RunRequest:
    """The request as the handlers of `langgraph_sdk.Auth` leave it."""
    graph, run_id, on = resolve_graph(api, assistant), new_id(), thread_id or new_id()
    given = body.metadata
    setup = make_setup(api, assistant, body) | _of_run(body)
    value: dict[str, Any] = {
        "thread_id": UUID(on) if canonical(on) else on,
        "assistant_id": UUID(assistant.assistant_id),
        "run_id": UUID(run_id),
        "status": "pending",
        "metadata": dict(given),
        "multitask_strategy": body.multitask_strategy,
        "prevent_insert_if_inflight": body.multitask_strategy == "reject",
        "if_not_exists": body.if_not_exists,
        "after_seconds": body.after_seconds or 0,
        "kwargs": {
            "input": setup.get("input"),
            "config": setup["config"],
            "context": setup.get("context"),
        },
    }
    filters = await api.authorize("threads", "create_run", value)
    if thread_id is not None:
        await check_filters(api, thread_id, filters, may_be_missing=body.if_not_exists == "create")
    given, kwargs = dict(value.get("metadata") or {}), value.get("kwargs") or {}
    setup["metadata"] = {**assistant.metadata, "assistant_id": assistant.assistant_id, **given}
    setup |= {name: kwargs[name] for name in ("input", "config", "context") if kwargs.get(name)}
    return RunRequest(on, run_id, thread_id is None, body, assistant, graph, setup, given, is_read)


async def check_filters(
    api: Api,
    thread_id: str,
    filters: Filters | None,
    *,
    may_be_missing: bool = False,
    missing: Exception | None = None,
) -> None:
    """Raise `missing`, by default that there is no such thread, if its metadata does not match."""
    if filters is None:
        return
    runtime = api.runtime
    found = await runtime.journal.arun(runtime.services.threads.find(thread_id))
    if found is None and may_be_missing:
        return
    if found is None or not filters.match(dict(found.metadata)):
        raise missing or missing_thread(thread_id)


def make_setup(api: Api, assistant: Assistant, body: PayloadBody) -> dict[str, Any]:
    """The setup of a run's segments, without the parts that belong to a single request."""
    ids = {"graph_id": assistant.graph_id, "assistant_id": assistant.assistant_id}
    config = merged_config(assistant.config, body.config, {**api.caller.configurable, **ids})
    fields = context_fields(api.runtime.engine.graphs.newest.get(assistant.graph_id))
    configurable = config["configurable"]
    context = merged_context(assistant.context, body.context, configurable, fields)
    if context:
        config["configurable"] = {**passed_on(context), **configurable}
    setup: dict[str, Any] = {
        "config": config,
        "metadata": {**assistant.metadata, **body.metadata},
        **body.breakpoints(),
        WIRE: {
            "assistant_id": assistant.assistant_id,
            "multitask_strategy": body.multitask_strategy,
        },
    }
    own = {
        "input": body.input,
        "context": context,
        "durability": body.durability,
        "webhook": body.webhook,
    }
    return setup | {name: value for name, value in own.items() if value is not None}


def _of_run(body: RunBody) -> dict[str, Any]:
    """The parts of a setup that belong to a single request: command, place and stream."""
    found: dict[str, Any] = {}
    if (input := body.run_input) is not body.input:
        found["input"] = input
    if place := body.place():
        found["place"] = place
    found["stream"] = body.kept_stream()
    return found


def context_fields(graph: Graph | None) -> list[str]:
    """The field names of a graph's context."""
    schema = None if graph is None else graph.pregel.context_schema
    return [*getattr(schema, "model_fields", getattr(schema, "__annotations__", {}))]


# -- a new run


def _start(api: Api, request: RunRequest) -> Plan[RunRow]:
    """Accept a new run, with the record of its thread, in one batch."""
    body, engine, services = request.body, api.runtime.engine, api.runtime.services
    setup = _with_wire(request)
    owner: Any = {"graph": request.graph[0], "assistant": request.assistant.assistant_id}
    now = services.clock.now()
    if request.is_stateless or body.if_not_exists == "create":
        ttl = STATELESS_TTL if request.is_stateless and body.on_completion == "delete" else None
        content = ThreadContent(request.thread_metadata, ttl=ttl)
        record = threads.ensure(engine.serializer, request.thread_id, content, now, **owner)
    else:
        record = threads.require(request.thread_id, now, **owner)
    if not request.is_read:
        record.append(assistants.unchanged(request.assistant))

    def refuse() -> NoReturn:
        if not request.is_read:
            raise Refused("same_assistant or require_thread")
        raise NotFound("thread", request.thread_id)

    strategy = body.multitask_strategy
    return services.runs.accept(
        request.graph,
        request.thread_id,
        setup,
        strategy,
        only=runs.ASKING if strategy in ("enqueue", "reject") else None,
        after=timedelta(seconds=body.after_seconds) if body.after_seconds else None,
        run_id=request.run_id,
        beside=Beside(record, refuse),
        grace=GRACE,
    )


def _with_wire(request: RunRequest) -> dict[str, Any]:
    body, setup = request.body, request.setup
    wire: dict[str, Any] = {**setup[WIRE]}
    if request.is_stateless:
        wire["stateless"] = True
    if body.command is not None and not body.command.is_empty:
        wire |= {"command": body.command.model_dump(), "input": body.input}
    return {**setup, WIRE: wire}


# -- a run that goes on


def _continue(api: Api, request: RunRequest) -> Plan[Accepted | None]:
    """Continue the run that rests on a thread, with the answers of the request. None: the request
    needs a new run instead."""
    runtime, body = api.runtime, request.body
    engine, place = runtime.engine, body.place()
    if place and not (yield from _is_latest(api, request.thread_id, place)):
        return None
    row: RunRow | None = yield runs.head(request.thread_id)
    found: list[WaitRow] = [] if row is None else (yield waits.of_run(row.id))
    open = [one for one in found if one.state == WaitState.OPEN and one.kind == Kind.HUMAN]
    command = body.run_input
    if not body.resumes:
        stops = [one for one in open if one.interrupt_id.startswith(BREAKPOINT)]
        if row is None or not stops or place:
            return None
        open, command = stops, _let_go(stops)
    elif row is None or not open:
        if (yield threads.find(request.thread_id, runtime.services.clock.now())) is None:
            raise NotFound("thread", request.thread_id)
        raise ApiError(
            409,
            f"No run of thread {request.thread_id} waits for an answer: the question was already "
            "answered, or not asked yet.",
        )
    else:
        _check_named(command.resume, found)
        command = type(command)(
            resume=translated(engine.serializer, open, command.resume),
            update=command.update,
            goto=command.goto,
        )
    after = yield streams.last(row)
    changes = _changes(load_setup(engine.serializer, row), request, api.caller.configurable)
    by = api.caller.identity
    yield from answer_with_command(engine, row, found, open, command, by=by, changes=changes)
    row = (yield runs.find(row.id)) or row
    return Accepted(row, False, after)


async def _end_asking(api: Api, request: RunRequest) -> Accepted | None:
    """End the run that asks, as if its graph had finished. None: there is no such run."""
    runtime = api.runtime
    row = await runtime.journal.ado(runs.head(request.thread_id))
    if row is None:
        return None
    found = await runtime.journal.ado(waits.of_run(row.id))
    graph = runtime.engine.graphs.find(row.graph, row.version)
    if graph is None or not asks_person(row, found, runtime.services.clock.now()):
        return None
    after = await runtime.journal.ado(streams.last(row))
    bound = BoundGraph.of(graph, runtime.engine)
    config: Any = {"configurable": {"thread_id": request.thread_id}}
    update = None if request.body.command is None else request.body.command.update
    if update:
        await bound.aupdate_state(config, update)
    await bound.aupdate_state(config, None, as_node=END)
    row = await runtime.journal.ado(runs.find(row.id)) or row
    return Accepted(row, False, after)


def _is_latest(api: Api, thread_id: str, place: Mapping[str, Any]) -> Plan[bool]:
    """Whether a place is the latest checkpoint of its thread."""
    at = yield from latest_checkpoint(api.runtime.engine.saver, thread_id)
    return at is not None and at.checkpoint["id"] == call_config.root_checkpoint(place)


def _let_go(stops: list[WaitRow]) -> Any:
    from langgraph.types import Command

    return Command(resume={one.interrupt_id: True for one in stops})


def _check_named(resume: Any, found: list[WaitRow]) -> None:
    """Raise if an answer names a question that is no longer open."""
    if not names_waits(resume):
        return
    open = {one.interrupt_id for one in found if one.state == WaitState.OPEN}
    for one in found:
        if one.interrupt_id in resume and one.interrupt_id not in open:
            if one.state == WaitState.CLOSED:
                raise WaitClosed(one.id, "its run asks something else now.")
            raise AlreadyAnswered(one.id, f"{one.answered_by or 'someone'} answered it.")


def _changes(
    before: Mapping[str, Any], request: RunRequest, caller: Mapping[str, Any]
) -> dict[str, Any]:
    """The changes to a run's setup when a request continues it. `caller` is what its nodes can read
    about the caller."""
    body, setup = request.body, request.setup
    sent = body.model_fields_set
    changes: dict[str, Any] = {}
    for name in ("durability", "webhook", "interrupt_before", "interrupt_after"):
        if setup.get(name) is not None:
            changes[name] = setup[name]
    if "stream_mode" in sent:
        changes["stream"] = setup["stream"]
    if sent & {"context", "config"} and setup.get("context") is not None:
        changes["context"] = setup["context"]
    if body.config is not None or caller:
        old, new = before.get("config") or {}, {"configurable": caller}
        new = setup["config"] if body.config is not None else new
        configurable = {**(old.get("configurable") or {}), **new["configurable"]}
        changes["config"] = {**old, **new, "configurable": configurable}
    if "metadata" in sent and body.metadata:
        changes["metadata"] = {**(before.get("metadata") or {}), **body.metadata}
    return {name: value for name, value in changes.items() if value != before.get(name)}
