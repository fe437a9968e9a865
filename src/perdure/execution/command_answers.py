"""Answer a waiting run with LangGraph's `Command(resume=…)`, from a bound graph or over HTTP.

Agent Inbox shows a question of `HumanInTheLoopMiddleware` but answers it in its own format: a list
of responses, each `{"type": "accept" | "edit" | "response" | "ignore", "args": ...}`. The
middleware would raise on that, so an answer over HTTP is translated (`translated`). Any other is
passed on unchanged, and checked against the question before it is stored
(`answer_dialects.check_fits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langgraph.types import Command

from perdure.commands import runs, streams, threads, waits
from perdure.commands.answer_dialects import ALLOWED_BY, Part, dialect_of
from perdure.commands.answering import NewSetup, answer_all, answer_time
from perdure.commands.connection import Connection
from perdure.commands.run_payload import dump_setup, load_setup
from perdure.commands.runs import RunRow
from perdure.commands.validation import check_command
from perdure.commands.waits import WaitRow
from perdure.errors import AlreadyAnswered, AmbiguousAnswer, NotFound, WaitClosed
from perdure.execution.commands import check_unanswered, names_waits, with_command
from perdure.execution.drive import latest_checkpoint
from perdure.journal import Plan
from perdure.langgraph_port import configs, task_interrupts
from perdure.saver import Saver
from perdure.serde.serializer import Serializer
from perdure.types import Kind, WaitState


def answer_with_command(
    engine: Connection,
    saver: Saver,
    row: RunRow,
    found: list[WaitRow],
    open: Sequence[WaitRow],
    command: Command[Any],
    *,
    by: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan[None]:
    """Answer the `open` waits of a run, in one batch with the rest of the command and `changes` to
    its setup, which the next driver reads. `found` are its waits as read. Raises what
    `answer_all` raises, and `AmbiguousAnswer`."""
    check_command(command)
    answers = answers_of(row.id, command.resume, open)
    # If a send replaces the task that asked, LangGraph hands the answer to whichever task asks now,
    # unless the answer names its interrupt.
    rest = Command(update=command.update, goto=command.goto)
    if task_interrupts.replaces_tasks(command) and not names_waits(command.resume):
        rest = command
    ids, now, setup = [id for id, _ in answers], engine.clock.now(), None
    if task_interrupts.writes_more_than_answer(command):
        setup = yield from with_command(saver, row, rest, ids, found, now, changes)
    elif changes:
        after = {**load_setup(engine.serializer, row), **changes}
        at = answer_time([wait for wait in found if wait.id in ids], now)
        setup = NewSetup(row.setup, dump_setup(engine.serializer, row, after), at)
    if setup is not None and changes and changes.get("stream"):
        setup = setup._replace(streams=1)
    if setup is not None and changes and (url := changes.get("webhook")):
        setup = setup._replace(webhook=engine.webhook_topic(url))
    yield from answer_all(engine, answers, by, setup=setup)


def answers_of(run_id: str, resume: Any, open: Sequence[WaitRow]) -> list[tuple[str, Any]]:
    """The answers of a command, each with the id of its wait: the one whose interrupt id it names,
    or the only open one. Raises `AmbiguousAnswer`."""
    by_id = {wait.interrupt_id: wait for wait in open}
    named = names_waits(resume)
    if named and resume.keys() <= by_id.keys():
        return [(by_id[id].id, value) for id, value in resume.items()]
    if len(open) == 1 and not named:
        return [(open[0].id, resume)]
    raise AmbiguousAnswer(run_id, sorted(by_id))


def continue_run(
    engine: Connection,
    saver: Saver,
    thread_id: str,
    command: Command[Any] | None,
    place: Mapping[str, Any],
    changes: Callable[[Mapping[str, Any]], Mapping[str, Any]],
    *,
    may_start: bool,
    by: str | None,
) -> Plan[tuple[RunRow, int] | None]:
    """Continue the run that rests on a thread: with the answers of a command, or without one past
    its breakpoint. `changes` gives those to its setup. Returns the run, and the number of its last
    chunk before. None: this needs a new run, which the caller starts if they may. Raises
    `LookupError` if there is no open question to answer."""
    if place:
        latest = yield from latest_checkpoint(saver, thread_id)
        if latest is None or latest.checkpoint["id"] != configs.root_checkpoint(place):
            if command is not None and may_start:
                yield from check_unanswered(saver, thread_id, place, command)
            return None
    row: RunRow | None = yield runs.head(thread_id)
    found: list[WaitRow] = [] if row is None else (yield waits.of_run(row.id))
    open = [one for one in found if one.state == WaitState.OPEN and one.kind == Kind.HUMAN]
    if command is None:
        open = [one for one in open if one.is_breakpoint]
        if row is None or not open or place:
            return None
        command = Command(resume={one.interrupt_id: True for one in open})
    elif row is None or not open:
        if (yield threads.find_row(thread_id, engine.clock.now())) is None:
            raise NotFound("thread", thread_id)
        raise LookupError("nothing is asked")
    else:
        _check_named(command.resume, found)
        resume = translated(engine.serializer, open, command.resume)
        command = Command(resume=resume, update=command.update, goto=command.goto)
    after: int = yield streams.last(row)
    changed = changes(load_setup(engine.serializer, row))
    yield from answer_with_command(engine, saver, row, found, open, command, by=by, changes=changed)
    return (yield runs.find(row.id)) or row, after


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
