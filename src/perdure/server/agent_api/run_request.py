"""A request that creates a run: what it refers to, who may send it, and the setup of its run; and
the two paths of every request about runs."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote
from uuid import UUID

from perdure.commands.assistants import Assistant, default_id
from perdure.commands.runs import RunRow
from perdure.errors import NotFound
from perdure.execution.graphs import Graph
from perdure.journal.names import new_id
from perdure.server.agent_api.run_bodies import (
    PayloadBody,
    RunBody,
    merged_config,
    merged_context,
    passed_on,
)
from perdure.server.agent_api.search_pages import passes
from perdure.server.agent_api.thread_access import as_uuid, check_filters
from perdure.server.routes import Api
from perdure.views.wire_run import WIRE

Endpoint = Callable[..., Awaitable[Any]]
IN_PATHS = "!$&'()*+,:;=@"
"""Characters that a part of a path may have unquoted: clients read ids from the path."""


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


async def authorized_request(
    api: Api, thread_id: str | None, body: RunBody, assistant: Assistant, *, is_read: bool = True
) -> RunRequest:
    """The request as the handlers of `langgraph_sdk.Auth` leave it. Raises 404 for an assistant or
    a thread that they hide."""
    await allow_run(api, assistant, body.assistant_id)
    graph = api.runtime.engine.resolve_graph(assistant.graph_id, None)
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
        "kwargs": {
            "input": setup.get("input"),
            "config": setup["config"],
            "context": setup.get("context"),
        },
    }
    filters = await api.authorize("threads", "create_run", value)
    if thread_id is not None:
        await check_filters(api, thread_id, filters, may_be_missing=body.if_not_exists == "create")
    metadata, kwargs = dict(value.get("metadata") or {}), value.get("kwargs") or {}
    setup["metadata"] = {**assistant.metadata, "assistant_id": assistant.assistant_id, **metadata}
    setup |= {name: kwargs[name] for name in ("input", "config", "context") if kwargs.get(name)}
    return RunRequest(
        on, run_id, thread_id is None, body, assistant, graph, setup, metadata, is_read
    )


async def find_assistant(api: Api, name: str) -> Assistant:
    """The assistant with an id, or the default one of the graph with that name. Raises 404 for an
    unknown id and 422 for an unknown name. Ask `allow_run` or `allow_assistant` before using it."""
    runtime = api.runtime
    return await runtime.journal.arun(runtime.services.assistants.find(name), flush=False)


async def allow_run(api: Api, assistant: Assistant, name: str) -> None:
    """Raise 404 unless the caller may run this assistant: the default ones, which belong to no
    user, and those that they may read."""
    if assistant.assistant_id != default_id(assistant.graph_id):
        await allow_assistant(api, assistant, name, "read", {})


async def allow_assistant(
    api: Api, assistant: Assistant, name: str, action: str, value: dict[str, Any]
) -> None:
    """Raise 404, as for an unknown `name`, unless the caller may do `action`. The authorization
    handlers may change `value`."""
    passed = {"assistant_id": UUID(assistant.assistant_id), "metadata": {}, **value}
    filters = await api.authorize("assistants", action, passed)
    value.update({key: passed.get(key, one) for key, one in value.items()})
    if not passes(filters, assistant.metadata):
        raise NotFound("assistant", name)


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


def context_fields(graph: Graph | None) -> list[str]:
    """The field names of a graph's context."""
    schema = None if graph is None else graph.pregel.context_schema
    return [*getattr(schema, "model_fields", getattr(schema, "__annotations__", {}))]
