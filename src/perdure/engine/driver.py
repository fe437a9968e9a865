"""Drive one segment of a run: what to do before LangGraph runs, and with what came of it.

Crash points and what each leaves behind; the next claim finds it:

    claimed, nothing driven     the lease runs out; attempts counts it
    answers handed over         the waits are `applied`, and are handed over again
    a step on disk              progress: attempts is 1 again, and it goes on behind that step
    interrupt on disk           its wait too, in the same batch; the run is still leased
    let go                      waiting, done, failed …: in one batch with its event, and with
                                the next run of the thread being due
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.types import RESUME
from langgraph.errors import EmptyInputError, GraphDrained, GraphRecursionError, InvalidUpdateError
from langgraph.runtime import RunControl
from langgraph.types import Command

from perdure.checkpoint.operations import CheckpointKey
from perdure.effects.compensation import Compensations
from perdure.effects.recording import describe, is_recorded
from perdure.engine.graphs import Graph, inside, lost_nodes, pending_nodes, stands_at_breakpoint
from perdure.errors import (
    BadArgument,
    EffectHeld,
    Error,
    Expired,
    LeaseLost,
    NotInRun,
    Postponed,
    TooLarge,
    Unavailable,
    Unserializable,
)
from perdure.journal import Journal, Op, Plan
from perdure.journal.clock import Clock
from perdure.operations import effects, runs, waits
from perdure.operations.effects import EffectRow, Owner, report
from perdure.operations.events import change
from perdure.operations.run_payload import (
    UNREADABLE,
    close_error,
    close_output,
    open_setup,
    tags_of,
)
from perdure.operations.runs import End, RunRow
from perdure.operations.waits import TAKEN_BACK, TIME_IS_UP, Body, Question, WaitRow
from perdure.saver import Saver
from perdure.segments.segment import KEY, Segment
from perdure.serde.serializer import where_wait
from perdure.types import EffectState, Kind, State, moment

log = logging.getLogger("perdure")

INLINE = 16 * 1024
"""Bytes of an output that is kept in the run's row; a larger one is read from its checkpoint."""
BREAKPOINTS = ("interrupt_before", "interrupt_after")
FINAL = (
    BadArgument,
    Expired,
    NotInRun,
    Unserializable,
    TooLarge,
    GraphRecursionError,
    InvalidUpdateError,
    EmptyInputError,
)
"""What would only be raised again."""


@dataclass
class Drive:
    """A segment that is ready to be driven: what LangGraph is called with."""

    segment: Segment
    graph: Graph
    input: Any
    config: RunnableConfig
    context: Any
    control: RunControl
    inline: bool = False
    """Driven for a caller, who gets an exception as before; nothing is retried behind his back."""
    breakpoints: dict[str, Any] = field(default_factory=dict)
    """Those of this run, beside those the graph was compiled with."""
    stop: str | None = None
    """Why it was told to stop: cancel, pause or shutdown."""

    @property
    def row(self) -> RunRow:
        return self.segment.row

    @property
    def stops(self) -> bool:
        """Whether it may come to a breakpoint."""
        return bool(self.breakpoints) or self.graph.stops

    @property
    def arguments(self) -> dict[str, Any]:
        """What LangGraph is called with beside input and config."""
        # It hands over the checkpoints one by one; what is waited for is decided by the saver.
        return {
            "context": self.context,
            "durability": self.graph.durability,
            "control": self.control,
            **self.breakpoints,
        }

    def ask_to_stop(self, why: str) -> None:
        """Stop at the next step."""
        self.stop = self.stop or why
        self.control.request_drain(why)


class Driver:
    """Plans around LangGraph, for whoever drives a run."""

    def __init__(self, saver: Saver, clock: Clock) -> None:
        self.saver, self.clock, self.serializer = saver, clock, saver.serializer
        self.compensations = Compensations(saver, clock)
        self._noted: set[str] = set()

    @property
    def journal(self) -> Journal:
        return self.saver.journal

    # -- before

    def begin(self, row: RunRow, graph: Graph, *, inline: bool = False) -> Plan[Drive | End]:
        """What to drive, or, if it cannot be driven, how the segment ends."""
        if row.control == "cancel":
            return (yield from self.compensations.run_all(row))
        if row.control is not None:
            return told_to_stop(row.control, self.clock.now(), max(0, row.attempts - 1))
        if row.attempts > graph.deaths and row.was == State.RUNNING and not inline:
            reason = (
                f"{row.attempts - 1} workers in a row died or went silent while they drove it, "
                "without a step on disk in between"
            )
            found: list[EffectRow] = yield effects.of_run(row.id)
            keys = [
                one.key for one in found if one.state in (EffectState.OPEN, EffectState.UNKNOWN)
            ]
            data: dict[str, Any] = {"reason": reason}
            if keys:
                names = sorted({one.name for one in found if one.key in keys})
                reason += f"; what became of {', '.join(map(repr, names))} is not known"
                data = {"reason": reason, "effects": keys}
            return End(State.HELD, "held", data, reason=reason)
        try:
            return (yield from self._prepare(row, graph, inline))
        except UNREADABLE as error:
            return self.unfit(error)

    def unfit(self, error: Exception) -> End:
        """The end of a segment that could not begin: a person has to look."""
        reason = str(error) if isinstance(error, Error) else f"{type(error).__name__}: {error}"
        return End(State.HELD, "held", {"reason": reason}, reason=reason)

    def _prepare(self, row: RunRow, graph: Graph, inline: bool) -> Plan[Drive | End]:
        setup = open_setup(self.serializer, row)
        if row.n > 1 and not row.begun:
            yield from self._undo(row.thread_id)
        if row.begun:
            held = yield from self._check_shape(row, graph)
            if held is not None:
                return held
        segment = Segment(row, self.journal, self.serializer, self.clock)
        segment.durability = setup.get("durability") or self.saver.durability
        segment.saver, segment.inline, segment.unstored = self.saver, inline, graph.unstored
        if row.fingerprint != graph.fingerprint:
            if graph.fingerprint not in self._noted:
                yield runs.note_shape(graph.fingerprint, graph.shape)
                self._noted.add(graph.fingerprint)
            segment.fingerprint = graph.fingerprint
        drive = Drive(
            segment,
            graph,
            None if row.begun or "input" not in setup else setup["input"],
            _config(row, setup, segment),
            setup.get("context"),
            RunControl(),
            inline,
            {name: setup[name] for name in BREAKPOINTS if name in setup},
        )
        if row.begun:
            found = yield from self._hand_over(drive)
            if not inline and (yield from self._stands(drive, found)):
                # Nobody let it go on from its breakpoint; to drive it would.
                stopped = yield from self.after_breakpoint(drive)
                return stopped or drive
        return drive

    def _stands(self, drive: Drive, found: Sequence[WaitRow]) -> Plan[bool]:
        """Whether a run is at a breakpoint, and nobody answered yet."""
        row = drive.row
        if any(wait.state == "open" and _is_breakpoint(wait) for wait in found):
            return True
        if row.was != State.RUNNING or not drive.stops:
            return False
        # Its driver may have died between the checkpoint and the question.
        at = yield from self.latest(row.thread_id)
        if at is None or any(wait.interrupt_id == breakpoint_id(at) for wait in found):
            return False
        before: CheckpointTuple | None = None
        if at.parent_config is not None:
            parent = CheckpointKey(
                row.thread_id, "", at.parent_config["configurable"]["checkpoint_id"]
            )
            before = yield from self.saver.reader.get_tuple(parent, False)
        return stands_at_breakpoint(drive.graph, drive.breakpoints, at, before)

    def _undo(self, thread_id: str) -> Plan[None]:
        """Delete what a run left that was stopped with `rollback`."""
        ids = yield runs.to_undo(thread_id)
        if ids:
            yield from self.saver.pruner.delete_for_runs(ids, thread_id)
        for id in ids:
            yield runs.undone(thread_id, id)

    def _check_shape(self, row: RunRow, graph: Graph) -> Plan[End | None]:
        """Whether a run that was begun with another shape of its graph can go on."""
        if row.fingerprint in (None, graph.fingerprint):
            return None
        old = yield runs.shape(row.fingerprint)
        if old is None:
            return None
        old, new = json.loads(old), json.loads(graph.shape)
        places = {"": (old, new)}
        for wait in (yield waits.of_run(row.id)):
            if wait.state in ("open", "answered", "applied") and wait.ns:
                places[wait.ns] = (inside(old, wait.ns) or {}, inside(new, wait.ns) or {})
        for ns, (before, after) in places.items():
            at = yield from self.latest(row.thread_id, ns)
            if at is not None and (lost := lost_nodes(before, after, at)):
                return _changed(graph.name, ns, lost, before, after)
        return None

    def latest(self, thread_id: str, ns: str = "") -> Plan[CheckpointTuple | None]:
        found = yield from self.saver.reader.get_tuple(CheckpointKey(thread_id, ns, None), False)
        return found

    def _hand_over(self, drive: Drive) -> Plan[list[WaitRow]]:
        """Give the tasks of a run the answers that are there: people's, signals', the clock's."""
        row, now = drive.row, self.clock.now()
        found: list[WaitRow] = yield waits.of_run(row.id)
        fired = False
        for wait in found:
            if wait.state != "open":
                continue
            due = wait.wake_at if wait.kind == Kind.CLOCK else wait.expires_at
            if wait.name is not None:
                yield waits.deliver(self.serializer, wait, row.token, now)
                fired = True
            if due is not None and due <= now:
                value = None if wait.kind == Kind.CLOCK else TIME_IS_UP
                yield waits.fire(self.serializer, wait, value, row.token, now)
                fired = True
        if fired:
            found = yield waits.of_run(row.id)
        if any(wait.state in ("answered", "applied") for wait in found):
            yield from self._resume(drive, found)
        return found

    def _resume(self, drive: Drive, found: list[WaitRow]) -> Plan[None]:
        row = drive.row
        signals = yield waits.signals_of_run(self.serializer, row.thread_id, row.id)
        newest: dict[tuple[str, str], tuple[int, WaitRow, Body]] = {}
        for wait in found:
            if wait.state in ("consumed", "closed"):
                continue
            body = waits.open_body(self.serializer, wait)
            place = (wait.ns, wait.task_id or wait.interrupt_id)
            if place not in newest or newest[place][0] <= len(body.before):
                newest[place] = (len(body.before), wait, body)
        for _, wait, body in newest.values():
            if wait.state not in ("answered", "applied"):
                continue
            if wait.id in signals:
                value = signals[wait.id]
                if wait.kind != Kind.SIGNAL:  # a question that the signal took back
                    value = {TAKEN_BACK: value}
            else:
                value = self.serializer.loads(wait.answer or b"", where_wait("answer", wait.id))
            if wait.task_id:  # a breakpoint or an effect has none: there going on is all
                # LangGraph reads the answers of a task from its writes: there they survive.
                self.saver.saw(wait.stamp)
                config = _place_config(drive, wait)
                answers = [*body.before, value]
                self.saver.put_writes(config, [(RESUME, answers)], wait.task_id, wait.path)
            yield waits.apply(wait, row.token)

    # -- after

    def finish(self, drive: Drive, outcome: Returned | Raised) -> Plan[str]:
        """Let a run go. Gives what became of it: a state, `released` or `lost`."""
        segment = drive.segment
        segment.ending = True
        while segment.is_busy and not segment.lost:
            yield 0.01  # an effect of a node that was cancelled: its outcome is worth waiting for
        segment.closing = True
        if segment.signal is not None and not segment.lost:
            outcome = Raised(segment.signal)  # also if the agent's code swallowed it
        if segment.lost or (isinstance(outcome, Raised) and isinstance(outcome.error, LeaseLost)):
            return "lost"
        if isinstance(outcome, Raised) and isinstance(outcome.error, Postponed):
            end = yield from self._postpone(drive, outcome.error)
        elif isinstance(outcome, Raised) and isinstance(outcome.error, EffectHeld):
            end = yield from self._held(drive, outcome.error)
        elif isinstance(outcome, Raised):
            end = self._after_error(drive, outcome.error)
        elif segment.asked:
            end = End(State.WAITING, "waiting", {})
        else:
            stopped = (yield from self.after_breakpoint(drive)) if drive.stops else None
            left = None if stopped else (yield from self._left_open(drive))
            end = stopped or left or (yield from self._done(drive, outcome))
        if end.state is State.FAILED and not drive.inline:
            end = (yield from self._unknown(drive)) or end
        if drive.stop == "cancel" and end.kind == "released":
            end = end._replace(data=report((yield effects.of_run(drive.row.id))))
        waited = bool(drive.row.begun) or end.state is State.WAITING
        return (yield from self.let_go(drive.row, end, waited=waited))

    def _postpone(self, drive: Drive, error: Postponed) -> Plan[End]:
        """An effect is tried again later: until then the run waits for the clock, unless a person
        has to say what became of another."""
        row = drive.row
        found: list[EffectRow] = yield effects.of_run(row.id)
        for other in found:
            if other.state == EffectState.UNKNOWN:
                why = f"and {error.effect!r} is tried again later"
                return (yield from self._held(drive, EffectHeld(other.key, other.name, why)))
        told = {"effect": error.effect, "key": error.key, "attempt": error.attempt}
        shown = {**told, "wake_at": moment(error.until).isoformat()}
        question = Question(Kind.CLOCK, wake_at=error.until)
        yield self._ask(row, question, shown, f"effect:{error.key}")
        return End(State.WAITING, "postponed", told)

    def _ask(
        self, row: RunRow, question: Question, shown: Any, interrupt_id: str, at: str = ""
    ) -> Op[None]:
        """A question of the run itself, not of one of its tasks."""
        made = change(row.thread_id, row.id, self.clock.now())
        asked = waits.ask(
            self.serializer,
            made,
            token=row.token,
            question=question,
            body=Body(shown, None, []),
            interrupt_id=interrupt_id,
            place={"ns": "", "checkpoint_id": at, "task_id": "", "path": "", "stamp": 0},
        )
        return runs.fenced(row, asked)

    def _left_open(self, drive: Drive) -> Plan[End | None]:
        """A run that is at its end, but never came back to an effect that was cut off."""
        if not drive.row.begun:
            return None
        found: list[EffectRow] = yield effects.of_run(drive.row.id)
        if not any(row.state == EffectState.OPEN and row.mark != 1 for row in found):
            return None
        owner = Owner(drive.row.thread_id, drive.row.id, drive.row.token)
        yield effects.abandon(owner, self.clock.now())
        return (yield from self._unknown(drive))

    def _unknown(self, drive: Drive) -> Plan[End | None]:
        """How a run ends of which an effect is unknown, whatever else happened."""
        found: list[EffectRow] = yield effects.of_run(drive.row.id)
        unknown = [row for row in found if row.state == EffectState.UNKNOWN]
        if not unknown:
            return None
        why = "the run went on without it"
        return (yield from self._held(drive, EffectHeld(unknown[0].key, unknown[0].name, why)))

    def _held(self, drive: Drive, error: EffectHeld) -> Plan[End]:
        """Nobody knows what became of an effect: a person has to say, of each of them."""
        found: list[EffectRow] = yield effects.of_run(drive.row.id)
        unknown = [row for row in found if row.state == EffectState.UNKNOWN]
        keys = [row.key for row in unknown]
        if error.key not in keys:
            keys.append(error.key)
        others = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
        reason = f"{error}{others}"
        return End(State.HELD, "held", {"reason": reason, "effects": keys}, reason=reason)

    def let_go(self, row: RunRow, end: End, *, waited: bool = True) -> Plan[str]:
        made = change(row.thread_id, row.id, self.clock.now())
        kept = yield runs.let_go(self.serializer, made, row.token, end, waited=waited)
        if not kept:
            return "lost"
        _tell(row, end)
        return "released" if end.state is State.PENDING else end.state.value

    def _done(self, drive: Drive, outcome: Returned) -> Plan[End]:
        output = outcome.output
        if output is _FROM_CHECKPOINT:
            at = yield from self.latest(drive.row.thread_id)
            output = None if at is None else drive.graph.output(at)
        blob = close_output(self.serializer, drive.row, [output])
        if len(blob) > INLINE:
            at = yield from self.latest(drive.row.thread_id)
            if at is not None:
                channels = drive.graph.pregel.output_channels
                names = channels if isinstance(channels, str) else list(channels)
                stored = at.checkpoint["channel_values"]
                rest = {}  # channels that hold nothing yet have a value, but none is stored
                if isinstance(output, dict) and not isinstance(channels, str):
                    rest = {name: output[name] for name in output if name not in stored}
                blob = close_output(self.serializer, drive.row, [at.checkpoint["id"], names, rest])
        return End(State.DONE, "done", {}, output=blob)

    def after_breakpoint(self, drive: Drive) -> Plan[End | None]:
        """A graph compiled with breakpoints stopped at one: a person has to let it go on."""
        row = drive.row
        at = yield from self.latest(row.thread_id)
        nodes = [] if at is None else pending_nodes(json.loads(drive.graph.shape), at)
        if at is None or not nodes:
            return None
        shown, id = {"breakpoint": nodes}, at.checkpoint["id"]
        yield self._ask(row, Question(Kind.HUMAN), shown, breakpoint_id(at), id)
        return End(State.WAITING, "waiting", {})

    def _after_error(self, drive: Drive, error: BaseException) -> End:
        now, attempts = self.clock.now(), drive.segment.attempts
        left = not isinstance(error, Exception) and (drive.stop is not None or drive.inline)
        away = isinstance(error, Unavailable) and not drive.inline
        if isinstance(error, GraphDrained) or left or away or drive.stop in ("cancel", "pause"):
            # Drained, cancelled with its task, its reader left, or the journal was away: somebody
            # else goes on, unless the row says that it was cancelled or paused.
            attempts = max(0, attempts - 1)
            return End(State.PENDING, "released", {}, due_at=now, attempts=attempts)
        if isinstance(error, UNREADABLE):
            return self.unfit(error)
        if isinstance(error, asyncio.CancelledError) and attempts < drive.graph.deaths:
            # Its event loop was torn down, by another run perhaps.
            return End(State.PENDING, "released", {}, due_at=now, attempts=attempts)
        return self.failed(drive, error)

    def failed(self, drive: Drive, error: BaseException) -> End:
        """The end of a segment that raised: for good, or to be tried again after a while."""
        attempts, retry = drive.segment.attempts, drive.graph.retry
        told = describe(error, drive.segment.secrets)
        blob = close_error(self.serializer, drive.row, told)
        data: dict[str, Any] = told | {"attempts": attempts}
        over = isinstance(error, FINAL) or is_recorded(error) or retry.is_over(attempts, error)
        if drive.inline or over:
            data["final"] = True
            if drive.graph.hold and not drive.inline:
                reason = f"{told['kind']}: {told['message']}"
                return End(
                    State.HELD,
                    "held",
                    {**data, "reason": reason},
                    attempts=attempts,
                    error=blob,
                    reason=reason,
                )
            return End(State.FAILED, "failed", data, attempts=attempts, error=blob)
        at = self.clock.now() + round(retry.pause(attempts).total_seconds() * 1000)
        data["retry_at"] = moment(at)
        return End(State.PENDING, "failed", data, due_at=at, attempts=attempts, error=blob)


_FROM_CHECKPOINT: Any = object()


@dataclass(frozen=True)
class Returned:
    """LangGraph came to an end, or to a wait."""

    output: Any = _FROM_CHECKPOINT


@dataclass(frozen=True)
class Raised:
    """LangGraph did not."""

    error: BaseException


def _tell(row: RunRow, end: End) -> None:
    """Say in the log what a person may have to look at."""
    place = f"run {row.id} of {row.graph!r} on thread {row.thread_id!r}"
    about = {"run_id": row.id}  # for handlers that show runs otherwise
    if end.state is State.HELD:
        log.warning("%s is held: %s", place, end.reason, extra=about)
    elif end.kind == "failed":
        told = f"{end.data['kind']}: {end.data['message']}"
        if end.state is State.FAILED:
            log.warning("%s failed: %s", place, told, extra=about)
        else:
            at = end.data["retry_at"]
            log.warning("%s failed and is retried at %s: %s", place, at, told, extra=about)


def breakpoint_id(at: CheckpointTuple) -> str:
    return f"breakpoint:{at.checkpoint['id']}"


def _is_breakpoint(wait: WaitRow) -> bool:
    return wait.interrupt_id.startswith("breakpoint:")


def told_to_stop(control: str, now: int, attempts: int, **data: Any) -> End:
    """The end of a segment that was told to stop."""
    if control == "cancel":
        return End(State.CANCELLED, "cancelled", data)
    # The row knows whether it is still to pause; if that was taken back by now, it is due.
    return End(State.PAUSED, "paused", data, due_at=now, attempts=attempts)


def _config(row: RunRow, setup: Mapping[str, Any], segment: Segment) -> RunnableConfig:
    given = dict(setup.get("config") or {})
    configurable = {
        **(given.pop("configurable", None) or {}),
        "thread_id": row.thread_id,
        "run_id": row.id,
        KEY: segment.name,
    }
    config: dict[str, Any] = {
        **given,
        "configurable": configurable,
        "metadata": {
            **(given.get("metadata") or {}),
            **(setup.get("metadata") or {}),
            **segment.labels,
        },
        "tags": [*(given.get("tags") or ()), *tags_of(row, setup)],
    }
    return cast(RunnableConfig, config)


def _place_config(drive: Drive, wait: WaitRow) -> RunnableConfig:
    return {
        "configurable": {
            "thread_id": wait.thread_id,
            "checkpoint_ns": wait.ns,
            "checkpoint_id": wait.checkpoint_id,
            KEY: drive.segment.name,
        }
    }


def _changed(name: str, ns: str, lost: list[str], old: Any, new: Any) -> End:
    where = f" in its subgraph {ns.partition(':')[0]!r}" if ns else ""
    gone, came = sorted(old.keys() - new.keys()), sorted(new.keys() - old.keys())
    reason = (
        f"the graph {name!r} changed{where}: the run would go on at {', '.join(map(repr, lost))}, "
        f"which it can no longer reach (nodes removed: {', '.join(gone) or 'none'}; added: "
        f"{', '.join(came) or 'none'}). Bring the node back and retry the run, or fork it"
    )
    data = {"reason": reason, "lost": lost, "removed": gone, "added": came}
    return End(State.HELD, "held", data, reason=reason)


def is_resume(input: Any) -> bool:
    """Whether an input is LangGraph's way to answer an interrupt."""
    return isinstance(input, Command) and input.resume is not None
