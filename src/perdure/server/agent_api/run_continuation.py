"""Continue the run that rests on a thread: with the answers of a request, from a breakpoint, or to
its end.

Agent Inbox shows a question of `HumanInTheLoopMiddleware` but answers it in its own format: a list
of responses, each `{"type": "accept" | "edit" | "response" | "ignore", "args": ...}`. The
middleware would raise on that, so such an answer is translated (`translated`). Any other is passed
on unchanged, and checked against the question before it is stored (`answer_dialects.check_fits`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from perdure.commands import runs, streams, threads, waits
from perdure.commands.answer_dialects import ALLOWED_BY, Part, dialect_of
from perdure.commands.run_payload import load_setup
from perdure.commands.runs import RunRow
from perdure.commands.waits import WaitRow
from perdure.errors import AlreadyAnswered, NotFound, WaitClosed
from perdure.execution.bound_graph import BoundGraph
from perdure.execution.command_answers import answer_with_command
from perdure.execution.commands import check_unanswered, names_waits
from perdure.execution.drive import latest_checkpoint
from perdure.journal import Plan
from perdure.langgraph_port import configs
from perdure.serde.serializer import Serializer
from perdure.server.agent_api.run_bodies import END
from perdure.server.agent_api.run_request import Accepted, RunRequest
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api
from perdure.types import Kind, WaitState
from perdure.views.wire_run import asks_person

BREAKPOINT = "breakpoint:"


def continue_run(api: Api, request: RunRequest) -> Plan[Accepted | None]:
    """Continue the run that rests on a thread, with the answers of the request. None: the request
    needs a new run instead."""
    runtime, body = api.runtime, request.body
    engine, place = runtime.engine, body.place()
    if place and not (yield from _is_latest(api, request.thread_id, place)):
        if body.resumes and api.may(Scope.START):  # a new run is refused to others
            yield from check_unanswered(engine.saver, request.thread_id, place, body.run_input)
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
    changes = _changes(load_setup(engine.serializer, row), request, api)
    by = api.actor()
    yield from answer_with_command(engine, row, found, open, command, by=by, changes=changes)
    row = (yield runs.find(row.id)) or row
    return Accepted(row, False, after)


async def end_asking_run(api: Api, request: RunRequest) -> Accepted | None:
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
    return at is not None and at.checkpoint["id"] == configs.root_checkpoint(place)


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


def _changes(before: Mapping[str, Any], request: RunRequest, api: Api) -> dict[str, Any]:
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
    found: dict[str, Any] = {**old, **new}
    for name in ("modes", "wire"):
        found[name] = [*dict.fromkeys([*(old.get(name) or ()), *(new.get(name) or ())])]
    found["subgraphs"] = bool(old.get("subgraphs") or new.get("subgraphs"))
    return found


def translated(serializer: Serializer, open: Sequence[WaitRow], resume: Any) -> Any:
    """A command's answer to these open waits, translated to the format that they expect."""
    if names_waits(resume):
        by_id = {wait.interrupt_id: wait for wait in open}
        return {
            id: value if id not in by_id else _answer(serializer, by_id[id], value)
            for id, value in resume.items()
        }
    return _answer(serializer, open[0], resume) if len(open) == 1 else resume


def _answer(serializer: Serializer, wait: WaitRow, answer: Any) -> Any:
    responses = answer if isinstance(answer, list) else [answer]
    if not responses or not all(map(_is_response, responses)):
        return answer
    if waits.is_to_be_asked_again(serializer, wait):
        return answer
    body = waits.load_body(serializer, wait)
    dialect = None if body.schema is not None else dialect_of(body.value)
    if dialect is None or dialect.field != "decisions" or len(dialect.parts) != len(responses):
        return answer
    decisions = zip(dialect.parts, responses, strict=True)
    return {"decisions": [_decision(part, response) for part, response in decisions]}


def _is_response(one: Any) -> bool:
    return isinstance(one, Mapping) and one.get("type") in ALLOWED_BY and "args" in one


def _decision(part: Part, response: Mapping[str, Any]) -> dict[str, Any]:
    """A response as a decision for the middleware."""
    args = response["args"]
    match response["type"]:
        case "accept":
            return {"type": "approve"}
        case "edit" if isinstance(args, Mapping):
            edited = {"name": args.get("action", part.action), "args": args.get("args")}
            return {"type": "edit", "edited_action": edited}
        case "response":  # becomes the tool's result, or the reason why it was not called
            return {"type": "respond" if "respond" in part.allowed else "reject", "message": args}
        case "ignore":
            return {"type": "reject"}
    return dict(response)
