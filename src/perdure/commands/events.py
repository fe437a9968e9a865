"""Changes of runs and their events: pure, no I/O.

Every change of a run draws a number, stores it in the row, and adds an event that carries it. The
event exists if and only if the change was made, which also settles a lost reply.

A sink is a receiver of traces, such as an OpenTelemetry collector: a trace is how much of a run's
history it was given. What each crash leaves behind:

    events, segment not ended   the next segment's end marks the trace due; it has all since `n`
    marked, not taken           due: any process with this sink takes it
    taken, not given            due again when the reservation is over
    given, not noted            given again: the same spans with the same ids
    noted                       done; if it was marked meanwhile (a negative `change`), due again
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from perdure.errors import UNREADABLE, Damaged, Loss, WentBack
from perdure.journal import (
    CONFIRM,
    EventStatement,
    Op,
    Plan,
    Rows,
    Statement,
    no_result,
    read_op,
    read_together,
    row_as,
    with_params,
    write_op,
)
from perdure.journal.names import random_number
from perdure.serde.encryption import Place
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import Actor, Event, EventKind, State

IDENTITY = frozenset(
    {"wait", "kind", "name", "runs", "step", "source", "checkpoint", "nodes", "ns", "by", "effects"}
    | {"key", "state", "how", "effect", "worker", "graph", "version", "run", "thread", "parent"}
    | {"lost", "removed", "added", "caught_in", "prompts", "about", "task", "signal", "schedule"}
    | {"undone", "kept", "unknown", "call", "action", "via", "from", "to", "silent"}
)
"""What an event says about ids, keys, names and people: never redacted."""

SEGMENT_ENDS = frozenset(
    {EventKind.WAITING, EventKind.POSTPONED, EventKind.FAILED, EventKind.HELD, EventKind.RELEASED}
    | {EventKind.CANCELLED, EventKind.PAUSED, EventKind.UPDATED, EventKind.DONE}
)
"""Events that end a segment. Some of them also happen between two segments."""

LOSSES_KEPT = 30 * 24 * 3_600_000
"""Milliseconds for which a loss is listed."""

MOST_LOSSES = 1_000
"""Maximum number of losses that a diagnosis lists."""


class EventRow(NamedTuple):
    """An event as it is stored."""

    thread_id: str
    run_id: str
    n: int
    at: int
    kind: str
    change: int
    body: bytes


@dataclass(frozen=True, slots=True)
class Change:
    """One change of one run: what its statements share."""

    thread_id: str
    run_id: str
    now: int
    number: int
    params: dict[str, Any]
    """The same, by the names that statements have for them."""

    def event(
        self,
        serializer: Serializer,
        kind: EventKind,
        data: Mapping[str, Any] | None = None,
    ) -> Statement:
        """The statement that stores the event of this change."""
        data = redacted_data(serializer, data or {}) if serializer.redacts else data or {}
        body = self.body(serializer, [kind], data)
        params = {**self.params, "kind": kind.value, "state": None, "body": body}
        return EventStatement("insert_event", params, data)

    def body(
        self,
        serializer: Serializer,
        kinds: Iterable[EventKind],
        data: Mapping[str, Any] | None = None,
    ) -> bytes:
        """The body of the event, whose kind is one of `kinds`: SQL may decide which."""
        return dump_event(
            serializer, self.number, self.now, kinds, data, self.thread_id, self.run_id
        )

    @property
    def key(self) -> Statement:
        """Finds the event if the change was made."""
        return Statement("find_event", self.params)

    def op(
        self, name: str, statements: Sequence[Statement], decider: int, key: Statement | None = None
    ) -> Op[bool]:
        """The operation that makes this change. Its result is whether the statement at `decider`
        made it; after a lost reply, whether the `key` finds it, which is the event by default."""
        return Op(
            name,
            statements,
            lambda rows: bool(rows[decider] if len(rows) > 1 else rows[0]),
            write=True,
            key=key or self.key,
        )


def change(thread_id: str, run_id: str, now: int, number: int | None = None) -> Change:
    """A new change of a run."""
    number = random_number() if number is None else number
    params = {"thread_id": thread_id, "id": run_id, "now": now, "change": number}
    return Change(thread_id, run_id, now, number, params)


def actor_name(by: str | None) -> str | None:
    """The name of the person who decides, as a column holds it."""
    return str(by) if by else None


def actor_data(by: str | None) -> dict[str, str]:
    """The fields of a decision's event about the person: `by`, `via` and `from`."""
    via, address = (by.via, by.address) if isinstance(by, Actor) else (None, None)
    details = {"by": actor_name(by), "via": via, "from": address}
    return {name: text for name, text in details.items() if text}


def was_made(thread_id: str, run_id: str, number: int | None) -> Plan[bool]:
    """Whether the change of this number was made. A newly drawn number cannot have been."""
    if number is None:
        return False
    params = {"thread_id": thread_id, "id": run_id, "change": number}
    found: bool = yield read_op("find_event", params, lambda rows: bool(rows[0]))
    if found:
        yield CONFIRM
    return found


def events_of(
    serializer: Serializer,
    thread_id: str,
    run_id: str,
    after: int,
    count: int,
    *,
    kinds: Iterable[EventKind] | None = None,
) -> Op[list[Event]]:
    """The events of a run after number `after`, or only those of these kinds."""
    params = {"thread_id": thread_id, "id": run_id, "after": after, "count": count}
    params["names"] = None if kinds is None else json.dumps(sorted(kinds))
    return read_op(
        "events_after",
        params,
        lambda rows: [to_event(serializer, row_as(EventRow, row)) for row in rows[0]],
    )


def last_decision(
    serializer: Serializer, thread_id: str, run_id: str, before: int
) -> Op[Event | None]:
    """The event before number `before` that last decided whether a run goes on."""
    params = {"thread_id": thread_id, "id": run_id, "events": before}
    return read_op(
        "last_decision",
        params,
        lambda rows: next((to_event(serializer, row_as(EventRow, row)) for row in rows[0]), None),
    )


def is_end(event: Event) -> bool:
    """Whether a run rests after this event until somebody decides that it goes on."""
    if event.kind == EventKind.FAILED:
        return "retry_at" not in event.data
    return event.kind in (EventKind.DONE, EventKind.CANCELLED, EventKind.PAUSED, EventKind.HELD)


def is_input(step: Mapping[str, Any]) -> bool:
    """Whether the event of a step only says that a run has its input: no node has run."""
    return step.get("source") == "input" or (step.get("step") == 0 and not step.get("nodes"))


def _place(change: int, at: int) -> Place:
    """SQL decides which runs have an event, and its kind: what may be is in the blob."""
    return Place(f"event {change}", (at,))


def dump_event(
    serializer: Serializer,
    number: int,
    at: int,
    kinds: Iterable[EventKind],
    data: Mapping[str, Any] | None,
    thread_id: str | None = None,
    run_id: str | None = None,
) -> bytes:
    """The body of an event: its data, and what its row may be, as far as that is known before SQL
    decides. A claim's event goes to the runs that are due, a takeover's to the runs of a thread."""
    data = dict(data or {})
    if serializer.redacts:
        data = dict(redacted_data(serializer, data))
    stored = [data, thread_id, run_id, [*map(str, kinds)]]
    return serializer.dumps(stored, _place(number, at), own=True)


def redacted_data(serializer: Serializer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data of an event as it is stored, and as observers get it."""
    return serializer.redacted_values(data, IDENTITY)


def load_event(serializer: Serializer, row: EventRow) -> dict[str, Any]:
    """The data of an event. Raises `Damaged` if it is another run's, or of another kind."""
    place = _place(row.change, row.at)
    stored = serializer.loads(row.body, place, (dict, list))
    if isinstance(stored, dict):  # from before events were bound to their runs
        return stored
    match stored:
        case [dict() as data, thread_id, run_id, list() as kinds] if (
            thread_id in (None, row.thread_id)
            and run_id in (None, row.run_id)
            and row.kind in kinds
        ):
            return data
    raise Damaged(place.name, f"it is not of run {row.run_id}, or was not of kind {row.kind!r}")


def to_event(serializer: Serializer, row: EventRow) -> Event:
    """An event as its users see it. One that cannot be read has `damaged`."""
    try:
        return Event(row.n, moment(row.at), row.kind, load_event(serializer, row))
    except UNREADABLE as error:
        return Event(row.n, moment(row.at), row.kind, {}, str(error))


# -- acknowledged changes that the database lost: stored by the process that missed them


def store_losses(serializer: Serializer, error: WentBack, now: int) -> list[Op[None]]:
    """Store what is missing, and say so in the history of each run that is left."""
    ops = [write_op({"before": now - LOSSES_KEPT}, "delete_old_losses")]
    for loss in error.losses:
        params = {
            "thread_id": loss.thread_id,
            "run_id": loss.run_id or "",
            "what": loss.what,
            "acknowledged_at": milliseconds(loss.acknowledged_at),
            "now": now,
            "reason": error.why,
        }
        statements = [Statement("insert_loss", params)]
        if loss.run_id is not None:
            made = change(loss.thread_id, loss.run_id, now)
            note = {**made.params, "name": None, "about": None}
            statements.append(Statement("record_note", note))
            statements.append(made.event(serializer, EventKind.REWOUND, {"reason": error.why}))
        ops.append(Op("insert_loss", statements, no_result, write=True))
    return ops


def losses(run_id: str | None = None, count: int = MOST_LOSSES) -> Op[list[Loss]]:
    """What was lost in the last 30 days, of all runs or of one, the last changes first."""
    return read_op(
        "losses",
        {"id": run_id, "count": count},
        lambda rows: [
            Loss(str(thread_id), str(run_id) or None, str(what), moment(at), moment(noticed_at))
            for thread_id, run_id, what, at, noticed_at in rows[0]
        ],
    )


# -- what a change of a run means to others


def parent_cancelled(run_id: str) -> str:
    """Why a child is cancelled."""
    return f"its parent, run {run_id}, was cancelled"


WAKE_JOINERS = ("lock_joiners", "wake_joiners")
"""The statements that wake the runs that wait for one of a thread, for a batch that ends some."""


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


# -- traces


class TraceRow(NamedTuple):
    """A trace as it is stored."""

    thread_id: str
    run_id: str
    n: int
    body: bytes


class Trace(NamedTuple):
    """A trace that was taken for a sink."""

    thread_id: str
    run_id: str
    sink: str
    n: int
    """The number of the last event that the sink was given."""
    open: dict[str, Any] | None
    """What is open at the sink. None: the sink is given the trace from its beginning."""
    change: int
    """The number its row has until the trace is marked due, or taken, again."""

    @property
    def params(self) -> dict[str, Any]:
        own = {"thread_id": self.thread_id, "run_id": self.run_id, "sink": self.sink}
        return own | {"change": self.change}


def trace_place(thread_id: str, run_id: str, sink: str, n: int) -> Place:
    """Where what is open at a sink belongs."""
    return Place(f"trace of run {run_id} for {sink}", (thread_id, n))


def take_traces(
    serializer: Serializer, sink: str, now: int, until: int, count: int
) -> Op[list[Trace]]:
    """Take traces that are due. Unless they are noted or delayed, they are due again at `until`."""
    params = {"sink": sink, "now": now, "until": until, "count": count}
    params["change"] = change = random_number()

    def result(rows: Rows) -> list[Trace]:
        return [_taken(serializer, sink, change, row_as(TraceRow, row)) for row in rows[0]]

    key = Statement("taken_traces", params)
    return Op("take_traces", [Statement("take_traces", params)], result, write=True, key=key)


def _taken(serializer: Serializer, sink: str, change: int, row: TraceRow) -> Trace:
    opened = None
    if row.n:
        place = trace_place(row.thread_id, row.run_id, sink, row.n)
        with contextlib.suppress(*UNREADABLE):  # then it is given from its beginning again
            opened = serializer.loads(row.body, place, dict)
    return Trace(row.thread_id, row.run_id, sink, row.n, opened, change)


def unexported(
    serializer: Serializer, traces: Sequence[Trace], count: int
) -> Op[list[list[Event]]]:
    """The next `count` events of each of these runs that its sink was not given."""
    every = (
        events_of(serializer, one.thread_id, one.run_id, 0 if one.open is None else one.n, count)
        for one in traces
    )
    return read_together("unexported", *every)


def note_trace(
    serializer: Serializer,
    trace: Trace,
    n: int,
    opened: dict[str, Any],
    now: int,
    *,
    more: bool,
) -> Op[None]:
    """Note that a sink has the events up to `n`. With `more` it is due again at once."""
    place = trace_place(trace.thread_id, trace.run_id, trace.sink, n)
    params = {
        **trace.params,
        "was": trace.n,
        "n": n,
        "body": serializer.dumps(opened, place, "the trace", own=True),
        "now": now,
        "more": int(more),
    }
    return write_op(params, "note_trace")


def delay_trace(trace: Trace, due_at: int) -> Op[None]:
    """Try again at `due_at` what could not be given."""
    params = {**trace.params, "due_at": due_at}
    return write_op(params, "delay_trace")
