"""Changes of runs and their events: pure, no I/O, no colour.

Every change of a run draws a number, leaves it in the row, and adds an event that carries it; the
event is there if and only if the change was made, which settles a lost reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from perdure.journal import Op, Statement
from perdure.journal.ids import random_number
from perdure.serde.serializer import Serializer, where_event
from perdure.types import Event, moment


class Change(NamedTuple):
    """One change of one run, and what its statements share."""

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
        self, serializer: Serializer, kind: str, data: Mapping[str, Any] | None = None
    ) -> Statement:
        """The event of this change."""
        return Statement(
            "insert_event",
            {**self.params, "kind": kind, "body": self.body(serializer, data)},
        )

    def body(self, serializer: Serializer, data: Mapping[str, Any] | None = None) -> bytes:
        return serializer.dumps(dict(data or {}), where_event(self.number))

    @property
    def key(self) -> Statement:
        return Statement("find_event", self.params)


def change(thread_id: str, run_id: str, now: int) -> Change:
    return Change(thread_id, run_id, now, random_number())


def events(
    serializer: Serializer, thread_id: str, run_id: str, after: int, count: int
) -> Op[list[Event]]:
    """The events of a run from number `after` on."""
    params = {"thread_id": thread_id, "id": run_id, "after": after, "count": count}
    return Op(
        "events",
        [Statement("events_after", params)],
        lambda rows: [
            Event(n, moment(at), kind, serializer.loads(body, where_event(number)))
            for _, _, n, at, kind, number, body in rows[0]
        ],
    )
