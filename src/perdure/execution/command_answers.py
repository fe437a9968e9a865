"""Answer a waiting run with LangGraph's `Command(resume=…)`, from a bound graph or over HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.types import Command

from perdure.commands.answering import NewSetup, WaitService, answer_time
from perdure.commands.run_payload import dump_setup, load_setup
from perdure.commands.runs import RunRow
from perdure.commands.validation import check_command
from perdure.commands.waits import WaitRow
from perdure.errors import AmbiguousAnswer
from perdure.execution.commands import names_waits, with_command
from perdure.execution.engine import Engine
from perdure.journal import Plan
from perdure.langgraph_port import task_interrupts


def answer_with_command(
    engine: Engine,
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
    `WaitService.answer_all` raises, and `AmbiguousAnswer`."""
    check_command(command)
    answers = answers_of(row.id, command.resume, open)
    # If a send replaces the task that asked, LangGraph hands the answer to whichever task asks now,
    # unless the answer names its interrupt.
    rest = Command(update=command.update, goto=command.goto)
    if task_interrupts.replaces_tasks(command) and not names_waits(command.resume):
        rest = command
    ids, now, setup = [id for id, _ in answers], engine.clock.now(), None
    if task_interrupts.writes_more_than_answer(command):
        setup = yield from with_command(engine.saver, row, rest, ids, found, now, changes)
    elif changes:
        after = {**load_setup(engine.serializer, row), **changes}
        at = answer_time([wait for wait in found if wait.id in ids], now)
        setup = NewSetup(row.setup, dump_setup(engine.serializer, row, after), at)
    if setup is not None and changes and changes.get("stream"):
        setup = setup._replace(streams=1)
    if setup is not None and changes and (url := changes.get("webhook")):
        setup = setup._replace(webhook=engine.webhook_topic(url))
    yield from WaitService(engine.serializer, engine.clock).answer_all(answers, by, setup=setup)


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
