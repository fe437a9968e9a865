"""Operations on traces: how much of a run's history a sink was given. Pure, no I/O.

A sink is a receiver of traces, such as an OpenTelemetry collector. What each crash leaves behind:

    events, segment not ended   the next segment's end marks the trace due; it has all since `n`
    marked, not taken           due: any process with this sink takes it
    taken, not given            due again when the reservation is over
    given, not noted            given again: the same spans with the same ids
    noted                       done; if it was marked meanwhile (a negative `change`), due again
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from perdure.commands.events import Change, EventRow, to_event
from perdure.errors import UNREADABLE
from perdure.journal import Op, Rows, Statement, row_as, write_op
from perdure.journal.names import random_number
from perdure.serde import places
from perdure.serde.serializer import Serializer
from perdure.types import Event


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


class Unexported(NamedTuple):
    """The events of a run that a sink has not been given yet."""

    trace: Trace
    events: list[Event]


def mark(made: Change, sinks: Iterable[str]) -> list[Statement]:
    """Statements for the batch that ends a segment: its trace is due at each of these sinks."""
    return [
        Statement("trace_segment", {**made.params, "sink": sink, "empty": b""}) for sink in sinks
    ]


def take(serializer: Serializer, sink: str, now: int, until: int, count: int) -> Op[list[Trace]]:
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
        place = places.of_trace(row.thread_id, row.run_id, sink, row.n)
        with contextlib.suppress(*UNREADABLE):  # then it is given from its beginning again
            opened = serializer.loads(row.body, place, dict)
    return Trace(row.thread_id, row.run_id, sink, row.n, opened, change)


def unexported(serializer: Serializer, traces: Sequence[Trace], count: int) -> Op[list[Unexported]]:
    """The next `count` events of each of these runs that its sink was not given."""
    statements = []
    for one in traces:
        place = {"thread_id": one.thread_id, "id": one.run_id, "count": count, "names": None}
        after = 0 if one.open is None else one.n
        statements.append(Statement("events_after", {**place, "after": after}))

    def result(rows: Rows) -> list[Unexported]:
        return [
            Unexported(trace, [to_event(serializer, row_as(EventRow, row)) for row in events])
            for trace, events in zip(traces, rows, strict=True)
        ]

    return Op("unexported", statements, result)


def note(
    serializer: Serializer,
    trace: Trace,
    n: int,
    opened: dict[str, Any],
    now: int,
    *,
    more: bool,
) -> Op[None]:
    """Note that a sink has the events up to `n`. With `more` it is due again at once."""
    place = places.of_trace(trace.thread_id, trace.run_id, trace.sink, n)
    params = {
        **trace.params,
        "was": trace.n,
        "n": n,
        "body": serializer.dumps(opened, place, "the trace", own=True),
        "now": now,
        "more": int(more),
    }
    return write_op(params, "note_trace")


def delay(trace: Trace, due_at: int) -> Op[None]:
    """Try again at `due_at` what could not be given."""
    params = {**trace.params, "due_at": due_at}
    return write_op(params, "delay_trace")
