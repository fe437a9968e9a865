"""The command that continues a run: `Command(resume=…, update=…, goto=…)` of a bound graph.

It is stored in the setup of the run, in one batch with its answers, and belongs to the checkpoint
the run is at. LangGraph adds the writes of a command to those of the checkpoint in one batch, so
their number says whether it did:

    as many writes as then      the command is the input of the next driver
    more writes                 it is applied, and only its answer may still have to be taken
    another checkpoint          the run is past it

A command that no wait has, because it begins its run or is for a changed state, is noted in the
same way.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.types import Command

from perdure.checkpoint.cache import NULL_TASK
from perdure.commands import runs
from perdure.commands.answering import NewSetup, answer_time
from perdure.commands.run_payload import dump_setup, load_setup
from perdure.commands.runs import RunRow
from perdure.commands.waits import ANSWERED, FINISHED, WaitRow
from perdure.errors import AlreadyAnswered, ThreadBusy
from perdure.execution.drive import Drive, is_resume, latest_checkpoint, start_place
from perdure.journal import Plan
from perdure.langgraph_port import configs, task_interrupts
from perdure.saver import Saver
from perdure.types import WaitState


def with_command(
    saver: Saver,
    row: RunRow,
    command: Command[Any],
    answered: Collection[str],
    found: list[WaitRow],
    now: int,
    changes: Mapping[str, Any] | None = None,
) -> Plan[NewSetup]:
    """The setup of a run that is continued with a command. `answered` are the waits, of those
    `found`, whose answers come with it; `changes` are other parts of the setup that change. Raises
    `ThreadBusy` if another command is not applied yet.
    """
    setup = load_setup(saver.serializer, row)
    at = yield from _checkpoint_and_writes(saver, row, setup)
    if (before := _pending(setup, found)) and before["at"] == at:
        raise ThreadBusy(row.thread_id, f"has another command that is not applied yet ({row.id})")
    now = answer_time([wait for wait in found if wait.id in answered], now)
    stored = {
        "input": command,
        "waits": list(answered),
        "known": [wait.id for wait in found if wait.state not in FINISHED],
        "answered_at": now,
        "at": at,
    }
    after = dump_setup(saver.serializer, row, {**setup, **(changes or {}), "command": stored})
    return NewSetup(row.setup, after, now)


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


def begin_with_command(saver: Saver, drive: Drive, setup: Mapping[str, Any]) -> Plan[None]:
    """Leave out what a segment before this one, which did not come to a step, has written of the
    command that the run begins with."""
    now = yield from _checkpoint_and_writes(saver, drive.row, setup)
    at = setup.get("at") or []
    if now[:1] != at[:1]:
        if is_resume(drive.input) and (place := setup.get("place")):
            yield from check_unanswered(saver, drive.row.thread_id, place, drive.input)
        yield from note_command(saver, drive.row)
    elif now != at:
        again = task_interrupts.resume_nothing() if setup.get("place") else None
        resume = drive.input.resume
        drive.input = again if resume is None else Command(resume=resume)


def take_command(
    saver: Saver, drive: Drive, setup: Mapping[str, Any], found: list[WaitRow]
) -> Plan[Collection[str]]:
    """Continue with the pending command, if it was not applied yet. Returns the waits whose answers
    are in it, for LangGraph to hand over."""
    command = _pending(setup, found)
    if command is None and not setup.get("at"):
        return ()
    now = yield from _checkpoint_and_writes(saver, drive.row, setup)
    if command is None:
        # Its answer is for whichever task asks first at this checkpoint.
        drive.segment.keeps_resume = now[:1] == setup["at"][:1] and not any(
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
    drive.segment.keeps_resume = not any(
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
    return [] if at is None else [at.checkpoint["id"], _command_writes(at)]


def _command_writes(at: CheckpointTuple) -> int:
    writes = at.pending_writes or ()
    return sum(task == NULL_TASK and channel not in WRITES_IDX_MAP for task, channel, _ in writes)


def names_waits(resume: Any) -> bool:
    """Whether an answer maps interrupt ids to values."""
    return isinstance(resume, dict) and bool(resume) and all(map(_is_interrupt_id, resume))


def _is_interrupt_id(key: Any) -> bool:
    return isinstance(key, str) and re.fullmatch("(breakpoint:.*|[0-9a-f]{32})", key) is not None
