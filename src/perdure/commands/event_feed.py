"""The events of every run as they happen, read from the journal.

Each look reads running runs, those that were running at the last look, and the newest ones, then
the new events of those that changed. A segment of an older run that starts and ends between two
looks is not seen: the history of a run, which is complete, is in its own events.
"""

from __future__ import annotations

from datetime import datetime
from itertools import islice

from perdure.commands import events, runs
from perdure.commands.runs import RunRow
from perdure.journal import Plan
from perdure.serde.serializer import Serializer
from perdure.times import milliseconds
from perdure.types import Event, State

NEWEST = 100
"""How many of the newest runs are followed."""

DRIVEN = 1000
"""How many running ones are."""

REMEMBERED = 10_000
"""Number of runs that a feed remembers, so that the events of a run that rested for long are not
repeated."""


class EventFeed:
    """The events of a journal from a moment on."""

    def __init__(self, serializer: Serializer, since: datetime) -> None:
        self._serializer, self._since = serializer, since
        self._first = milliseconds(since)
        self._seen: dict[str, int] = {}
        """How many events of each run were read; the last seen run is last."""
        self._driven: set[str] = set()

    def look(self) -> Plan[list[tuple[RunRow, Event]]]:
        """What is new, run by run."""
        driven: list[RunRow] = yield runs.page(states=[State.RUNNING.value], count=DRIVEN)
        newest: list[RunRow] = yield runs.page(count=NEWEST)
        found = {row.id: row for row in reversed([*driven, *newest])}
        if rested := self._driven - found.keys():
            others: list[RunRow] = yield runs.find_all(rested)  # what is pruned is not among them
            found |= {row.id: row for row in others}
        self._driven = {row.id for row in driven}
        new = []
        for row in found.values():
            new += yield from self._new(row)
        for id in [*islice(self._seen, max(0, len(self._seen) - REMEMBERED))]:
            del self._seen[id]
        return new

    def _new(self, row: RunRow) -> Plan[list[tuple[RunRow, Event]]]:
        """The events of a run that are new: its row counts them."""
        is_old = row.id not in self._seen and row.updated_at < self._first
        n = row.events if is_old else self._seen.get(row.id, 0)
        new: list[tuple[RunRow, Event]] = []
        while n < row.events:
            page: list[Event] = yield events.events(
                self._serializer, row.thread_id, row.id, n, 1000
            )
            new += [(row, event) for event in page if event.at >= self._since]
            if not page:  # pruned in the meantime
                break
            n = page[-1].n
        self._seen.pop(row.id, None)
        self._seen[row.id] = n
        return new
