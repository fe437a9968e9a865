"""The end of a segment: what its outcome means for the run, stored in one batch with its event."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from langgraph.errors import EmptyInputError, GraphDrained, GraphRecursionError, InvalidUpdateError

from perdure.commands import claims, effects, runs
from perdure.commands.claims import SegmentEnd
from perdure.commands.effect_payload import describe, is_recorded
from perdure.commands.effects import EffectRow, Mark, report
from perdure.commands.evaluation_policy import evaluation_of
from perdure.commands.events import change, redacted_data
from perdure.commands.runs import RunRow, dump_error, dump_output, load_setup
from perdure.commands.waits import Question
from perdure.commands.webhooks import Endpoint
from perdure.errors import (
    UNREADABLE,
    BadArgument,
    EffectHeld,
    EffectRefused,
    Expired,
    JoinFailed,
    LeaseLost,
    NotDurable,
    NotInRun,
    OrderChanged,
    Postponed,
    TooLarge,
    TypeNotAllowed,
    Unavailable,
    Unserializable,
    Unsupported,
    WaitCaught,
    WriteLost,
)
from perdure.execution.drive import (
    FROM_CHECKPOINT,
    Drive,
    Driver,
    Ended,
    Outcome,
    Raised,
    Returned,
    StopReason,
    latest_checkpoint,
    stop_at_breakpoint,
)
from perdure.execution.segment import Segment
from perdure.execution.segment_start import held, held_by_error
from perdure.journal import Plan
from perdure.times import moment
from perdure.types import EffectState, EventKind, Kind, State

log = logging.getLogger("perdure")

MAX_STORED_OUTPUT = 16 * 1024
"""Bytes of output that are stored in the run's row; a larger one is read from its checkpoint."""
FINAL = (
    BadArgument,
    EffectRefused,
    Expired,
    JoinFailed,
    NotDurable,
    NotInRun,
    Unserializable,
    TooLarge,
    Unsupported,
    GraphRecursionError,
    InvalidUpdateError,
    EmptyInputError,
)
"""Errors that a retry would only raise again."""


def finish_segment(driver: Driver, drive: Drive, outcome: Outcome) -> Plan[Ended]:
    """End a segment after LangGraph returned or raised."""
    drive.ending = True
    while drive.is_busy and not drive.is_lost:
        yield 0.01  # an effect of a node that was cancelled: its outcome is worth waiting for
    drive.closing = True
    if drive.stream is not None and not drive.is_lost:
        drive.stream.close()  # before the end, which is what readers wait for
    if drive.signal is not None and not drive.is_lost:
        outcome = Raised(drive.signal)  # also if the agent's code swallowed it
    error = outcome.error if isinstance(outcome, Raised) else None
    if drive.is_lost or isinstance(error, LeaseLost):
        return Ended.LOST
    if isinstance(outcome, Raised):
        end = yield from _after_error(drive, outcome.error)
    else:
        try:
            end = yield from _after_return(drive, outcome)
        except (Unserializable, TypeNotAllowed, TooLarge, WriteLost) as refused:
            end = yield from _after_error(drive, refused)
    if end.state is State.FAILED and not drive.inline:
        end = (yield from _held_by_unknown(drive)) or end
    if drive.stop is StopReason.CANCEL and end.kind is EventKind.RELEASED:
        end = end._replace(data=report((yield effects.of_run(drive.row.id))))
    end = end._replace(saved=drive.progress.take_saved())
    ended, lost = None, None
    while ended is None:
        try:
            ended = yield from end_segment(driver, drive.row, end, after=None if lost else drive)
        except WriteLost:  # raised once: for a write of this segment, or of another run
            if lost is None and (lost := drive.lost_write()) is not None:
                end = yield from _after_error(drive, lost)
    if lost is not None and drive.inline:
        raise lost
    return ended


def end_segment(
    driver: Driver, row: RunRow, end: SegmentEnd, *, after: Segment | None = None
) -> Plan[Ended]:
    """End a segment as decided: `after` it, only if all that it wrote is stored."""
    if driver.serializer.redacts:
        data, reason = redacted_data(driver.serializer, end.data), end.reason
        end = end._replace(data=data, reason=driver.serializer.redacted_text(reason))
    sinks = driver.observers.sinks
    op = claims.end_segment(
        driver.serializer,
        change(row.thread_id, row.id, driver.clock.now()),
        row.token,
        end,
        sinks,
        has_webhook=row.webhook is not None,
        endpoints=_told(driver, row, end.state),
    )
    if not (yield op._replace(prepare=None if after is None else after.check_stored)):
        return Ended.LOST
    driver.observers.call("nudge")
    _log_end(row, end)
    return Ended.RELEASED if end.state is State.PENDING else Ended(end.state.value)


def _told(driver: Driver, row: RunRow, state: State) -> list[Endpoint]:
    """The endpoints that are told of this state of a run. A run of an evaluation tells none."""
    endpoints = [one for one in driver.outbox.endpoints if state in one.states]
    if endpoints:
        with contextlib.suppress(*UNREADABLE):
            if evaluation_of(load_setup(driver.serializer, row)) is not None:
                return []
    return endpoints


# -- LangGraph returned


def _after_return(drive: Drive, outcome: Returned) -> Plan[SegmentEnd]:
    if drive.questions.reached_top:
        return SegmentEnd(State.WAITING, EventKind.WAITING, {})
    if drive.has_breakpoints:
        stopped = yield from stop_at_breakpoint(drive)
        if stopped is not None:
            return stopped
    return (yield from _held_by_abandoned(drive)) or (yield from _done(drive, outcome))


def _done(drive: Drive, outcome: Returned) -> Plan[SegmentEnd]:
    output = outcome.output
    if output is FROM_CHECKPOINT:
        at = yield from latest_checkpoint(drive.saver, drive.row.thread_id)
        output = None if at is None else drive.graph.output(at)
    too_large: TooLarge | None = None
    try:
        blob = dump_output(drive.serializer, drive.row, [output])
    except TooLarge as error:
        blob, too_large = b"", error
    if too_large or len(blob) > MAX_STORED_OUTPUT:
        at = yield from latest_checkpoint(drive.saver, drive.row.thread_id)
        if at is not None:
            channels = drive.graph.pregel.output_channels
            names = channels if isinstance(channels, str) else list(channels)
            stored = at.checkpoint["channel_values"]
            rest = {}  # an empty channel may have a value that is not in the checkpoint
            if isinstance(output, dict) and not isinstance(channels, str):
                rest = {name: output[name] for name in output if name not in stored}
            place = [at.checkpoint["id"], names, rest]
            blob = dump_output(drive.serializer, drive.row, place)
        elif too_large:
            raise too_large
    return SegmentEnd(State.DONE, EventKind.DONE, {}, output=blob)


# -- LangGraph raised


def _after_error(drive: Drive, error: BaseException) -> Plan[SegmentEnd]:
    if isinstance(error, Postponed):
        return (yield from _postponed(drive, error))
    if isinstance(error, EffectHeld):
        return _held(error, (yield from _unknown(drive)))
    if isinstance(error, WaitCaught):
        log.warning("run %s waits anyway: %s", drive.row.id, error)
        data = {"caught_in": error.node}
        return SegmentEnd(State.WAITING, EventKind.WAITING, data, in_step=True)
    now, attempts = drive.clock.now(), drive.progress.attempts
    if isinstance(error, OrderChanged):
        about = {"effect": error.effect, "key": error.key}
        return released(now, max(0, attempts - 1), **about)
    left = not isinstance(error, Exception) and (drive.stop is not None or drive.inline)
    away = isinstance(error, Unavailable) and not drive.inline
    is_stopped = drive.stop in (StopReason.CANCEL, StopReason.PAUSE)
    if isinstance(error, GraphDrained) or left or away or is_stopped:
        # Drained, cancelled with its task, its reader left, or the journal was away: another
        # worker goes on, unless the row says that the run was cancelled or paused.
        return released(now, max(0, attempts - 1))
    if isinstance(error, UNREADABLE):
        return held_by_error(error)
    attempts = yield from _attempts(drive)
    elsewhere = isinstance(error, asyncio.CancelledError)  # its event loop ended
    if isinstance(error, WriteLost) and not drive.inline:
        elsewhere = drive.lost_write() is None
    if elsewhere and attempts < drive.graph.deaths:
        return released(now, attempts)  # perhaps because of another run
    return failed(drive, error, attempts)


def _attempts(drive: Drive) -> Plan[int]:
    """Attempt number at the current step, by what is on disk. A step that was made but could
    not be stored is no progress, and its failure counts."""
    if not drive.progress.has_moved:
        return drive.row.attempts
    while True:
        with contextlib.suppress(WriteLost):  # raised once
            row: RunRow | None = yield runs.find(drive.row.id)
            break
    mine = row is not None and row.token == drive.row.token
    return row.attempts if row is not None and mine else drive.row.attempts


def failed(drive: Drive, error: BaseException, attempts: int) -> SegmentEnd:
    """The end of a segment that raised in this attempt: for good, or to be retried."""
    retry = drive.graph.retry
    described = describe(drive.serializer, error, drive.secrets)
    blob = dump_error(drive.serializer, drive.row, described)
    data: dict[str, Any] = described | {"attempts": attempts}
    over = isinstance(error, FINAL) or is_recorded(error) or retry.is_over(attempts, error)
    if not drive.inline and not over:
        at = drive.clock.now() + round(retry.pause(attempts).total_seconds() * 1000)
        data["retry_at"] = moment(at)
        end = SegmentEnd(State.PENDING, EventKind.FAILED, data, due_at=at)
    elif drive.graph.hold and not drive.inline:
        end = held(f"{described['kind']}: {described['message']}", **data, final=True)
    else:
        end = SegmentEnd(State.FAILED, EventKind.FAILED, data | {"final": True})
    return end._replace(attempts=attempts, error=blob)


# -- effects


def _postponed(drive: Drive, error: Postponed) -> Plan[SegmentEnd]:
    """An effect is retried later. Until then the run waits for the clock, unless the outcome
    of another effect is unknown: that holds it."""
    end = yield from _held_by_unknown(drive, f"and {error.effect!r} is retried later")
    if end is not None:
        return end
    data = {"effect": error.effect, "key": error.key, "attempt": error.attempt}
    yield drive.questions.ask_for_run(
        Question(Kind.CLOCK, wake_at=error.until),
        {**data, "wake_at": moment(error.until).isoformat()},
        f"effect:{error.key}",
    )
    return SegmentEnd(State.WAITING, EventKind.POSTPONED, data, in_step=True)


def _held_by_abandoned(drive: Drive) -> Plan[SegmentEnd | None]:
    """Hold a run that reached its end without returning to an effect that was cut off."""
    if not drive.row.begun:
        return None
    found: list[EffectRow] = yield effects.of_run(drive.row.id)
    if any(row.state == EffectState.OPEN and row.mark != Mark.MAY_STAY_OPEN for row in found):
        yield effects.abandon(drive.owner, drive.clock.now())
    elif not any(row.state == EffectState.UNKNOWN for row in found):
        return None
    return (yield from _held_by_unknown(drive))


def _held_by_unknown(
    drive: Drive, why: str = "the run went on without it"
) -> Plan[SegmentEnd | None]:
    """Hold a run that has effects with an unknown outcome, whatever else happened."""
    unknown = yield from _unknown(drive)
    return _held(EffectHeld(unknown[0].key, unknown[0].name, why), unknown) if unknown else None


def _held(error: EffectHeld, unknown: list[EffectRow]) -> SegmentEnd:
    """Hold a run until a person settles each of its unknown effects."""
    keys = list(dict.fromkeys([*(row.key for row in unknown), error.key]))
    others = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
    return held(f"{error}{others}", effects=keys)


def _unknown(drive: Drive) -> Plan[list[EffectRow]]:
    found: list[EffectRow] = yield effects.of_run(drive.row.id)
    return [row for row in found if row.state == EffectState.UNKNOWN]


def released(now: int, attempts: int, **data: Any) -> SegmentEnd:
    """The end of a segment whose run another worker goes on with."""
    return SegmentEnd(State.PENDING, EventKind.RELEASED, data, due_at=now, attempts=attempts)


def _log_end(row: RunRow, end: SegmentEnd) -> None:
    """Log what a person may have to look at."""
    about = {"run_id": row.id}  # for handlers that show runs otherwise
    run = f"run {row.id} of {row.graph!r} on thread {row.thread_id!r}"
    if end.state is State.HELD:
        log.warning("%s is held: %s", run, end.reason, extra=about)
    elif end.kind is EventKind.FAILED:
        error = f"{end.data['kind']}: {end.data['message']}"
        if end.state is State.FAILED:
            log.warning("%s failed: %s", run, error, extra=about)
        else:
            at = end.data["retry_at"]
            log.warning("%s failed and is retried at %s: %s", run, at, error, extra=about)
