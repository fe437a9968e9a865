"""What continues a run, and how answers reach its tasks.

A run goes on with LangGraph's `Command(resume=…, update=…, goto=…)`, from a caller of a bound graph
or over HTTP. A command is stored in the setup of the run, in one batch with its answers, and
belongs to the checkpoint the run is at. LangGraph adds the writes of a command to those of the
checkpoint in one batch, so their number says whether it did:

    as many writes as then      the command is the input of the next driver
    more writes                 it is applied, and only its answer may still have to be taken
    another checkpoint          the run is past it

A command that no wait has, because it begins its run or is for a changed state, is noted in the
same way.

Agent Inbox shows a question of `HumanInTheLoopMiddleware` but answers it in its own format: a list
of responses, each `{"type": "accept" | "edit" | "response" | "ignore", "args": ...}`. The
middleware would raise on that, so an answer over HTTP is translated (`translated`). Any other is
passed on unchanged, and checked against the question before it is stored
(`answer_dialects.check_fits`).

LangGraph reads the answers of a task from its writes, so they are stored there. The wait is then
`applied`. Until the task has gone on, and the wait is `consumed`, each driver of the run hands the
answer over again.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.checkpoint.serde.types import RESUME
from langgraph.types import Command

from perdure.checkpoint.cache import NULL_TASK
from perdure.commands import runs, streams, threads, waits
from perdure.commands.answer_dialects import ALLOWED_BY, Part, dialect_of
from perdure.commands.answering import NewSetup, answer_all, answer_time
from perdure.commands.runs import (
    RunRow,
    check_state,
    dump_setup,
    load_error,
    load_output,
    load_setup,
)
from perdure.commands.starting import check_command
from perdure.commands.waits import ANSWERED, FINISHED, TAKEN_BACK, TIME_IS_UP, Body, WaitRow
from perdure.errors import (
    AlreadyAnswered,
    AmbiguousAnswer,
    Damaged,
    NotFound,
    ThreadBusy,
    WaitClosed,
)
from perdure.execution.drive import Drive, Driver, is_resume, latest_checkpoint, start_place
from perdure.execution.evaluation_guards import ExampleAnswers
from perdure.execution.segment import KEY, Answered
from perdure.journal import Plan, Row
from perdure.langgraph_port import configs, task_interrupts
from perdure.saver import Saver
from perdure.serde.serializer import Serializer
from perdure.types import ENDED, Kind, State, WaitState

log = logging.getLogger("perdure")

Signals = Mapping[tuple[str, str | None], Any]
"""The values of signals, by the wait that each answered and its name."""


def note_command(saver: Saver, row: RunRow) -> Plan[None]:
    """Note at which checkpoint a run is given a command that no wait has."""
    setup = load_setup(saver.serializer, row)
    at = yield from _checkpoint_and_writes(saver, row, setup)
    yield runs.set_setup(row, dump_setup(saver.serializer, row, {**setup, "at": at}))


def check_unanswered(
    saver: Saver, thread_id: str, place: Mapping[str, Any], command: Command[Any]
) -> Plan[None]:
    """Raise `AlreadyAnswered` if a command answers what was answered at an old checkpoint.
    LangGraph would ignore it, and go on with the first answer."""
    id = configs.root_checkpoint(place)
    at = None if id is None else (yield from latest_checkpoint(saver, thread_id, id=id))
    if at is None:
        return
    answered, pending = task_interrupts.answered_and_pending(at.pending_writes or ())
    resume: Any = command.resume
    if names_waits(resume):
        answered &= resume.keys()
    elif pending:
        return
    if answered:
        how = (
            "to answer it again, call invoke(None, config) with this checkpoint_id, which asks it "
            "again on a branch, and answer there."
        )
        raise AlreadyAnswered(min(answered), f"it was answered at checkpoint {id}; {how}")


def begin_with_command(drive: Drive, setup: Mapping[str, Any]) -> Plan[None]:
    """Leave out what a segment before this one, which did not come to a step, has written of the
    command that the run begins with."""
    now = yield from _checkpoint_and_writes(drive.saver, drive.row, setup)
    at = setup.get("at") or []
    if now[:1] != at[:1]:
        if is_resume(drive.input) and (place := setup.get("place")):
            yield from check_unanswered(drive.saver, drive.row.thread_id, place, drive.input)
        yield from note_command(drive.saver, drive.row)
    elif now != at:
        again = task_interrupts.resume_nothing() if setup.get("place") else None
        resume = drive.input.resume
        drive.input = again if resume is None else Command(resume=resume)


def take_command(
    drive: Drive, setup: Mapping[str, Any], found: list[WaitRow]
) -> Plan[Collection[str]]:
    """Continue with the pending command, if it was not applied yet. Returns the waits whose answers
    are in it, for LangGraph to hand over."""
    command = _pending(setup, found)
    if command is None and not setup.get("at"):
        return ()
    now = yield from _checkpoint_and_writes(drive.saver, drive.row, setup)
    if command is None:
        # Its answer is for whichever task asks first at this checkpoint.
        drive.keeps_resume = now[:1] == setup["at"][:1] and not any(
            wait.state not in FINISHED or wait.checkpoint_id >= now[0] for wait in found
        )
        return ()
    if now[:1] != command["at"][:1]:
        return ()
    if now == command["at"]:
        drive.input = command["input"]
    if not is_resume(command["input"]):
        return ()
    # If something was asked since, the answer is taken. Clocks do not say what was first.
    drive.keeps_resume = not any(
        wait.state == WaitState.OPEN and wait.id not in command["known"] for wait in found
    )
    return [wait.id for wait in found if _came_with(wait, command)]


def _pending(setup: Mapping[str, Any], found: list[WaitRow]) -> dict[str, Any] | None:
    """The command that came with the answer to a wait that the run is not past."""
    command: dict[str, Any] | None = setup.get("command")
    return command if command and any(_came_with(wait, command) for wait in found) else None


def _came_with(wait: WaitRow, command: Mapping[str, Any]) -> bool:
    """Whether the answer of a wait came with a command. If that one was withdrawn, a later answer
    did not."""
    is_answered = wait.state in ANSWERED and wait.answered_at == command["answered_at"]
    return is_answered and wait.id in command["waits"]


def _checkpoint_and_writes(saver: Saver, row: RunRow, setup: Mapping[str, Any]) -> Plan[list[Any]]:
    """The id of the checkpoint a run is at, and how many writes of commands are there."""
    place = yield from start_place(saver, row, setup)
    id = configs.root_checkpoint(place)
    at = yield from latest_checkpoint(saver, row.thread_id, id=id)
    if at is None:
        return []
    writes = at.pending_writes or ()
    own = (task == NULL_TASK and channel not in WRITES_IDX_MAP for task, channel, _ in writes)
    return [at.checkpoint["id"], sum(own)]


def names_waits(resume: Any) -> bool:
    """Whether an answer maps interrupt ids to values."""
    return isinstance(resume, dict) and bool(resume) and all(map(_is_interrupt_id, resume))


def _is_interrupt_id(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("(breakpoint:.*|[0-9a-f]{32})", key) is not None


def answer_with_command(
    engine: Driver,
    row: RunRow,
    found: list[WaitRow],
    open: Sequence[WaitRow],
    command: Command[Any],
    *,
    by: str | None = None,
    changes: Mapping[str, Any] | None = None,
) -> Plan[None]:
    """Answer the `open` waits of a run, in one batch with the rest of the command and `changes` to
    its setup, which the next driver reads. `found` are its waits as read. Raises what `answer_all`
    raises, `AmbiguousAnswer`, and `ThreadBusy` if another command is not applied yet."""
    check_command(command)
    answers, new = match_answers(row.id, command.resume, open), None
    writes_more = task_interrupts.writes_more_than_answer(command)
    if writes_more or changes:
        ids, setup = [id for id, _ in answers], load_setup(engine.serializer, row)
        after = {**setup, **(changes or {})}
        now = answer_time([wait for wait in found if wait.id in ids], engine.clock.now())
        if writes_more:
            at = yield from _checkpoint_and_writes(engine.saver, row, setup)
            if (before := _pending(setup, found)) and before["at"] == at:
                busy = f"has another command that is not applied yet ({row.id})"
                raise ThreadBusy(row.thread_id, busy)
            # If a send replaces the task that asked, LangGraph hands the answer to whichever task
            # asks now, unless the answer names its interrupt.
            rest = Command(update=command.update, goto=command.goto)
            if task_interrupts.replaces_tasks(command) and not names_waits(command.resume):
                rest = command
            after["command"] = {
                "input": rest,
                "waits": ids,
                "known": [wait.id for wait in found if wait.state not in FINISHED],
                "answered_at": now,
                "at": at,
            }
        new = NewSetup(row.setup, dump_setup(engine.serializer, row, after), now)
        if changes and changes.get("stream"):
            new = new._replace(streams=1)
        if changes and (url := changes.get("webhook")):
            new = new._replace(webhook=engine.webhook_topic(url))
    yield from answer_all(engine, answers, by, setup=new)


def match_answers(run_id: str, resume: Any, open: Sequence[WaitRow]) -> list[tuple[str, Any]]:
    """The answers of a command, each with the id of its wait: the one whose interrupt id it names,
    or the only open one. Raises `AmbiguousAnswer`."""
    by_id = {wait.interrupt_id: wait for wait in open}
    named = names_waits(resume)
    if named and resume.keys() <= by_id.keys():
        return [(by_id[id].id, value) for id, value in resume.items()]
    if len(open) == 1 and not named:
        return [(open[0].id, resume)]
    raise AmbiguousAnswer(run_id, sorted(by_id))


def resume_run(
    engine: Driver,
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
        latest = yield from latest_checkpoint(engine.saver, thread_id)
        if latest is None or latest.checkpoint["id"] != configs.root_checkpoint(place):
            if command is not None and may_start:
                yield from check_unanswered(engine.saver, thread_id, place, command)
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
    yield from answer_with_command(engine, row, found, open, command, by=by, changes=changed)
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
            id: value if id not in by_id else _in_its_dialect(serializer, by_id[id], value)
            for id, value in resume.items()
        }
    return _in_its_dialect(serializer, open[0], resume) if len(open) == 1 else resume


def _in_its_dialect(serializer: Serializer, wait: WaitRow, answer: Any) -> Any:
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


def readable_waits(drive: Drive) -> Plan[tuple[list[WaitRow], Sequence[Row], bool]]:
    """The waits of a run, the signals that answered some, and whether open waits were deleted
    because they cannot be read. Whatever asked asks again. Nothing in such a row is trusted,
    not even that a task asked."""
    row = drive.row
    found: list[WaitRow]
    found, signals = yield waits.of_run_with_signals(row.thread_id, row.id)
    open = [wait for wait in found if wait.state == WaitState.OPEN]
    damaged = [wait for wait in open if waits.is_to_be_asked_again(drive.serializer, wait)]
    for wait in damaged:
        log.warning("run %s asks again: its wait %s is damaged", row.id, wait.id)
        yield waits.discard(wait, row)
    return [wait for wait in found if wait not in damaged], signals, bool(damaged)


def hand_over(
    drive: Drive, found: list[WaitRow], signals: Sequence[Row], in_command: Collection[str]
) -> Plan[list[WaitRow]]:
    """Hand the answers of people, signals and the clock to the tasks that wait for them.
    LangGraph hands over those of the waits `in_command`."""
    row, now = drive.row, drive.clock.now()
    answered = False
    example = ExampleAnswers.of(drive, found)
    for wait in found:
        if wait.state != WaitState.OPEN:
            continue
        if example is not None and (value := example.take(wait, drive.serializer)) is not None:
            yield waits.fire(drive.serializer, wait, value[0], row.token, now, example.BY)
            answered = True
            continue
        due = wait.wake_at if wait.kind == Kind.CLOCK else wait.expires_at
        if wait.name is not None:
            yield waits.deliver(drive.serializer, wait, row.token, now)
            answered = True
        if wait.kind == Kind.RUN and (ended := (yield from _joined(drive, wait))) is not None:
            yield waits.join(drive.serializer, wait, ended, row.token, now)
            answered = True
        if due is not None and due <= now:
            up = None if wait.kind == Kind.CLOCK else TIME_IS_UP
            yield waits.fire(drive.serializer, wait, up, row.token, now)
            answered = True
    if answered:
        found, signals = yield waits.of_run_with_signals(row.thread_id, row.id)
    if example is not None:
        example.check(found)
    if any(wait.state in ANSWERED or _is_reopened(wait) for wait in found):
        values = waits.load_signals(drive.serializer, row.thread_id, signals)
        yield from _resume_tasks(drive, found, values, in_command)
    return found


def _joined(drive: Drive, wait: WaitRow) -> Plan[list[dict[str, Any]] | None]:
    """How each run that a wait is for has ended; None if one has not."""
    ids = waits.joined_runs(waits.load_body(drive.serializer, wait))
    found: list[RunRow] = yield runs.find_all(ids)
    for joined in found:
        check_state(joined)
        if joined.state == State.DONE and joined.output is None:
            raise Damaged(f"run {joined.id}", "it is done, but has no output")
    if any(State(row.state) not in ENDED for row in found):
        return None
    rows, ended = {row.id: row for row in found}, []
    for id in ids:
        one: dict[str, Any] = {"id": id, "state": "", "output": None, "error": None}
        if (run := rows.get(id)) is not None:
            error = load_error(drive.serializer, run)
            output = yield from load_output(drive.serializer, run, drive.saver.reader.state_at)
            reason = str(error) if error is not None else run.reason
            one |= {"state": run.state, "output": output, "error": reason}
        ended.append(one)
    return ended


def _resume_tasks(
    drive: Drive, found: list[WaitRow], signals: Signals, in_command: Collection[str]
) -> Plan[None]:
    row = drive.row
    bodies = {
        wait.id: waits.load_body(drive.serializer, wait)
        for wait in found
        if wait.state not in FINISHED
    }
    _note_answers(drive, found, signals)
    for wait in _newest(found, bodies):
        body = bodies[wait.id]
        if wait.state not in ANSWERED and not _is_reopened(wait):
            continue
        # A breakpoint or an effect has no task: the run just goes on.
        if wait.task_id and wait.id not in in_command:
            # LangGraph reads the answers of a task from its writes, where they survive.
            drive.saver.cache.observe_stamp(wait.stamp)
            answers = list(body.before)
            if wait.state in ANSWERED:
                answers.append(_answer(drive, wait, signals))
            config: RunnableConfig = {
                "configurable": {
                    "thread_id": wait.thread_id,
                    "checkpoint_ns": wait.ns,
                    "checkpoint_id": wait.checkpoint_id,
                    KEY: drive.name,
                }
            }
            drive.saver.put_writes(config, [(RESUME, answers)], wait.task_id, wait.path)
    for wait in found:
        if wait.state in ANSWERED:
            yield waits.apply(wait, row.token)


def _note_answers(drive: Drive, found: list[WaitRow], signals: Signals) -> None:
    """Say which question each answer was for: the task may ask in another order now."""
    tasks = {wait.task_id for wait in found if wait.task_id and wait.state not in FINISHED}
    for wait in found:
        if wait.task_id in tasks and wait.state in (*ANSWERED, WaitState.CONSUMED):
            body, answer = waits.load_body(drive.serializer, wait), _answer(drive, wait, signals)
            answered = Answered(Kind(wait.kind), body.value, len(body.before), answer)
            drive.questions.note_answer(wait.task_id, answered)


def _newest(found: list[WaitRow], bodies: Mapping[str, Body]) -> list[WaitRow]:
    """Of each task the wait that it asked last."""
    ordered = [wait for wait in found if wait.id in bodies]
    ordered.sort(key=lambda wait: len(bodies[wait.id].before))
    return list({(one.ns, one.task_id or one.interrupt_id): one for one in ordered}.values())


def _answer(drive: Drive, wait: WaitRow, signals: Signals) -> Any:
    if (wait.id, wait.name) not in signals:
        return waits.load_answer(drive.serializer, wait)
    value = signals[wait.id, wait.name]
    return value if wait.kind == Kind.SIGNAL else {TAKEN_BACK: value}


def _is_reopened(wait: WaitRow) -> bool:
    """Whether an answer of a wait was withdrawn: its task is not to find it any more."""
    return wait.state == WaitState.OPEN and wait.answered_at is not None
