"""The command that continues a run: `Command(resume=…, update=…, goto=…)` of a bound graph.

It is stored in the setup of the run, in one batch with its answers, and belongs to the checkpoint
the run is at. LangGraph adds the writes of a command to those of the checkpoint in one batch, so
their number says whether it did:

    as many writes as then      the command is the input of whoever continues the run
    more writes                 it is applied, and only its answer may still have to be taken
    another checkpoint          the run is past it
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, CheckpointTuple
from langgraph.types import Command

from perdure.checkpoint.cache import NULL_TASK
from perdure.engine.segment_drive import Drive, is_resume, latest_checkpoint, start_place
from perdure.errors import ThreadBusy
from perdure.journal import Plan
from perdure.langgraph_port import call_config
from perdure.operations.run_payload import dump_setup, load_setup
from perdure.operations.runs import RunRow
from perdure.operations.waits import ANSWERED, NewSetup, WaitRow
from perdure.saver import Saver
from perdure.types import WaitState


def with_command(
    saver: Saver,
    row: RunRow,
    command: Command[Any],
    answered: Collection[str],
    found: list[WaitRow],
) -> Plan[NewSetup]:
    """The setup of a run that is continued with a command. `answered` are the waits, of those
    `found`, whose answers come with it. Raises `ThreadBusy` if another command is not applied yet.
    """
    setup = load_setup(saver.serializer, row)
    at = yield from _checkpoint_and_writes(saver, row, setup)
    if (before := _pending(setup, found)) and before["at"] == at:
        raise ThreadBusy(row.thread_id, f"has another command that is not applied yet ({row.id})")
    stored = {"input": command, "waits": list(answered), "at": at}
    after = dump_setup(saver.serializer, row, {**setup, "command": stored})
    return NewSetup(row.setup, after)


def take_command(
    saver: Saver, drive: Drive, setup: Mapping[str, Any], found: list[WaitRow]
) -> Plan[Collection[str]]:
    """Continue with the pending command, if it was not applied yet. Returns the waits whose answers
    are in it, for LangGraph to hand over."""
    if (command := _pending(setup, found)) is None:
        return ()
    now = yield from _checkpoint_and_writes(saver, drive.row, setup)
    if now[:1] != command["at"][:1]:
        return ()
    if now == command["at"]:
        drive.input = command["input"]
    if not is_resume(command["input"]):
        return ()
    given = [wait for wait in found if wait.id in command["waits"]]
    since = min(wait.answered_at or 0 for wait in given)
    asked = any(one.state == WaitState.OPEN and one.created_at >= since for one in found)
    # If something was asked since, the answer is taken.
    drive.segment.keeps_resume = not asked
    return [wait.id for wait in given]


def _pending(setup: Mapping[str, Any], found: list[WaitRow]) -> dict[str, Any] | None:
    """The command that came with the answer to a wait that the run is not past."""
    command: dict[str, Any] | None = setup.get("command")
    given = [wait.id for wait in found if wait.state in ANSWERED]
    return command if command and any(id in given for id in command["waits"]) else None


def _checkpoint_and_writes(saver: Saver, row: RunRow, setup: Mapping[str, Any]) -> Plan[list[Any]]:
    """The id of the checkpoint a run is at, and how many writes of commands are there."""
    place = yield from start_place(saver, row, setup)
    id = call_config.root_checkpoint(place)
    at = yield from latest_checkpoint(saver, row.thread_id, id=id)
    return [] if at is None else [at.checkpoint["id"], _command_writes(at)]


def _command_writes(at: CheckpointTuple) -> int:
    writes = at.pending_writes or ()
    return sum(task == NULL_TASK and channel not in WRITES_IDX_MAP for task, channel, _ in writes)
