"""Changes of runs and their events: pure, no I/O.

Every change of a run draws a number, stores it in the row, and adds an event that carries it. The
event exists if and only if the change was made, which also settles a lost reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.journal import EventStatement, Op, Plan, Statement, read_op
from perdure.journal.ids import random_number
from perdure.serde.serializer import Serializer, where_event
from perdure.types import Event, EventKind, moment


class Change(NamedTuple):
    """One change of one run: what its statements share."""

    thread_id: str
    run_id: str
    now: int
    number: int

    @property
    def params(self) -> dict[str, Any]:
        return {
            "thread_id": self.thread_id,
            "id": self.run_id,
            "now": self.now,
            "change": self.number,
        }

    def event(
        self, serializer: Serializer, kind: EventKind, data: Mapping[str, Any] | None = None
    ) -> Statement:
        """The statement that stores the event of this change."""
        params = {**self.params, "kind": kind.value, "body": self.body(serializer, data)}
        return EventStatement("insert_event", params, data or {})

    def body(self, serializer: Serializer, data: Mapping[str, Any] | None = None) -> bytes:
        return serializer.dumps(dict(data or {}), where_event(self.number))

    @property
    def key(self) -> Statement:
        """Finds the event if the change was made."""
        return Statement("find_event", self.params)


def change(thread_id: str, run_id: str, now: int, number: int | None = None) -> Change:
    """A new change of a run."""
    return Change(thread_id, run_id, now, random_number() if number is None else number)


def was_made(thread_id: str, run_id: str, number: int | None) -> Plan[bool]:
    """Whether the change of this number was made. One that is drawn anew cannot have been."""
    if number is None:
        return False
    params = {"thread_id": thread_id, "id": run_id, "change": number}
    return bool((yield read_op("find_event", params, lambda rows: rows[0])))


def events(
    serializer: Serializer, thread_id: str, run_id: str, after: int, count: int
) -> Op[list[Event]]:
    """The events of a run after number `after`."""
    params = {"thread_id": thread_id, "id": run_id, "after": after, "count": count}
    return read_op(
        "events_after",
        params,
        lambda rows: [
            Event(n, moment(at), kind, serializer.loads(body, where_event(number)))
            for _, _, n, at, kind, number, body in rows[0]
        ],
    )
