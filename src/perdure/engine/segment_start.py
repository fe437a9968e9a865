"""The start of a segment: what is decided and done before LangGraph runs.

A run that was cancelled or paused, that killed its workers, that cannot be read, or whose graph
changed under it ends its segment here. For any other, the answers that have come in are handed to
its tasks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.serde.types import RESUME
from langgraph.runtime import RunControl
from langgraph.types import Command

from perdure.effects.compensation import Compensations
from perdure.engine.breakpoints import is_at_breakpoint, stop_at_breakpoint
from perdure.engine.graph_check import find_change
from perdure.engine.graphs import Graph
from perdure.engine.segment_drive import (
    BREAKPOINTS,
    Drive,
    SegmentPlans,
    command_writes,
    is_resume,
    latest_checkpoint,
)
from perdure.errors import UNREADABLE, Damaged, Error, ThreadBusy
from perdure.journal import Plan
from perdure.journal.clock import Clock
from perdure.langgraph_port import call_config, task_interrupts
from perdure.operations import effects, events, runs, waits
from perdure.operations.claims import SegmentEnd
from perdure.operations.effects import EffectRow
from perdure.operations.run_payload import (
    check_state,
    dump_setup,
    load_error,
    load_output,
    load_setup,
    tags_of,
)
from perdure.operations.runs import RunRow
from perdure.operations.waits import FINISHED, TAKEN_BACK, TIME_IS_UP, Body, NewSetup, WaitRow
from perdure.saver import Saver
from perdure.segments.lease import Lease
from perdure.segments.questions import Answered
from perdure.segments.segment import KEY, Segment
from perdure.types import ENDED, Control, EffectState, EventKind, Kind, State, WaitState

ANSWERED = (WaitState.ANSWERED, WaitState.APPLIED)

log = logging.getLogger("perdure")


class SegmentStart(SegmentPlans):
    """Plans for the start of a segment."""

    def __init__(self, saver: Saver, clock: Clock, announced: Callable[[], bool]) -> None:
        """`announced` says whether new questions are messages of the outbox, too."""
        super().__init__(saver, clock)
        self._announced = announced
        self._compensations = Compensations(saver, clock)
        self._stored_topologies: set[str] = set()

    def begin(self, row: RunRow, graph: Graph, *, inline: bool = False) -> Plan[Drive | SegmentEnd]:
        """What to drive, or how the segment ends if the run cannot be driven."""
        try:
            check_state(row)
        except UNREADABLE as error:
            return held_by_error(error)
        if row.control == Control.CANCEL:
            return (yield from self._compensations.run_all(row))
        if row.control is not None:
            attempts = max(0, row.attempts - 1)
            return stopped(Control(row.control), self.clock.now(), attempts)
        if row.attempts > graph.deaths and row.was == State.RUNNING and not inline:
            return (yield from self._held_after_deaths(row))
        try:
            yield from self._check_decision(row)
            return (yield from self._prepare(row, graph, inline))
        except UNREADABLE as error:
            return held_by_error(error)

    def _check_decision(self, row: RunRow) -> Plan[None]:
        """With keys: refuse a run that was cancelled, paused, held or done, and that no holder
        of a key made due again. The columns of its row are not authenticated, its events are."""
        if not self.serializer.envelope.authenticates:
            return
        last = yield events.last_decision(self.serializer, row.thread_id, row.id, row.events)
        if last is None or last.damaged or events.is_end(last):
            why = "has no readable event" if last is None or last.damaged else f"says {last.kind!r}"
            raise Damaged(f"run {row.id}", f"it is due, but its history {why}")

    def _held_after_deaths(self, row: RunRow) -> Plan[SegmentEnd]:
        reason = (
            f"{row.attempts - 1} workers in a row died or went silent while they drove it, "
            "without a step on disk in between"
        )
        found: list[EffectRow] = yield effects.of_run(row.id)
        unsure = [one for one in found if one.state in (EffectState.OPEN, EffectState.UNKNOWN)]
        data: dict[str, Any] = {"reason": reason}
        if unsure:
            names = sorted({one.name for one in unsure})
            reason += f"; the outcome of {', '.join(map(repr, names))} is not known"
            data = {"reason": reason, "effects": [one.key for one in unsure]}
        return SegmentEnd(State.HELD, EventKind.HELD, data, reason=reason)

    def _prepare(self, row: RunRow, graph: Graph, inline: bool) -> Plan[Drive | SegmentEnd]:
        setup = load_setup(self.serializer, row)
        if not row.begun and row.token > 1 and (yield runs.has_begun(row)):
            raise Damaged(f"run {row.id}", "it says that it has not begun, but it has steps")
        if row.n > 1 and not row.begun:
            yield from self._roll_back(row.thread_id)
        if row.begun:
            graph, change = yield from find_change(self._saver, row, graph)
            if change is not None:
                return SegmentEnd(State.HELD, EventKind.HELD, change, reason=change["reason"])
        drive = yield from self._make_drive(row, graph, setup, inline)
        if isinstance(drive.input, Command) and not row.begun:
            yield from self._begin_with_command(drive, setup)
        if row.begun:
            found, discarded = yield from self._readable_waits(drive.row)
            in_command = yield from self._take_command(drive, setup, found)
            found = yield from self._hand_over_answers(drive, found, in_command)
            stops = is_at_breakpoint(self._saver, drive, found, discarded)
            if (discarded or not inline) and (yield from stops):
                # To drive it would let it go on, which no person has done.
                return (yield from stop_at_breakpoint(self._saver, drive)) or drive
        return drive

    def _make_drive(
        self, row: RunRow, graph: Graph, setup: Mapping[str, Any], inline: bool
    ) -> Plan[Drive]:
        fingerprint = None if row.fingerprint == graph.fingerprint else graph.fingerprint
        if fingerprint is not None and fingerprint not in self._stored_topologies:
            yield runs.store_topology(fingerprint, graph.topology)
            self._stored_topologies.add(fingerprint)
        segment = Segment(
            Lease(row),
            self._saver.journal,
            self.serializer,
            self.clock,
            saver=self._saver,
            durability=setup.get("durability") or self._saver.durability,
            inline=inline,
            at_exit=bool(setup.get("inline")) and setup.get("durability") == "exit",
            unstored=graph.unstored,
            fingerprint=fingerprint,
            origin=setup.get("fork"),
            announced=self._announced(),
        )
        place = yield from self._place(row, setup)
        again = task_interrupts.resume_nothing() if place else None
        return Drive(
            segment,
            graph,
            again if row.begun else setup.get("input"),
            _config(segment, setup, place),
            setup.get("context"),
            RunControl(),
            {name: graph.current_names(setup[name]) for name in BREAKPOINTS if name in setup},
        )

    def _place(self, row: RunRow, setup: Mapping[str, Any]) -> Plan[Mapping[str, Any]]:
        """The old checkpoint a run begins at, while it has made none of its own; else nothing."""
        place: Mapping[str, Any] = setup.get("place") or {}
        if not place or row.fingerprint is not None:  # which its first step stores
            return {}
        if row.begun:  # it asked something before its first step
            at = yield from latest_checkpoint(self._saver, row.thread_id)
            if at is not None and at.checkpoint["id"] == call_config.root_checkpoint(place):
                return {}
        return place

    def _roll_back(self, thread_id: str) -> Plan[None]:
        """Delete the checkpoints of runs that were stopped by `rollback`."""
        ids = yield runs.rolled_back(thread_id)
        if ids:
            yield from self._saver.pruner.delete_for_runs(ids, thread_id)
        for id in ids:
            yield runs.note_rolled_back(thread_id, id)

    # -- commands

    def _begin_with_command(self, drive: Drive, setup: Mapping[str, Any]) -> Plan[None]:
        """Leave out what a segment before this one, which did not come to a step, has written of
        the command that the run begins with."""
        now, at = (yield from self._command_place(drive.row, setup)), setup.get("at") or []
        if now[:1] != at[:1]:
            yield from self.note_command(drive.row)
        elif now != at:
            again = task_interrupts.resume_nothing() if setup.get("place") else None
            resume = drive.input.resume
            drive.input = again if resume is None else Command(resume=resume)

    def note_command(self, row: RunRow) -> Plan[None]:
        """Note at which checkpoint a run is given a command that no wait has."""
        setup = load_setup(self.serializer, row)
        at = yield from self._command_place(row, setup)
        yield runs.set_setup(row, dump_setup(self.serializer, row, {**setup, "at": at}))

    def with_command(
        self, row: RunRow, command: Command[Any], answered: Collection[str], found: list[WaitRow]
    ) -> Plan[NewSetup]:
        """The setup of a run that is continued with a command, besides the answers to some waits.

        It is for the run's checkpoint. LangGraph adds its writes to those there in one batch, so
        their number says whether it did.
        """
        setup = load_setup(self.serializer, row)
        at = yield from self._command_place(row, setup)
        if (before := _command(setup, found)) and before["at"] == at:
            raise ThreadBusy(
                row.thread_id, f"has another command that is not applied yet ({row.id})"
            )
        given = [wait for wait in found if wait.id in answered]
        now = waits.answer_time(given, self.clock.now())
        stored = {"input": command, "waits": list(answered), "answered_at": now, "at": at}
        after = dump_setup(self.serializer, row, {**setup, "command": stored})
        return NewSetup(row.setup, after, now)

    def _command_place(self, row: RunRow, setup: Mapping[str, Any]) -> Plan[list[Any]]:
        place = yield from self._place(row, setup)
        id = call_config.root_checkpoint(place)
        at = yield from latest_checkpoint(self._saver, row.thread_id, id=id)
        return [] if at is None else [at.checkpoint["id"], command_writes(at)]

    def _take_command(
        self, drive: Drive, setup: Mapping[str, Any], found: list[WaitRow]
    ) -> Plan[Collection[str]]:
        """Continue with the command that came with an answer, if it was not applied yet. Returns
        the waits whose answers are in it."""
        command = _command(setup, found)
        if command is None and not setup.get("at"):
            return ()
        now = yield from self._command_place(drive.row, setup)
        if command is None:
            # Its answer is for whichever task asks first at this checkpoint.
            drive.segment.keeps_resume = now[:1] == setup["at"][:1] and not any(
                wait.checkpoint_id >= now[0] for wait in found
            )
            return ()
        if now[:1] != command["at"][:1]:
            return ()
        if now == command["at"]:
            drive.input = command["input"]
        if not is_resume(command["input"]):
            return ()
        since = command["answered_at"]
        asked = any(one.state == WaitState.OPEN and one.created_at >= since for one in found)
        # If something was asked since, the answer is taken.
        drive.segment.keeps_resume = not asked
        return [wait.id for wait in found if _came_with(wait, command)]

    # -- answers

    def _readable_waits(self, row: RunRow) -> Plan[tuple[list[WaitRow], bool]]:
        """The waits of a run, and whether open ones were deleted because they cannot be read.
        Whatever asked asks again. Nothing in such a row is trusted, not even that a task asked."""
        found: list[WaitRow] = yield waits.of_run(row.id)
        open = [wait for wait in found if wait.state == WaitState.OPEN]
        damaged = [wait for wait in open if waits.is_to_be_asked_again(self.serializer, wait)]
        for wait in damaged:
            log.warning("run %s asks again: its wait %s is damaged", row.id, wait.id)
            yield waits.discard(wait, row)
        return [wait for wait in found if wait not in damaged], bool(damaged)

    def _hand_over_answers(
        self, drive: Drive, found: list[WaitRow], in_command: Collection[str]
    ) -> Plan[list[WaitRow]]:
        """Hand the answers of people, signals and the clock to the tasks that wait for them.
        LangGraph hands over those of the waits `in_command`."""
        row, now = drive.row, self.clock.now()
        answered = False
        for wait in found:
            if wait.state != WaitState.OPEN:
                continue
            due = wait.wake_at if wait.kind == Kind.CLOCK else wait.expires_at
            if wait.name is not None:
                yield waits.deliver(self.serializer, wait, row.token, now)
                answered = True
            if wait.kind == Kind.RUN and (ended := (yield from self._joined(wait))) is not None:
                yield waits.join(self.serializer, wait, ended, row.token, now)
                answered = True
            if due is not None and due <= now:
                value = None if wait.kind == Kind.CLOCK else TIME_IS_UP
                yield waits.fire(self.serializer, wait, value, row.token, now)
                answered = True
        if answered:
            found = yield waits.of_run(row.id)
        if any(wait.state in ANSWERED or _is_reopened(wait) for wait in found):
            yield from self._resume_tasks(drive, found, in_command)
        return found

    def _joined(self, wait: WaitRow) -> Plan[list[dict[str, Any]] | None]:
        """How each run that a wait is for has ended; None if one has not."""
        ids = waits.joined_runs(waits.load_body(self.serializer, wait))
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
                error = load_error(self.serializer, run)
                output = yield from load_output(self.serializer, run, self._state_at)
                reason = str(error) if error is not None else run.reason
                one |= {"state": run.state, "output": output, "error": reason}
            ended.append(one)
        return ended

    def _state_at(self, thread_id: str, checkpoint_id: str) -> Plan[Mapping[str, Any] | None]:
        at = yield from latest_checkpoint(self._saver, thread_id, id=checkpoint_id)
        return None if at is None else at.checkpoint["channel_values"]

    def _resume_tasks(
        self, drive: Drive, found: list[WaitRow], in_command: Collection[str]
    ) -> Plan[None]:
        row = drive.row
        signals = yield waits.signals_of_run(self.serializer, row.thread_id, row.id)
        bodies = {
            wait.id: waits.load_body(self.serializer, wait)
            for wait in found
            if wait.state not in FINISHED
        }
        self._note_answers(drive, found, signals)
        for wait in self._newest(found, bodies):
            body = bodies[wait.id]
            if wait.state not in ANSWERED and not _is_reopened(wait):
                continue
            # A breakpoint or an effect has no task: the run just goes on.
            if wait.task_id and wait.id not in in_command:
                # LangGraph reads the answers of a task from its writes, where they survive.
                self._saver.saw(wait.stamp)
                answers = list(body.before)
                if wait.state in ANSWERED:
                    answers.append(self._answer(wait, signals))
                config = _wait_config(drive, wait)
                self._saver.put_writes(config, [(RESUME, answers)], wait.task_id, wait.path)
        for wait in found:
            if wait.state in ANSWERED:
                yield waits.apply(wait, row.token)

    def _note_answers(
        self, drive: Drive, found: list[WaitRow], signals: Mapping[tuple[str, str | None], Any]
    ) -> None:
        """Say which question each answer was for: the task may ask in another order now."""
        tasks = {wait.task_id for wait in found if wait.task_id and wait.state not in FINISHED}
        for wait in found:
            if wait.task_id in tasks and wait.state in (*ANSWERED, WaitState.CONSUMED):
                body = waits.load_body(self.serializer, wait)
                drive.segment.questions.note_answer(
                    wait.task_id,
                    Answered(
                        Kind(wait.kind), body.value, len(body.before), self._answer(wait, signals)
                    ),
                )

    def _newest(self, found: list[WaitRow], bodies: Mapping[str, Body]) -> list[WaitRow]:
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

    def _answer(self, wait: WaitRow, signals: Mapping[tuple[str, str | None], Any]) -> Any:
        if (wait.id, wait.name) not in signals:
            return waits.load_answer(self.serializer, wait)
        value = signals[wait.id, wait.name]
        return value if wait.kind == Kind.SIGNAL else {TAKEN_BACK: value}


def _command(setup: Mapping[str, Any], found: list[WaitRow]) -> dict[str, Any] | None:
    """The command that came with the answer to a wait that the run is not past."""
    command: dict[str, Any] | None = setup.get("command")
    return command if command and any(_came_with(wait, command) for wait in found) else None


def _came_with(wait: WaitRow, command: Mapping[str, Any]) -> bool:
    """Whether the answer of a wait came with a command. If that one was withdrawn, a later answer
    did not."""
    is_answered = wait.state in ANSWERED and wait.answered_at == command["answered_at"]
    return is_answered and wait.id in command["waits"]


def _is_reopened(wait: WaitRow) -> bool:
    """Whether an answer of a wait was withdrawn: its task is not to find it any more."""
    return wait.state == WaitState.OPEN and wait.answered_at is not None


def held_by_error(error: Exception) -> SegmentEnd:
    """The end of a segment that cannot begin: a person has to look."""
    reason = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
    return SegmentEnd(State.HELD, EventKind.HELD, {"reason": reason}, reason=reason)


def stopped(control: Control, now: int, attempts: int, **data: Any) -> SegmentEnd:
    """The end of a segment whose run was cancelled or paused."""
    if control is Control.CANCEL:
        return SegmentEnd(State.CANCELLED, EventKind.CANCELLED, data)
    # If the pause was withdrawn, the row knows: then the run is due.
    return SegmentEnd(State.PAUSED, EventKind.PAUSED, data, due_at=now, attempts=attempts)


def _config(segment: Segment, setup: Mapping[str, Any], place: Mapping[str, Any]) -> RunnableConfig:
    lease = segment.lease
    given = dict(setup.get("config") or {})
    configurable = {
        **(given.pop("configurable", None) or {}),
        **place,
        "thread_id": lease.thread_id,
        KEY: lease.name,
    }
    metadata = {
        **(given.get("metadata") or {}),
        **(setup.get("metadata") or {}),
        **segment.progress.labels,
    }
    tags = [*(given.get("tags") or ()), *(setup.get("tags") or ())]
    if not segment.inline:  # a caller sees in its stream and its history what it gave, no more
        configurable["run_id"] = lease.run_id
        # A graph with another checkpointer that a node calls inherits the metadata. LangGraph would
        # take its second call on a thread for a reconnect if both had this id in their
        # checkpoints; it stores texts only.
        metadata["run_id"] = _uuid(lease.run_id)
        tags = [*(given.get("tags") or ()), *tags_of(lease.row, setup)]
    config: dict[str, Any] = {
        **given,
        "configurable": configurable,
        "metadata": metadata,
        "tags": tags,
    }
    return cast(RunnableConfig, config)


def _uuid(run_id: str) -> UUID:
    try:
        return UUID(run_id)
    except ValueError:
        raise Damaged(f"run {run_id}", "its id is not a UUID") from None


def _wait_config(drive: Drive, wait: WaitRow) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": wait.thread_id,
            "checkpoint_ns": wait.ns,
            "checkpoint_id": wait.checkpoint_id,
            KEY: drive.segment.lease.name,
        }
    }
