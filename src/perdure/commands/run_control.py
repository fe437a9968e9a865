"""Cancel, pause, resume, retry and wake runs; comment on them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

from perdure.commands import effects, messages, waits
from perdure.commands.answering import end_sleeps
from perdure.commands.connection import Connection
from perdure.commands.events import (
    WAKE_JOINERS,
    Change,
    actor_data,
    change,
    stop_children,
    was_made,
)
from perdure.commands.run_reads import find_row, get
from perdure.commands.runs import maybe_control, names_in_pieces
from perdure.commands.waits import WaitRow
from perdure.errors import BadArgument, NotFound, WrongState
from perdure.journal import (
    EventStatement,
    Op,
    Plan,
    Statement,
    all_rows,
    changed,
    read_together,
    with_params,
)
from perdure.journal.names import check_id, check_text, maybe_id, maybe_text
from perdure.serde.serializer import Serializer
from perdure.types import ENDED, Control, EffectState, EventKind, Kind, Run, State, WaitState
from perdure.verbs import GRACE, Recorded, call_number, recorded, verb

_STOPS = {
    Control.CANCEL: (State.CANCELLED, EventKind.CANCELLING, EventKind.CANCELLED),
    Control.PAUSE: (State.PAUSED, EventKind.PAUSING, EventKind.PAUSED),
}
"""The state of a run once it was stopped, and the events that say that it was asked to, and that
it has."""


def request_stop(
    serializer: Serializer,
    made: Change,
    control: Control,
    grace: int,
    *,
    reason: str | None = None,
    by: str | None = None,
    effects: Mapping[str, Any] | None = None,
    undo: bool = False,
) -> Op[bool]:
    """Cancel or pause a run. False if its state does not allow that. With `undo` its checkpoints
    are to be deleted once it has ended."""
    reason = serializer.redacted_text(reason)
    details = {"reason": reason, **actor_data(by), **(effects or {})}
    data = {name: value for name, value in details.items() if value}
    state, asked, kind = _STOPS[control]
    params = {
        **made.params,
        "control": control.value,
        "control_at": made.now + grace,
        "state": state.value,
        "undo": int(undo),
        "reason": reason,
        "asked": asked.value,
        "kind": kind.value,
        "body": made.body(serializer, (asked, kind), data),
    }
    statements = [
        *with_params(params, "lock_thread", "stop_run"),
        EventStatement("insert_stop_events", params, data),
        *with_params(params, "trace_changed", "close_waits", "make_next_due"),
    ]
    if control is Control.CANCEL:
        statements += [*with_params(params, *WAKE_JOINERS), messages.announce_ends(made)]
        statements += stop_children(serializer, made, grace)
    return Op(
        control.value,
        statements,
        changed(1),
        write=True,
        key=made.key,
    )


def make_run_due(
    serializer: Serializer,
    made: Change,
    states: Sequence[State],
    kind: EventKind,
    by: str | None = None,
) -> Op[bool]:
    """Make a run due that is in one of these states. False if it is in another."""
    names = json.dumps([state.value for state in states])
    params = {**made.params, "names": names, "decision": None}
    is_retry = kind is EventKind.RETRIED
    return Op(
        kind.value,
        [
            *with_params(params, "lock_thread", "lock_runs", "continue_run"),
            *([Statement("unpause", params)] if State.PAUSED in states else []),
            *(with_params(params, "retry_effects", "reopen_joins") if is_retry else []),
            made.event(serializer, kind, actor_data(by)),
            Statement("requeue_later", params),
        ],
        lambda rows: any(rows[2:4] if len(rows) > 1 else rows),
        write=True,
        key=made.key,
    )


@verb(effect=True)
def wake(on: Connection, run_id: str, *, by: str | None = None) -> Plan[Run]:
    """End every current sleep of a run now.

    It is one commit. Questions, signals, joins and the pause before an effect is retried are
    not sleeps, and stay.

    Args:
        run_id: The id of the run.
        by: Who wakes it; recorded in the `woke` event.

    Returns:
        The run as it is now.

    Raises:
        WrongState: The run is not asleep.
        NotFound: The journal has no run with this id.
    """
    number = call_number()
    run = yield from find_row(on, run_id)
    if not (yield from was_made(run.thread_id, run.id, number)):
        maybe_text("by", by)
        rows: list[WaitRow] = yield waits.of_run(run.id)
        # The pause before an effect is retried is the effect's, not a sleep of a task.
        sleeps = [row for row in rows if row.kind == Kind.CLOCK and row.task_id]
        asleep = [row for row in sleeps if row.state == WaitState.OPEN]
        if not asleep or not (yield end_sleeps(on.serializer, asleep, by, on.clock.now(), number)):
            raise WrongState(run.id, run.state, "be woken", "it is not asleep.")
    on.wake()
    return (yield from get.plan(on, run_id))


# -- cancelling and pausing


def stop_run(
    on: Connection,
    run_id: str,
    control: Control,
    grace: timedelta,
    *,
    reason: str | None = None,
    by: str | None = None,
    number: int | None = None,
    undo: bool = False,
) -> Plan[None]:
    """Cancel or pause a run: at once, or by asking its driver. The same `number` does so
    once. With `undo` its checkpoints are to be deleted once it has ended."""
    row = yield from find_row(on, run_id)
    if (yield from was_made(row.thread_id, row.id, number)):
        return
    called = (yield effects.of_run(row.id)) if control is Control.CANCEL else []
    is_stopped = yield request_stop(
        on.serializer,
        change(row.thread_id, row.id, on.clock.now(), number),
        control,
        round(grace.total_seconds() * 1000),
        effects=effects.report(called),
        reason=reason,
        by=by,
        undo=undo,
    )
    row = yield from find_row(on, run_id)
    state, action = _STOPS[control][0], RunAction(control.value)
    if not is_stopped and row.state != state:
        why = why_not_stopped(State(row.state), maybe_control(row.control), action)
        why = why or "it is being cancelled"
        raise WrongState(row.id, row.state, f"be {state.value}", f"{why}.")


_DUE = {
    EventKind.RESUMED: ((State.PAUSED,), "only a paused run can."),
    EventKind.RETRIED: (
        (State.FAILED, State.HELD),
        "only a failed or held run can, if no later run of its thread has begun.",
    ),
}
"""By the event that says so: which runs it makes due, and why others are not."""


def make_due(
    on: Connection, run_id: str, kind: EventKind, by: str | None, number: int | None
) -> Plan[None]:
    """Make a run that was paused, failed or held due. The same `number` does so once."""
    states, why = _DUE[kind]
    maybe_text("by", by)
    row = yield from find_row(on, run_id)
    if (yield from was_made(row.thread_id, row.id, number)):
        return
    made = change(row.thread_id, row.id, on.clock.now(), number)
    if not (yield make_run_due(on.serializer, made, states, kind, by)):
        row = yield from find_row(on, run_id)
        raise WrongState(run_id, row.state, f"be {kind.value}", why)


@verb(effect=True)
def comment(
    on: Connection, run_id: str, text: str, *, wait_id: str | None = None, by: str | None = None
) -> Plan[None]:
    """Add a comment to the history of a run, even after its end.

    It is a `comment` event in the run's history, is shown on the run's page, and changes nothing
    else.

        await client.comment(run.id, "Asked finance.", wait_id=wait.id, by="ana")

    Args:
        run_id: The id of the run.
        text: The comment, up to 64 KiB.
        wait_id: A question of the run that the comment is about.
        by: Who comments.

    Raises:
        NotFound: The journal has no such run, or the run has no such wait.
        BadArgument: The text is empty.
    """
    run_id, wait_id, number = check_id("run", run_id), maybe_id("wait", wait_id), call_number()
    if not check_text("comment", text).strip():
        raise BadArgument("A comment must not be empty.")
    maybe_text("by", by)
    row = yield from find_row(on, run_id)
    if (yield from was_made(row.thread_id, row.id, number)):
        return
    if wait_id is not None:
        wait: WaitRow | None = yield waits.find(wait_id)
        if wait is None or wait.run_id != row.id:
            raise NotFound(f"wait of run {row.id}", wait_id)
    made = change(row.thread_id, row.id, on.clock.now(), number)
    data = {**({"wait": wait_id} if wait_id else {}), "text": text, **actor_data(by)}
    is_stored = yield Op(
        "comment",
        [
            Statement("record_note", {**made.params, "name": None, "about": None}),
            made.event(on.serializer, EventKind.COMMENT, data),
            made.key,
        ],
        lambda rows: bool(rows[-1]),
        write=True,
        key=made.key,
    )
    if not is_stored:  # the run was deleted
        raise NotFound("run", run_id)


@verb()
async def pause(
    on: Connection, run_id: str, *, grace: timedelta = GRACE, by: str | None = None
) -> Run:
    """Pause a run until `resume`.

    A run that is not driven is paused at once. If a worker drives it, it stops after its
    current step, or in the middle of the step once `grace` has passed; that step then runs
    again on `resume`. Pausing a paused run changes nothing.

    Args:
        run_id: The id of the run.
        grace: How long the current step may continue, 10 seconds by default.
        by: Who pauses it; it is in the event.

    Returns:
        The run as it is now: `paused`, or still `running` until its step has ended.

    Raises:
        WrongState: The run has ended, is held, or is being cancelled. Nothing was changed.
        NotFound: The journal has no run with this id.
    """
    return await _stop(on, Control.PAUSE, run_id, grace, None, by)


@verb()
async def cancel(
    on: Connection,
    run_id: str,
    *,
    grace: timedelta = GRACE,
    reason: str | None = None,
    by: str | None = None,
) -> Run:
    """End a run for good, with the runs that it started.

    A run that is not driven ends at once. If a worker drives it, it ends after its current
    step, or in the middle of the step once `grace` has passed: a coroutine is cancelled, and a
    thread that is blocked is abandoned, since Python cannot kill it; its writes are refused.
    Effects with a compensation are undone before the run ends, in reverse order; until a worker
    has done so the run is `pending`. If that worker dies, the next one finishes. Children, and
    theirs, are cancelled in the same commit, except those that were told to continue.

        await client.cancel(run.id, reason="the customer left", by="ana")

    The exceptions were started with `on_parent_cancel="leave"`.

    Args:
        run_id: The id of the run.
        grace: How long the current step may continue, 10 seconds by default.
        reason: Why; kept with the run and in the event.
        by: Who cancels it; it is in the event.

    Returns:
        The run as it is now: `cancelled`, or not yet.

    Raises:
        WrongState: The run is `done` or `failed`. Nothing was changed.
        NotFound: The journal has no run with this id.
    """
    return await _stop(on, Control.CANCEL, run_id, grace, reason, by)


@verb(effect=True, without=("by",))
def resume(on: Connection, run_id: str, *, by: str | None = None) -> Plan[Run]:
    """Resume a paused run.

    Args:
        run_id: The id of the run.
        by: Who resumes it; it is in the event.

    Returns:
        The run as it is now, `pending`.

    Raises:
        WrongState: The run is not paused.
        NotFound: The journal has no run with this id.
    """
    yield from make_due(on, check_id("run", run_id), EventKind.RESUMED, by, call_number())
    on.wake()
    return (yield from get.plan(on, run_id))


@verb(effect=True, without=("by",))
def retry(on: Connection, run_id: str, *, by: str | None = None) -> Plan[Run]:
    """Try a failed or held run again, from its last step.

    The count of attempts starts again. Effects that failed are called again; effects that are
    done stay done, and unknown ones must be settled first. Two kinds of failed effects are not
    called again: those that a person settled with `fail`, and those whose result could not be
    stored.

    Args:
        run_id: The id of the run.
        by: Who retries it; it is in the event.

    Returns:
        The run as it is now, `pending`.

    Raises:
        WrongState: The run is neither failed nor held, or a later run of its thread has begun.
        NotFound: The journal has no run with this id.
    """
    yield from make_due(on, check_id("run", run_id), EventKind.RETRIED, by, call_number())
    on.wake()
    return (yield from get.plan(on, run_id))


def _recorded_stop(
    control: Control,
) -> Recorded[[str, timedelta, str | None, str | None], None]:
    @recorded(control.value)
    def stop(
        on: Connection, run_id: str, grace: timedelta, reason: str | None, by: str | None
    ) -> Plan[None]:
        number = call_number()
        yield from stop_run(on, run_id, control, grace, reason=reason, by=by, number=number)

    return stop


_RECORDED = {control: _recorded_stop(control) for control in Control}


async def _stop(
    on: Connection,
    control: Control,
    run_id: str,
    grace: timedelta,
    reason: str | None,
    by: str | None,
) -> Run:
    await _RECORDED[control](on, check_id("run", run_id), grace, reason, by)
    stopped = await on.journal.arun(get.plan(on, run_id))
    if stopped.state is State.RUNNING:
        on.stop(run_id, control)
    on.wake(stopped=control is Control.CANCEL)  # its children may be driven here
    return stopped


# -- what an action would do


class RunAction(StrEnum):
    """An action on a run."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"
    RETRY = "retry"

    @property
    def done(self) -> str:
        """The past participle: `cancelled`."""
        return _DONE[self]


_DONE = {
    RunAction.PAUSE: "paused",
    RunAction.RESUME: "resumed",
    RunAction.CANCEL: "cancelled",
    RunAction.RETRY: "retried",
}


@dataclass(frozen=True)
class Stakes:
    """What an action on a run affects besides the run itself."""

    control: Control | None = None
    """What the run was asked to do after its current step."""
    undoable: tuple[str, ...] = ()
    """Names of the effects that a cancellation undoes."""
    failed: tuple[str, ...] = ()
    """Names of the effects that a retry calls again."""
    unknown: tuple[str, ...] = ()
    """Names of effects with an unknown outcome."""
    children: int = 0
    """Number of unfinished descendants that are cancelled with it."""
    is_passed: bool = False
    """Whether a later run of its thread has begun."""


def read_stakes(of: Sequence[Run]) -> Plan[list[tuple[Run, Stakes]]]:
    """These runs with what is at stake, in one read. Deleted runs are left out."""
    if not of:
        return []
    pieces = names_in_pieces(run.id for run in of)
    names = ("runs_at_stake", "children_at_stake", "effects_at_stake")
    every = (Op(name, [Statement(name, ids) for ids in pieces], all_rows) for name in names)
    rows, trees, called = yield read_together("at_stake", *every)
    known = {id: (control, is_passed) for id, control, is_passed in rows}
    children = {root: int(number) for root, number in trees}
    effects: dict[str, dict[str, tuple[str, ...]]] = {}
    for run_id, state, name in called:
        own = effects.setdefault(run_id, {})
        own[state] = (*own.get(state, ()), name)

    def stakes(id: str, control: str | None, is_passed: int) -> Stakes:
        own = effects.get(id, {})
        return Stakes(
            maybe_control(control),
            undoable=own.get(EffectState.DONE, ()),
            failed=own.get(EffectState.FAILED, ()),
            unknown=own.get(EffectState.OPEN, ()) + own.get(EffectState.UNKNOWN, ()),
            children=children.get(id, 0),
            is_passed=bool(is_passed),
        )

    return [(run, stakes(run.id, *known[run.id])) for run in of if run.id in known]


def why_not_stopped(state: State, control: Control | None, action: RunAction) -> str:
    """Why a run cannot be cancelled or paused."""
    if state in ENDED:
        return "it has ended"
    if action is RunAction.PAUSE and state is State.HELD:
        return "it is held already, until it is retried or cancelled"
    if control is Control.CANCEL and state is not State.HELD:
        return "it is being cancelled"
    if action is RunAction.PAUSE and state is State.PAUSED:
        return "it is paused already"
    return ""
