"""What changes a run that others drive: stop it, make it due, release it. Pure, no I/O.

The statement that decides each race is named in `runs.py`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from perdure.commands import messages
from perdure.commands.events import Change, actor_data, change, dump_event
from perdure.commands.runs import RunRow, names_in_pieces
from perdure.journal import EventStatement, Op, Rows, Statement, with_params
from perdure.journal.names import random_number
from perdure.serde.serializer import Serializer
from perdure.types import Control, EventKind, State

GAVE_UP = "its caller went away"
"""The reason of a run that only its caller would have driven."""


class AtStake(NamedTuple):
    """What cancelling or retrying a run affects besides it."""

    control: str | None
    is_passed: bool
    """Whether a later run of its thread has begun."""
    children: int
    """Number of unfinished runs that are cancelled with it."""
    effects: tuple[tuple[str, str], ...]
    """State and name of its effects: done ones can be undone."""


def stop_thread(
    serializer: Serializer,
    by: Change,
    key: str | None,
    only: str | None,
    undo: bool,
    grace: int,
    *,
    alone: bool = False,
) -> list[Statement]:
    """Cancel the earlier runs of a thread, for the batch of the run that takes it over. If it is to
    be `alone`, one run is cancelled at most, and none if others are under way too."""
    number, data = random_number(), {"by": by.run_id}
    params = {
        **by.params,
        "id": None,
        "change": number,
        "key": key,
        "only": only,
        "alone": int(alone),
        "undo": int(undo),
        "control_at": by.now + grace,
        "reason": f"run {by.run_id} took the thread over",
        "asked": EventKind.CANCELLING.value,
        "kind": EventKind.CANCELLED.value,
        "body": dump_event(
            serializer,
            number,
            by.now,
            (EventKind.CANCELLING, EventKind.CANCELLED),
            data,
            by.thread_id,
        ),
    }
    return [
        Statement("stop_thread", params),
        EventStatement("insert_stop_events", params, data),
        *with_params(params, "trace_changed", "close_waits"),
        *wake_joiners(by.params),
        messages.announce_ends(change(by.thread_id, by.run_id, by.now, number)),
        *stop_children(serializer, change(by.thread_id, "", by.now, number), grace),
    ]


def wake_joiners(params: Mapping[str, Any]) -> list[Statement]:
    """Wake the runs that wait for one of a thread, for a batch that ends some of them."""
    return with_params(params, "lock_joiners", "wake_joiners")


def stop_children(serializer: Serializer, by: Change, grace: int) -> list[Statement]:
    """Cancel the children of the run, or runs, that a change cancels, for its batch."""
    number = random_number()
    reason = parent_cancelled(by.run_id) if by.run_id else "its parent run was cancelled"
    data = {"reason": reason}
    params = {
        **by.params,
        "by": by.number,
        "change": number,
        "control_at": by.now + grace,
        "reason": reason,
        "kind": EventKind.CANCELLING.value,
        "body": dump_event(serializer, number, by.now, [EventKind.CANCELLING], data),
    }
    return [
        Statement("stop_descendants", params),
        EventStatement("insert_descendant_events", params, data),
    ]


def parent_cancelled(run_id: str) -> str:
    """Why a child is cancelled."""
    return f"its parent, run {run_id}, was cancelled"


def supersede(serializer: Serializer, by: Change) -> Op[None]:
    """Cancel the run before this one, if it waits."""
    return Op(
        "supersede",
        [
            Statement("lock_thread", by.params),
            *stop_thread(serializer, by, None, State.WAITING.value, False, 0),
            Statement("make_next_due", by.params),
        ],
        lambda rows: None,
        write=True,
    )


def reserve(row: RunRow, until: int) -> Op[None]:
    """Reserve a run for the caller that waits to drive it."""
    params = {"thread_id": row.thread_id, "id": row.id, "until": until}
    return Op("reserve", [Statement("reserve_run", params)], lambda rows: None, write=True)


def withdraw(serializer: Serializer, made: Change, worker: str | None = None) -> Op[bool]:
    """Cancel a run that only its call would drive, and has not begun: with the call, which was made
    by this worker; or once it is reserved no longer. False: it was begun, or has ended."""
    reason = serializer.redacted_text(GAVE_UP)
    params = {**made.params, "worker": worker, "reason": reason}
    return Op(
        "withdraw",
        [
            *with_params(params, "lock_thread", "withdraw_run"),
            made.event(serializer, EventKind.CANCELLED, {"reason": reason}),
            *with_params(params, "trace_changed", "make_next_due"),
            *wake_joiners(params),
            messages.announce_ends(made),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def at_stake(run_ids: Iterable[str]) -> Op[dict[str, AtStake]]:
    """What cancelling or retrying each of these runs affects besides it, by run."""
    names = ("runs_at_stake", "children_at_stake", "effects_at_stake")
    pieces = names_in_pieces(run_ids)
    statements = [Statement(name, piece) for name in names for piece in pieces]

    def result(rows: Rows) -> dict[str, AtStake]:
        size = len(pieces)
        every, trees, effects = (
            [row for some in rows[start : start + size] for row in some]
            for start in range(0, len(statements), size)
        )
        children = {root: int(number) for root, number in trees}
        touched: dict[str, list[tuple[str, str]]] = {}
        for run_id, state, name in effects:
            touched.setdefault(run_id, []).append((state, name))
        return {
            id: AtStake(control, bool(passed), children.get(id, 0), tuple(touched.get(id, ())))
            for id, control, passed in every
        }

    return Op("at_stake", statements, result)


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
    is_cancel = control is Control.CANCEL
    reason = serializer.redacted_text(reason)
    given = {"reason": reason, **actor_data(by), **(effects or {})}
    data = {name: value for name, value in given.items() if value}
    asked = EventKind.CANCELLING if is_cancel else EventKind.PAUSING
    kind = EventKind.CANCELLED if is_cancel else EventKind.PAUSED
    params = {
        **made.params,
        "control": control.value,
        "control_at": made.now + grace,
        "state": stopped_state(control).value,
        "undo": int(undo),
        "reason": reason,
        "asked": asked.value,
        "kind": kind.value,
        "body": made.body(serializer, (asked, kind), data),
    }
    return Op(
        control.value,
        [
            *with_params(params, "lock_thread", "stop_run"),
            EventStatement("insert_stop_events", params, data),
            *with_params(params, "trace_changed", "close_waits", "make_next_due"),
            *(_after_cancel(serializer, made, grace) if is_cancel else ()),
        ],
        lambda rows: bool(rows[1] if len(rows) > 1 else rows[0]),
        write=True,
        key=made.key,
    )


def _after_cancel(serializer: Serializer, made: Change, grace: int) -> list[Statement]:
    """Tell those that a cancelled run concerns, for its batch."""
    told = [*wake_joiners(made.params), messages.announce_ends(made)]
    return told + stop_children(serializer, made, grace)


def stopped_state(control: Control) -> State:
    """The state of a run once it has been cancelled or paused."""
    return State.CANCELLED if control is Control.CANCEL else State.PAUSED


def make_due(
    serializer: Serializer,
    made: Change,
    states: Sequence[State],
    kind: EventKind,
    by: str | None = None,
) -> Op[bool]:
    """Make a run due that is in one of these states. False if it is in another."""
    params = {**made.params, "names": json.dumps([state.value for state in states])}
    params["decision"] = None
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


def release(
    serializer: Serializer, decided: Change, states: Sequence[State], kind: EventKind
) -> list[Statement]:
    """The statements that make a run due that is in one of these states, once a person's decision
    was made and none of its effects is unknown, for the batch of that decision."""
    made = change(decided.thread_id, decided.run_id, decided.now)
    params = {**made.params, "names": json.dumps([*states]), "decision": decided.number}
    return [
        Statement("continue_run", params),
        *(
            with_params(params, "retry_effects", "reopen_joins")
            if kind is EventKind.RETRIED
            else []
        ),
        made.event(serializer, kind),
        *([Statement("requeue_later", params)] if State.FAILED in states else []),
    ]


def store_comment(
    serializer: Serializer, made: Change, text: str, wait_id: str | None, by: str | None
) -> Op[bool]:
    """Add a person's comment to the history of a run, optionally about one of its questions. False:
    the run was deleted."""
    data = {**({"wait": wait_id} if wait_id else {}), "text": text, **actor_data(by)}
    return Op(
        "comment",
        [
            Statement("count_note", {**made.params, "name": None, "about": None}),
            made.event(serializer, EventKind.COMMENT, data),
            made.key,
        ],
        lambda rows: bool(rows[-1]),
        write=True,
        key=made.key,
    )
