"""The start of a segment: what is decided and done before LangGraph runs.

A run that was cancelled or paused, that killed its workers, that cannot be read, or whose graph
changed under it ends its segment here. Any other gets the command that continues it
and its answers (`answers`), and becomes a `Drive`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.runtime import RunControl
from langgraph.types import Command

from perdure.commands import claims, deleting, effects, events, runs
from perdure.commands.claims import SegmentEnd
from perdure.commands.effect_payload import describe
from perdure.commands.effects import EffectRow
from perdure.commands.evaluation_policy import evaluation_of
from perdure.commands.runs import RunRow, check_state, dump_error, load_setup, tags_of
from perdure.effects.compensation import undo_effects
from perdure.errors import UNREADABLE, AlreadyAnswered, Damaged, Error, Unanswered
from perdure.execution.code_changes import find_change
from perdure.execution.drive import (
    BREAKPOINTS,
    Drive,
    Driver,
    is_at_breakpoint,
    start_place,
    stop_at_breakpoint,
)
from perdure.execution.evaluation_guards import GuardedStore, ToolGuard
from perdure.execution.graphs import Graph
from perdure.execution.resuming import begin_with_command, hand_over, readable_waits, take_command
from perdure.execution.segment import KEY
from perdure.execution.stream_capture import begin_stream
from perdure.journal import Plan
from perdure.langgraph_port import task_interrupts
from perdure.types import Control, DrivenBy, EffectState, EventKind, State


def begin_segment(
    driver: Driver, row: RunRow, graph: Graph, *, inline: bool = False
) -> Plan[Drive | SegmentEnd]:
    """What to drive, or how the segment ends if the run cannot be driven."""
    try:
        check_state(row)
    except UNREADABLE as error:
        return held_by_error(error)
    if row.control == Control.CANCEL:
        return (yield from undo_effects(driver.saver, driver.clock, row))
    if row.control is not None:
        attempts = max(0, row.attempts - 1)
        return stopped(Control(row.control), driver.clock.now(), attempts)
    if row.attempts > graph.deaths and row.was == State.RUNNING and not inline:
        return (yield from _held_after_deaths(row))
    try:
        yield from _check_decision(driver, row)
        return (yield from _prepare(driver, row, graph, inline))
    except UNREADABLE as error:
        return held_by_error(error)
    except (AlreadyAnswered, Unanswered) as error:
        if inline and isinstance(error, AlreadyAnswered):
            raise  # to its caller, with whom the run ends
        described = describe(driver.serializer, error, ())
        data = {**described, "attempts": row.attempts, "final": True}
        blob = dump_error(driver.serializer, row, described)
        return SegmentEnd(State.FAILED, EventKind.FAILED, data, error=blob, attempts=row.attempts)


def _check_decision(driver: Driver, row: RunRow) -> Plan[None]:
    """With keys: refuse a run that was cancelled, paused, held or done, and that no holder
    of a key made due again. The columns of its row are not authenticated, its events are."""
    if not driver.serializer.envelope.authenticates:
        return
    last = yield events.last_decision(driver.serializer, row.thread_id, row.id, row.events)
    if last is None or last.damaged or events.is_end(last):
        why = "has no readable event" if last is None or last.damaged else f"says {last.kind!r}"
        raise Damaged(f"run {row.id}", f"it is due, but its history {why}")


def _held_after_deaths(row: RunRow) -> Plan[SegmentEnd]:
    reason = (
        f"{row.attempts - 1} workers in a row died or went silent while they drove it, "
        "without a step on disk in between: it may kill them, or block their event loop"
    )
    found: list[EffectRow] = yield effects.of_run(row.id)
    unsure = [one for one in found if one.state in (EffectState.OPEN, EffectState.UNKNOWN)]
    if not unsure:
        return held(reason)
    names = ", ".join(map(repr, sorted({one.name for one in unsure})))
    reason += f"; the outcome of {names} is not known"
    return held(reason, effects=[one.key for one in unsure])


def _prepare(driver: Driver, row: RunRow, graph: Graph, inline: bool) -> Plan[Drive | SegmentEnd]:
    setup = load_setup(driver.serializer, row)
    if setup.get("inline") and not inline and (yield from _is_given_up(driver, row, setup)):
        data = {"reason": claims.GAVE_UP}
        return SegmentEnd(State.CANCELLED, EventKind.CANCELLED, data, reason=claims.GAVE_UP)
    if not row.begun and row.token > 1 and (yield runs.has_begun(row)):
        raise Damaged(f"run {row.id}", "it says that it has not begun, but it has steps")
    if row.n > 1 and not row.begun:
        yield from _roll_back(driver, row.thread_id)
    if row.begun:
        graph, change = yield from find_change(driver.saver, row, graph)
        if change is not None:
            return held(**change)
    drive = yield from _make_drive(driver, row, graph, setup, inline)
    if isinstance(drive.input, Command) and not row.begun:
        yield from begin_with_command(drive, setup)
    if row.begun:
        found, signals, discarded = yield from readable_waits(drive)
        in_command = yield from take_command(drive, setup, found)
        drive.questions.in_command = in_command
        found = yield from hand_over(drive, found, signals, in_command)
        stops = is_at_breakpoint(drive, found, discarded)
        if (discarded or not inline) and (yield from stops):
            # To drive it would let it go on, which no person has done.
            stopped_there = yield from stop_at_breakpoint(drive)
            if stopped_there is not None:
                return stopped_there
    if setup.get("stream"):
        yield from begin_stream(drive, setup["stream"])
    return drive


def _is_given_up(driver: Driver, row: RunRow, setup: Mapping[str, Any]) -> Plan[bool]:
    """Whether a worker has the run of a call that died before it claimed it, or that was only
    to change the state. The call of a node is different: its parent is driven again."""
    if row.begun or row.parent_id is not None:
        return bool(setup.get("updates"))
    kinds = (EventKind.CLAIMED, EventKind.RECOVERED)
    claims = yield events.events_of(
        driver.serializer, row.thread_id, row.id, 0, row.events, kinds=kinds
    )
    return all(one.data.get("driven") != DrivenBy.CALL for one in claims)


def _make_drive(
    driver: Driver, row: RunRow, graph: Graph, setup: Mapping[str, Any], inline: bool
) -> Plan[Drive]:
    fingerprint = None if row.fingerprint == graph.fingerprint else graph.fingerprint
    if fingerprint is not None and fingerprint not in driver.stored_topologies:
        yield runs.store_topology(fingerprint, graph.topology)
        driver.stored_topologies.add(fingerprint)
    drive = Drive(
        row,
        driver.saver,
        driver.clock,
        durability=setup.get("durability") or driver.saver.durability,
        inline=inline,
        at_exit=bool(setup.get("inline")) and setup.get("durability") == "exit",
        unstored=graph.unstored,
        fingerprint=fingerprint,
        origin=setup.get("fork"),
        announced=[one for one in driver.outbox.endpoints if one.questions],
        evaluation=evaluation_of(setup) if "evaluation" in setup else None,
    )
    if drive.evaluation is not None and graph.pregel.store is not None:
        graph = graph.with_store(GuardedStore.of(graph.pregel.store, drive.evaluation, drive))
    place = yield from start_place(driver.saver, row, setup)
    again = task_interrupts.resume_nothing() if place else None
    drive.graph, drive.control = graph, RunControl()
    drive.input, drive.context = again if row.begun else setup.get("input"), setup.get("context")
    drive.breakpoints = {n: graph.current_names(setup[n]) for n in BREAKPOINTS if n in setup}
    drive.config = _config(drive, setup, place)
    return drive


def _roll_back(driver: Driver, thread_id: str) -> Plan[None]:
    """Delete the checkpoints of runs that were stopped by `rollback`."""
    ids = yield deleting.rolled_back(thread_id)
    if ids:
        yield from driver.saver.pruner.delete_for_runs(ids, thread_id)
    for id in ids:
        yield deleting.note_rolled_back(thread_id, id)


def held(reason: str, **data: Any) -> SegmentEnd:
    """The end of a segment whose run rests until a person has looked at it."""
    return SegmentEnd(State.HELD, EventKind.HELD, {"reason": reason, **data}, reason=reason)


def held_by_error(error: Exception) -> SegmentEnd:
    """The end of a segment that cannot begin."""
    return held(str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}")


def stopped(control: Control, now: int, attempts: int, **data: Any) -> SegmentEnd:
    """The end of a segment whose run was cancelled or paused."""
    if control is Control.CANCEL:
        return SegmentEnd(State.CANCELLED, EventKind.CANCELLED, data)
    # If the pause was withdrawn, the row knows: then the run is due.
    return SegmentEnd(State.PAUSED, EventKind.PAUSED, data, due_at=now, attempts=attempts)


def _config(drive: Drive, setup: Mapping[str, Any], place: Mapping[str, Any]) -> RunnableConfig:
    row = drive.row
    config: dict[str, Any] = dict(setup.get("config") or {})
    configurable = {
        **(config.pop("configurable", None) or {}),
        **place,
        "thread_id": row.thread_id,
        KEY: drive.name,
    }
    metadata = {
        **(config.get("metadata") or {}),
        **(setup.get("metadata") or {}),
        **drive.progress.labels,
    }
    tags = [*(config.get("tags") or ()), *(setup.get("tags") or ())]
    if not drive.inline:  # a caller sees in its stream and its history what it gave, no more
        configurable["run_id"] = row.id
        # A graph with another checkpointer that a node calls inherits the metadata. If its
        # checkpoints had this id, LangGraph would take its second call on a thread for a reconnect.
        # LangGraph stores a text in them, but no UUID.
        metadata.setdefault("run_id", _uuid(row.id))
        tags = [*(config.get("tags") or ()), *tags_of(row, setup)]
    config |= {"configurable": configurable, "metadata": metadata, "tags": tags}
    config["callbacks"] = [drive.progress.model_calls]
    if drive.evaluation is not None:
        config["callbacks"].append(ToolGuard(drive))
    return cast(RunnableConfig, config)


def _uuid(run_id: str) -> UUID:
    try:
        return UUID(run_id)
    except ValueError:
        raise Damaged(f"run {run_id}", "its id is not a UUID") from None
