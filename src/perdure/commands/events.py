"""Changes of runs and their events: pure, no I/O.

Every change of a run draws a number, stores it in the row, and adds an event that carries it. The
event exists if and only if the change was made, which also settles a lost reply.
"""

from __future__ import annotations

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
    Row,
    Rows,
    Statement,
    first_as,
    read_op,
    row_as,
)
from perdure.journal.names import random_number
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds, moment
from perdure.types import Actor, Event, EventKind

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
        data = data or {}
        if serializer.redacts:
            data = redacted_data(serializer, data)
        body = dump_event(
            serializer, self.number, self.now, [kind], data, self.thread_id, self.run_id
        )
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
    said = {"by": actor_name(by), "via": via, "from": address}
    return {name: text for name, text in said.items() if text}


def was_made(thread_id: str, run_id: str, number: int | None) -> Plan[bool]:
    """Whether the change of this number was made. A newly drawn number cannot have been."""
    if number is None:
        return False
    params = {"thread_id": thread_id, "id": run_id, "change": number}
    found: bool = yield read_op("find_event", params, lambda rows: bool(rows[0]))
    if found:
        yield CONFIRM
    return found


def events(
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

    def result(rows: Rows) -> Event | None:
        row = first_as(EventRow)(rows)
        return None if row is None else to_event(serializer, row)

    params = {"thread_id": thread_id, "id": run_id, "events": before}
    return read_op("last_decision", params, result)


def is_end(event: Event) -> bool:
    """Whether a run rests after this event until somebody decides that it goes on."""
    if event.kind == EventKind.FAILED:
        return "retry_at" not in event.data
    return event.kind in (EventKind.DONE, EventKind.CANCELLED, EventKind.PAUSED, EventKind.HELD)


def is_input(step: Mapping[str, Any]) -> bool:
    """Whether the event of a step only says that a run has its input: no node has run."""
    return step.get("source") == "input" or (step.get("step") == 0 and not step.get("nodes"))


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
    return serializer.dumps(stored, places.of_event(number, at), own=True)


def redacted_data(serializer: Serializer, data: Mapping[str, Any]) -> Mapping[str, Any]:
    """The data of an event as it is stored, and as observers get it."""
    return serializer.redacted_values(data, IDENTITY)


def load_event(serializer: Serializer, row: EventRow) -> dict[str, Any]:
    """The data of an event. Raises `Damaged` if it is another run's, or of another kind."""
    place = places.of_event(row.change, row.at)
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
    ops = [_write("forget_losses", [Statement("forget_losses", {"before": now - LOSSES_KEPT})])]
    for loss in error.losses:
        params: dict[str, Any] = {
            "thread_id": loss.thread_id,
            "run_id": loss.run_id or "",
            "what": loss.what,
        }
        params |= {"acknowledged_at": milliseconds(loss.acknowledged_at), "now": now}
        statements = [Statement("insert_loss", {**params, "reason": error.why})]
        if loss.run_id is not None:
            made = change(loss.thread_id, loss.run_id, now)
            statements.append(Statement("count_note", {**made.params, "name": None, "about": None}))
            statements.append(made.event(serializer, EventKind.REWOUND, {"reason": error.why}))
        ops.append(_write("insert_loss", statements))
    return ops


def _write(name: str, statements: Sequence[Statement]) -> Op[None]:
    return Op(name, statements, lambda rows: None, write=True)


def losses() -> Op[list[Loss]]:
    """What was lost in the last 30 days, the last changes first."""
    return read_op("losses", {"id": None, "count": MOST_LOSSES}, lambda rows: _losses(rows[0]))


def loss_of_run(run_id: str) -> Op[Loss | None]:
    """What was lost of a run."""
    params = {"id": run_id, "count": 1}
    return read_op("losses", params, lambda rows: next(iter(_losses(rows[0])), None))


def _losses(rows: Iterable[Row]) -> list[Loss]:
    return [
        Loss(str(thread_id), str(run_id) or None, str(what), moment(at), moment(noticed_at))
        for thread_id, run_id, what, at, noticed_at in rows
    ]
