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

from datetime import timedelta
from typing import Any, NoReturn

from perdure.commands import assistants, starting, threads
from perdure.commands.runs import RunRow
from perdure.commands.starting import Beside
from perdure.commands.threads import ThreadContent
from perdure.errors import NotFound
from perdure.journal import Plan
from perdure.journal.operation import Refused
from perdure.server.agent_api.run_bodies import RunBody
from perdure.server.agent_api.run_continuation import continue_run, end_asking_run
from perdure.server.agent_api.run_request import (
    Accepted,
    RunRequest,
    authorized_request,
    find_assistant,
)
from perdure.server.agent_api.thread_access import known_thread
from perdure.server.authorization import Scope
from perdure.server.errors import ApiError
from perdure.server.routes import Api
from perdure.views.wire_run import WIRE

GRACE = timedelta(seconds=0.5)
"""How long a step of a run that is cancelled or interrupted may go on. Short, because a person may
be waiting."""
STATELESS_TTL = 1.0
"""Minutes from its start until a stateless run's thread is erased, if the run has ended."""


async def accept_run(api: Api, thread_id: str | None, body: RunBody) -> Accepted:
    """Accept a run on a thread; without a `thread_id`, on a new one. Raises 403, 404, 409, 422."""
    api.require(Scope.ANSWER if body.resumes else Scope.START)
    if not api.may(Scope.START) and (field := body.beyond_answer()):
        raise _only_answers(field)
    api.require_worker()
    if thread_id is not None:
        thread_id = await known_thread(api, thread_id)
    body.check_thread(thread_id)
    if body.begins_anew and (seen := api.runtime.services.assistants.seen(body.assistant_id)):
        try:
            return await _accept(
                api, await authorized_request(api, thread_id, body, seen, is_read=False)
            )
        except Refused:  # the assistant has changed, or there is no such thread
            pass
    assistant = await find_assistant(api, body.assistant_id)
    return await _accept(api, await authorized_request(api, thread_id, body, assistant))


async def _accept(api: Api, request: RunRequest) -> Accepted:
    body = request.body
    journal = api.runtime.journal
    accepted = None
    if request.is_stateless:
        if body.resumes:
            raise ApiError(422, "A stateless run has nothing to resume. Send it to a thread.")
    elif body.jumps_to_end:
        accepted = await end_asking_run(api, request)
    elif body.resumes or body.run_input is None:
        accepted = await journal.arun(continue_run(api, request))
    if accepted is None:
        if not api.may(Scope.START):
            raise _only_answers("checkpoint")
        row = await journal.arun(_start(api, request))
        accepted = Accepted(row, request.is_stateless)
    stops = body.multitask_strategy in ("interrupt", "rollback")
    if stops or not body.after_seconds:
        api.runtime.engine.wake(stopped=stops)
    return accepted


def _only_answers(field: str) -> ApiError:
    """The refusal of a request that does more than answer, by a caller who may only answer."""
    if field == "checkpoint":
        what = "an answer at an earlier checkpoint starts a new run"
    else:
        what = "a request with the scope 'answer' alone contains only the answer, command.resume"
    return ApiError(403, f"{field}: {what}. Leave it out, or use a token with the scope 'start'.")


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
        only=starting.ASKING if strategy in ("enqueue", "reject") else None,
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
