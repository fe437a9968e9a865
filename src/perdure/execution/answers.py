"""How answers reach the tasks that wait for them, when a run is continued.

LangGraph reads the answers of a task from its writes, so they are stored there. The wait is then
`applied`. Until the task has gone on, and the wait is `consumed`, each driver of the run hands the
answer over again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import RESUME

from perdure.commands import runs, waits
from perdure.commands.runs import RunRow, check_state, load_error, load_output
from perdure.commands.waits import ANSWERED, FINISHED, TAKEN_BACK, TIME_IS_UP, Body, WaitRow
from perdure.errors import Damaged
from perdure.execution.drive import Drive, Driver
from perdure.execution.evaluation import ExampleAnswers
from perdure.execution.questions import Answered
from perdure.execution.segment import KEY
from perdure.journal import Plan, Row
from perdure.types import ENDED, Kind, State, WaitState

log = logging.getLogger("perdure")


def readable_waits(driver: Driver, row: RunRow) -> Plan[tuple[list[WaitRow], Sequence[Row], bool]]:
    """The waits of a run, the signals that answered some, and whether open waits were deleted
    because they cannot be read. Whatever asked asks again. Nothing in such a row is trusted,
    not even that a task asked."""
    found: list[WaitRow]
    found, signals = yield waits.of_run_with_signals(row.thread_id, row.id)
    open = [wait for wait in found if wait.state == WaitState.OPEN]
    damaged = [wait for wait in open if waits.is_to_be_asked_again(driver.serializer, wait)]
    for wait in damaged:
        log.warning("run %s asks again: its wait %s is damaged", row.id, wait.id)
        yield waits.discard(wait, row)
    return [wait for wait in found if wait not in damaged], signals, bool(damaged)


def hand_over(
    driver: Driver,
    drive: Drive,
    found: list[WaitRow],
    signals: Sequence[Row],
    in_command: Collection[str],
) -> Plan[list[WaitRow]]:
    """Hand the answers of people, signals and the clock to the tasks that wait for them.
    LangGraph hands over those of the waits `in_command`."""
    row, now = drive.row, driver.clock.now()
    answered = False
    given = ExampleAnswers.of(drive, found)
    for wait in found:
        if wait.state != WaitState.OPEN:
            continue
        if given is not None and (value := given.take(wait, driver.serializer)) is not None:
            yield waits.fire(driver.serializer, wait, value[0], row.token, now, given.BY)
            answered = True
            continue
        due = wait.wake_at if wait.kind == Kind.CLOCK else wait.expires_at
        if wait.name is not None:
            yield waits.deliver(driver.serializer, wait, row.token, now)
            answered = True
        if wait.kind == Kind.RUN and (ended := (yield from _joined(driver, wait))) is not None:
            yield waits.join(driver.serializer, wait, ended, row.token, now)
            answered = True
        if due is not None and due <= now:
            up = None if wait.kind == Kind.CLOCK else TIME_IS_UP
            yield waits.fire(driver.serializer, wait, up, row.token, now)
            answered = True
    if answered:
        found, signals = yield waits.of_run_with_signals(row.thread_id, row.id)
    if given is not None:
        given.check(found)
    if any(wait.state in ANSWERED or _is_reopened(wait) for wait in found):
        values = waits.load_signals(driver.serializer, row.thread_id, signals)
        yield from _resume_tasks(driver, drive, found, values, in_command)
    return found


def _joined(driver: Driver, wait: WaitRow) -> Plan[list[dict[str, Any]] | None]:
    """How each run that a wait is for has ended; None if one has not."""
    ids = waits.joined_runs(waits.load_body(driver.serializer, wait))
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
            error = load_error(driver.serializer, run)
            output = yield from load_output(driver.serializer, run, driver.saver.reader.state_at)
            reason = str(error) if error is not None else run.reason
            one |= {"state": run.state, "output": output, "error": reason}
        ended.append(one)
    return ended


def _resume_tasks(
    driver: Driver,
    drive: Drive,
    found: list[WaitRow],
    signals: Mapping[tuple[str, str | None], Any],
    in_command: Collection[str],
) -> Plan[None]:
    row = drive.row
    bodies = {
        wait.id: waits.load_body(driver.serializer, wait)
        for wait in found
        if wait.state not in FINISHED
    }
    _note_answers(driver, drive, found, signals)
    for wait in _newest(driver, found, bodies):
        body = bodies[wait.id]
        if wait.state not in ANSWERED and not _is_reopened(wait):
            continue
        # A breakpoint or an effect has no task: the run just goes on.
        if wait.task_id and wait.id not in in_command:
            # LangGraph reads the answers of a task from its writes, where they survive.
            driver.saver.saw(wait.stamp)
            answers = list(body.before)
            if wait.state in ANSWERED:
                answers.append(_answer(driver, wait, signals))
            config = _wait_config(drive, wait)
            driver.saver.put_writes(config, [(RESUME, answers)], wait.task_id, wait.path)
    for wait in found:
        if wait.state in ANSWERED:
            yield waits.apply(wait, row.token)


def _note_answers(
    driver: Driver,
    drive: Drive,
    found: list[WaitRow],
    signals: Mapping[tuple[str, str | None], Any],
) -> None:
    """Say which question each answer was for: the task may ask in another order now."""
    tasks = {wait.task_id for wait in found if wait.task_id and wait.state not in FINISHED}
    for wait in found:
        if wait.task_id in tasks and wait.state in (*ANSWERED, WaitState.CONSUMED):
            body = waits.load_body(driver.serializer, wait)
            drive.segment.questions.note_answer(
                wait.task_id,
                Answered(
                    Kind(wait.kind), body.value, len(body.before), _answer(driver, wait, signals)
                ),
            )


def _newest(driver: Driver, found: list[WaitRow], bodies: Mapping[str, Body]) -> list[WaitRow]:
    """Of each task the wait that it asked last."""
    newest: dict[tuple[str, str], WaitRow] = {}
    for wait in found:
        if wait.id not in bodies:
            continue
        task = (wait.ns, wait.task_id or wait.interrupt_id)
        last = newest.get(task)
        if last is None or len(bodies[last.id].before) <= len(bodies[wait.id].before):
            newest[task] = wait
    return list(newest.values())


def _answer(driver: Driver, wait: WaitRow, signals: Mapping[tuple[str, str | None], Any]) -> Any:
    if (wait.id, wait.name) not in signals:
        return waits.load_answer(driver.serializer, wait)
    value = signals[wait.id, wait.name]
    return value if wait.kind == Kind.SIGNAL else {TAKEN_BACK: value}


def _is_reopened(wait: WaitRow) -> bool:
    """Whether an answer of a wait was withdrawn: its task is not to find it any more."""
    return wait.state == WaitState.OPEN and wait.answered_at is not None


def _wait_config(drive: Drive, wait: WaitRow) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": wait.thread_id,
            "checkpoint_ns": wait.ns,
            "checkpoint_id": wait.checkpoint_id,
            KEY: drive.segment.name,
        }
    }
