"""Accept a run over HTTP: a new one, or the one that waits for the answer in the request.

    an input                       a new run; it replaces a run that asks a person, as in LangGraph
    a command with `resume`        answers the run that asks, which goes on under its id
    a command without `resume`     a new run that begins with the command
    a jump to the end              ends the run that asks; LangGraph itself would ask again
    neither, at a breakpoint       continues the run that rests there
    with an old checkpoint         a new run from there

What is accepted is on disk, in one batch: the thread's record and the run, or the answers and the
rest of their command.

A caller with the scope `answer`, but not `start`, only answers the question that is open now:
nothing else in the request may change the run, and no run is started.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import UUID

from perdure.commands import runs, starting, streams, threads, waits
from perdure.commands.assistants import Assistant
from perdure.commands.runs import RunRow
from perdure.commands.starting import Beside
from perdure.commands.threads import ThreadContent
from perdure.server.agent_api.resources import (
    as_uuid,
    check_filters,
    find_assistant,
    known_thread,
)
from perdure.server.agent_api.run_bodies import (
    END,
    PayloadBody,
    RunBody,
    merged_config,
    merged_context,
    passed_on,
)
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api
from perdure.verbs import new_id
from perdure.views.wire_run import WIRE, asks_person

Endpoint = Callable[..., Awaitable[Any]]
IN_PATHS = "!$&'()*+,:;=@"
"""Characters that a part of a path may have unquoted: clients read ids from the path."""
GRACE = timedelta(seconds=0.5)
"""How long a step of a run that is cancelled or interrupted may go on. Short, because a person may
be waiting."""
STATELESS_TTL = 1.0
"""Minutes from its start until a stateless run's thread is erased, if the run has ended."""


def also_stateless(
    method: Callable[..., Callable[[Endpoint], Endpoint]], path: str, **options: Any
) -> Callable[[Endpoint], Endpoint]:
    """Declare an endpoint about runs for `/threads/{thread_id}/runs`, and without its first
    argument, the thread's id, for stateless runs at `/runs`."""

    def declare(endpoint: Endpoint) -> Endpoint:
        @functools.wraps(endpoint)
        async def of_thread(thread_id: str, **named: Any) -> Any:
            return await endpoint(thread_id, **named)

        @functools.wraps(endpoint)
        async def stateless(**named: Any) -> Any:
            return await endpoint(None, **named)

        signature = inspect.signature(endpoint, eval_str=True)
        first, *others = signature.parameters.values()
        for function, parameters in (
            (of_thread, [first.replace(annotation=str), *others]),
            (stateless, others),
        ):
            function.__dict__["__signature__"] = signature.replace(parameters=parameters)
        stateless.__name__ = f"{endpoint.__name__}_stateless"
        method(f"/threads/{{thread_id}}/runs{path}", **options)(of_thread)
        method(f"/runs{path}", **options)(stateless)
        return endpoint

    return declare


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


async def accept_run(api: Api, thread_id: str | None, body: RunBody) -> Accepted:
    """Accept a run on a thread; without a `thread_id`, on a new one. Raises 403, 404, 409, 422."""
    api.require(Scope.ANSWER if body.resumes else Scope.START)
    if not api.may(Scope.START) and (field := body.beyond_answer()):
        raise _only_answers(field)
    api.require_worker()
    if thread_id is None:
        if body.resumes:
            raise ApiError(422, "A stateless run has nothing to resume. Send it to a thread.")
    else:
        thread_id = await known_thread(api, thread_id)
    body.check_thread(thread_id)
    request = await RunRequest.authorized(api, thread_id, body)
    accepted = None
    if thread_id is not None and body.jumps_to_end:
        accepted = await _end_asking_run(api, request)
    elif thread_id is not None and (body.resumes or body.run_input is None):
        accepted = await _continue(api, request)
    if accepted is None:
        if not api.may(Scope.START):
            raise _only_answers("checkpoint")
        accepted = Accepted(await _start(api, request), request.is_stateless)
    stops = body.multitask_strategy in ("interrupt", "rollback")
    if stops or not body.after_seconds:
        api.engine.wake(stopped=stops)
    return accepted


def _only_answers(field: str) -> ApiError:
    """The refusal of a request that does more than answer, by a caller who may only answer."""
    if field == "checkpoint":
        what = "an answer at an earlier checkpoint starts a new run"
    else:
        what = "a request with the scope 'answer' alone contains only the answer, command.resume"
    return ApiError(403, f"{field}: {what}. Leave it out, or use a token with the scope 'start'.")


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

    @classmethod
    async def authorized(cls, api: Api, thread_id: str | None, body: RunBody) -> RunRequest:
        """The request as the handlers of `langgraph_sdk.Auth` leave it. Raises 404 for an assistant
        or a thread that they hide."""
        assistant = await find_assistant(api, body.assistant_id, "run")
        graph = api.engine.resolve_graph(assistant.graph_id, None)
        run_id, on = new_id(), thread_id or new_id()
        setup = make_setup(api, assistant, body) | {"stream": body.kept_stream()}
        if (input := body.run_input) is not body.input:
            setup["input"] = input
        if place := body.place():
            setup["place"] = place
        value: dict[str, Any] = {
            "thread_id": as_uuid(on),
            "assistant_id": UUID(assistant.assistant_id),
            "run_id": UUID(run_id),
            "status": "pending",
            "metadata": dict(body.metadata),
            "multitask_strategy": body.multitask_strategy,
            "prevent_insert_if_inflight": body.multitask_strategy == "reject",
            "if_not_exists": body.if_not_exists,
            "after_seconds": body.after_seconds or 0,
            "kwargs": {name: setup.get(name) for name in ("input", "config", "context")},
        }
        filters = await api.authorize("threads", "create_run", value)
        if thread_id is not None:
            may_create = body.if_not_exists == "create"
            await check_filters(api, thread_id, filters, may_be_missing=may_create)
        metadata, kwargs = dict(value.get("metadata") or {}), value.get("kwargs") or {}
        setup["metadata"] = {
            **assistant.metadata,
            "assistant_id": assistant.assistant_id,
            **metadata,
        }
        setup |= {name: kwargs[name] for name in ("input", "config", "context") if kwargs.get(name)}
        return cls(on, run_id, thread_id is None, body, assistant, graph, setup, metadata)


# -- a new run


async def _start(api: Api, request: RunRequest) -> RunRow:
    """Accept a new run, with the record of its thread, in one batch."""
    body = request.body
    wire = dict(request.setup[WIRE])
    if request.is_stateless:
        wire["stateless"] = True
    if body.command is not None and not body.command.is_empty:
        wire |= {"command": body.command.model_dump(), "input": body.input}
    owner: Any = {"graph": request.graph[0], "assistant": request.assistant.assistant_id}
    if request.is_stateless or body.if_not_exists == "create":
        ttl = STATELESS_TTL if request.is_stateless and body.on_completion == "delete" else None
        content = ThreadContent(request.thread_metadata, ttl=ttl)
        record = threads.ensure(api.serializer, request.thread_id, content, api.now(), **owner)
    else:
        record = threads.require(request.thread_id, api.now(), **owner)
    strategy = body.multitask_strategy
    row = await api.journal.arun(
        starting.accept(
            api.engine,
            request.graph,
            request.thread_id,
            {**request.setup, WIRE: wire},
            strategy,
            only=starting.ASKING if strategy in ("enqueue", "reject") else None,
            after=timedelta(seconds=body.after_seconds) if body.after_seconds else None,
            run_id=request.run_id,
            beside=Beside(record, partial(threads.refuse_missing, request.thread_id)),
            grace=GRACE,
        )
    )
    return row


def make_setup(api: Api, assistant: Assistant, body: PayloadBody) -> dict[str, Any]:
    """The setup of a run's segments, without the parts that belong to a single request."""
    ids = {"graph_id": assistant.graph_id, "assistant_id": assistant.assistant_id}
    config = merged_config(assistant.config, body.config, {**api.caller.configurable, **ids})
    schema = getattr(api.runtime.compiled(assistant.graph_id), "context_schema", None)
    fields = getattr(schema, "model_fields", getattr(schema, "__annotations__", {}))
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


# -- the run that rests on the thread


async def _continue(api: Api, request: RunRequest) -> Accepted | None:
    """Continue the run that rests on a thread, with the answers of the request or past its
    breakpoint. None: the request needs a new run instead."""
    body = request.body
    try:
        continued = await api.journal.arun(
            api.runtime.engine.continue_run(
                request.thread_id,
                body.run_input if body.resumes else None,
                body.place(),
                partial(_changes, api, request),
                may_start=api.may(Scope.START),
                by=api.actor(),
            )
        )
    except LookupError:
        raise ApiError(
            409,
            f"No run of thread {request.thread_id} waits for an answer: the question was already "
            "answered, or not asked yet.",
        ) from None
    return None if continued is None else Accepted(continued[0], after=continued[1])


def _changes(api: Api, request: RunRequest, before: Mapping[str, Any]) -> dict[str, Any]:
    """The changes to a run's setup when a request continues it. A caller who may only answer
    changes nothing but the output that is kept, and that only grows."""
    body, setup, caller = request.body, request.setup, api.caller.configurable
    sent = body.model_fields_set
    changes: dict[str, Any] = {}
    if "stream_mode" in sent:
        changes["stream"] = _both(before.get("stream") or {}, setup["stream"])
    if api.may(Scope.START):
        for name in ("durability", "webhook", "interrupt_before", "interrupt_after"):
            if setup.get(name) is not None:
                changes[name] = setup[name]
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


def _both(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The output to keep for the readers of a run and for the client that continues it."""
    merged: dict[str, Any] = {**old, **new}
    for name in ("modes", "wire"):
        merged[name] = [*dict.fromkeys([*(old.get(name) or ()), *(new.get(name) or ())])]
    merged["subgraphs"] = bool(old.get("subgraphs") or new.get("subgraphs"))
    return merged


async def _end_asking_run(api: Api, request: RunRequest) -> Accepted | None:
    """End the run that asks, as if its graph had finished. None: there is no such run."""
    row = await api.journal.ado(runs.head(request.thread_id))
    if row is None:
        return None
    open = await api.journal.ado(waits.of_run(row.id))
    graph = api.runtime.bound(row.graph, row.version)
    if graph is None or not asks_person(row, open, api.now()):
        return None
    after = await api.journal.ado(streams.last(row))
    config: Any = {"configurable": {"thread_id": request.thread_id}}
    if request.body.command is not None and (update := request.body.command.update):
        await graph.aupdate_state(config, update)
    await graph.aupdate_state(config, None, as_node=END)
    begun = await api.journal.ado(runs.find(row.id))
    return Accepted(begun or row, after=after)
